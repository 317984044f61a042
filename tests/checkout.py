"""Where root's tests find this checkout: at one path wherever it lies, and in the mount namespace of the tests alone.

Units, containers, other users and other root filesystems do not see all paths, as below /tmp, /root or /home, and not
each program takes a space. So no test needs the checkout's own path.
"""

from __future__ import annotations

import os
from pathlib import Path

import scratch
from unit.gpuhook.sandbox import bind

HERE = Path(__file__).resolve().parents[1]
PLACE = scratch.TOP / "checkout"


def is_at_its_place() -> bool:
    """Return whether this runs there; who is not root runs in the checkout itself."""
    return os.geteuid() != 0 or HERE == PLACE


def bring(source: Path = HERE) -> None:
    """Bring the checkout to its place, in a mount namespace of this process's own, and go on there.

    Args:
        source: where it is to be seen, before other layers lie over it.
    """
    PLACE.mkdir(mode=0o755, parents=True, exist_ok=True)
    bind(source, PLACE)
    os.chdir(moved(f"{os.getcwd()}/"))


def moved(text: str) -> str:
    """Return a word of a command with the checkout's place for its own path."""
    return text.replace(f"{HERE}/", f"{PLACE}/")
