"""The saved snapshot, without a look at the host: a pod does not see what a stamp is made of.

Trusted as everywhere (gpushim.inventory.ensure), and believed while it is of this boot and its life goes on. Another
version of gpushim may have written it, as during a roll-out: gpushim.inventory.save says what of it can be read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpushim import __version__
from gpushim.ground import system
from gpushim.ground.errors import DRIVER, INVENTORY, GpushimError, quote
from gpushim.inventory import ensure, renew, save
from gpushim.oci import device_list, device_names
from gpushim.paths import trust

if TYPE_CHECKING:
    from typing import Any

    from gpushim.ground.model import Identity, Snapshot

RENEWED = (
    "gpushim refresh --keep (gpushim-refresh-keep.service, or the container gpushim-node) renews it on the node: see "
    "why it does not"
)
DEV = "/dev"  # of this container
POD = "KUBERNETES_SERVICE_HOST"  # which kubelet gives to containers alone


class OutdatedError(GpushimError):
    """This process's container lacks what a new one gets: the process is to end."""


class LastRead:
    """The snapshot that was read last, and its file's identity: to read it again takes a third of a look."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.found: Any = None


def read(state: str, last_read: LastRead | None = None) -> tuple[Snapshot | None, GpushimError | None]:
    """Return the saved snapshot, and why it cannot be used.

    Args:
        last_read: the caller's, which the next call returns as long as the file is the same.

    Returns:
        the snapshot and None, or with a sentence if its life is over; None and a sentence if there is none to read.
    """
    path, last_read = f"{state}/{ensure.SNAPSHOT}", last_read or LastRead()
    identity, is_trusted = trust.identity(path), trust.ours(state)
    is_same = is_trusted and identity is not None and identity == last_read.identity
    snapshot = last_read.found if is_same else ensure.own(path) if is_trusted else None
    if not snapshot:
        if os.path.lexists(path):
            sentence = f"{path} cannot be read, or users other than root can write to it; remove it; {RENEWED}"
            return None, GpushimError(sentence, INVENTORY)
        return None, GpushimError(f"there is no {path}; {RENEWED}", INVENTORY)
    if not save.understood(snapshot):
        version = quote(str(snapshot.get("gpushim")))
        return None, GpushimError(
            f"{path} is written by gpushim {version}, and this is {__version__}, which reads another form: have the "
            "node and this plugin run the same version",
            INVENTORY,
        )
    try:
        is_current = snapshot["stamp"]["boot"] == system.boot() and ensure.alive(snapshot)
        snapshot = snapshot if is_same else save.completed(snapshot)
    except (KeyError, TypeError):
        return None, GpushimError(f"{path} is not a gpushim snapshot; remove it; {RENEWED}", INVENTORY)
    last_read.identity, last_read.found = identity, snapshot
    return snapshot, None if is_current else GpushimError(f"{path} is out of date; {RENEWED}", INVENTORY)


def current() -> Snapshot:
    """Return the snapshot that a command uses: a true one, or in a pod the saved one.

    Raises:
        GpushimError: there is none that can be used.
    """
    state = system.state_dir()
    if not os.environ.get(POD):
        return renew.snapshot(system.config_path(), state)
    snapshot, problem = read(state)
    if problem or not snapshot:
        raise problem or AssertionError
    return snapshot


def check_driver(first: Snapshot | None, current: Snapshot) -> None:
    """Raise OutdatedError if the driver is not that whose libraries this process's container was made with."""
    module = first["stamp"]["module"] if first else current["stamp"]["module"]
    if current["stamp"]["module"] not in (None, module):
        raise OutdatedError(
            f"the node's driver is now {_version(current)} and was {_version(first)} when this container was made, "
            "which has no other libraries: this program ends, for kubelet to start it again",
            DRIVER,
        )


class NewGpus:
    """GPUs whose device node came after this process's container was made, which has it not."""

    def __init__(self) -> None:
        # Nodes that a container like this one is not given, so that the next one lacks them, too; None: unknown yet.
        self._never: set[str] | None = set() if _has(ensure.CONTROL_NODE) and _asks_for_all() else None

    def look(self, snapshot: Snapshot) -> None:
        """Raise OutdatedError if this container lacks the node of a GPU that has come, and can be used."""
        missing = {
            gpu["node"]: gpu for gpu in snapshot["gpus"] if gpu["node"] in snapshot["nodes"] and not _has(gpu["node"])
        }
        if self._never is None:
            self._never = {*missing}
        for node, gpu in missing.items():
            if node not in self._never and not gpu["problem"]:
                raise OutdatedError(
                    f"GPU {gpu['index']}, {gpu['uuid'] or gpu['pci']}, has come since this container was made, which "
                    f"has no {node}: this program ends, for kubelet to start it again",
                    DRIVER,
                )


def _asks_for_all() -> bool:
    """Return whether this container requests all GPUs that there are, and so gets those that come."""
    by_variable = os.environ.get(device_list.DEVICES) == device_names.ALL_USABLE
    return by_variable or os.path.lexists(f"{device_list.DEVICE_LIST}/{device_names.ALL_USABLE}")


def _has(node: str) -> bool:
    return os.path.exists(f"{DEV}{node.removeprefix('/dev')}")


def _version(snapshot: Snapshot | None) -> str:
    return (snapshot["driver"]["version"] if snapshot and snapshot["stamp"]["module"] else "") or "not there"
