"""Whether a node is to have gpushim, and the wait of one that has no NVIDIA device yet.

The node is looked at from outside, as nothing is done there. Out of scope: what a device is
(gpushim.inventory.plugged).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from gpuplugin.node import record as records
from gpuplugin.node.payload import CONFIG
from gpushim.cli.show import say
from gpushim.config import policy
from gpushim.inventory import plugged

LOOK = 5.0  # seconds between looks, of some 5 ms; kubelet takes longer to start the plugin
BEGUN = "/run/gpushim-node.begun"  # what keep began, keep brings to its end: install runs once in a pod
NONE = "this node has no NVIDIA device"


def is_installed(place: str) -> bool:
    """Say whether gpushim-node has put gpushim onto a node, which it then looks after, with a device or without one.

    Args:
        place: absolute path where the node's root is mounted.
    """
    return os.path.lexists(place + records.PATH)


def is_due(place: str) -> bool:
    """Say whether gpushim is to be installed on a node.

    Args:
        place: absolute path where the node's root is mounted.
    """
    return is_installed(place) or _has_device(place)


def is_settled(place: str) -> bool:
    """Say whether install has nothing left to do on a node for who keeps its list of GPUs.

    Args:
        place: absolute path where the node's root is mounted.
    """
    return is_installed(place) and not os.path.lexists(place + BEGUN)


def settled() -> None:
    """Note on the node, which has been entered, that install has come to its end."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(BEGUN)


def wait(place: str) -> None:
    """Wait until a node has a device, and note there that install begins; SIGTERM ends this process with success.

    Args:
        place: absolute path where the node's root is mounted.
    """
    if not is_installed(place) and not _has_device(place):
        _sleep(place)
    os.close(os.open(place + BEGUN, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def _sleep(place: str) -> None:
    say(f"gpushim-node: {NONE}; waiting for one, then gpushim is installed")
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while not _has_device(place):
        time.sleep(LOOK)
    signal.signal(signal.SIGTERM, before)
    say("gpushim-node: an NVIDIA device has come")


def _has_device(place: str) -> bool:
    """Look below the driver root that the node's config.toml names."""
    driver = policy.usable(place + CONFIG)["driver"]
    return any(
        plugged.has_device(*(place + path.rstrip("/") for path in paths))
        for paths in ((driver["root"], driver["dev-root"]), ("/", "/"))
    )
