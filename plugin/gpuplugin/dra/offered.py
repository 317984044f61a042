"""Snapshot to devices of ResourceSlices: what is offered, what is said of it, and in which order.

Names and types of attributes and capacities are those of NVIDIA's driver (kubernetes-sigs/dra-driver-nvidia-gpu),
and more, for CEL. Each device has all of them, whatever its type: a selector that names one which a device lacks
stops the scheduling of its claim. So what is unknown has a value that no selector asks for. A device that is alone in
what others share (NVLinks, a fabric, a PCIe root) has a group of its own, the UUID of its GPU: an empty text would
equal another's for matchAttribute.
Order counts, for the allocator takes the first devices that fit: whole GPUs come first, near ones beside each other,
then MIG instances by GPU, the small ones before the large ones.
Nothing that a driver says may make the API server refuse a slice: texts are cut and cleaned, versions completed.
Out of scope: when slices are written, and what taints a device. WSL and Tegra, where a container gets all GPUs or
none, offer nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from itertools import chain, combinations, product, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.cluster.labels import UNDEFINED, family
from gpuplugin.devices.division import CLIENTS
from gpuplugin.devices.preferred import nearness, weight
from gpuplugin.settings import quantity, resources
from gpuplugin.settings.forms import LABEL
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.inventory.procfs import sysfs_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpushim.ground.model import Gpu, MigInstance, Snapshot

GPU, MIG = "gpu", "mig"  # attribute `type`, and how names begin
CLASSES = {GPU: OWN_DRIVER, MIG: "mig.nvidia.com"}  # DeviceClasses, as the chart has them
STANDARD = "resource.kubernetes.io/"  # domain of Kubernetes' own attributes; without one it is the driver's
IN_SLICE = 64  # devices of a slice in which any may have a taint (resource.k8s.io/v1, ResourceSliceSpec)
TAINTS = 16  # of a device (the same)
TEXT = 64  # characters of a text or version (the same, DeviceAttributeMaxValueLength)
UNKNOWN, NO_PROFILE = "Unknown", "none"
NO_EXECUTE, NO_SCHEDULE, NONE = EFFECTS = ("NoExecute", "NoSchedule", "None")  # of taints, the strongest first
# Capacities of a MIG instance, by what the snapshot calls them (inventory.nvml.ATTRIBUTES). A whole GPU's are 0: NVML
# tells them of instances alone.
COUNTED = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "engines.copy",
    "decoders": "engines.decoder",
    "encoders": "engines.encoder",
    "jpegEngines": "engines.jpeg",
    "ofaEngines": "engines.ofa",
}
# Attribute `memoryLimit`: whose memory is limited to the claim's part.
CONTAINER, PROCESS, NOBODY = "container", "process", "none"
THREADS = 100  # percent; of a GPU that MPS shares so much for each of its clients
LEAST = "16Mi"  # of a part, as limits of memory have it (gpushim.decision.memory)
_BRANDS = {"GRID": "Grid"}  # of inventory.nvml.BRANDS, what NVIDIA's driver for DRA spells otherwise
_NUMBER = r"([0-9]{1,9})"
_VERSION = re.compile(rf"{_NUMBER}(?:\.{_NUMBER})?(?:\.{_NUMBER})?")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile("pci[0-9a-f]{4,}:[0-9a-f]{2}")
_MOST = (1 << 63) - 1  # of a quantity


class Offered(NamedTuple):
    """A device of a ResourceSlice.

    Attributes:
        name: DNS label, from the UUID alone: gpu-<uuid> or mig-<uuid>.
        uuid: of the GPU or MIG instance, as the snapshot has it.
        body: the device in the form of resource.k8s.io/v1, without taints.
        group: whose MPS daemon claims with parts of it share; "" for none.
    """

    name: str
    uuid: str
    body: dict[str, Any]
    group: str = ""

    @property
    def memory(self) -> int:
        """Its MiB."""
        return int(quantity.parse(self.body["capacity"]["memory"]["value"]) or 0) >> 20


class Parts(NamedTuple):
    """How claims share a device: attribute `memoryLimit`, and the group whose MPS daemon they share, or ""."""

    limit: str
    group: str = ""


def devices(
    snapshot: Snapshot,
    exclude: Sequence[str] = (),
    spread: bool = False,
    resolve: Callable[[str], str] = os.path.realpath,
    parts: Mapping[str, Parts] = {},
) -> list[Offered]:
    """List the devices that claims can be given, in the order in which they are published.

    Left out are GPUs in MIG mode as wholes, what has no UUID, and MIG instances that share their GPU instance. A sick
    GPU is there.

    Args:
        snapshot: of the host's inventory.
        exclude: GPUs and MIG instances that are not offered, as for `resources.find`.
        spread: MIG instances come in turn from each GPU, instead of GPU by GPU.
        resolve: returns the path that a link leads to, which may be missing.
        parts: by UUID, of the devices of which several claims get parts.

    Raises:
        GpushimError: an entry of `exclude` names no device.
    """
    if snapshot["error"] or snapshot["platform"] in resources.ALL_IN_ONE:
        return []
    gpus, migs = resources.included(snapshot, exclude, [])
    groups = _nvlink_groups(snapshot["gpus"])
    common = {gpu["index"]: _of_gpu(gpu, snapshot, groups[gpu["index"]], resolve) for gpu in gpus}
    by_name: dict[str, Offered] = {}
    for item in _ordered(gpus, [mig for mig in migs if not resources.is_partial(mig["profile"])], spread):
        device = _instance(item, common[item["gpu"]]) if "gpu" in item else _whole(item, common[item["index"]])
        if device.uuid:
            device = _in_parts(device, parts[device.uuid]) if device.uuid in parts else device
            by_name.setdefault(device.name, device)  # a slice with one name twice is refused
    return [*by_name.values()]


def of_class(name: str) -> str:
    """Return the DeviceClass of a device with this name."""
    return CLASSES.get(type_of(name), OWN_DRIVER)


def type_of(name: str) -> str:
    """Return GPU or MIG, which the name of a device begins with; "" if it is none of this driver's."""
    return next((type_ for type_ in CLASSES if name.startswith(f"{type_}-")), "")


def slices(offered: Sequence[Offered], taints: Mapping[str, Sequence[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Divide devices into slices that the API server takes.

    Args:
        offered: as `devices` returns them.
        taints: of a device, by its name; of more than TAINTS, those of the strongest effects stay.

    Returns:
        the devices of each slice; one slice without any if there are none, which says that the driver is up.
    """
    bodies = [_tainted(device.body, taints.get(device.name, ())) for device in offered]
    return [bodies[start : start + IN_SLICE] for start in range(0, len(bodies), IN_SLICE)] or [[]]


def pcie_root(address: str, sys: str, resolve: Callable[[str], str]) -> str:
    """Return the root of the PCIe tree that a device is in, as pci0000:17; "" if sysfs does not tell.

    Args:
        address: of it, as sysfs has it.
        sys: where a sysfs is mounted.
        resolve: as of `devices`.
    """
    parts = resolve(f"{sys}/bus/pci/devices/{address}").split("/")
    return next((part for part in parts if _ROOT.fullmatch(part)), "")


def _tainted(body: dict[str, Any], taints: Sequence[dict[str, Any]]) -> dict[str, Any]:
    strongest = [*taints]
    if len(strongest) > TAINTS:
        strongest = sorted(strongest, key=lambda taint: EFFECTS.index(taint["effect"]))[:TAINTS]
    return {**body, "taints": strongest} if strongest else body


def _of_gpu(gpu: Gpu, snapshot: Snapshot, group: str, resolve: Callable[[str], str]) -> dict[str, Any]:
    """Return the attributes of a GPU, which its MIG instances have, too."""
    uuid = _text(gpu["uuid"] or gpu["pci"])
    driver, arch = snapshot["driver"], _version(gpu["arch"])
    address = sysfs_name(gpu["pci"].lower())
    is_known = bool(_ADDRESS.fullmatch(address))
    mounts = dict.fromkeys((snapshot["inputs"].get("sys", "/sys"), "/sys"))  # the driver root's may not be seen here
    roots = (pcie_root(address, sys, resolve) for sys in mounts if is_known)
    texts = {
        "type": GPU,
        "uuid": uuid,
        "parentUUID": uuid,
        "productName": _text(gpu["model"]),
        "brand": _text(_BRANDS.get(gpu["brand"], gpu["brand"])),
        "architecture": _architecture(arch),
        "addressingMode": gpu["addressing"] or UNKNOWN,
        STANDARD + "pciBusID": address if is_known else UNKNOWN,
        STANDARD + "pcieRoot": next(filter(None, roots), uuid),
        "profile": NO_PROFILE,
        "nvlinkGroup": _text(group) if group else uuid,
        "fabricClique": _text(gpu["fabric"]) if gpu["fabric"] else uuid,
    }
    versions = {
        "cudaComputeCapability": arch,
        "driverVersion": _version(driver["version"]),
        "cudaDriverVersion": _version(driver["cuda"]),
    }
    return {
        **{name: {"string": value} for name, value in texts.items()},
        **{name: {"version": value} for name, value in versions.items()},
        STANDARD + "numaNode": {"int": gpu["numa"]},
        "migEnabled": {"bool": gpu["mig"]},
    }


def _whole(gpu: Gpu, attributes: dict[str, Any]) -> Offered:
    return _offered(GPU, gpu["uuid"], attributes, gpu["memory"], {})


def _instance(mig: MigInstance, parent: dict[str, Any]) -> Offered:
    texts = {"type": MIG, "uuid": _text(mig["uuid"]), "profile": _text(mig["profile"])}
    texts["nvlinkGroup"] = parent["uuid"]["string"]  # instances have no NVLinks
    attributes = {
        **parent,
        **{name: {"string": value} for name, value in texts.items()},
        "migEnabled": {"bool": True},
    }
    return _offered(MIG, mig["uuid"], attributes, mig["memory"], mig["attributes"])


def _offered(kind: str, uuid: str, attributes: dict[str, Any], memory: int, counted: Mapping[str, int]) -> Offered:
    capacity = {"memory": _quantity(memory << 20, 1024, "Ki Mi Gi Ti Pi Ei")}
    capacity.update((name, _quantity(counted.get(key, 0), 1000, "k M G T P E")) for name, key in COUNTED.items())
    capacity["threads"] = str(THREADS)
    name = _name(kind, uuid)
    body = {"name": name, "attributes": {**attributes, "memoryLimit": {"string": NOBODY}}}
    return Offered(name, uuid, {**body, "capacity": {key: {"value": value} for key, value in capacity.items()}})


def _in_parts(device: Offered, parts: Parts) -> Offered:
    """Return a device of which claims get parts of memory, all of it without a request, unless it is not known.

    Of its other capacities a claim takes nothing, so that they keep no other claim away; of threads, which MPS bounds
    and does not reserve, there are enough for all clients.
    """
    memory = device.body["capacity"]["memory"]["value"]
    if memory == "0":
        return device
    capacity = {
        name: {**row, "requestPolicy": {"default": "0", "validValues": ["0"]}}
        for name, row in device.body["capacity"].items()
    }
    sizes = {"min": LEAST, "max": memory, "step": "1Mi"}
    capacity["memory"] = {"value": memory, "requestPolicy": {"default": memory, "validRange": sizes}}
    if parts.group:
        percent = {"min": "1", "max": str(THREADS), "step": "1"}
        policy = {"default": str(THREADS), "validRange": percent}
        capacity["threads"] = {"value": str(THREADS * CLIENTS), "requestPolicy": policy}
    attributes = {**device.body["attributes"], "memoryLimit": {"string": parts.limit}}
    body = {**device.body, "allowMultipleAllocations": True, "attributes": attributes, "capacity": capacity}
    return device._replace(body=body, group=parts.group)


def _name(kind: str, uuid: str) -> str:
    """Make a device's name of its UUID; of one that is no name in small letters (drivers before 470), of its hash."""
    name = uuid.lower()
    if name.startswith(f"{kind}-") and LABEL.fullmatch(name):
        return name
    return f"{kind}-{hashlib.sha256(uuid.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _text(text: str) -> str:
    """Return what a text may have: printable ASCII, single blanks, TEXT characters."""
    plain = "".join(letter if " " <= letter <= "~" else " " for letter in text)
    return " ".join(plain.split())[:TEXT].rstrip() or UNKNOWN


def _version(text: str) -> str:
    """Return three numbers without zeros before them, as Semantic Versioning 2.0.0 wants them: 550.54.3 of 550.54.03.

    What has no number is 0.0.0, which is lower than any that a selector asks for.
    """
    match = _VERSION.match(text.strip())
    return ".".join(str(int(part or 0)) for part in (match.groups() if match else ("0", "0", "0")))


def _architecture(arch: str) -> str:
    """Name the family of a compute capability in three numbers, as Ada Lovelace."""
    name = family(arch)
    return UNKNOWN if name == UNDEFINED else name.replace("-", " ").title()


def _quantity(number: int, base: int, suffixes: str) -> str:
    """Write a number as the API server does, so that what comes back of a slice is what was sent."""
    number = min(max(number, 0), _MOST)
    suffix = ""
    for following in suffixes.split():
        if not number or number % base:
            break
        number, suffix = number // base, following
    return f"{number}{suffix}"


def _nvlink_groups(gpus: Sequence[Gpu]) -> dict[int, str]:
    """Name, by index, the groups of GPUs that NVLinks join, also over others; "" where there are none."""
    groups = {gpu["index"]: {gpu["index"]} for gpu in gpus}
    for gpu in gpus:
        for peer, _, links in gpu["peers"]:
            if links and peer in groups:
                union = groups[gpu["index"]] | groups[peer]
                groups.update(dict.fromkeys(union, union))
    names = {gpu["index"]: gpu["uuid"] or gpu["pci"] for gpu in gpus}  # indices change
    return {
        index: f"nvlink-{min(names[member] for member in group)}" if len(group) > 1 else ""
        for index, group in groups.items()
    }


def _ordered(gpus: Sequence[Gpu], migs: Sequence[MigInstance], spread: bool) -> Iterable[Any]:
    """Put what is offered in its order, which boots do not change: it goes by PCI addresses, not by indices.

    GPUs whose largest instance is small come before others, so that large ones stay free longest.
    """
    near = _neighbours(gpus)
    of_gpu = {gpu["index"]: sorted((mig for mig in migs if mig["gpu"] == gpu["index"]), key=_size) for gpu in near}
    divided = sorted(filter(None, of_gpu.values()), key=lambda migs_of_gpu: _size(migs_of_gpu[-1])[:2])
    in_turn = (mig for turn in zip_longest(*divided) for mig in turn if mig is not None)
    whole_gpus = (gpu for gpu in near if not gpu["mig"] and not of_gpu[gpu["index"]])
    return chain(whole_gpus, in_turn if spread else chain.from_iterable(divided))


def _size(mig: MigInstance) -> tuple[int, int, int, int]:
    return mig["memory"], mig["attributes"].get("multiprocessors", 0), mig["gi"], mig["ci"]


def _neighbours(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Put near GPUs beside each other: pairs grow into rows, the nearest first, joined where their ends are near."""
    weights = nearness({gpu["index"]: gpu["peers"] for gpu in gpus})
    by_address = sorted(gpus, key=lambda gpu: (gpu["pci"], gpu["uuid"]))
    keys = {number: (gpu["index"], gpu["numa"]) for number, gpu in enumerate(by_address)}
    rows = {number: [number] for number in keys}

    def near(pair: tuple[int, int]) -> int:
        return weight(weights, keys[pair[0]], keys[pair[1]])

    for number_a, number_b in sorted(combinations(keys, 2), key=near, reverse=True):  # stable: of equals, by address
        if rows[number_a] is rows[number_b]:
            continue
        first, second = sorted((rows[number_a], rows[number_b]), key=min)
        ends = product((first, first[::-1]), (second, second[::-1]))
        first_row, second_row = max(ends, key=lambda ends: near((ends[0][-1], ends[1][0])))
        rows.update(dict.fromkeys(first_row + second_row, first_row + second_row))
    return [by_address[number] for number in (rows[0] if rows else ())]
