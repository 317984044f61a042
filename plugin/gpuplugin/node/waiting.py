"""Decide whether gpushim should be installed on a node, and wait where it has no NVIDIA device yet.

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
LOOK = 5.0  # seconds between looks; each takes some 5 ms
BEGUN = "/run/gpushim-node.begun"  # keep completes an installation that it began: install runs once in a pod
ABSENT, UNKNOWN = 1, 2  # exit codes of the child; 0: there is a device
NONE = "this node has no NVIDIA device"


def is_installed(node_root: str) -> bool:
    """Return whether gpushim-node has installed gpushim on a node, and so maintains it with or without a device."""
    return os.path.lexists(node_root + records.PATH)


def is_due(node_root: str) -> bool:
    """Return whether gpushim should be installed on a node."""
    return is_installed(node_root) or _has_device(node_root)


def is_complete(node_root: str) -> bool:
    """Return whether the installation that `keep` has begun on a node is complete."""
    return is_installed(node_root) and not os.path.lexists(node_root + BEGUN)


def mark_complete() -> None:
    """Record on the node, which has been entered, that the installation is complete."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(BEGUN)


def wait_for_device(node_root: str) -> None:
    """Wait until a node has a device, and record there that installation begins; SIGTERM exits with success."""
    if not is_installed(node_root) and not _has_device(node_root):
        _poll_device(node_root)
    os.close(os.open(node_root + BEGUN, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def _poll_device(node_root: str) -> None:
    say(f"gpushim-node: {NONE}; waiting for one, then gpushim is installed")
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while not _has_device(node_root):
        time.sleep(LOOK)
    signal.signal(signal.SIGTERM, before)
    say("gpushim-node: an NVIDIA device has appeared")


def _has_device(node_root: str) -> bool:
    """Return whether a child that has entered the node finds a device below the driver root of its config.toml."""
    child = os.fork()
    if not child:
        code = UNKNOWN
        try:
            host.enter(node_root)
            code = 0 if _is_plugged() else ABSENT
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code != ABSENT  # on an error, install reports it


def _is_plugged() -> bool:
    root, dev_root = _roots()
    return plugged.has_device(root, dev_root) or plugged.has_device("/", "/")


def _roots() -> tuple[str, str]:
    """Read the driver root and that of device nodes; not by policy.load, whose schema is not on the node."""
    with contextlib.suppress(OSError, GpushimError, ValueError, LookupError, TypeError):
        driver = TOML.loads(policy.trusted(CONFIG, "config.toml").decode())["driver"]
        roots = driver["root"], driver.get("dev-root") or driver["root"]
        if all(isinstance(root, str) and root.startswith("/") for root in roots):
            return roots
    return "/", "/"
