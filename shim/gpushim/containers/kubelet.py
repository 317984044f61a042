"""kubelet's own files: the checkpoints of what it has given to which container, and of which pod has which claim.

kubelet writes them, as root, in a directory of its own; they are read as what somebody could have damaged.
Source: pkg/kubelet/cm/devicemanager/checkpoint, pkg/kubelet/cm/dra/state and the device plugin API v1beta1 of
Kubernetes. A DRA driver's devices have names that mean something to it alone; what it tells the engine, CDI names,
means something to the host (`which`).
Out of scope: asking kubelet, which the device plugin does (gpuplugin.kubelet.podresources).
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from gpushim.containers import protobuf
from gpushim.ground.errors import GpushimError
from gpushim.oci import selection
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.containers.protobuf import Field, Tables
    from gpushim.ground.model import Device, Snapshot

    # UUIDs of GPUs and MIG instances, a GPU's for all of it; none: no GPU of this host; None: which is not known, so
    # each GPU of this host may be it.
    Which = Optional[frozenset[str]]

OWN_DRIVER = "gpu.nvidia.com"  # of DRA; it is NVIDIA's name, so that claims for its driver work unchanged
DRIVERS = (OWN_DRIVER,)  # drivers whose devices are GPUs of this host, whatever they are called
# NVIDIA's DRA driver calls a GPU gpu-MINOR, and an instance gpu-MINOR-mig-PROFILE-ID-START.
_MINOR = re.compile("gpu-([0-9]{1,5})(-mig-.*)?", re.ASCII)
_UUID = re.compile("(gpu|mig)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PLUGINS, CLAIMS = "device-plugins", "dra_manager_state"  # in kubelet's directory
USUAL = "/var/lib/kubelet"  # kubelet's directory without --root-dir
KUBELET_SOCKET, CHECKPOINT = "kubelet.sock", "kubelet_internal_checkpoint"  # in that of device plugins
PODS_SOCKET = "pod-resources/kubelet.sock"  # in kubelet's directory; at which kubelet alone listens
LIMIT = 16 << 20  # bytes; 60 000 replicas need some 6 MiB
_ENTRIES = "ClaimInfoStateList"
_UNLIKE = (KeyError, TypeError, AttributeError, RecursionError)
_PATHS: dict[int, Field] = {1: ("inside", "string", False), 2: ("host", "string", False)}
_ANSWER: Tables = {  # ContainerAllocateResponse
    "answer": {
        1: ("envs", "map", False),
        2: ("mounts", "paths", True),
        3: ("devices", "paths", True),
        4: ("annotations", "map", False),
        5: ("cdi", "device", True),
    },
    "paths": _PATHS,
    "device": {1: ("name", "string", False)},
}


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
        uid: of the claim, where it is known: names come again.
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
    uid: str = ""


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
    if name in (selection.ALL, selection.ALL_USABLE):
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


class Given(NamedTuple):
    """What kubelet has given to a container of one resource.

    Attributes:
        uid: of the pod.
        container: its name in the pod.
        resource: such as nvidia.com/gpu.
        devices: ids.
        answer: what the device plugin answered, such as "variable NVIDIA_VISIBLE_DEVICES=0" and "CDI device x".
    """

    uid: str
    container: str
    resource: str
    devices: list[str]
    answer: list[str]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint; `registered` has the ids that plugins have listed as healthy, by resource."""

    registered: dict[str, list[str]]
    given: list[Given]


def is_static(pod: str, node: str) -> bool:
    """Say whether a pod is of a file on the node and not of the API server, by its name, which ends with the node's.

    Args:
        pod: its name; what stands before that does not matter.
        node: the node's name; "" if it is not known.
    """
    return pod.endswith(f"-{node.lower()}")


def plugins(folder: str, top: str = "") -> str:
    """Return kubelet's directory of device plugins, which has its checkpoint, too.

    It is below USUAL whatever kubelet's --root-dir is: a constant (DevicePluginPath) in Kubernetes' package
    kubelet/pkg/apis/deviceplugin/v1beta1. Only a kubelet that sees other files there, as a snap's, has it elsewhere.

    Args:
        folder: kubelet's directory.
        top: what stands before the host's directories: "" but for tests.
    """
    places = (f"{folder}/{PLUGINS}", f"{top}{USUAL}/{PLUGINS}")
    for there in (_is_used, os.path.isdir):  # one that is empty may be somebody's mount or attempt
        if found := next(filter(there, places), ""):
            return found
    return places[0]


def _is_used(folder: str) -> bool:
    return any(os.path.lexists(f"{folder}/{name}") for name in (KUBELET_SOCKET, CHECKPOINT))


def checkpoint(folder: str, top: str = "") -> Checkpoint:
    """Read kubelet's checkpoint.

    Args:
        folder: kubelet's directory.
        top: as `plugins` takes it.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is not what kubelet writes; the text says why.
    """
    try:
        found = _json(f"{plugins(folder, top)}/{CHECKPOINT}")["Data"]
        registered = {str(name): _texts(ids) for name, ids in (found["RegisteredDevices"] or {}).items()}
        return Checkpoint(registered, [_given(entry) for entry in found["PodDeviceEntries"] or ()])
    except _UNLIKE as error:
        raise _unlike(error) from None


def claims(folder: str) -> list[Claim]:
    """Read what kubelet's DRA drivers have prepared for which pods; none, if no driver ever did.

    Args:
        folder: kubelet's directory.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not what kubelet writes; the text says why.
    """
    try:
        return [one for entry in _entries(folder) for one in _of_entry(entry)]
    except FileNotFoundError:
        return []
    except _UNLIKE as error:
        raise _unlike(error) from None


def claim_uids(folder: str) -> frozenset[str]:
    """Read which claims kubelet has, from before it has them prepared until it has had them undone.

    Args:
        folder: kubelet's directory.

    Returns:
        uids, of claims of all drivers.

    Raises:
        FileNotFoundError: there is no such file, or it is not seen here, as in a pod.
        OSError: it cannot be read.
        ValueError: it is not what kubelet writes; the text says why.
    """
    try:
        return frozenset(_texts(entry["ClaimUID"] for entry in _entries(folder)))
    except _UNLIKE as error:
        raise _unlike(error) from None


def _entries(folder: str) -> list[Any]:
    return json.loads(_json(f"{folder}/{CLAIMS}")["Data"])[_ENTRIES] or []


def _of_entry(entry: Any) -> Iterator[Claim]:
    namespace, name, uids = str(entry["Namespace"]), str(entry["ClaimName"]), frozenset(_texts(entry["PodUIDs"]))
    uid = str(entry.get("ClaimUID") or "")
    for driver, state in (entry["DriverState"] or {}).items():
        for one in state["Devices"] or ():
            pool, device, cdi = str(one["PoolName"]), str(one["DeviceName"]), tuple(_texts(one["CDIDeviceIDs"]))
            yield Claim(namespace, name, driver, pool, device, cdi, uids=uids, uid=uid)


def _json(path: str) -> Any:
    """Read a file of JSON; what that raises is in `checkpoint`, or in _UNLIKE."""
    with open(path, "rb", opener=rooted.nonblocking) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_uid not in (0, os.geteuid()):
            raise ValueError(f"user {status.st_uid} owns it, and not root")
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise ValueError(f"it has more than {LIMIT} bytes")
    return json.loads(data)


def _unlike(error: Exception) -> ValueError:
    if isinstance(error, RecursionError):
        return ValueError("it is nested too deeply")
    return ValueError(f"it is not as kubelet writes it ({type(error).__name__})")


def _given(entry: Any) -> Given:
    ids = entry["DeviceIDs"] or {}
    rows = ids.values() if isinstance(ids, dict) else [ids]  # by NUMA node since Kubernetes 1.20
    listed = [one for row in rows for one in _texts(row)]
    uid, container, resource = (str(entry[key]) for key in ("PodUID", "ContainerName", "ResourceName"))
    return Given(uid, container, resource, listed, [*_answer(entry.get("AllocResp"))])


def _texts(found: Any) -> list[str]:
    return [str(each) for each in found or ()]


def _answer(encoded: Any) -> Iterator[str]:
    """Say what a ContainerAllocateResponse tells; nothing of one that is damaged."""
    try:
        answer = protobuf.decode(_ANSWER, "answer", base64.b64decode(encoded or "", validate=True))
    except (ValueError, TypeError):
        return
    yield from (f"variable {name}={value}" for name, value in answer["envs"].items())
    yield from (f"mount {one['inside']} from {one['host']}" for one in answer["mounts"])
    yield from (f"device node {one['inside']}" for one in answer["devices"])
    yield from (f"annotation {name}: {value}" for name, value in answer["annotations"].items())
    yield from (f"CDI device {one['name']}" for one in answer["cdi"])
