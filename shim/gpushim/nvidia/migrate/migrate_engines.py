"""Find NVIDIA's runtime and hook in the settings of container engines, with the command that replaces them.

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
from gpushim.engines.docker import daemon_json, dockerd
from gpushim.engines.processes import running
from gpushim.engines.settings import files, toml
from gpushim.ground.errors import GpushimError
from gpushim.nvidia.migrate.migrate import Row
from gpushim.oci.edits import OTHER_HOOKS

RUNTIME = "nvidia-container-runtime"  # also with .cdi and .legacy behind it
CONTAINERD = (SYSTEM_CONFIG, f"{os.path.dirname(SYSTEM_CONFIG)}/conf.d/*.toml")
HOOK_FILES = tuple(f"{folder}/*.json" for folder in hooksd.DIRECTORIES)
_DEFAULTS = ("default-runtime", "default_runtime", "default_runtime_name")  # beside `runtimes`


def find_rows(root: str = "") -> list[Row]:
    """Return where engines' settings name NVIDIA's programs; below another root than /, running engines are ignored.

    Returns:
        rows whose `key` is a file and the location in it, and whose `becomes` is a command.
    """
    engines = [] if root else running.find()
    rows: list[Row] = []
    for engine, process, patterns, parse in (
        ("docker", "dockerd", (dockerd.SYSTEM_CONFIG,), daemon_json.parse),
        ("containerd", "containerd", CONTAINERD, toml.parse),
        ("crio", "crio", (crio.CONFIG, f"{crio.DIRECTORY}/*"), toml.parse),
        ("", "", HOOK_FILES, _parse_json),
    ):
        for path in _list_files(root, patterns, process, engines):
            try:
                data = parse(files.read(path) or b"", path)
            except GpushimError as error:
                rows.append(Row(path, None, f"cannot be looked at: {error}"))
            else:
                rows += [
                    Row(f"{path}: {location}", program, command)
                    for location, program, command in (_find_runtimes(engine, data) if engine else _find_hook(data))
                ]
    return rows


def is_nvidia_runtime(program: object) -> bool:
    """Return whether the name of a path is that of NVIDIA's runtime."""
    name = os.path.basename(program) if isinstance(program, str) else ""
    return name == RUNTIME or name.startswith(RUNTIME + ".")


def _list_files(root: str, patterns: tuple[str, ...], process: str, engines: list[running.Engine]) -> list[str]:
    paths = [path for pattern in patterns for path in sorted(glob.glob(root + pattern))]
    paths += [engine.host_path(engine.config) for engine in engines if engine.name == process and engine.config]
    paths = [path for path in paths if os.path.exists(path)]
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def _parse_json(data: bytes, path: str) -> dict[str, Any]:
    try:
        parsed = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise GpushimError(f"{path} is not JSON: {error}") from None
    return parsed if isinstance(parsed, dict) else {}


def _find_runtimes(
    engine: str, data: dict[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, object, str]]:
    """Find NVIDIA's runtimes in a table of settings, and in the tables within it.

    Yields:
        the location of a runtime, its program, and the command that replaces it by gpushim.
    """
    for name in toml.table(data, "runtimes"):
        values = [toml.table(data, "runtimes", name), toml.table(data, "runtimes", name, "options")]
        program = next((value for table in values for value in table.values() if is_nvidia_runtime(value)), None)
        if program:
            options = "" if name == "nvidia" else f" --runtime-name {name}"
            options += " --set-as-default" if name in [data.get(key) for key in _DEFAULTS] else ""
            yield ".".join((*above, "runtimes", name)), program, f"gpushim configure {engine}{options} --force"
    for name, inner in data.items():
        if isinstance(inner, dict):
            yield from _find_runtimes(engine, inner, (*above, name))


def _find_hook(data: dict[str, Any]) -> Iterator[tuple[str, object, str]]:
    program = hooksd.named(data)
    if os.path.basename(program) in OTHER_HOOKS:
        command = "remove this file, then gpushim configure podman (--hooks for containers without gpushim-runtime)"
        yield "hook.path", program, command
