"""The saved snapshot, without a look at the host: a pod does not see what a stamp is made of.

Trusted as everywhere (gpushim.inventory.ensure), and believed while it is of this boot and its life goes on. Another
version of gpushim may have written it, as during a roll-out: gpushim.inventory.save says what of it can be read.
Out of scope: asking for another one (node_requests.py), and whether it is true.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpushim import __version__
from gpushim.ground import system
from gpushim.ground.errors import DRIVER, INVENTORY, GpushimError, quote
from gpushim.inventory import ensure, renew, save
from gpushim.oci import device_list, selection
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
    """This process's container lacks what one that is started again gets: the process is to end."""


class LastRead:
    """The snapshot that was read last, and its file's identity: to read it again takes a third of a look."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.found: Any = None


def read(state: str, before: LastRead | None = None) -> tuple[Snapshot | None, GpushimError | None]:
    """Return the saved snapshot, and why it cannot be gone by.

    Args:
        state: the state directory.
        before: what the caller's last call has read, which the next one goes by as long as the file is the same.

    Returns:
        the snapshot and None, or with a sentence if its life is over; None and a sentence if there is none to read.
    """
    path, before = f"{state}/{ensure.SNAPSHOT}", before or LastRead()
    identity, ours = trust.identity(path), trust.ours(state)
    same = ours and identity is not None and identity == before.identity
    found = before.found if same else ensure.own(path) if ours else None
    if not found:
        if os.path.lexists(path):
            sentence = f"{path} cannot be read, or users other than root can write to it; remove it; {RENEWED}"
            return None, GpushimError(sentence, INVENTORY)
        return None, GpushimError(f"there is no {path}; {RENEWED}", INVENTORY)
    if not save.understood(found):
        theirs = quote(str(found.get("gpushim")))
        return None, GpushimError(
            f"{path} is written by gpushim {theirs}, and this is {__version__}, which reads another form: have the "
            "node and this plugin run the same version",
            INVENTORY,
        )
    try:
        well = found["stamp"]["boot"] == system.boot() and ensure.alive(found)
        found = found if same else save.completed(found)
    except (KeyError, TypeError):
        return None, GpushimError(f"{path} is not a gpushim snapshot; remove it; {RENEWED}", INVENTORY)
    before.identity, before.found = identity, found
    return found, None if well else GpushimError(f"{path} is out of date; {RENEWED}", INVENTORY)


def current() -> Snapshot:
    """Return the snapshot that a command goes by: a true one, or in a pod the saved one.

    Raises:
        GpushimError: there is none that can be gone by.
    """
    state = system.state_dir()
    if not os.environ.get(POD):
        return renew.snapshot(system.config_path(), state)
    found, why = read(state)
    if why or not found:
        raise why or AssertionError
    return found


def same_driver(before: Snapshot | None, now: Snapshot) -> None:
    """See to it that the driver is that whose libraries this process's container was made with.

    Raises:
        OutdatedError: it is another one.
    """
    had = before["stamp"]["module"] if before else now["stamp"]["module"]
    if now["stamp"]["module"] not in (None, had):
        raise OutdatedError(
            f"the node's driver is now {_version(now)} and was {_version(before)} when this container was made, "
            "which has no other libraries: this program ends, for kubelet to start it again",
            DRIVER,
        )


class Came:
    """GPUs whose device node came after this process's container was made, which has it not."""

    def __init__(self) -> None:
        # Nodes that a container like this one is not given, so that the next one lacks them, too; None: unknown yet.
        self._never: set[str] | None = set() if _has(ensure.CONTROL_NODE) and _asks_for_all() else None

    def look(self, now: Snapshot) -> None:
        """See to it that this container has the nodes of the GPUs that can be used.

        Raises:
            OutdatedError: one has come.
        """
        lacks = {gpu["node"]: gpu for gpu in now["gpus"] if gpu["node"] in now["nodes"] and not _has(gpu["node"])}
        if self._never is None:
            self._never = {*lacks}
        for node, gpu in lacks.items():
            if node not in self._never and not gpu["problem"]:
                raise OutdatedError(
                    f"GPU {gpu['index']}, {gpu['uuid'] or gpu['pci']}, has come since this container was made, which "
                    f"has no {node}: this program ends, for kubelet to start it again",
                    DRIVER,
                )


def _asks_for_all() -> bool:
    """Say whether this container asks for all GPUs that there are, and so gets those that come."""
    asked = os.environ.get(device_list.DEVICES) == selection.ALL_USABLE
    return asked or os.path.lexists(f"{device_list.DEVICE_LIST}/{selection.ALL_USABLE}")


def _has(node: str) -> bool:
    return os.path.exists(f"{DEV}{node.removeprefix('/dev')}")


def _version(found: Snapshot | None) -> str:
    return (found["driver"]["version"] if found and found["stamp"]["module"] else "") or "not there"
