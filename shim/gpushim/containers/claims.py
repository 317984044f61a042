"""What a claim of Kubernetes' DRA has, and which of this host's GPUs that is.

A driver's devices have names that mean something to it alone; what it tells the engine, CDI names, means something to
the host. Out of scope: who is asked for claims (gpushim.containers.kubelet, gpuplugin.kubelet.podresources).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Optional

from gpushim.ground.errors import GpushimError
from gpushim.oci import selection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Device, Snapshot

    # UUIDs of GPUs and MIG instances, a GPU's for all of it; none: no GPU of this host; None: which is not known, so
    # each GPU of this host may be it.
    Which = Optional[frozenset[str]]

DRIVERS = ("gpu.nvidia.com",)  # drivers whose devices are GPUs of this host, whatever they are called
# NVIDIA's DRA driver calls a GPU gpu-MINOR, and an instance gpu-MINOR-mig-PROFILE-ID-START.
_MINOR = re.compile("gpu-([0-9]{1,5})(-mig-.*)?", re.ASCII)
_UUID = re.compile("(gpu|mig)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Claim(NamedTuple):
    """A device that a claim has, and who has the claim.

    Attributes:
        namespace: of the claim, and so of its pods.
        name: of the claim.
        driver: that gave the device.
        pool: of the driver's.
        device: its name in the pool.
        cdi: CDI names that containers get for it.
        pod: the name; "" where only `uids` are known.
        container: its name in the pod; "" if not known.
        uids: of the pods that have the claim, where these are known.
    """

    namespace: str
    name: str
    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...]
    pod: str = ""
    container: str = ""
    uids: frozenset[str] = frozenset()


def which(claim: Claim, inventory: Snapshot) -> Which:
    """Say which of a host's GPUs a claim has.

    Args:
        claim: of any driver.
        inventory: the snapshot.
    """
    kind = inventory["policy"]["cdi"]["kind"]
    own = [name.partition("=")[2] for name in claim.cdi if name.partition("=")[0] == kind]
    found = {device["uuid"] for name in own for device in _called(name, inventory)}
    for text in (*claim.cdi, claim.device):
        found.update(device["uuid"] for device in _by_uuid(text, inventory))
    if found or not (own or claim.driver in DRIVERS):
        return frozenset(found)
    minor = _MINOR.fullmatch(claim.device) if claim.driver in DRIVERS else None
    gpus = [gpu["uuid"] for gpu in inventory["gpus"] if minor and gpu["minor"] == int(minor[1])]
    return frozenset(gpus) if len(gpus) == 1 else None


def _called(name: str, inventory: Snapshot) -> Iterator[Device]:
    """List what a device of the host's own CDI spec is."""
    if name == "all":
        yield from inventory["gpus"]
        return
    kind = inventory["policy"]["cdi"]["kind"]
    try:
        items = selection.parse([f"{kind}={name}"], [kind])
    except GpushimError:
        return
    for item in items or ():
        yield from selection.find(item, inventory)


def _by_uuid(text: str, inventory: Snapshot) -> Iterator[Device]:
    """List what the UUIDs in a name are; names of Kubernetes' objects have small letters alone."""
    for found in _UUID.finditer(text.lower()):
        kind = "uuid" if found[1] == "gpu" else "mig-uuid"
        yield from selection.find((kind, found[0], found[0]), inventory)
