"""What the DRA driver that runs on this node answers to root: a command beside it may lack grpcio.

Out of scope: what it answers (status.py).
"""

from __future__ import annotations

import json
from typing import Any

from gpushim.ground import system
from gpushim.refresh import plugin_socket

SECONDS = 10.0  # it may have to wait for kubelet


def ask(word: str = "status") -> dict[str, Any]:
    """Ask it, as `gpushim doctor` does.

    Args:
        word: of Status.by_word.

    Returns:
        its answer; {} where none runs, it does not say, or this user may not ask.
    """
    question = json.dumps({"do": word}).encode() + b"\n"
    try:
        found = json.loads(plugin_socket.exchange(system.state_dir(), question, SECONDS, plugin_socket.DRIVERS))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and "error" not in found else {}
