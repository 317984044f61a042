"""Where the settings of container engines name NVIDIA's runtime or hook, and which command puts gpushim there.

Out of scope: changing them, which `gpushim configure` does.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from typing import Any

from gpushim.engines import crio, hooksd
from gpushim.engines.containerd.process import SYSTEM_CONFIG
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import running
from gpushim.engines.settings import files, toml
from gpushim.engines.settings.toml import table
from gpushim.ground.errors import GpushimError
from gpushim.nvidia.migrate.migrate import Row
from gpushim.oci.edits import OTHER_HOOKS

RUNTIME = "nvidia-container-runtime"  # also with .cdi and .legacy behind it
CONTAINERD = (SYSTEM_CONFIG, f"{os.path.dirname(SYSTEM_CONFIG)}/conf.d/*.toml")
HOOK_FILES = tuple(f"{folder}/*.json" for folder in hooksd.DIRECTORIES)
_SAVED = (files.BEFORE, ".after-gpushim")
_Found = Iterator[tuple[str, object, str]]  # a place in a file, what stands there, a command


def rows(root: str = "") -> list[Row]:
    """List what engines have of NVIDIA's; below another directory than / it looks at no running engine.

    Returns:
        rows whose `key` is a file and the place in it, and whose `becomes` is a command.
    """
    engines = [] if root else running.find()
    found: list[Row] = []
    for process, patterns, parse, look in (
        ("dockerd", (dockerd.SYSTEM_CONFIG,), _json, _docker),
        ("containerd", CONTAINERD, _toml, _containerd),
        ("crio", (crio.CONFIG, f"{crio.DIRECTORY}/*"), _toml, _crio),
        ("", HOOK_FILES, _json, _hook),
    ):
        for path in _files(root, patterns, process, engines):
            try:
                data = parse(files.read(path) or b"", path)
                hits = list(look(data if isinstance(data, dict) else {}))
            except GpushimError as error:
                found.append(Row(path, None, f"cannot be looked at: {error}"))
            else:
                found += [Row(f"{path}: {place}", value, command) for place, value, command in hits]
    return found


def is_nvidias(program: object) -> bool:
    """Say whether a path is that of NVIDIA's runtime, by its name."""
    name = os.path.basename(program) if isinstance(program, str) else ""
    return name == RUNTIME or name.startswith(RUNTIME + ".")


def _files(root: str, patterns: tuple[str, ...], process: str, engines: list[running.Engine]) -> list[str]:
    paths = [path for pattern in patterns for path in sorted(glob.glob(root + pattern))]
    paths += [engine.seen(engine.config) for engine in engines if engine.name == process and engine.config]
    paths = [path for path in paths if os.path.exists(path) and not path.endswith(_SAVED)]
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def _json(data: bytes, path: str) -> Any:
    try:
        return json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise GpushimError(f"{path} is not JSON: {error}") from None


def _toml(data: bytes, path: str) -> Any:
    return toml.parse(data, path)


def _docker(data: dict[str, Any]) -> _Found:
    cdi = table(data, "features").get("cdi") is True
    default = data.get("default-runtime")
    return _runtimes("docker", "runtimes", table(data, "runtimes"), ("path",), default, cdi)


def _containerd(data: dict[str, Any]) -> _Found:
    for plugin in table(data, "plugins"):
        owner = table(data, "plugins", plugin)
        cri = table(owner, "containerd")
        cdi, default = owner.get("enable_cdi") is True, cri.get("default_runtime_name")
        place = f"{plugin}.containerd.runtimes"
        yield from _runtimes("containerd", place, table(cri, "runtimes"), ("options", "BinaryName"), default, cdi)


def _crio(data: dict[str, Any]) -> _Found:
    owner = table(data, "crio", "runtime")
    place, default = "crio.runtime.runtimes", owner.get("default_runtime")
    return _runtimes("crio", place, table(owner, "runtimes"), ("runtime_path",), default, False)


def _runtimes(
    engine: str, place: str, runtimes: dict[str, Any], keys: tuple[str, ...], default: object, cdi: bool
) -> _Found:
    """Find NVIDIA's runtime among those of an engine.

    Args:
        engine: as `gpushim configure` calls it.
        place: of `runtimes` in the file.
        runtimes: tables by the name of the runtime.
        keys: where a table names its program.
        default: name of the engine's default runtime.
        cdi: whether the engine injects CDI devices.
    """
    for name in runtimes:
        program = table(runtimes, name, *keys[:-1]).get(keys[-1])
        if is_nvidias(program):
            options = "" if name == "nvidia" else f" --runtime-name {name}"
            options += (" --set-as-default" if default == name else "") + (" --cdi" if cdi else "")
            yield ".".join((place, name, *keys)), program, f"gpushim configure {engine}{options} --force"


def _hook(data: dict[str, Any]) -> _Found:
    program = hooksd.named(data)
    if os.path.basename(program) in OTHER_HOOKS:
        command = "remove this file, then gpushim configure podman (--hooks for containers without gpushim-runtime)"
        yield "hook.path", program, command
