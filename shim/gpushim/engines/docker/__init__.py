"""Docker: daemon.json, and what dockerd itself says (GET /info of its API).

dockerd takes a setting from the file or from its command line, and does not start where both have it; so those are
refused. `dockerd --validate` says since version 23 whether it would start with a file, but does not look at all of
it: what gpushim touches is looked at here. Out of scope: what dockerd looks at only as it starts; what `docker run
--gpus` needs beside the file (dockerd.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from gpushim.engines.docker import daemon_json, dockerd
from gpushim.engines.docker.dockerd import PROGRAM, added
from gpushim.engines.processes import programs, running
from gpushim.engines.settings import files, former
from gpushim.engines.settings.files import BEFORE, EDITED, Change
from gpushim.engines.settings.setup import (
    HOOK,
    Options,
    Plan,
    check_entry,
    executes_ours,
    installed,
    is_ours,
    leads_to_ours,
    stays,
)
from gpushim.ground.errors import GpushimError, quote

if TYPE_CHECKING:
    from gpushim.engines.processes.running import Engine

CDI_SINCE = (25, 0)  # the first version that does CDI
# Settings of ours, and the options of dockerd that exclude them.
_FLAGS = {"runtimes": "--add-runtime", "default-runtime": "--default-runtime", "features": "--feature"}


def plan(options: Options) -> Plan:
    """Return what to change in daemon.json.

    Raises:
        GpushimError: the file cannot be read, understood or safely changed.
    """
    default = dockerd.default_config()
    engine, notes = (None, []) if options.files_only else running.reading(PROGRAM, options.config, default)
    path = options.config or dockerd.config(engine)
    if options.remove:
        changes, names = plan_removal(path, engine)
        changes += former.after(path)
        # The names on PATH are this host's dockerd's, not those of a file that somebody named.
        links = dockerd.own_links()
        if options.config:
            links, notes = [], notes + stays(link.path for link in links)
        records = [change.path for change in changes[1:]]
        by_hand = daemon_json.by_hand(path, names, changes[0].copy and path + changes[0].copy, records)
        check = partial(_check_left, options, changes[0], engine)
        return Plan(path, changes, notes, engine, links, check=check, by_hand=by_hand)
    _check_flags(options, engine)
    change = _added(options, path)
    if problem := _problem(options, path, change.new, engine):
        raise GpushimError(f"{problem}; dockerd would not start with that, so correct it first")
    if engine and engine.root and not os.path.exists(engine.root + options.program):
        notes.append(f"{PROGRAM} (process {engine.pid}) has a root of its own, where {options.program} is not")
    version = dockerd.version(engine, path)
    if options.cdi and () < dockerd.version_number(version) < CDI_SINCE:
        raise GpushimError(
            f"Docker {version} does not do CDI, which needs version 25; omit --cdi, and give containers "
            f"their GPUs with docker run --runtime={options.name}"
        )
    links, missing = ([], []) if options.config else dockerd.missing_links(engine, installed(HOOK), version)
    return Plan(path, [change], notes + missing, engine, links)


def plan_removal(path: str, engine: Engine | None) -> tuple[list[Change], list[str]]:
    """Return the changes that take gpushim's runtimes out of a daemon.json, and their names.

    A file that then says what it said before gpushim gets those bytes back, and one that gpushim made goes; the copy
    of what it said goes in any case, for edits since make it out of date. Runtimes of NVIDIA's name count too where
    gpushim has taken that name over: without gpushim there is no such program.

    Args:
        path: of the file, which need not exist.
        engine: the dockerd that reads it, if one runs.

    Returns:
        the changes, that of the file first, and the names of the runtimes.

    Raises:
        GpushimError: the file is not JSON.
    """
    old = files.read(path)
    settings = daemon_json.parse(old, path)
    names = [name for name, entry in daemon_json.entries(settings).items() if _runs_ours(entry, engine)]
    remaining = daemon_json.without_runtimes(settings, names, added(engine))
    backup, before = files.copy_path(path, BEFORE), _before(path)
    records = [] if before is None else [Change(backup, before, None)]
    if not names:
        return [Change(path, old, old), *records], []
    copy = EDITED if daemon_json.lost(settings, remaining) else ""
    if before is not None and daemon_json.is_same(daemon_json.parse(before, backup), remaining):
        return [Change(path, old, before, copy), *records], names
    is_made = not remaining and not os.path.lexists(backup) and not os.path.islink(path)
    return [Change(path, old, None if is_made else daemon_json.write(remaining, old), copy), *records], names


def _before(path: str) -> bytes | None:
    """Return the copy of a daemon.json without gpushim; None if there is none, or somebody else's by that name."""
    backup = files.copy_path(path, BEFORE)
    with contextlib.suppress(GpushimError):
        content = files.read(backup)
        daemon_json.parse(content, backup)
        return content
    return None


def _runs_ours(entry: dict[str, Any], engine: Engine | None) -> bool:
    program = daemon_json.program_of(entry)
    return is_ours(program) or leads_to_ours(dockerd.find_program(engine, program))


def _added(options: Options, path: str) -> Change:
    old = files.read(path)
    settings = daemon_json.parse(old, path)
    if options.name == "runc" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", options.name):
        raise GpushimError(f"{quote(options.name)} cannot be the name of a runtime in Docker; choose another")
    if problem := daemon_json.mistyped(settings):
        raise GpushimError(f"{path}: {problem}; correct it first")
    if entry := daemon_json.entries(settings).get(options.name):
        program = str(entry.get("path") or entry.get("runtimeType"))
        is_own = is_ours(daemon_json.program_of(entry))
        check_entry(path, options.name, program, is_own, options.force)
    new = daemon_json.add(settings, options)
    if new == settings:
        return Change(path, old, old)
    runtimes = daemon_json.entries(settings).values()
    is_without = not any(is_ours(daemon_json.program_of(runtime)) for runtime in runtimes)
    is_taken = _before(path) is None and os.path.lexists(files.copy_path(path, BEFORE))
    copy = BEFORE if is_without and not is_taken else ""
    return Change(path, old, daemon_json.write(new, old), EDITED if daemon_json.lost(settings, new) else copy)


def verify(options: Options, planned: Plan) -> list[str]:
    """Ask dockerd whether it has what is wished; return a sentence for each thing that is missing."""
    engine, content = planned.engine, files.read(planned.file)
    socket = dockerd.socket(engine, planned.file)
    entries = daemon_json.entries(daemon_json.parse(content, planned.file))
    program = daemon_json.program_of(entries.get(options.name))
    try:
        info = dockerd.info(engine, planned.file, patience=dockerd.SECONDS if engine else 0.0)
    except (OSError, ValueError) as error:
        if engine or not isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return [f"dockerd does not answer on {socket}: {error}; see its log"]
        has = "has" if is_ours(program) else "does not have"
        return [
            f"no dockerd runs, so only {planned.file} was looked at, which {has} the runtime {options.name}; start "
            "dockerd, then try again"
        ]
    is_loaded = executes_ours(dockerd.loaded(info, entries).get(options.name, ""), engine)
    default = info.get("DefaultRuntime")
    is_in_settings = options.name in added(engine) or executes_ours(program, engine)
    if options.remove:
        still = [f"{planned.file} still has the runtime {options.name}"] if is_in_settings else []
        return [f"dockerd still has the runtime {options.name}", *still] if is_loaded else still
    missing = []
    validator = programs.find(PROGRAM, engine)
    if problem := wrong(content, planned.file, validator, tuple(added(engine))):
        missing.append(f"{problem}; dockerd would not start again with that")
    elif is_loaded and not is_in_settings:
        missing.append(
            f"{planned.file} does not have the runtime {options.name}, which dockerd loses when it starts again"
        )
    if not is_loaded:
        missing.append(
            f"dockerd {info.get('ServerVersion')} does not have the runtime {options.name} of {planned.file}"
        )
    if options.default and default != options.name:
        missing.append(f"the default runtime is {default}")
    return missing + (_without_cdi(info) if options.cdi else [])


def _without_cdi(info: dict[str, Any]) -> list[str]:
    """Return why containers get nothing by CDI; nothing if they do."""
    if not info.get("CDISpecDirs"):
        return [f"dockerd {info.get('ServerVersion')} does not do CDI, which needs version 25"]
    if not any("nvidia.com/" in str(device) for device in info.get("DiscoveredDevices") or ["nvidia.com/"]):
        return [f"dockerd finds no nvidia.com CDI device in {', '.join(info['CDISpecDirs'])}: `gpushim refresh`"]
    return []


def _check_flags(options: Options, engine: Engine | None) -> None:
    expected = {"runtimes": True, "default-runtime": options.default, "features": options.cdi}
    for key, flag in _FLAGS.items():
        if engine and expected[key] and engine.option(flag):
            raise GpushimError(
                f"dockerd (process {engine.pid}) was started with {flag} and would not start with {key} in its "
                f"settings as well; move that option into {engine.config or dockerd.SYSTEM_CONFIG} first"
            )


def _check_left(options: Options, change: Change, engine: Engine | None) -> None:
    """Refuse to leave what dockerd would not start with, unless it is no better now."""
    problem = _problem(options, change.path, change.new, engine)
    if problem and not _problem(options, change.path, change.old, engine):
        raise GpushimError(
            f"{problem}; dockerd would not start with what is left without gpushim, so correct it first"
        )


def _problem(options: Options, path: str, content: bytes | None, engine: Engine | None) -> str:
    # Which dockerd is to read a file that somebody named is not known, if none runs with it.
    validator = programs.find(PROGRAM, engine) if engine or not options.config else ""
    return "" if content is None else wrong(content, path, validator, tuple(added(engine)))


def wrong(content: bytes | None, path: str, validator: str, added_runtimes: tuple[str, ...] = ()) -> str:
    """Return why dockerd would not start with a daemon.json; "" if it would, as far as can be told.

    Args:
        content: of the file; None if there is none.
        path: of the file, for the sentence.
        validator: path of the dockerd that may be asked: the one that runs, or would be started; "" for none.
        added_runtimes: runtimes that dockerd has by its command line.
    """
    try:
        settings = daemon_json.parse(content, path)
    except GpushimError as error:
        return str(error)
    problem = daemon_json.mistyped(settings) or daemon_json.without_default(settings, added_runtimes)
    problem = problem or (dockerd.refusal(content or b"", validator) if validator else "")
    return f"{path}: {problem}" if problem else ""
