"""Docker: daemon.json, and what dockerd itself says (GET /info of its API, as `docker info` does).

dockerd takes a setting from the file or from its command line, and does not start where both have it; so those are
refused. `dockerd --validate` says since version 23 whether it would start with a file, but does not look at all of
it: what gpushim touches is looked at here. Out of scope: what dockerd looks at only as it starts; what `docker run
--gpus` needs beside the file (on_path.py).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from typing import Any

from gpushim.engines.docker import dockerd, on_path
from gpushim.engines.docker.dockerd import PROGRAM, added, program_of
from gpushim.engines.processes import ask, programs, running
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings import files, records, undo
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import (
    HOOK,
    Link,
    Options,
    Plan,
    check_entry,
    executes_ours,
    installed,
    is_ours,
    stays,
)
from gpushim.engines.settings.text import Json
from gpushim.ground.errors import GpushimError, quote

CDI_SINCE = (25, 0)  # the first version that does CDI
VERSION_SECONDS = 5.0  # of one that is there, for a note
# Runtimes that dockerd has by itself: runc, shims by their type, and from version 23 on shims by their path.
STOCK = re.compile(r"runc|io\.containerd\.[^/]+|/.+")
_TYPES: dict[str, tuple[type, str]] = {
    "runtimes": (dict, "an object"),
    "features": (dict, "an object"),
    "default-runtime": (str, "a string"),
}
# Settings of ours, and the options of dockerd that exclude them.
_FLAGS = {"runtimes": "--add-runtime", "default-runtime": "--default-runtime", "features": "--feature"}


def plan(options: Options) -> Plan:
    """Work out what to change in daemon.json.

    Raises:
        GpushimError: the file cannot be read, understood or safely changed.
    """
    default = dockerd.default_config()
    engine, notes = (None, []) if options.files_only else running.reading(PROGRAM, options.config, default)
    path = options.config or dockerd.config(engine)
    change = undo.take_out(replace(KIND, others=frozenset(added(engine))), path)
    # The names on PATH are this host's dockerd's, not those of a file that somebody named.
    links: list[Link] = []
    if options.remove:
        links = on_path.made()
        if options.config:
            links, notes = [], notes + stays(link.path for link in links)
    else:
        _check_flags(options, engine)
        change = replace(change, new=_configured(options, path, change.old), before=change.new)
        if wrong := _wrong_of(options, path, change.new, engine):
            raise GpushimError(f"{wrong}; dockerd would not start with that, so correct it first")
        if engine and engine.root and not os.path.exists(engine.root + options.program):
            notes.append(f"{PROGRAM} (process {engine.pid}) has a root of its own, where {options.program} is not")
        version = _version(path, engine) if engine else ""
        if options.cdi and () < on_path.number(version) < CDI_SINCE:
            raise GpushimError(
                f"Docker {version} does not do CDI, which needs version 25; omit --cdi, and give containers "
                f"their GPUs with docker run --runtime={options.name}"
            )
        if not options.config:
            links, problem = on_path.expected(engine, installed(HOOK), version)
            notes += [*problem, *(on_path.version_notes(version) if links or problem else [])]
    check = partial(_check_left, options, change, engine) if options.remove else lambda: None
    return Plan(path, [change], notes, engine, links, check=check)


def verify(options: Options, found: Plan) -> list[str]:
    """Ask dockerd whether it has what is wished; return a sentence for each thing that is missing."""
    engine, entries = found.engine, dockerd.entries(dockerd.setting(found.config, "runtimes"))
    where = dockerd.socket(engine, found.config)
    try:
        info = dockerd.info(engine, found.config, patience=dockerd.SECONDS if engine else 0.0)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        if engine:
            return [f"dockerd does not answer on {where}: {error}; see its log"]
        here = is_ours(program_of(entries.get(options.name)))
        return [
            f"no dockerd runs, so only {found.config} was looked at, which {'has' if here else 'does not have'} the "
            f"runtime {options.name}; start dockerd, then try again"
        ]
    except (OSError, ValueError) as error:
        return [f"dockerd does not answer on {where}: {error}; see its log"]
    has = executes_ours(dockerd.loaded(info, entries).get(options.name, ""), engine)
    default = info.get("DefaultRuntime")
    left = options.name in added(engine) or executes_ours(program_of(entries.get(options.name)), engine)
    if options.remove:
        still = [f"{found.config} still has the runtime {options.name}"] if left else []
        return [f"dockerd still has the runtime {options.name}", *still] if has else still
    missing = []
    asked = programs.find(PROGRAM, engine)
    if problem := wrong(files.read(found.config), found.config, asked, tuple(added(engine))):
        missing.append(f"{problem}; dockerd would not start again with that")
    elif has and not left:
        missing.append(
            f"{found.config} does not have the runtime {options.name}, which dockerd loses when it starts again"
        )
    if not has:
        missing.append(
            f"dockerd {info.get('ServerVersion')} does not have the runtime {options.name} of {found.config}"
        )
    if options.default and default != options.name:
        missing.append(f"the default runtime is {default}")
    return missing + (_without_cdi(info) if options.cdi else [])


def _without_cdi(info: dict[str, Any]) -> list[str]:
    """Say why containers get nothing by CDI; nothing if they do."""
    if not info.get("CDISpecDirs"):
        return [f"dockerd {info.get('ServerVersion')} does not do CDI, which needs version 25"]
    if not any("nvidia.com/" in str(each) for each in info.get("DiscoveredDevices") or ["nvidia.com/"]):
        return [f"dockerd finds no nvidia.com CDI device in {', '.join(info['CDISpecDirs'])}: `gpushim refresh`"]
    return []


def _version(path: str, engine: Engine) -> str:
    """Return the version of the dockerd that runs; "" if it does not tell."""
    try:
        info = dockerd.info(engine, path, VERSION_SECONDS)
    except (OSError, ValueError):
        return ""
    return str(info.get("ServerVersion") or "")


def _configured(options: Options, path: str, old: bytes | None) -> bytes:
    text = Json.parse(old or b"", path)
    if options.name == "runc" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", options.name):
        raise GpushimError(f"{quote(options.name)} cannot be the name of a runtime in Docker; choose another")
    if problem := _mistyped(text.get()):
        raise GpushimError(f"{path}: {problem}; correct it first")
    entry = text.get(("runtimes", options.name))
    ours = is_ours(program_of(entry))
    if entry:
        other = str(entry.get("path") or entry.get("runtimeType"))
        check_entry(path, options.name, other, ours, options.force)
    if ours:
        member = ("path",) if entry.get("path") else ("options", "BinaryName")
        text = text.put(("runtimes", options.name, *member), options.program)
    else:
        text = text.put(("runtimes", options.name), {"path": options.program})
    if options.default:
        text = text.put(("default-runtime",), options.name)
    if options.cdi:
        text = text.put(("features", "cdi"), True)
    return text.encode()


KIND = undo.Kind(
    Json,
    lambda entry: is_ours(program_of(entry)),
    ("runtimes",),
    ("default-runtime",),
    lambda text, names: [undo.Setting(("features", "cdi"))],
)


def _check_flags(options: Options, engine: Engine | None) -> None:
    expected = {"runtimes": True, "default-runtime": options.default, "features": options.cdi}
    for key, flag in _FLAGS.items():
        if engine and expected[key] and engine.option(flag):
            raise GpushimError(
                f"dockerd (process {engine.pid}) was started with {flag} and would not start with {key} in its "
                f"settings as well; move that option into {engine.config or dockerd.SYSTEM_CONFIG} first"
            )


def _check_left(options: Options, change: Change, engine: Engine | None) -> None:
    """Refuse to leave what dockerd would not start with, unless it is as it was before, or no better now."""
    problem = "" if change.new == records.before(change.path) else _wrong_of(options, change.path, change.new, engine)
    if problem and not _wrong_of(options, change.path, change.old, engine):
        raise GpushimError(
            f"{problem}; dockerd would not start with what is left without gpushim, so correct it first"
        )


def _wrong_of(options: Options, path: str, content: bytes | None, engine: Engine | None) -> str:
    # Which dockerd is to read a file that somebody named is not known, if none runs with it.
    asked = programs.find(PROGRAM, engine) if engine or not options.config else ""
    return "" if content is None else wrong(content, path, asked, tuple(added(engine)))


def wrong(content: bytes | None, path: str, asked: str, more: tuple[str, ...] = ()) -> str:
    """Say why dockerd would not start with a daemon.json; "" if it would, as far as can be told.

    Args:
        content: of the file; None if there is none.
        path: of the file, for the sentence.
        asked: path of the dockerd that may be asked: the one that runs, or would be started; "" for none.
        more: runtimes that dockerd has by its command line.
    """
    try:
        settings = Json.parse(content or b"", path).get()
    except GpushimError as error:
        return str(error)
    problem = _mistyped(settings) or _unknown_default(settings, more) or _refused(content or b"", asked)
    return f"{path}: {problem}" if problem else ""


def _mistyped(settings: dict[str, Any]) -> str:
    """Say, as a clause, which setting that gpushim touches has the wrong type; "" if none."""
    for key, value in settings.items():
        # Go matches keys in any case, but dockerd then does not know the key.
        if key not in _TYPES and key.lower() in _TYPES:
            return f"{quote(key)} is written {key.lower()}"
        if key in _TYPES and value is not None and not isinstance(value, _TYPES[key][0]):
            return f"{key} is not {_TYPES[key][1]}"
    for name, entry in (settings.get("runtimes") or {}).items():
        if name == "runc":
            return "the name runc under runtimes is Docker's own"
        if entry is not None and not isinstance(entry, dict):
            return f"runtimes.{name} is not an object"
        if not isinstance((entry or {}).get("path") or "", str):
            return f"runtimes.{name}.path is not a string"
    for name, value in (settings.get("features") or {}).items():
        if value is not None and not isinstance(value, bool):
            return f"features.{name} is neither true nor false"
    return ""


def _unknown_default(settings: dict[str, Any], more: tuple[str, ...]) -> str:
    default = settings.get("default-runtime")
    if not default or STOCK.fullmatch(default) or default in (*(settings.get("runtimes") or {}), *more):
        return ""
    return f"there is no runtime {quote(default)}, which is the default-runtime"


def _refused(content: bytes, asked: str) -> str:
    if not asked:
        return ""
    # The same bytes that were judged here, whatever the file becomes in the meantime.
    command = [asked, "--validate", "--config-file", "/dev/stdin"]
    answer = ask.program(command, feed=content)
    last_line = (answer.error.strip().splitlines() or [""])[-1]
    if answer.code == 0 or "configure the Docker daemon" not in last_line:  # before 23 it does not know the option
        return ""
    return f"dockerd says: {last_line.rpartition('/dev/stdin: ')[2][:300]}"
