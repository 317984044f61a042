"""dockerd as a program: which file it reads, where it listens, what it says of itself (GET /info of its API).

Out of scope: what is to be changed (__init__.py).
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings import files
from gpushim.engines.settings.setup import executes_ours
from gpushim.engines.settings.text import Json
from gpushim.ground.errors import GpushimError
from gpushim.paths import places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpushim.engines.processes.running import Engine

PROGRAM = "dockerd"
SYSTEM_CONFIG = "/etc/docker/daemon.json"
SNAP = "/var/snap/docker/current/config"
SNAP_CONFIG = f"{SNAP}/daemon.json"
SECONDS = 40.0  # a dockerd with many containers takes its time
ANSWER_LIMIT = 16 << 20  # bytes


def default_config(environ: Mapping[str, str] = os.environ) -> str:
    """Return the daemon.json that this user's dockerd, with such an environment, reads without --config-file.

    The snap's dockerd always has that option; its file counts where only the snap is installed.
    """
    if os.geteuid() != 0:
        home = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or os.path.expanduser('~')}/.config"
        return f"{home}/docker/daemon.json"
    if os.path.isdir(SNAP) and not os.path.isdir(os.path.dirname(SYSTEM_CONFIG)):
        return SNAP_CONFIG
    return SYSTEM_CONFIG


def config(engine: Engine | None) -> str:
    """Return the daemon.json of a dockerd, None for one that does not run, as this process opens it."""
    return engine.seen(engine.config or default_config(engine.environ)) if engine else default_config()


def setting(path: str, name: str) -> Any:
    """Return a setting of a daemon.json, which need not exist; None if it does not have it.

    Raises:
        GpushimError: it cannot be read or understood.
    """
    return Json.parse(files.read(path) or b"", path).get((name,))


def readable_setting(path: str, name: str) -> Any:
    """Return what `setting` does; None also where the file cannot be read or understood."""
    try:
        return setting(path, name)
    except GpushimError:
        return None


def entries(found: object) -> dict[str, dict[str, Any]]:
    """Return those of the setting `runtimes` that are entries, by name."""
    listed = found.items() if isinstance(found, dict) else ()
    return {name: entry for name, entry in listed if isinstance(entry, dict)}


def written(engine: Engine | None) -> dict[str, dict[str, Any]]:
    """Return the runtimes in the file of a dockerd; none without a dockerd, or if they cannot be told."""
    return entries(readable_setting(config(engine), "runtimes")) if engine else {}


def programs(engine: Engine) -> dict[str, str]:
    """Return the program of each runtime in the file of a dockerd, by name."""
    return {name: program_of(entry) for name, entry in written(engine).items()}


def added(engine: Engine | None) -> list[str]:
    """List the runtimes that a dockerd, if one runs, has by its command line."""
    return [each.partition("=")[0] for each in engine.option("--add-runtime")] if engine else []


def program_of(entry: object) -> str:
    """Return the program of an entry of `runtimes`: its path, or what runc's shim is to execute in runc's place."""
    options = entry.get("options") if isinstance(entry, dict) else None
    named = entry.get("path") if isinstance(entry, dict) else None
    return str(named or (options.get("BinaryName") if isinstance(options, dict) else None) or "")


def loaded(info: dict[str, Any], entries: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the program of each runtime that dockerd has loaded, "" where nothing tells it.

    Args:
        info: what dockerd says, which is the name alone for a runtime with a runtimeType.
        entries: the runtimes of its daemon.json.
    """
    known = info.get("Runtimes")
    found = known.items() if isinstance(known, dict) else ()
    return {name: program_of(entry) or program_of(entries.get(name)) for name, entry in found}


def ours(info: dict[str, Any], engine: Engine | None) -> list[str]:
    """List the names under which a dockerd has gpushim-runtime, by its answer and, where it is seen, its file."""
    return [name for name, program in loaded(info, written(engine)).items() if executes_ours(program, engine)]


def socket(engine: Engine | None, path: str = "") -> str:
    """Return dockerd's socket: of its command line, of its settings, or its usual one.

    Args:
        engine: the dockerd, if one runs.
        path: of its daemon.json; "" for the one that it reads.
    """
    seen, environ = (engine.seen, engine.environ) if engine else (str, os.environ)
    listed = readable_setting(path or config(engine), "hosts")
    for each in [*(engine.option("--host", "-H") if engine else []), *(listed if isinstance(listed, list) else [])]:
        if str(each).startswith("unix://"):
            return seen(str(each)[len("unix://") :])
    user = engine.uid if engine else os.geteuid()
    return seen(f"{environ.get('XDG_RUNTIME_DIR', f'/run/user/{user}') if user else '/run'}/docker.sock")


def info(engine: Engine | None, path: str = "", seconds: float = SECONDS, patience: float = 0.0) -> dict[str, Any]:
    """Ask dockerd for /info.

    Args:
        engine: the dockerd, if one runs.
        path: as `socket` takes it.
        seconds: how long each step may take.
        patience: seconds for which it is asked again while it does not listen yet.

    Raises:
        OSError: it does not answer, or somebody else could.
        ValueError: what it answers is no JSON object.
    """
    end = time.monotonic() + patience
    while True:
        try:
            return ask(socket(engine, path), "/info", seconds)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def ask(address: str, what: str, seconds: float) -> dict[str, Any]:
    """Ask dockerd once, at its socket; the rest is as `info` has it."""
    import http.client  # takes as long as all else that `gpushim ps` needs

    connection = http.client.HTTPConnection("localhost", timeout=seconds)
    try:
        connection.sock = places.connect(address, seconds)
        connection.request("GET", what)
        answer = json.loads(connection.getresponse().read(ANSWER_LIMIT))
    except http.client.HTTPException as error:
        raise ValueError(f"no HTTP ({type(error).__name__})") from None
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise ValueError("no JSON object")
    return answer
