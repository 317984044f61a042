"""kubelet's own files: the checkpoints of what it has given to which container, and of which pod has which claim.

kubelet writes them, as root, in a directory of its own; they are read as what somebody could have damaged.
Source: pkg/kubelet/cm/devicemanager/checkpoint, pkg/kubelet/cm/dra/state and the device plugin API v1beta1 of
Kubernetes.
Out of scope: asking kubelet, which the device plugin does (gpuplugin.kubelet.podresources).
"""

from __future__ import annotations

import base64
import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushim.containers.claims import Claim
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGINS, CLAIMS = "device-plugins", "dra_manager_state"  # in kubelet's directory
CHECKPOINT = f"{PLUGINS}/kubelet_internal_checkpoint"
LIMIT = 16 << 20  # bytes; 60 000 replicas need some 6 MiB
ENVS, MOUNTS, DEVICES, ANNOTATIONS, CDI = range(1, 6)  # fields of ContainerAllocateResponse
_ENTRIES = "ClaimInfoStateList"
_UNLIKE = (KeyError, TypeError, AttributeError, RecursionError)
BYTES = 2  # of protobuf's wire types, the only one in that message's top


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


def checkpoint(folder: str) -> Checkpoint:
    """Read kubelet's checkpoint.

    Args:
        folder: kubelet's directory.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is not what kubelet writes; the text says why.
    """
    try:
        found = _read(f"{folder}/{CHECKPOINT}")["Data"]
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
        found = json.loads(_read(f"{folder}/{CLAIMS}")["Data"])
        return [one for entry in found[_ENTRIES] or () for one in _claims(entry)]
    except FileNotFoundError:
        return []
    except _UNLIKE as error:
        raise _unlike(error) from None


def _claims(entry: Any) -> Iterator[Claim]:
    namespace, name, uids = str(entry["Namespace"]), str(entry["ClaimName"]), frozenset(_texts(entry["PodUIDs"]))
    for driver, state in (entry["DriverState"] or {}).items():
        for one in state["Devices"] or ():
            pool, device, cdi = str(one["PoolName"]), str(one["DeviceName"]), tuple(_texts(one["CDIDeviceIDs"]))
            yield Claim(namespace, name, driver, pool, device, cdi, uids=uids)


def _read(path: str) -> Any:
    """Read a file of JSON; what that raises is in `checkpoint`, or in _UNLIKE."""
    with open(path, "rb", opener=rooted.nonblocking) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
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
        data = base64.b64decode(encoded or "", validate=True)
        fields = [(number, dict(_fields(part))) for number, part in _fields(data)]
    except (ValueError, TypeError, IndexError):
        return
    for number, part in fields:
        first, second = (os.fsdecode(part.get(place, b"")) for place in (1, 2))
        if number == ENVS:
            yield f"variable {first}={second}"
        elif number == MOUNTS:
            yield f"mount {first} from {second}"
        elif number == DEVICES:
            yield f"device node {first}"
        elif number == ANNOTATIONS:
            yield f"annotation {first}: {second}"
        elif number == CDI:
            yield f"CDI device {first}"


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """List the fields of a message that have bytes; others, such as a mount's read_only, are passed over."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        value, place = _varint(data, place)
        if key & 7 == BYTES:
            if place + value > len(data):
                raise ValueError
            yield key >> 3, data[place : place + value]
            place += value
        elif key & 7:
            raise ValueError


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        number, place = number | (byte & 127) << shift, place + 1
        if byte < 128:
            return number, place
    raise ValueError
