"""How much memory of each of its GPUs a container may have, and who says so.

A container asks by GPUSHIM_MEMORY_LIMIT or the annotation gpushim/memory-limit: "20Gi" for each GPU, or for GPUs by
index, UUID or PCI address, "0=20Gi,GPU-...=8Gi". [requests] of config.toml has a limit for who asks for none, and one
that nobody passes. Of several the smallest counts. The hook sets them (gpuhook/cgroup_limits.py).
Imported where there is a limit alone.
"""

from __future__ import annotations

from gpushim.ground import system
from gpushim.ground.errors import CONFIG, INVENTORY, REQUEST, GpushimError, quote
from gpushim.oci import hookargs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

    from gpushim.ground.model import Gpu, MigInstance, RequestsPolicy, Snapshot

    Asked = tuple[str, str]  # where it stands, and its text

DEFAULT, MOST = "memory-limit-default", "memory-limit-most"  # keys of [requests]
MIB = 1 << 20
LEAST = 16 * MIB  # bytes; less is a unit that was left out
SINCE = 615  # the driver's first version that keeps limits
CGROUPS = "/sys/fs/cgroup"  # the driver takes no other
CONTROLLERS = CGROUPS + "/cgroup.controllers"  # of cgroup v2
EVERY = ""  # stands for each GPU
UNITS = {  # of Kubernetes' quantities
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}


class Limit:
    """What a container may have of one GPU: the GPU's index, its PCI address, bytes, and where that stands.

    `larger` are limits of that GPU that do not count, smallest first.
    """

    __slots__ = ("gpu", "larger", "pci", "size", "source")

    def __init__(self, gpu: int, pci: str, sizes: Sequence[tuple[int, str]]) -> None:
        self.gpu, self.pci = gpu, pci
        (self.size, self.source), *self.larger = sizes

    def __str__(self) -> str:
        return f"at most {self.size >> 20} MiB of GPU {self.gpu} ({self.source})"


def decide(
    requested: Sequence[Asked],
    gpus: Sequence[Gpu],
    migs: Sequence[MigInstance],
    inventory: Snapshot,
    ignored: list[str],
) -> list[Limit]:
    """Decide the limits of a container.

    Args:
        requested: by the container; Request.memory.
        gpus: that it gets.
        migs: MIG instances that it gets, whose memory the hardware limits: no other limit can be set.
        ignored: gets a sentence for each that cannot be kept where config.toml does not require it.

    Raises:
        GpushimError: a limit cannot be understood, or cannot be kept here.
    """
    requests = inventory["policy"]["requests"]
    texts = [(source, parse(text, source)) for source, text in requested]
    names = {id(gpu): [str(gpu["index"]), gpu["uuid"], gpu["pci"]] for gpu in gpus}
    names.update((id(mig), [f"{mig['gpu']}:{mig['index']}", mig["uuid"]]) for mig in migs)
    for source, sizes in texts:
        _check_names(source, sizes, {EVERY}.union(*names.values()))
    limits = []
    for gpu in gpus:
        sorted_sizes = _sort([*names[id(gpu)], EVERY], texts, requests)
        if sorted_sizes:
            limits.append(Limit(gpu["index"], gpu["pci"], sorted_sizes))
    for mig in migs:
        size, source = next(iter(_sort([*names[id(mig)], EVERY], texts, requests)), (0, ""))
        if 0 < size < mig["memory"] << 20:
            reason = f"MIG instance {mig['uuid']} has {mig['memory']} MiB, and no limit within it can be set"
            _refuse(f"{size >> 20} MiB by {source}, but {reason}", requests, ignored)
    reason = missing(inventory) if limits else ""
    for limit in limits if reason else ():
        refuse(limit, reason, requests, ignored)
    return [] if reason else limits


def words(limits: Sequence[Limit], inventory: Snapshot, rootfs: str) -> list[str]:
    """Return the hook's arguments for limits; `rootfs` is "" for a CDI spec.

    That is written for each container to come: it has the hook look at what config.toml wants then, and says what to
    do where that cannot be known.
    """
    requests, root = inventory["policy"]["requests"], inventory["driver"]["root"]
    arguments: list[str] = []
    if limits or (not rootfs and requests["memory-limits"] != "required"):
        arguments += hookargs.words("--memory-limits", requests["memory-limits"])
    if not rootfs and (requests["memory-limit-default"] or requests["memory-limit-most"]):
        arguments += hookargs.words("--memory-every", "yes")
    for limit in limits:
        arguments += hookargs.words("--memory", limit.pci, str(limit.size))
    for file in inventory["files"].get("utility", ()) if limits else ():
        if file.get("soname") == "libnvidia-ml.so.1" and file["kind"] == "library":
            arguments += hookargs.words("--nvml", file["path"] if root == "/" else root + file["path"])
    return arguments


def parse(text: str, source: str) -> dict[str, int]:
    """Return limits in bytes by the GPU's name, EVERY for all.

    Raises:
        GpushimError: the text is no list of limits.
    """
    sizes: dict[str, int] = {}
    for entry in text.split(","):
        name, equals, size = entry.strip().rpartition("=")
        if name in sizes or bool(equals) != bool(name):
            raise GpushimError(
                f'{source} is "{quote(text)}": write 20Gi, or 0=20Gi,1=8Gi with each GPU once', REQUEST
            )
        sizes[name] = parse_size(size, source)
    if EVERY in sizes and len(sizes) > 1:
        raise GpushimError(f'{source} is "{quote(text)}": name a limit for all GPUs, or one for each', REQUEST)
    return sizes


def parse_size(text: str, source: str, code: int = REQUEST) -> int:
    """Return bytes: a number with a unit of Kubernetes', as 20Gi."""
    digits = text.rstrip("kKMGTi")
    unit = UNITS.get(text[len(digits) :], 0)
    size = int(digits) * unit if digits.isascii() and digits.isdecimal() and len(digits) < 16 else 0
    if not LEAST <= size < 1 << 63:
        raise GpushimError(
            f'{source} has "{quote(text)}", which is no size of GPU memory; write a whole number with a unit, as '
            f"20Gi or 512Mi, of {LEAST // MIB}Mi or more",
            code,
        )
    return size


def _check_names(source: str, sizes: dict[str, int], names: set[str]) -> None:
    for name in sizes:
        if name not in names:
            raise GpushimError(
                f'{source} limits the GPU "{quote(name)}", which the container does not get; name one that it gets',
                REQUEST,
            )


def _sort(
    names: Sequence[str], texts: Sequence[tuple[str, dict[str, int]]], requests: RequestsPolicy
) -> list[tuple[int, str]]:
    """Return the limits of a device, or the default, and who sets each: the smallest, which counts, first."""
    sizes = [(limits[name], source) for source, limits in texts for name in names if name in limits]
    default, upper = requests["memory-limit-default"], requests["memory-limit-most"]
    if default and not sizes:
        sizes = [(parse_size(default, DEFAULT, CONFIG), f"[requests] {DEFAULT}")]
    if upper:
        sizes.append((parse_size(upper, MOST, CONFIG), f"[requests] {MOST}"))
    return sorted(sizes)


def missing(inventory: Snapshot) -> str:
    """Return why no limit of a whole GPU can be kept with this driver, as a clause; "" if one may be."""
    version = inventory["driver"]["version"]
    major = version.partition(".")[0]
    if inventory["platform"] != "native":
        return "this platform has no such limits"
    if major.isdecimal() and int(major) < SINCE:
        return f"the driver {version} keeps none; it needs {SINCE} or newer"
    return ""


def missing_here(inventory: Snapshot) -> str:
    """Return why this host keeps no limit, as `missing`; the hook looks at the container's own cgroup."""
    return missing(inventory) or (f"{CGROUPS} is not cgroup v2 alone" if system.text(CONTROLLERS, 1) is None else "")


def refuse(limit: Limit, reason: str, requests: RequestsPolicy, ignored: list[str]) -> None:
    """Refuse a container whose limit cannot be kept, or note it where config.toml only wants it.

    Raises:
        GpushimError: config.toml requires it.
    """
    _refuse(f"{limit.size >> 20} MiB of GPU {limit.gpu} by {limit.source}, but {reason}", requests, ignored)


def _refuse(limit: str, requests: RequestsPolicy, ignored: list[str]) -> None:
    """Refuse a container whose limit cannot be kept, or note it where config.toml only wants it."""
    sentence = f"the container is limited to {limit}"
    if requests["memory-limits"] == "required":
        ways = 'leave the limit out, or write memory-limits = "wanted" under [requests] in config.toml'
        raise GpushimError(f"{sentence}; {ways}", INVENTORY)
    ignored.append(sentence)
