"""A refusal's line in the GPU log ([log] file), beside those of containers that got what they asked for.

Not on the create path: what it imports is for those who are refused. Out of scope: what else says why (create.py),
and the line itself (decide.py).
"""

from __future__ import annotations

import os
from typing import Any

from gpushim import fastjson, policy, stamp
from gpushim.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.logfile import append, now


def record(line: dict[str, Any]) -> None:
    """Write the line, which lacks nothing but the time."""
    try:
        append(_log(), fastjson.dumps({"time": now(), **line}))
    except Exception:  # noqa: BLE001, S110 - whatever a log costs, the refusal itself must reach who waits for it
        pass


def _log() -> str:
    """Return the path that the configuration names; if that is what is wrong, that of the last one.

    Where neither tells, the system's log is that of the system's configuration alone.
    """
    config = stamp.config_path()
    system = config == stamp.CONFIG_FILE
    try:
        if system or os.path.exists(config):
            return str(policy.load(config)["log"]["file"])
    except GpushimError:
        pass
    try:
        state = stamp.state_dir()
        return str(ensure.own(f"{state}/{ensure.SNAPSHOT}")["policy"]["log"]["file"] if stamp.ours(state) else "")
    except (GpushimError, KeyError, TypeError):  # none yet
        return str(policy.defaults()["log"]["file"]) if system else ""
