"""The simulated host's GPUs and MIG devices as plain data, and the text that nvml.c and cuda.c read.

Out of scope: anything on disk (see tree.py) and models' real limits (see mig_models.c); a profile's name is believed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

# NVML's brand numbers by the names that NVIDIA_REQUIRE_* conditions use.
BRANDS = {
    "unknown": 0,
    "quadro": 1,
    "tesla": 2,
    "nvs": 3,
    "grid": 4,
    "geforce": 5,
    "titan": 6,
    "nvidiavws": 10,
    "quadrortx": 12,
    "nvidiartx": 13,
    "nvidia": 14,
    "geforcertx": 15,
    "titanrtx": 16,
}
MAX_GPUS = 64
# The PCI buses of an eight-GPU DGX.
BUSES = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
ROOT_BUSES = 0xC0  # the bits of a bus that its root has
# Where the driver numbers the first GPU instance of each size, by number of slices.
FIRST_INSTANCE = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}
# What differs from the default model, an A100.
H100: dict[str, Any] = {"model": "NVIDIA H100 80GB HBM3", "arch": "9.0", "memory": 81559, "device_id": 0x2330}
A100_80: dict[str, Any] = {"model": "NVIDIA A100-SXM4-80GB", "memory": 81920, "device_id": 0x20B2}
A30: dict[str, Any] = {"model": "NVIDIA A30", "memory": 24576, "device_id": 0x20B7}
H200: dict[str, Any] = {"model": "NVIDIA H200", "arch": "9.0", "memory": 143771, "device_id": 0x2335}
B200: dict[str, Any] = {"model": "NVIDIA B200", "arch": "10.0", "memory": 183359, "device_id": 0x2901}
RTX_PRO_6000: dict[str, Any] = {
    "model": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "brand": "nvidiartx",
    "arch": "12.0",
    "memory": 97887,
    "device_id": 0x2BB5,
}
# The second of a machine with two; its memory is a NUMA node without processors.
GH200: dict[str, Any] = {
    "model": "NVIDIA GH200 480GB",
    "arch": "9.0",
    "memory": 97871,
    "device_id": 0x2342,
    "pci": "0019:01:00.0",
    "numa": 1,
    "minor": 1,
}
DEFAULT_MIG = ("3g.20gb", "2g.10gb", "1g.5gb")
# mig-minors: config is 1, monitor is 2, then 15 GPU instances of one access file and 8 compute instances each.
FIRST_CAP, INSTANCES, COMPUTES = 3, 15, 8

Division = tuple[Optional[tuple[int, int]], list["Instance"], list["Mig"]]
MigRequest = Union[str, tuple[int, int, str], tuple[int, int, str, str]]


@dataclass
class Mig:
    """One MIG device: GPU instance, compute instance, profile name, `MIG-…` UUID; its slices if NVML has made it."""

    gi: int
    ci: int
    profile: str
    uuid: str
    slices: str = ""


@dataclass
class Instance:
    """One GPU instance that NVML has made: its profile's id, and its placement as "start:size"."""

    gi: int
    profile: int
    placement: str


@dataclass
class Gpu:
    """One GPU.

    `index` is its place in PCI order, `pci` its bus id as sysfs writes it, `memory` its size in MiB (0: NVML does not
    tell it), `mig_mode` the current and pending mode or None on a model without MIG. `near`
    has NVML's topology levels and `links` the numbers of NVLinks by the index of another GPU, said of one of the two;
    `switched` is the number of its NVLinks to an NVSwitch; `fabric` has the UUID of their cluster and the number of
    the clique, as "UUID 7". A GPU of the brand nvidiavws is a virtual one.
    """

    index: int
    minor: int
    uuid: str
    pci: str
    model: str = "NVIDIA A100-SXM4-40GB"
    brand: str = "nvidia"
    arch: str = "8.0"
    memory: int = 40960
    device_id: int = 0x20B0
    mig_mode: Optional[tuple[int, int]] = (0, 0)
    mig: list[Mig] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    numa: int = -1
    near: dict[int, int] = field(default_factory=dict)
    links: dict[int, int] = field(default_factory=dict)
    switched: int = 0
    fabric: str = ""
    pci_class: str = "0x030200"

    @property
    def nvml_bus_id(self) -> str:
        """The bus id as NVML writes it: eight-digit domain, upper case."""
        return "0000" + self.pci.upper()

    @property
    def pcie_root(self) -> str:
        """The root of the PCIe tree that it is in, as sysfs names its directory; neighbours share one."""
        domain, bus, _ = self.pci.split(":")
        return f"pci{domain}:{int(bus, 16) & ROOT_BUSES:02x}"


def gi_cap(minor: int, gi: int) -> int:
    """Return the nvidia-caps minor of GPU instance `gi` of the GPU with that device minor."""
    return FIRST_CAP + (minor * INSTANCES + gi) * (1 + COMPUTES)


def ci_cap(minor: int, gi: int, ci: int) -> int:
    """Return the nvidia-caps minor of compute instance `ci` of that GPU instance."""
    return gi_cap(minor, gi) + 1 + ci


def describe(gpus: Union[int, Sequence[Mapping[str, Any]]], mig: Any) -> list[Gpu]:
    """Turn what `build` was asked for into complete GPUs.

    Args:
        gpus: how many, or one mapping per GPU with the fields of `Gpu` that differ from the defaults; its `mig`
            lists MIG devices as `set_mig` takes them.
        mig: None; True for a default set of MIG devices on GPU 0; or a mapping from index to such a list.

    Raises:
        ValueError: out of PCI order, or two GPUs share what must be unique.
    """
    wanted: list[Mapping[str, Any]] = [{} for _ in range(gpus)] if isinstance(gpus, int) else list(gpus)
    made = [_gpu(index, len(wanted), fields) for index, fields in enumerate(wanted)]
    for index, devices in ({0: DEFAULT_MIG} if mig is True else mig or {}).items():
        set_mig(made[index], devices)
    if len(made) > MAX_GPUS:
        raise ValueError(f"at most {MAX_GPUS} GPUs")
    if [gpu.pci for gpu in made] != sorted({gpu.pci for gpu in made}):
        raise ValueError("GPUs must be listed in PCI order, each on its own bus id")
    for name in ("minor", "uuid"):
        if len({getattr(gpu, name) for gpu in made}) != len(made):
            raise ValueError(f"two GPUs have the same {name}")
    return made


def _gpu(index: int, count: int, fields: Mapping[str, Any]) -> Gpu:
    bus = BUSES[index] if count <= len(BUSES) else 0x10 + index
    defaults = {
        # A permutation without a fixed point: whoever mixes up index and minor is found out.
        "minor": (index + 1) % count if count > 1 else 1,
        "uuid": f"GPU-{_uuid('gpu', index)}",
        "pci": f"0000:{bus:02x}:00.0",
        "numa": index % 2,
    }
    own = {key: value for key, value in fields.items() if key not in ("index", "mig")}
    gpu = Gpu(index, **{**defaults, **own})
    if "mig" in fields:
        set_mig(gpu, fields["mig"])
    return gpu


def set_mig(gpu: Gpu, devices: Iterable[MigRequest]) -> None:
    """Switch MIG on for this GPU and give it these devices.

    Args:
        gpu: the GPU to change.
        devices: profiles such as "3g.20gb", "1g.10gb+me" or "1g.24gb+gfx", which get the next free GPU instance
            and compute instance 0, or (gi, ci, profile) or (gi, ci, profile, uuid).
    """
    gpu.mig_mode, gpu.mig, gpu.instances = (1, 1), [], []
    for device in devices:
        if isinstance(device, str):
            gi = FIRST_INSTANCE[int(device.partition("g.")[0])]
            while gi in {mig.gi for mig in gpu.mig}:
                gi += 1
            device = (gi, 0, device)
        gi, ci, profile = device[:3]
        name = device[3] if len(device) > 3 else f"MIG-{_uuid('mig', gpu.uuid, gi, ci)}"
        gpu.mig.append(Mig(gi, ci, profile, name))


def _uuid(*parts: object) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "fakehost/" + "/".join(map(str, parts))))


def table(gpus: Iterable[Gpu]) -> str:
    """Return the lines about GPUs of fakehost.conf; table.c reads exactly this form."""
    lines = []
    gpus = list(gpus)
    for gpu in gpus:
        current, pending = gpu.mig_mode or (-1, -1)
        lines.append(
            f"gpu = {gpu.index} minor={gpu.minor} pci={gpu.pci} uuid={gpu.uuid} arch={gpu.arch} "
            f"brand={BRANDS[gpu.brand]} memory={gpu.memory} device={gpu.device_id:04x} "
            f"mig={current}/{pending} model={gpu.model}"
        )
        lines += [
            f"instance = {gpu.index} gi={instance.gi} profile={instance.profile} placement={instance.placement}"
            for instance in gpu.instances
        ]
        lines += [
            f"mig = {gpu.index} gi={mig.gi} ci={mig.ci} "
            f"caps={gi_cap(gpu.minor, mig.gi)},{ci_cap(gpu.minor, mig.gi, mig.ci)} "
            f"profile={mig.profile} uuid={mig.uuid}" + (f" slices={mig.slices}" if mig.slices else "")
            for mig in gpu.mig
        ]
    there = {gpu.index for gpu in gpus}
    for gpu in gpus:
        lines += [f"near = {gpu.index} {other} {level}" for other, level in gpu.near.items() if other in there]
        lines += [f"link = {gpu.index} {other} {count}" for other, count in gpu.links.items() if other in there]
        lines += [f"switch = {gpu.index} {gpu.switched}"] if gpu.switched else []
        lines += [f"fabric = {gpu.index} {gpu.fabric.replace('-', '')}"] if gpu.fabric else []
    return "".join(line + "\n" for line in lines)


def divisions(text: str) -> dict[str, Division]:
    """Return mode, GPU instances and MIG devices of each GPU that has a MIG mode, by UUID, as a table has them."""
    found: dict[str, Division] = {}
    for number, uuid_, current, pending in re.findall(r"^gpu = (\d+) .*?uuid=(\S+) .*?mig=(\d)/(\d)", text, re.M):
        instances = re.findall(rf"^instance = {number} gi=(\d+) profile=(\d+) placement=(\S+)", text, re.M)
        devices = re.findall(
            rf"^mig = {number} gi=(\d+) ci=(\d+) .*?profile=(\S+) uuid=(\S+)(?: slices=(.+))?", text, re.M
        )
        found[uuid_] = (
            (int(current), int(pending)),
            [Instance(int(gi), int(profile), placement) for gi, profile, placement in instances],
            [Mig(int(gi), int(ci), *names) for gi, ci, *names in devices],
        )
    return found


def adopt(gpus: Iterable[Gpu], before: Mapping[str, Division], now: Mapping[str, Division]) -> list[Gpu]:
    """Give GPUs what NVML has made of them since an earlier table, but for one that was changed here too."""
    alike = [
        gpu for gpu in gpus if gpu.uuid in now and before.get(gpu.uuid) == (gpu.mig_mode, gpu.instances, gpu.mig)
    ]
    for gpu in alike:
        gpu.mig_mode, gpu.instances, gpu.mig = now[gpu.uuid]
    return alike
