"""kubelet's own files: the checkpoints of devices given to containers, and of claims prepared for pods.

kubelet writes them, as root, in a directory of its own; they are read as files that may be damaged.
Source: pkg/kubelet/cm/devicemanager/checkpoint, pkg/kubelet/cm/dra/state and the device plugin API v1beta1 of
Kubernetes. Only a DRA driver knows the meaning of its devices' names; the CDI names that it gives the engine are the
host's (`which`).
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
from gpushim.oci import device_names, selection
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.containers.protobuf import Field, Tables
    from gpushim.ground.model import Device, Snapshot

    # UUIDs of GPUs and MIG instances, a GPU's for all of it; none: no GPU of this host; None: unknown, it may be any
    # GPU of this host.
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
    """A device of a claim, with the pods that have the claim.

    Attributes:
        namespace: of the claim, and so of its pods.
        name: of the claim.
        pool: of the driver's.
        device: its name in the pool.
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
    """Return the host's GPUs of a claim of any driver."""
    kind = inventory["policy"]["cdi"]["kind"]
    own_names = [name.partition("=")[2] for name in claim.cdi if name.partition("=")[0] == kind]
    uuids = {device["uuid"] for name in own_names for device in _find_devices(name, inventory)}
    for text in (*claim.cdi, claim.device):
        uuids.update(device["uuid"] for device in _by_uuid(text, inventory))
    if uuids or not (own_names or claim.driver in DRIVERS):
        return frozenset(uuids)
    minor = _MINOR.fullmatch(claim.device) if claim.driver in DRIVERS else None
    gpus = [gpu["uuid"] for gpu in inventory["gpus"] if minor and gpu["minor"] == int(minor[1])]
    return frozenset(gpus) if len(gpus) == 1 else None


def _find_devices(name: str, inventory: Snapshot) -> Iterator[Device]:
    if name in (device_names.ALL, device_names.ALL_USABLE):
        yield from inventory["gpus"]
        return
    kind = inventory["policy"]["cdi"]["kind"]
    try:
        items = device_names.parse([f"{kind}={name}"], [kind])
    except GpushimError:
        return
    for item in items or ():
        yield from selection.find(item, inventory)


def _by_uuid(text: str, inventory: Snapshot) -> Iterator[Device]:
    """List the devices of the UUIDs in a name; names of Kubernetes' objects have small letters alone."""
    for match in _UUID.finditer(text.lower()):
        kind = "uuid" if match[1] == "gpu" else "mig-uuid"
        yield from selection.find((kind, match[0], match[0]), inventory)


class Given(NamedTuple):
    """The devices of one resource that kubelet has given to a container.

    Attributes:
        container: its name in the pod.
        resource: such as nvidia.com/gpu.
        answer: the device plugin's, as texts such as "variable NVIDIA_VISIBLE_DEVICES=0" and "CDI device x".
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
    """Return whether a pod is of a file on the node and not of the API server: its name ends with the node's."""
    return pod.endswith(f"-{node.lower()}")


def plugins(folder: str, top: str = "") -> str:
    """Return kubelet's directory of device plugins, which has its checkpoint, too.

    It is below USUAL whatever kubelet's --root-dir is: a constant (DevicePluginPath) in Kubernetes' package
    kubelet/pkg/apis/deviceplugin/v1beta1. Only a kubelet that sees other files there, as a snap's, has it elsewhere.

    `folder` is kubelet's directory; `top` is put before the host's directories in tests.
    """
    folders = (f"{folder}/{PLUGINS}", f"{top}{USUAL}/{PLUGINS}")
    for accepts in (_is_used, os.path.isdir):  # one that is empty may be somebody's mount or attempt
        if chosen := next(filter(accepts, folders), ""):
            return chosen
    return folders[0]


def _is_used(folder: str) -> bool:
    return any(os.path.lexists(f"{folder}/{name}") for name in (KUBELET_SOCKET, CHECKPOINT))


def checkpoint(folder: str, top: str = "") -> Checkpoint:
    """Read kubelet's checkpoint; the arguments are those of `plugins`.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is not as kubelet writes it; the text says why.
    """
    try:
        data = _json(f"{plugins(folder, top)}/{CHECKPOINT}")["Data"]
        registered = {str(name): _texts(ids) for name, ids in (data["RegisteredDevices"] or {}).items()}
        return Checkpoint(registered, [_parse_grant(entry) for entry in data["PodDeviceEntries"] or ()])
    except _UNLIKE as error:
        raise _format_error(error) from None


def claims(folder: str) -> list[Claim]:
    """Read the devices that DRA drivers have prepared for pods, from kubelet's directory; none if no driver ever did.

    Raises:
        OSError: they cannot be read.
        ValueError: the file is not as kubelet writes it; the text says why.
    """
    try:
        return [claim for entry in _entries(folder) for claim in _of_entry(entry)]
    except FileNotFoundError:
        return []
    except _UNLIKE as error:
        raise _format_error(error) from None


def claim_uids(folder: str) -> frozenset[str]:
    """Return the uids of kubelet's claims of all drivers, from before they are prepared until they are unprepared.

    Raises:
        FileNotFoundError: there is no such file, or it is not seen here, as in a pod.
        OSError: it cannot be read.
        ValueError: it is not as kubelet writes it; the text says why.
    """
    try:
        return frozenset(_texts(entry["ClaimUID"] for entry in _entries(folder)))
    except _UNLIKE as error:
        raise _format_error(error) from None


def _entries(folder: str) -> list[Any]:
    return json.loads(_json(f"{folder}/{CLAIMS}")["Data"])[_ENTRIES] or []


def _of_entry(entry: Any) -> Iterator[Claim]:
    namespace, name, uids = str(entry["Namespace"]), str(entry["ClaimName"]), frozenset(_texts(entry["PodUIDs"]))
    uid = str(entry.get("ClaimUID") or "")
    for driver, state in (entry["DriverState"] or {}).items():
        for row in state["Devices"] or ():
            pool, device, cdi = str(row["PoolName"]), str(row["DeviceName"]), tuple(_texts(row["CDIDeviceIDs"]))
            yield Claim(namespace, name, driver, pool, device, cdi, uids=uids, uid=uid)


def _json(path: str) -> Any:
    """Read a file of JSON; raises as `checkpoint` does, or one of _UNLIKE."""
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


def _format_error(error: Exception) -> ValueError:
    if isinstance(error, RecursionError):
        return ValueError("it is nested too deeply")
    return ValueError(f"it is not as kubelet writes it ({type(error).__name__})")


def _parse_grant(entry: Any) -> Given:
    ids = entry["DeviceIDs"] or {}
    rows = ids.values() if isinstance(ids, dict) else [ids]  # by NUMA node since Kubernetes 1.20
    listed = [device for row in rows for device in _texts(row)]
    uid, container, resource = (str(entry[key]) for key in ("PodUID", "ContainerName", "ResourceName"))
    return Given(uid, container, resource, listed, [*_parse_answer(entry.get("AllocResp"))])


def _texts(values: Any) -> list[str]:
    return [str(value) for value in values or ()]


def _parse_answer(encoded: Any) -> Iterator[str]:
    """List the parts of a ContainerAllocateResponse; nothing if it is damaged."""
    try:
        answer = protobuf.decode(_ANSWER, "answer", base64.b64decode(encoded or "", validate=True))
    except (ValueError, TypeError):
        return
    yield from (f"variable {name}={value}" for name, value in answer["envs"].items())
    yield from (f"mount {row['inside']} from {row['host']}" for row in answer["mounts"])
    yield from (f"device node {row['inside']}" for row in answer["devices"])
    yield from (f"annotation {name}: {value}" for name, value in answer["annotations"].items())
    yield from (f"CDI device {row['name']}" for row in answer["cdi"])
