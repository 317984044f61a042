"""Docker: daemon.json, and what dockerd itself says (GET /info of its API, as `docker info` does).

dockerd takes a setting from the file or from its command line, and does not start where both have it; so those are
refused. Out of scope: what `docker run --gpus` needs beside them (on_path.py).
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from typing import Any

from gpushim.engines import (
    HOOK,
    Plan,
    Wish,
    files,
    installed,
    is_ours,
    jsontext,
    leads_to_ours,
    places,
    running,
    stays,
    undo,
)
from gpushim.engines.docker import daemon_json, on_path
from gpushim.engines.files import Change
from gpushim.engines.running import Engine
from gpushim.errors import GpushimError, quote

PROGRAM = "dockerd"
UNIT = "docker.service"
SYSTEM_CONFIG = "/etc/docker/daemon.json"
SNAP = "/var/snap/docker/current/config"
SNAP_CONFIG = f"{SNAP}/daemon.json"
ANSWER_SECONDS = 40.0  # a dockerd with many containers takes its time to come up
CDI_SINCE = (25, 0)  # the first version that does CDI
VERSION_SECONDS = 5.0  # of one that is there, for a note
INFO_LIMIT = 16 << 20  # bytes of an answer
# Settings of ours, and the options of dockerd that exclude them.
_FLAGS = {"runtimes": "--add-runtime", "default-runtime": "--default-runtime", "features": "--feature"}


def plan(wish: Wish) -> Plan:
    """Work out what to change in daemon.json.

    Args:
        wish: what somebody wants.

    Raises:
        GpushimError: the file cannot be read, understood or safely changed.
    """
    default = default_config()
    engine, notes = (None, []) if wish.files_only else running.reading(PROGRAM, wish.config, default)
    path = wish.config or (engine.seen(engine.config or default) if engine else default)
    old = files.read(path)
    base = undo.undone(KIND, path, old)
    # The names on PATH are this host's dockerd's, not those of a file that somebody named.
    links: list[on_path.Link] = []
    if wish.remove:
        change = Change(path, old, base.content, lost=base.lost)
        links = on_path.made()
        if wish.config:
            links, notes = [], notes + stays(link.path for link in links)
    else:
        _check_flags(wish, engine)
        change = Change(path, old, _configured(wish, path, old), before=base.content, lost=base.lost)
        _check_starts(wish, path, change.new, engine)
        if engine and engine.root and not os.path.exists(engine.root + wish.program):
            notes.append(f"{PROGRAM} (process {engine.pid}) has a root of its own, where {wish.program} is not")
        version = _version(path, engine) if engine else ""
        if wish.cdi and () < on_path.number(version) < CDI_SINCE:
            raise GpushimError(
                f"Docker {version} does not do CDI, which needs version 25; leave --cdi out, and give containers "
                f"their GPUs with docker run --runtime={wish.name}"
            )
        if not wish.config:
            links, told = on_path.wanted(engine, installed(HOOK), version)
            notes += [*told, *(on_path.said(version) if links or told else [])]
    return Plan(path, [change], notes, engine, links)


def default_config() -> str:
    """Return the daemon.json that this user's dockerd reads without --config-file.

    The snap's dockerd always has that option; its file counts where only the snap is installed.
    """
    if os.geteuid() != 0:
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        return f"{home}/docker/daemon.json"
    if os.path.isdir(SNAP) and not os.path.isdir(os.path.dirname(SYSTEM_CONFIG)):
        return SNAP_CONFIG
    return SYSTEM_CONFIG


def verify(wish: Wish, found: Plan) -> list[str]:
    """Ask dockerd whether it has what somebody wanted.

    Args:
        wish: what that is.
        found: from `plan`.

    Returns:
        a sentence for each thing that is missing.
    """
    entries = jsontext.get(jsontext.parse(files.read(found.config) or b"", found.config), ("runtimes",))
    try:
        info = _info(_socket(found), patience=ANSWER_SECONDS if found.engine else 0.0)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        if found.engine:
            return [f"dockerd does not answer on {_socket(found)}: {error}; see its log"]
        here = is_ours(program_of((entries if isinstance(entries, dict) else {}).get(wish.name)))
        return [
            f"no dockerd runs, so only {found.config} was looked at, which {'has' if here else 'does not have'} the "
            f"runtime {wish.name}; start dockerd, then do this again"
        ]
    except (OSError, ValueError, http.client.HTTPException) as error:
        return [f"dockerd does not answer on {_socket(found)}: {error}; see its log"]
    has = _executes_ours(loaded(info, entries).get(wish.name, ""), found.engine)
    default = info.get("DefaultRuntime")
    written = (entries if isinstance(entries, dict) else {}).get(wish.name)
    kept = wish.name in added(found.engine) or _executes_ours(program_of(written), found.engine)
    if wish.remove:
        still = [f"{found.config} still has the runtime {wish.name}"] if kept else []
        return [f"dockerd still has the runtime {wish.name}", *still] if has else still
    missing = []
    if told := daemon_json.wrong(
        files.read(found.config), found.config, daemon_json.program(found.engine), tuple(added(found.engine))
    ):
        missing.append(f"{told}; dockerd would not start again with that")
    elif has and not kept:
        missing.append(
            f"{found.config} does not have the runtime {wish.name}, which dockerd loses when it starts again"
        )
    if not has:
        missing.append(f"dockerd {info.get('ServerVersion')} does not have the runtime {wish.name} of {found.config}")
    if wish.default and default != wish.name:
        missing.append(f"the default runtime is {default}")
    if wish.cdi and not info.get("CDISpecDirs"):
        missing.append(f"dockerd {info.get('ServerVersion')} does not do CDI, which needs version 25")
    elif wish.cdi and not any(
        "nvidia.com/" in str(each) for each in info.get("DiscoveredDevices") or ["nvidia.com/"]
    ):
        missing.append(
            f"dockerd finds no nvidia.com CDI device in {', '.join(info['CDISpecDirs'])}: `gpushim refresh`"
        )
    return missing


def program_of(entry: object) -> str:
    """Return the program of an entry of `runtimes`: its path, or what runc's shim is to execute in runc's place.

    Args:
        entry: of daemon.json, or of what dockerd says.
    """
    options = entry.get("options") if isinstance(entry, dict) else None
    named = entry.get("path") if isinstance(entry, dict) else None
    return str(named or (options.get("BinaryName") if isinstance(options, dict) else None) or "")


def loaded(info: dict[str, Any], entries: object) -> dict[str, str]:
    """Return the program of each runtime that dockerd has loaded, "" where nothing tells it.

    Args:
        info: what dockerd says; of a runtime with a runtimeType it tells the name alone.
        entries: the runtimes of its daemon.json.
    """
    known, written = info.get("Runtimes"), entries if isinstance(entries, dict) else {}
    found = known.items() if isinstance(known, dict) else ()
    return {name: program_of(entry) or program_of(written.get(name)) for name, entry in found}


def ours(info: dict[str, Any], engine: Engine | None) -> list[str]:
    """List the names under which a dockerd has gpushim-runtime.

    Args:
        info: what it says.
        engine: the dockerd; None where it cannot be seen, and with it what its daemon.json says.
    """
    path = engine.seen(engine.config or default_config()) if engine else ""
    try:
        entries = jsontext.get(jsontext.parse(files.read(path) or b"", path), ("runtimes",)) if path else None
    except GpushimError:
        entries = None
    return [name for name, program in loaded(info, entries).items() if _executes_ours(program, engine)]


def _executes_ours(program: str, engine: Engine | None) -> bool:
    place = engine.executable(program) if engine else program
    return is_ours(program) or (place.startswith("/") and leads_to_ours(place))


def _version(path: str, engine: Engine | None) -> str:
    """Return the version of the dockerd that runs; "" if there is none, or it does not tell."""
    try:
        info = _info(_socket(Plan(path, engine=engine)), VERSION_SECONDS, 0.0) if engine else {}
    except (OSError, ValueError, http.client.HTTPException):
        return ""
    return str(info.get("ServerVersion") or "")


def _configured(wish: Wish, path: str, old: bytes | None) -> bytes:
    text = jsontext.parse(old or b"", path)
    if wish.name == "runc" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", wish.name):
        raise GpushimError(f"{quote(wish.name)} cannot be the name of a runtime in Docker; take another")
    if told := daemon_json.mistyped(jsontext.get(text, ()) or {}):
        raise GpushimError(f"{path}: {told}; correct it first")
    entry = jsontext.get(text, ("runtimes", wish.name))
    if entry and not is_ours(program_of(entry)) and not wish.force:
        other = quote(str(entry.get("path") or entry.get("runtimeType")))
        raise GpushimError(
            f"{path}: the runtime {wish.name} is {other}; take another --runtime-name, or replace it with --force, "
            "which --remove undoes"
        )
    if entry and is_ours(program_of(entry)):
        if program_of(entry) != wish.program:
            member = ("path",) if entry.get("path") else ("options", "BinaryName")
            text = jsontext.put(text, ("runtimes", wish.name, *member), wish.program)
    else:
        text = jsontext.put(text, ("runtimes", wish.name), {"path": wish.program})
    if wish.default and jsontext.get(text, ("default-runtime",)) != wish.name:
        text = jsontext.put(text, ("default-runtime",), wish.name)
    if wish.cdi and jsontext.get(text, ("features", "cdi")) is not True:
        text = jsontext.put(text, ("features", "cdi"), True)
    return text.encode()


def _settings(text: str) -> list[undo.Setting]:
    """List the settings that may be ours: every runtime that is gpushim-runtime, and what follows from it."""
    runtimes = jsontext.get(text, ("runtimes",))
    entries = runtimes.items() if isinstance(runtimes, dict) else ()
    names = [name for name, entry in entries if is_ours(program_of(entry))]
    default = jsontext.get(text, ("default-runtime",))
    return [
        *(undo.Setting(("runtimes", name), certain=True) for name in names),
        undo.Setting(("default-runtime",), certain=default in names),
        undo.Setting(("features", "cdi")),
    ]


KIND = undo.Kind(jsontext, _settings)


def _check_flags(wish: Wish, engine: Engine | None) -> None:
    wanted = {"runtimes": True, "default-runtime": wish.default, "features": wish.cdi}
    for key, flag in _FLAGS.items():
        if engine and wanted[key] and engine.option(flag):
            raise GpushimError(
                f"dockerd (process {engine.pid}) was started with {flag} and would not start with {key} in its "
                f"settings as well; move that option into {engine.config or SYSTEM_CONFIG} first"
            )


def _check_starts(wish: Wish, path: str, new: bytes | None, engine: Engine | None) -> None:
    # Which dockerd is to read a file that somebody named is not known, if none runs with it.
    asked = daemon_json.program(engine) if engine or not wish.config else ""
    if told := daemon_json.wrong(new, path, asked, tuple(added(engine))):
        raise GpushimError(f"{told}; dockerd would not start with that, so correct it first")


def added(engine: Engine | None) -> list[str]:
    """List the runtimes that a dockerd has by its command line.

    Args:
        engine: the dockerd, if one runs.
    """
    return [each.partition("=")[0] for each in engine.option("--add-runtime")] if engine else []


def _socket(found: Plan) -> str:
    """Return dockerd's socket: of its command line, of daemon.json, or its usual one."""
    engine = found.engine
    hosts = engine.option("--host", "-H") if engine else []
    listed = jsontext.get(jsontext.parse(files.read(found.config) or b"", found.config), ("hosts",))
    hosts += [host for host in listed or [] if isinstance(host, str)]
    for host in hosts:
        if host.startswith("unix://"):
            path = host[len("unix://") :]
            return engine.seen(path) if engine else path
    if os.geteuid() == 0:
        return "/run/docker.sock"
    folder = (engine.environ if engine else os.environ).get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    return f"{folder}/docker.sock"


def _info(path: str, seconds: float = ANSWER_SECONDS, patience: float = ANSWER_SECONDS) -> dict[str, Any]:
    """Ask for /info, again and again while dockerd comes up, which it is given `patience` seconds for."""
    end = time.monotonic() + patience
    while True:
        connection = http.client.HTTPConnection("localhost", timeout=seconds)
        try:
            connection.sock = places.connect(path, seconds)
            connection.request("GET", "/info")
            answer = json.loads(connection.getresponse().read(INFO_LIMIT))
            return answer if isinstance(answer, dict) else {}
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
        finally:
            connection.close()
        time.sleep(0.2)
