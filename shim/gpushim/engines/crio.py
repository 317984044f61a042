"""CRI-O: a drop-in file, or the one that somebody names, a hook's file, and what `crio status config` says.

CRI-O reads every file of its drop-in directory, whatever its name, and adds up runtimes by name; it always does CDI.
Out of scope: RuntimeClass, which gives the runtime to pods; setting what gpushim-runtime hands containers to, which
config.toml says for all engines: another one could neither stop nor remove the containers that run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from functools import partial
from typing import Any

from gpushim.config import policy
from gpushim.engines import hooksd
from gpushim.engines.processes import ask, monitors, programs, running
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings import dropin, records, undo
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import Options, Plan, check_entry, is_ours, stays
from gpushim.engines.settings.text import Text, Toml
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote

PROGRAM = "crio"
CONFIG, DIRECTORY = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
FILE = "99-gpushim.toml"
HOOKS = hooksd.DIRECTORY
STATUS_SECONDS = 20
SHOWN = 8  # containers
RUNTIMES = ("crio", "runtime", "runtimes")
DEFAULT = ("crio", "runtime", "default_runtime")
KNOWN = ("runc", "crun")  # what gpushim-runtime was tried with
# Settings of the default runtime that another runtime needs too.
_SHARED = ("runtime_root", "monitor_path", "monitor_cgroup", "monitor_env", "allowed_annotations")
# Of these, texts that CRI-O checks at each start, against its other settings and what is installed.
_FOLLOWED = ("monitor_path", "monitor_cgroup")


def plan(options: Options) -> Plan:
    """Work out what to change in CRI-O's settings.

    Raises:
        GpushimError: the file cannot be read, understood or safely changed.
    """
    engine, notes = (None, []) if options.files_only else running.reading(PROGRAM, "", CONFIG)
    main, folder = places(engine)
    path = options.config or (f"{folder}/{FILE}" if folder else main)
    known, read = settings(engine), [each for each in (main, folder) if each]
    if options.remove:
        changes = ENGINE.removal(read, [path, *([] if options.config else records.led(main, [path]))])
    else:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", options.name):
            raise GpushimError(f"{quote(options.name)} cannot be the name of a runtime in CRI-O; choose another")
        changes = [replace(_change(options, path, known), main="" if options.config else main)]
        notes += _hints(known)
    hook = _hook_changes(options, known, engine)
    if options.config:
        hook, notes = [], notes + stays(change.path for change in hook if change.new != change.old)
    changes += hook
    if options.hook and changes[-1].new != changes[-1].old and os.path.dirname(changes[-1].path) == HOOKS:
        notes.append(f"Podman reads {HOOKS} too, so its containers get the hook as well")
    if options.cdi:
        notes.append("CRI-O always does CDI: there is nothing to turn on")
    check = partial(_check_removal, options, read, [change for change in changes if change not in hook])
    return Plan(path, changes, notes, engine, check=check if options.remove else lambda: None)


def _check_removal(options: Options, read: list[str], changes: list[Change]) -> None:
    """Refuse to take back what CRI-O needs: to start, or to end containers.

    Raises:
        GpushimError: it is the default runtime of others' settings, or the handler of containers that are there.
    """
    ENGINE.check_left(read, changes)
    goes = not options.force and any(change.new != change.old for change in changes)
    used = monitors.calling(is_ours) if goes else []
    if used:
        shown = ", ".join(identity[:12] for identity in used[:SHOWN])
        more = f" and {len(used) - SHOWN} more" if len(used) > SHOWN else ""
        raise GpushimError(
            f"CRI-O could neither stop nor remove containers that run under gpushim's handler: {shown}{more}; end "
            "their pods, then try again"
        )


def places(engine: Engine | None) -> tuple[str, str]:
    """Return the file of settings that CRI-O reads, and the directory or "", as this process opens them.

    Without an engine, these are the usual places.
    """
    main, folder = CONFIG, DIRECTORY
    if engine:
        main = engine.config or engine.environ.get("CONTAINER_CONFIG") or CONFIG
        given = engine.option("--config-dir", "-d") or [engine.environ.get("CONTAINER_CONFIG_DIR", DIRECTORY)]
        main, folder = engine.seen(main), engine.seen(given[-1]) if given[-1] else ""
    return main, folder


def programs_of(known: dict[str, Any]) -> dict[str, str]:
    """Return the program of each runtime in CRI-O's settings, by name; "" where they name none."""
    runtimes = dropin.table(known, *RUNTIMES)
    return {name: str(dropin.table(runtimes, name).get("runtime_path") or "") for name in runtimes}


def settings(engine: Engine | None) -> dict[str, Any]:
    """Return what the files of a CRI-O say; without an engine, those in the usual places."""
    return dropin.merged([path for path in places(engine) if path])


def hook_directories(known: dict[str, Any]) -> list[str]:
    """List the directories that CRI-O takes hooks from; the files of the last win."""
    named = dropin.table(known, *DEFAULT[:-1]).get("hooks_dir")
    return (
        [str(each) for each in named if str(each).startswith("/")] if isinstance(named, list) and named else [HOOKS]
    )


def otherwise(known: dict[str, Any], names: list[str], config: str) -> tuple[str, str]:
    """Compare CRI-O's default runtime with the one that gpushim-runtime hands containers to.

    Args:
        known: CRI-O's settings.
        names: `low-level` under [runtime] of config.toml.
        config: path of config.toml.

    Returns:
        the difference, and how to remove it; "" twice where there is none, or where the settings name no default
        runtime, or one that gpushim-runtime cannot hand containers to.

    Raises:
        GpushimError: `names` lead to nothing.
    """
    table = dropin.table(known, *DEFAULT[:-1])
    name = str(table.get("default_runtime", ""))
    entry = dropin.table(table, "runtimes", name)
    given = str(entry.get("runtime_path") or name)
    mine = policy.low_level(names)
    try:
        program = policy.low_level([given]) if given and not is_ours(given) else ""
    except GpushimError:
        program = ""
    if os.path.basename(program) not in KNOWN or os.path.realpath(program) == os.path.realpath(mine):
        return "", ""
    root = f" (its containers are in {entry['runtime_root']})" if entry.get("runtime_root") else ""
    return (
        f"CRI-O's default runtime is {program}{root}, and gpushim-runtime hands containers to {mine}",
        f"once no container of gpushim-runtime runs, set {shlex.quote(f'low-level = {json.dumps([program])}')} under "
        f"[runtime] in {shlex.quote(config)}; then gpushim refresh",
    )


def verify(options: Options, found: Plan) -> list[str]:
    """Ask CRI-O whether it has what is wished; return a sentence for each thing that is missing."""
    # Before version 1.26 this was a separate program.
    for name, *words in ((PROGRAM, "status", "config"), ("crio-status", "config")):
        program = programs.find(name)
        answer = ask.program([program, *words], STATUS_SECONDS) if program else None
        if answer and answer.code == 0:
            return _missing(options, Toml.parse(answer.out.encode(), "the answer of CRI-O"))
    return ["CRI-O does not answer `crio status config`; see its journal"]


def _missing(options: Options, text: Text) -> list[str]:
    has = is_ours(text.get((*RUNTIMES, options.name, "runtime_path")))
    if options.remove:
        return [f"CRI-O still has the runtime {options.name}"] if has else []
    missing = [] if has else [f"CRI-O does not have the runtime {options.name}"]
    if options.default and text.get(DEFAULT) != options.name:
        missing.append(f"the default runtime is {text.get(DEFAULT)}; a later file of CRI-O's may set it")
    return missing


def _hints(known: dict[str, Any]) -> list[str]:
    config = system.config_path()
    try:
        advice = otherwise(known, policy.load(config)["runtime"]["low-level"], config)
    except GpushimError as error:
        return [str(error)]
    return ["; to hand them to that: ".join(advice)] if advice[0] else []


def _change(options: Options, path: str, known: dict[str, Any]) -> Change:
    runtimes = dropin.table(known, *RUNTIMES)
    if options.config:
        runtimes = {**runtimes, **dropin.table(dropin.merged([path]), *RUNTIMES)}
    now = dropin.table(runtimes, options.name).get("runtime_path")
    check_entry(path, options.name, now, is_ours(now), options.force)
    like = dropin.table(runtimes, str(dropin.table(known, *DEFAULT[:-1]).get("default_runtime")))
    entry = {"runtime_path": options.program, "runtime_type": "oci"}
    entry.update({key: like[key] for key in _SHARED if like.get(key)})
    settings: dict[tuple[str, ...], Any] = {(*RUNTIMES, options.name, "runtime_path"): options.program}
    if now is not None and not is_ours(now):
        settings = {(*RUNTIMES, options.name): entry}
    elif now is not None and like:  # one that is there may be as it was before the default's was changed
        mine = dropin.table(runtimes, options.name)
        both = {key: (str(like.get(key) or ""), mine.get(key) or "") for key in _FOLLOWED}
        settings.update({(*RUNTIMES, options.name, key): its for key, (its, own) in both.items() if its != own})
    if options.default:
        settings[DEFAULT] = options.name
    return dropin.put(KIND, path, settings, {(*RUNTIMES, options.name): entry})


def _hook_changes(options: Options, known: dict[str, Any], engine: Engine | None) -> list[Change]:
    folders = hook_directories(known)
    seen = [engine.seen(f"{folder}/{hooksd.FILE}") if engine else f"{folder}/{hooksd.FILE}" for folder in folders]
    if options.remove:  # from wherever it was put before hooks_dir was changed, too
        usual = f"{HOOKS}/{hooksd.FILE}"
        return [hooksd.change(path, PROGRAM, "") for path in dict.fromkeys([*seen, usual])]
    return [hooksd.change(seen[-1], PROGRAM, options.hook)] if options.hook and seen else []


def _ours(entry: object) -> bool:
    return isinstance(entry, dict) and is_ours(entry.get("runtime_path"))


KIND = undo.Kind(Toml, _ours, RUNTIMES, DEFAULT, comment=dropin.HEADER.format(engine="crio"), others=frozenset(KNOWN))
ENGINE = dropin.Engine("CRI-O", KIND)
