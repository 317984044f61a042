"""Podman: a drop-in file of containers.conf, a file for its hooks directory, and what `podman info` says.

Podman has no daemon: it reads its settings at each call. The hook's file is written only on demand: Podman calls that
hook for every container, whatever its runtime. The low-level runtime does not know what the hook adds to a container;
with the runtime, or CDI, all of it stands in config.json.
Out of scope: CDI, which Podman does by itself once specs exist.
"""

from __future__ import annotations

import json
import os
import re
from functools import partial
from typing import Any

from gpushim.engines import hooksd
from gpushim.engines.processes import ask, programs
from gpushim.engines.settings import files, own, toml
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import Options, Plan, check_entry, is_ours, stays
from gpushim.ground.errors import GpushimError, quote

FILE = "99-gpushim.conf"
RUNTIMES, DEFAULT = ("engine", "runtimes"), ("engine", "runtime")
SYSTEM_DIRECTORIES = ("/usr/share/containers", "/etc/containers")
HOOKS = hooksd.DIRECTORY
# Runtimes that it knows places of (containers.conf(5)).
STOCK = frozenset(("crun", "crun-vm", "crun-wasm", "kata", "krun", "ocijail", "runc", "runj", "runsc", "youki"))
PROGRAM = "podman"
INFO_SECONDS = 60


def plan(options: Options) -> Plan:
    """Work out what to change in Podman's settings.

    Raises:
        GpushimError: a file cannot be read, understood or safely changed.
    """
    path = options.config or default_config()
    notes = ["Podman does CDI by itself: `gpushim refresh` writes the spec"] if options.cdi else []
    hook_path = f"{_hooks_dir(path)}/{hooksd.FILE}"
    read = [*_read_by_podman(path), path]
    if options.remove:
        changes, hook = own.plan_removal(path), hooksd.change(hook_path, PROGRAM, "")
        if not options.config:
            changes.append(hook)
        elif hook.new != hook.old:
            notes = stays([hook.path])
    else:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", options.name):
            raise GpushimError(f"{quote(options.name)} cannot be the name of a runtime in Podman; choose another")
        changes = [_change(options, path), *own.plan_removal(path)[1:]]
        if options.hook and not options.config:
            changes.append(hooksd.change(hook_path, PROGRAM, options.hook))
    check = partial(own.check_left, "Podman", read, list(changes), DEFAULT, STOCK) if options.remove else lambda: None
    return Plan(path, changes, notes, check=check)


def default_config() -> str:
    """Return the file that Podman is to read: the one of CONTAINERS_CONF, which replaces all others, or a drop-in."""
    path = os.environ.get("CONTAINERS_CONF")
    if path:
        return os.path.abspath(path)
    return f"{_own_directory()}/containers.conf.d/{FILE}"


def settings(top: str = "") -> dict[str, Any]:
    """Return the table [engine] of this user's Podman; `top` is what stands before the host's directories."""
    folders = [f"{top}{folder}" for folder in SYSTEM_DIRECTORIES]
    if os.geteuid() and not top:
        folders.append(os.path.dirname(os.path.dirname(default_config())))
    config = "" if top else os.environ.get("CONTAINERS_CONF", "")
    return toml.table(toml.merged([*_files(folders), *([config] if config else [])]), "engine")


def verify(options: Options, planned: Plan) -> list[str]:
    """Ask Podman whether it has what is wished; return a sentence for each thing that is missing."""
    program = programs.find(PROGRAM)
    if not program:
        return [programs.absent(PROGRAM)]
    runtime = [] if options.default and not options.remove else [f"--runtime={options.name}"]
    command = [program, *runtime, "info", "--format={{json .Host.OCIRuntime}}"]
    variables = {"PATH": programs.path(), **({"CONTAINERS_CONF": options.config} if options.config else {})}
    answer = ask.program(command, INFO_SECONDS, whole=True, more=variables)
    if answer.code is None:
        return [answer.error]
    try:
        info = json.loads(answer.out) if answer.code == 0 else {}
    except ValueError:
        info = {}
    has = isinstance(info, dict) and is_ours(info.get("path"))
    if options.remove:
        return [f"Podman still has the runtime {options.name}"] if has else []
    if has:
        return []
    reason = (answer.error.strip().splitlines() or [f"its runtime is {answer.out.strip()[:200]}"])[-1]
    return [f"Podman does not take the runtime {options.name} of {planned.file}: {reason}"]


def _own_directory() -> str:
    if os.geteuid() == 0:
        return SYSTEM_DIRECTORIES[-1]
    return f"{os.environ.get('XDG_CONFIG_HOME') or os.path.expanduser('~/.config')}/containers"


def _change(options: Options, path: str) -> Change:
    content = files.read(path)
    own_table = toml.table(own.data(path, content), "engine")
    read = [] if options.config or os.environ.get("CONTAINERS_CONF") else _read_by_podman(path)
    paths = toml.table(toml.merged(read, {path: None}), *RUNTIMES).get(options.name)
    check_entry(path, options.name, paths, _ours(paths), options.force)
    runtimes = {name: paths for name, paths in toml.table(own_table, "runtimes").items() if _ours(paths)}
    runtimes[options.name] = [options.program]
    default = options.name if options.default else own_table.get("runtime")
    settings = {**({"runtime": default} if default in runtimes else {}), "runtimes": runtimes}
    return own.plan_content(path, PROGRAM, {"engine": settings})


def _ours(paths: object) -> bool:
    return isinstance(paths, list) and any(is_ours(path) for path in paths)


def _read_by_podman(path: str) -> list[str]:
    """List the files and directories that Podman reads, in its order (containers.conf(5)); `path` is ours."""
    return _files(list(dict.fromkeys([*SYSTEM_DIRECTORIES, os.path.dirname(os.path.dirname(path))])))


def _files(folders: list[str]) -> list[str]:
    return [f"{folder}/containers.conf{suffix}" for folder in folders for suffix in ("", ".d")]


def _hooks_dir(path: str) -> str:
    """Return the last of the directories that Podman takes hooks from, whose files win."""
    dirs = toml.table(toml.merged([*_read_by_podman(path), path]), "engine").get("hooks_dir") or [HOOKS]
    return str(dirs[-1]) if isinstance(dirs, list) and str(dirs[-1]).startswith("/") else HOOKS
