"""The agent's request that GPUs be cut as a layout says, which the next unattended refresh carries out.

STATE/device-plugin/mig.json, {"layout": name, "free": UUIDs of GPUs that nobody has, nor gets before the answer,
"partitions": UUIDs of those that are cut on demand, "boot": boot id, "at": seconds since boot}. STATE/mig.json is the
answer: {"request": the same, "problem": why nothing is changed, or "", "gpus": {UUID: why}}, with each GPU that is
not yet as the layout says, and why it cannot be, or "" if it waits to be free. An answer is written when the snapshot
has what was made: after a kill, the request is carried out once more, and what is done already is left as it is.
The request is read when LOCK is held, until the answer is written. So who takes a request back knows by the lock
whether GPUs may still be cut for it.
Out of scope: how it is carried out (cut_answer.py), so that the agent and most refreshes load little.
"""

from __future__ import annotations

import os
from typing import Any

from gpushim.ground import system
from gpushim.ground.logs import logger
from gpushim.inventory import ensure
from gpushim.paths import trust

NAME, ANSWER = "device-plugin/mig.json", "mig.json"  # in the state directory
LOCK = "mig.lock"  # there, too, held while GPUs are cut
LAYOUTS = "mig.yaml"  # beside config.toml


def read_open(state: str) -> dict[str, Any]:
    """Return the request that has no answer in a state directory; {} if there is none."""
    path = f"{state}/{NAME}"
    if not trust.ours(state) or not trust.ours(os.path.dirname(path)):
        return {}
    request: dict[str, Any] = ensure.own(path)
    has_answer = ensure.own(f"{state}/{ANSWER}").get("request") == request
    if request.get("boot") != system.boot() or has_answer:
        return {}
    if not isinstance(request.get("layout"), str) or not all(
        isinstance(request.get(name), list) for name in ("free", "partitions")
    ):
        logger.warning("%s is ignored: it is no request of gpushim-device-plugin's", path)
        return {}
    return request
