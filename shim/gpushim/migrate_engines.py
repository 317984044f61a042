"""Where the settings of container engines name NVIDIA's runtime or hook, and which command puts gpushim there.

Out of scope: changing them, which `gpushim configure` does.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from typing import Any, Callable

from gpushim.engines import files, running, tomltext
from gpushim.engines.docker import dockerd
from gpushim.errors import GpushimError
from gpushim.migrate import Row

RUNTIME = "nvidia-container-runtime"  # also with .cdi and .legacy behind it
HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
CONTAINERD = ("/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml")
CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
HOOK_FILES = ("/usr/share/containers/oci/hooks.d/*.json", "/etc/containers/oci/hooks.d/*.json")
_KEPT = (files.BEFORE, files.AFTER)


def rows(root: str = "") -> list[Row]:
    """List what engines have of NVIDIA's.

    Args:
        root: directory to look below, for tests; "" for this host and the engines that run on it.

    Returns:
        rows whose `key` is a file and the place in it, and whose `becomes` is a command.
    """
    engines = [] if root else running.find()
    found: list[Row] = []
    found += _read(_files(root, (dockerd.SYSTEM_CONFIG,), "dockerd", engines), _json, _docker)
    found += _read(_files(root, CONTAINERD, "containerd", engines), _toml, _containerd)
    found += _read(_files(root, CRIO, "crio", engines), _toml, _crio)
    found += _read(_files(root, HOOK_FILES, "", engines), _json, _hook)
    return found


def _files(root: str, patterns: tuple[str, ...], name: str, engines: list[running.Engine]) -> list[str]:
    paths = [path for pattern in patterns for path in sorted(glob.glob(root + pattern))]
    paths += [engine.seen(engine.config) for engine in engines if engine.name == name and engine.config]
    paths = [path for path in paths if os.path.exists(path) and not path.endswith(_KEPT)]
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def _read(
    paths: list[str],
    parse: Callable[[bytes, str], Any],
    look: Callable[[dict[str, Any]], Iterator[tuple[str, str, str]]],
) -> list[Row]:
    found: list[Row] = []
    for path in paths:
        try:
            data = parse(files.read(path) or b"", path)
            hits = list(look(data)) if isinstance(data, dict) else []
        except GpushimError as error:
            found.append(Row(path, None, f"cannot be looked at: {error}"))
            continue
        found += [Row(f"{path}: {place}", value, command) for place, value, command in hits]
    return found


def _json(data: bytes, path: str) -> Any:
    try:
        return json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise GpushimError(f"{path} is not JSON: {error}") from None


def _toml(data: bytes, path: str) -> Any:
    return tomltext.get(tomltext.parse(data, path), ())


def _is_theirs(program: object) -> bool:
    name = os.path.basename(program) if isinstance(program, str) else ""
    return name == RUNTIME or name.startswith(RUNTIME + ".")


def _table(owner: Any, *names: str) -> dict[str, Any]:
    """Return a table within tables; an empty one for what is not there or no table."""
    for name in names:
        owner = owner.get(name) if isinstance(owner, dict) else None
    return owner if isinstance(owner, dict) else {}


def _command(engine: str, name: str, default: bool, cdi: bool = False) -> str:
    named = "" if name == "nvidia" else f" --runtime-name {name}"
    more = (" --set-as-default" if default else "") + (" --cdi" if cdi else "")
    return f"gpushim configure {engine}{named}{more} --force"


def _docker(data: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    cdi = _table(data, "features").get("cdi") is True
    for name in _table(data, "runtimes"):
        program = _table(data, "runtimes", name).get("path")
        if _is_theirs(program):
            command = _command("docker", name, data.get("default-runtime") == name, cdi)
            yield f"runtimes.{name}.path", str(program), command


def _containerd(data: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for plugin in _table(data, "plugins"):
        table = _table(data, "plugins", plugin)
        cri = _table(table, "containerd")
        for name in _table(cri, "runtimes"):
            program = _table(cri, "runtimes", name, "options").get("BinaryName")
            if _is_theirs(program):
                default = cri.get("default_runtime_name") == name
                command = _command("containerd", name, default, table.get("enable_cdi") is True)
                yield f"{plugin}.containerd.runtimes.{name}.options.BinaryName", str(program), command


def _crio(data: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    runtime = _table(data, "crio", "runtime")
    for name in _table(runtime, "runtimes"):
        program = _table(runtime, "runtimes", name).get("runtime_path")
        if _is_theirs(program):
            command = _command("crio", name, runtime.get("default_runtime") == name)
            yield f"crio.runtime.runtimes.{name}.runtime_path", str(program), command


def _hook(data: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    program = _table(data, "hook").get("path", data.get("hook"))
    if isinstance(program, str) and os.path.basename(program) in HOOKS:
        command = "remove this file, then gpushim configure podman (--hooks for containers without gpushim-runtime)"
        yield "hook.path", program, command
