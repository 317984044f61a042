"""Restart an engine through the systemd unit that it runs in.

Restarting ends the containers of an engine without live-restore, so it happens only when somebody asks for it.
Out of scope: engines that systemd did not start; who runs them knows how.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from gpushim.engines import programs
from gpushim.errors import GpushimError

if TYPE_CHECKING:
    from gpushim.engines.running import Engine

RUNNING = "/run/systemd/system"  # exists where systemd is process 1 (sd_booted(3))
SECONDS = 180


def command(engine: Engine | None, unit: str) -> list[str]:
    """Return the arguments of systemctl that restart an engine.

    Args:
        engine: the running one, if any.
        unit: that it has by default.

    Returns:
        such as ["restart", "docker.service"]; none if systemd does not run the engine.
    """
    if not os.path.isdir(RUNNING) or (engine and not engine.unit):
        return []
    rootless = engine is not None and engine.uid != 0
    return [*(["--user"] if rootless else []), "restart", engine.unit if engine else unit]


def restart(arguments: list[str]) -> None:
    """Restart a unit.

    Args:
        arguments: of systemctl, from `command`.

    Raises:
        GpushimError: it does not come up.
    """
    program = programs.find("systemctl")
    if not program:
        raise GpushimError(f"{programs.absent('systemctl')}; restart the engine yourself")
    shown = f"systemctl {' '.join(arguments)}"
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise GpushimError(f"`{shown}` has not ended within {SECONDS} s; see `systemctl status`") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise GpushimError(
            f"`{shown}` failed: {reason}; the engine's reason is in its journal; --remove takes our change back"
        )


def advice(name: str, engine: Engine | None, arguments: list[str]) -> str:
    """Say how somebody restarts an engine.

    Args:
        name: of its program.
        engine: the running one, if any.
        arguments: from `command`.
    """
    if arguments:
        return f"restart it with `systemctl {' '.join(arguments)}`, which --restart does too"
    if engine:
        return f"restart {name} (process {engine.pid}), which systemd does not run here, the way it was started"
    return f"no running {name} reads these settings; start one that does"
