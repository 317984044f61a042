"""A refusal's line in the GPU log ([log] file).

Not on the create path: only refusals pay for its imports. Out of scope: other reports of a refusal (create.py), the
line itself (decide.py).
"""

from __future__ import annotations

import os
from typing import Any

from gpushim.config import policy
from gpushim.ground import fastjson, system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.paths import trust
from gpushim.paths.logfile import append, now


def record(line: dict[str, Any]) -> None:
    """Write the line, with the time added."""
    try:
        append(_log(), fastjson.dumps({"time": now(), **line}))
    except Exception:  # noqa: BLE001, S110 - the refusal itself must reach the engine
        pass


def _log() -> str:
    """Return the log's path in the configuration or, if that is wrong, in the last one.

    Without either it is the default, for the system's configuration alone.
    """
    config = system.config_path()
    default = config == system.CONFIG_FILE
    try:
        if default or os.path.exists(config):
            return str(policy.load(config)["log"]["file"])
    except GpushimError:
        pass
    try:
        state = system.state_dir()
        return str(ensure.own(f"{state}/{ensure.SNAPSHOT}")["policy"]["log"]["file"] if trust.ours(state) else "")
    except (GpushimError, KeyError, TypeError):  # none yet
        return str(policy.defaults()["log"]["file"]) if default else ""
