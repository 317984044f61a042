"""CRI-O: a drop-in file of gpushim's own, a hook's file, and what `crio status config` says.

CRI-O reads every file of its drop-in directory, whatever its name, and adds up runtimes by name; it always does CDI.
Out of scope: RuntimeClass, which gives the runtime to pods; setting what gpushim-runtime hands containers to, which
config.toml says for all engines: another one could neither stop nor remove the containers that run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from gpushim.config import policy
from gpushim.engines import handlers, hooksd
from gpushim.engines.processes import ask, programs, running
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings import files, own, toml
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import Options, Plan, check_entry, is_ours, stays
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

PROGRAM = "crio"
CONFIG, DIRECTORY = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
FILE = "99-gpushim.toml"
HOOKS = hooksd.DIRECTORY
STATUS_SECONDS = 20
TABLE = handlers.TABLE
DEFAULT = (*TABLE, "default_runtime")
# Settings of the default runtime that another runtime needs too.
_SHARED = ("runtime_root", "monitor_path", "monitor_cgroup", "monitor_env", "allowed_annotations")


def plan(options: Options) -> Plan:
    """Work out what to change in CRI-O's settings.

    Raises:
        GpushimError: the file cannot be read, understood or safely changed.
    """
    engine, notes = (None, []) if options.files_only else running.reading(PROGRAM, "", CONFIG)
    main, folder = config_paths(engine)
    path = options.config or f"{folder or DIRECTORY}/{FILE}"
    data, read = settings(engine), [path_read for path_read in (main, folder) if path_read]
    earlier = [] if options.config else [main, f"{DIRECTORY}/{FILE}"]
    plan_changes = partial(_meant, options, path, earlier, toml.merged(read, {path: None}))
    changes = plan_changes([] if options.remove or options.only_needed else None)
    needed_handlers = partial(
        handlers.needed, read, changes if not options.force else [], _storage(engine, data), bool(engine)
    )
    used = needed_handlers() if options.only_needed else {}
    if used:
        changes = plan_changes([*used])
    if not folder and not options.config and not options.remove:
        raise GpushimError(f"CRI-O reads no directory of settings; start it with --config-dir={DIRECTORY}")
    if not options.remove:
        notes += _hints(data)
    hook = _hook_changes(options, data, engine)
    if options.config:
        hook, notes = [], notes + stays(change.path for change in hook if change.new != change.old)
    changes += hook
    if options.hook and changes[-1].new != changes[-1].old and os.path.dirname(changes[-1].path) == HOOKS:
        notes.append(f"Podman reads {HOOKS} too, so its containers get the hook as well")
    if options.cdi:
        notes.append("CRI-O always does CDI: there is nothing to turn on")
    file_changes = [change for change in changes if change not in hook]
    check = partial(_check_removal, read, file_changes, dict if options.only_needed else needed_handlers)
    return Plan(
        path,
        changes,
        notes,
        engine,
        stays=handlers.stays(used),
        check=check if options.remove else lambda: None,
    )


def _meant(
    options: Options, path: str, earlier: list[str], other_data: dict[str, Any], stays: Collection[str] | None
) -> list[Change]:
    """Return the changes of settings.

    Args:
        options: what is wished.
        path: of gpushim's own file.
        earlier: files that an earlier gpushim may have written into.
        other_data: what all files say but that.
        stays: handlers of gpushim's that are left, "" for the default; None for all.
    """
    content = files.read(path)
    own_table = toml.table(own.data(path, content), *TABLE) if own.is_own(content) or not options.remove else {}
    default = own_table.get("default_runtime") if stays is None or "" in stays else None
    programs = {
        name: program
        for name, program in programs_of({"crio": {"runtime": own_table}}).items()
        if is_ours(program) and (stays is None or name in stays or name == default)
    }
    if not options.remove:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", options.name):
            raise GpushimError(f"{quote(options.name)} cannot be the name of a runtime in CRI-O; choose another")
        program = programs_of(other_data).get(options.name)
        check_entry(path, options.name, program, is_ours(program), options.force)
        programs[options.name] = options.program
        default = options.name if options.default else default
    removed = [change for file in dict.fromkeys([path, *earlier]) for change in own.plan_removal(file)]
    if not programs:
        return removed
    table = toml.table(other_data, *TABLE)
    like = toml.table(table, "runtimes", str(table.get("default_runtime")))
    shared = {key: like[key] for key in _SHARED if like.get(key)}
    entries = {
        name: {"runtime_path": runtime_program, "runtime_type": "oci", **shared}
        for name, runtime_program in programs.items()
    }
    settings = {**({"default_runtime": default} if default in programs else {}), "runtimes": entries}
    return [own.plan_content(path, PROGRAM, {"crio": {"runtime": settings}}), *removed[1:]]


def _storage(engine: Engine | None, data: dict[str, Any]) -> str:
    """Return where a CRI-O, or else one with these settings, keeps its containers, as this process opens it."""
    values = [*engine.option("--root", "-r")[-1:], engine.environ.get("CONTAINER_ROOT")] if engine else []
    shared = engine.environ.get("CONTAINERS_STORAGE_CONF") if engine else None  # alone, even if it is not there
    paths = handlers.STORAGE if shared is None else [shared] if shared else []
    from_here = engine.host_path if engine else str
    return from_here(handlers.root([*values, toml.table(data, "crio").get("root")], [*map(from_here, paths)]))


def _check_removal(read: list[str], changes: list[Change], find_needed: Callable[[], dict[str, list[str]]]) -> None:
    """Refuse to take back what CRI-O needs: to start, or to end containers and remove them.

    Raises:
        GpushimError: it is the default runtime of others' settings, or the handler of containers that are there.
    """
    own.check_left("CRI-O", read, changes, DEFAULT, handlers.STOCK)
    if used := find_needed():
        raise GpushimError(f"{handlers.why(used)}; delete these pods, then try again")


def config_paths(engine: Engine | None) -> tuple[str, str]:
    """Return the file of settings that CRI-O reads, and the directory or "", as this process opens them.

    Without an engine, these are the usual places.
    """
    main, folder = CONFIG, DIRECTORY
    if engine:
        main = engine.config or engine.environ.get("CONTAINER_CONFIG") or CONFIG
        folders = engine.option("--config-dir", "-d") or [engine.environ.get("CONTAINER_CONFIG_DIR", DIRECTORY)]
        main, folder = engine.host_path(main), engine.host_path(folders[-1]) if folders[-1] else ""
    return main, folder


def programs_of(data: dict[str, Any]) -> dict[str, str]:
    """Return the program of each runtime in CRI-O's settings, by name; "" where they name none."""
    runtimes = toml.table(data, *TABLE, "runtimes")
    return {name: str(toml.table(runtimes, name).get("runtime_path") or "") for name in runtimes}


def settings(engine: Engine | None) -> dict[str, Any]:
    """Return what the files of a CRI-O say; without an engine, those in the usual places."""
    return toml.merged([path for path in config_paths(engine) if path])


def hook_directories(data: dict[str, Any]) -> list[str]:
    """List the directories that CRI-O takes hooks from; the files of the last win."""
    directories = toml.table(data, *TABLE).get("hooks_dir")
    return (
        [str(directory) for directory in directories if str(directory).startswith("/")]
        if isinstance(directories, list) and directories
        else [HOOKS]
    )


def otherwise(data: dict[str, Any], names: list[str], config: str) -> tuple[str, str]:
    """Compare CRI-O's default runtime with the one that gpushim-runtime hands containers to.

    Args:
        names: `low-level` under [runtime] of config.toml.

    Returns:
        the difference, and how to remove it; "" twice where there is none, or where the settings name no default
        runtime, or one that gpushim-runtime cannot hand containers to.

    Raises:
        GpushimError: `names` lead to nothing.
    """
    table = toml.table(data, *TABLE)
    name = str(table.get("default_runtime", ""))
    entry = toml.table(table, "runtimes", name)
    runtime = str(entry.get("runtime_path") or name)
    own_low = policy.low_level(names)
    try:
        program = policy.low_level([runtime]) if runtime and not is_ours(runtime) else ""
    except GpushimError:
        program = ""
    if os.path.basename(program) not in handlers.STOCK or os.path.realpath(program) == os.path.realpath(own_low):
        return "", ""
    root = f" (its containers are in {entry['runtime_root']})" if entry.get("runtime_root") else ""
    return (
        f"CRI-O's default runtime is {program}{root}, and gpushim-runtime hands containers to {own_low}",
        f"once no container of gpushim-runtime runs, set {shlex.quote(f'low-level = {json.dumps([program])}')} under "
        f"[runtime] in {shlex.quote(config)}; then gpushim refresh",
    )


def verify(options: Options, planned: Plan) -> list[str]:
    """Ask CRI-O whether it has what is wished; return a sentence for each thing that is missing."""
    # Before version 1.26 this was a separate program.
    for name, *words in ((PROGRAM, "status", "config"), ("crio-status", "config")):
        program = programs.find(name)
        answer = ask.program([program, *words], STATUS_SECONDS) if program else None
        if answer and answer.code == 0:
            return _missing(
                options,
                {*programs_of(settings(planned.engine))},
                toml.table(toml.parse(answer.out.encode(), "the answer of CRI-O"), *TABLE),
            )
    return ["CRI-O does not answer `crio status config`; see its journal"]


def _missing(options: Options, files: set[str], table: dict[str, Any]) -> list[str]:
    """Compare what CRI-O has with what is wished; `files` are the names of the runtimes that it would have, anew."""
    has = {name for name, program in programs_of({"crio": {"runtime": table}}).items() if is_ours(program)}
    over = has - files if options.only_needed else has & {options.name} if options.remove else set()
    missing = [f"CRI-O still has the runtime {name}" for name in sorted(over)]
    if options.remove:
        return missing
    missing += [] if options.name in has else [f"CRI-O does not have the runtime {options.name}"]
    if options.default and table.get(DEFAULT[-1]) != options.name:
        missing.append(f"the default runtime is {table.get(DEFAULT[-1])}; a later file of CRI-O's may set it")
    return missing


def _hints(data: dict[str, Any]) -> list[str]:
    config = system.config_path()
    try:
        advice = otherwise(data, policy.load(config)["runtime"]["low-level"], config)
    except GpushimError as error:
        return [str(error)]
    return ["; to hand them to that: ".join(advice)] if advice[0] else []


def _hook_changes(options: Options, data: dict[str, Any], engine: Engine | None) -> list[Change]:
    folders = hook_directories(data)
    paths = [
        engine.host_path(f"{folder}/{hooksd.FILE}") if engine else f"{folder}/{hooksd.FILE}" for folder in folders
    ]
    if options.remove:  # from wherever it was put before hooks_dir was changed, too
        usual = f"{HOOKS}/{hooksd.FILE}"
        return [hooksd.change(path, PROGRAM, "") for path in dict.fromkeys([*paths, usual])]
    return [hooksd.change(paths[-1], PROGRAM, options.hook)] if options.hook and paths else []
