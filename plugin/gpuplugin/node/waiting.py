"""Whether a node is to have gpushim, and the wait of one that has no NVIDIA device yet.

Nothing is done there before a device comes. Out of scope: what a device is (gpushim.inventory.plugged).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from importlib import import_module

from gpuplugin.node import host
from gpuplugin.node import record as records
from gpuplugin.node.payload import CONFIG
from gpushim.cli.show import say
from gpushim.config import policy
from gpushim.ground.errors import GpushimError
from gpushim.inventory import plugged

TOML = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # before the node is entered
LOOK = 5.0  # seconds between looks, each of some 5 ms
BEGUN = "/run/gpushim-node.begun"  # what keep began, keep brings to its end: install runs once in a pod
ABSENT, UNKNOWN = 1, 2  # exit codes of a child that has looked; 0: there is one
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
    """Have a child enter the node, whose links are the node's, and look below the driver root of its config.toml."""
    child = os.fork()
    if not child:
        code = UNKNOWN
        try:
            host.enter(place)
            code = 0 if _is_plugged() else ABSENT
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code != ABSENT  # install says what is wrong, if something is


def _is_plugged() -> bool:
    root, dev_root = _roots()
    return plugged.has_device(root, dev_root) or plugged.has_device("/", "/")


def _roots() -> tuple[str, str]:
    """Read the driver root and that of device nodes; not by policy.load, whose schema is not on the node."""
    with contextlib.suppress(OSError, GpushimError, ValueError, LookupError, TypeError):
        driver = TOML.loads(policy.trusted(CONFIG, "config.toml").decode())["driver"]
        roots = driver["root"], driver.get("dev-root") or driver["root"]
        if all(isinstance(each, str) and each.startswith("/") for each in roots):
            return roots
    return "/", "/"
