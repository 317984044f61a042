"""dockerd as a program: which file it reads, where it listens, what it says of itself (GET /info of its API).

Out of scope: what is to be changed (__init__.py).
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from gpushim.engines.docker.daemon_json import entries, parse, program_of
from gpushim.engines.processes.ask import program
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import executes_ours
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
VERSION_SECONDS = 5.0  # of one that is there, for a note
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


def settings(path: str) -> dict[str, Any]:
    """Return what a daemon.json has; nothing where there is none, or it cannot be read or understood."""
    try:
        return parse(files.read(path), path)
    except GpushimError:
        return {}


def written(engine: Engine | None) -> dict[str, dict[str, Any]]:
    """Return the runtimes in the file of a dockerd; none without a dockerd, or if they cannot be told."""
    return entries(settings(config(engine))) if engine else {}


def programs(engine: Engine) -> dict[str, str]:
    """Return the program of each runtime in the file of a dockerd, by name."""
    return {name: program_of(entry) for name, entry in written(engine).items()}


def added(engine: Engine | None) -> list[str]:
    """List the runtimes that a dockerd, if one runs, has by its command line."""
    return [each.partition("=")[0] for each in engine.option("--add-runtime")] if engine else []


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
    listed = settings(path or config(engine)).get("hosts")
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


def version(engine: Engine | None, path: str) -> str:
    """Return the version of a dockerd that runs; "" if it does not tell, or none runs."""
    try:
        return str(info(engine, path, VERSION_SECONDS).get("ServerVersion") or "") if engine else ""
    except (OSError, ValueError):
        return ""


def refusal(content: bytes, dockerd: str) -> str:
    """Return, as a clause, why a program would not start with a daemon.json; "" if it would, or does not tell."""
    # The same bytes that were judged here, whatever the file becomes in the meantime.
    answer = program([dockerd, "--validate", "--config-file", "/dev/stdin"], feed=content)
    last_line = (answer.error.strip().splitlines() or [""])[-1]
    if answer.code == 0 or "configure the Docker daemon" not in last_line:  # before 23 it does not know the option
        return ""
    return f"dockerd says: {last_line.rpartition('/dev/stdin: ')[2][:300]}"


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
