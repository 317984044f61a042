"""Restart an engine through its systemd unit, and say how somebody restarts it.

Restarting ends the containers of an engine without live-restore, so it happens only when somebody asks for it.
Out of scope: restarting engines that systemd did not start; this only says how.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from gpushim.engines.processes import ask, programs
from gpushim.ground import system
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from gpushim.engines.processes.running import Engine

INITS = "/etc/init.d"  # of sysvinit and OpenRC
SECONDS = 180
LIMIT = "Result=start-limit-hit"  # systemd refuses each start of such a unit


def systemctl(verb: str, unit: str, engine: Engine | None = None, top: str = "") -> list[str]:
    """Return the arguments of systemctl that start or restart a service; none if systemd does not run the engine.

    Args:
        verb: "start" or "restart".
        unit: the default one, such as "docker.service".
        engine: the running one, if any.
        top: what stands before the host's directories: "" but for tests.
    """
    if not os.path.isdir(top + system.SYSTEMD) or (engine and not engine.unit):
        return []
    return [*(["--user"] if engine and engine.uid else []), verb, engine.unit if engine else unit]


def fix(verb: str, unit: str, engine: Engine | None = None, top: str = "") -> str:
    """Return how somebody starts or restarts a service on this host, with the arguments of `systemctl`.

    Returns:
        a command of systemd's or of the init that started it; else a sentence that names the process.
    """
    if arguments := systemctl(verb, unit, engine, top=top):
        command = shlex.join(["systemctl", *arguments]).removesuffix(".service")
        return f"{_cleared(unit, top)}{command}" if verb == "start" else command
    name = unit.removesuffix(".service")
    if _by_init(name, engine, top):
        return f"service {name} {verb}" if programs.lying("service", top) else f"{INITS}/{name} {verb}"
    if engine:
        return f"{verb} {engine.name} (process {engine.pid}) the way it was started"
    return f"{verb} {name} the way this host starts it"


def _cleared(unit: str, top: str) -> str:
    """Return the command that comes before a start of a unit which systemd has started too often; "" for others."""
    program = programs.find("systemctl", top=top)
    output = ask.program([program, "show", "--property=Result", unit]).out if program else ""
    return f"systemctl reset-failed {unit.removesuffix('.service')} && " if output.strip() == LIMIT else ""


def _by_init(name: str, engine: Engine | None, top: str) -> bool:
    """Return whether a script of /etc/init.d runs a service; the script may be there without having started it."""
    if os.path.isdir(top + system.SYSTEMD) or not os.access(f"{top}{INITS}/{name}", os.X_OK):
        return False
    if engine is None or os.path.lexists(f"{top}/run/openrc/started/{name}"):
        return engine is None or engine.uid == 0
    try:  # of Debian's scripts; what dockerd writes itself is another file
        with open(f"{top}/run/{name}-ssd.pid", encoding="ascii") as file:
            return file.read(32).strip() == str(engine.pid)
    except (OSError, ValueError):
        return False


def restart(arguments: list[str]) -> None:
    """Restart a unit with the arguments from `systemctl`.

    Raises:
        GpushimError: it does not come up.
    """
    program = programs.find("systemctl")
    if not program:
        raise GpushimError(f"{programs.absent('systemctl')}; restart the engine yourself")
    command = f"systemctl {' '.join(arguments)}"
    answer = ask.program([program, *arguments], SECONDS, whole=True)
    if answer.code is None:
        raise GpushimError(f"`{command}` has not ended within {SECONDS} s; see `systemctl status`")
    if answer.code:
        reason = (answer.error.strip().splitlines() or ["no reason given"])[0]
        raise GpushimError(
            f"`{command}` failed: {reason}; the engine's reason is in its journal; --remove takes our change back"
        )
