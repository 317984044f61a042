"""The labels of a node, as NVIDIA's GPU feature discovery names and spells them, from the snapshot.

Source of names and values: GPU feature discovery of NVIDIA's k8s-device-plugin 0.20. What is not known has no label.
Out of scope: where they go (labels_file.py, node_feature.py).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.devices import division
from gpuplugin.settings import resources
from gpuplugin.settings.resources import ALL_IN_ONE, PREFIX
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuplugin.settings.resources import Device
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Gpu, MigInstance, Snapshot

TIMESTAMP = PREFIX + "gfd.timestamp"
PRODUCT_NAME = "/sys/class/dmi/id/product_name"
LONGEST = 63  # characters of a label's value (Kubernetes, "Labels and Selectors"), which begins and ends with one of
_OUTSIDE, _EDGE = re.compile("[^A-Za-z0-9_. -]"), "-_."  # letters and digits, so none of _EDGE
UNKNOWN, UNDEFINED = "unknown", "undefined"
MODES = {"0x030000": "graphics", "0x030200": "compute"}  # by PCI class: VGA controller, 3D controller
# By compute capability, up to the next one.
FAMILIES = {
    (1, 0): "tesla",
    (2, 0): "fermi",
    (3, 0): "kepler",
    (4, 0): UNDEFINED,
    (5, 0): "maxwell",
    (6, 0): "pascal",
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 9): "ada-lovelace",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (11, 0): UNDEFINED,
    (12, 0): "blackwell",
    (13, 0): "rubin",
    (14, 0): UNDEFINED,
}


@dataclass(frozen=True)
class Way:
    """How devices are given out.

    Attributes:
        replicas: how often each; 0 is said of what is not given out.
        strategy: of sharing: none, time-slicing or mps.
        renamed: the replicas have a resource of their own.
    """

    replicas: int
    strategy: str = "none"
    renamed: bool = False


NOT_GIVEN = Way(0)


def labels(snapshot: Snapshot, settings: Settings, model: str) -> dict[str, str]:
    """Say what a node has.

    Args:
        snapshot: of its inventory.
        settings: in force.
        model: of the machine, as `machine` reads it.

    Returns:
        the labels but TIMESTAMP, sorted by name; none where no GPU can be given out.

    Raises:
        GpushimError: groups of sharing do not go together, or not with these GPUs.
    """
    excluded = () if snapshot["platform"] in ALL_IN_ONE else settings.values["exclude"]
    gpus, migs = resources.included(snapshot, excluded, [])
    if snapshot["error"] or not gpus:
        return {}
    strategy = settings.values["mig-strategy"]
    found = {**_of_node(gpus, model), **_versions(snapshot), **_sharing(settings)}
    if strategy != "none":
        found["mig.strategy"] = strategy
    single = strategy == "single" and any(gpu["mig"] for gpu in gpus)
    if single and not _is_single(gpus, migs):
        found.update(_whole(gpus, {}), **_invalid(gpus))
    else:
        ways = _ways(snapshot, settings)
        found.update(_whole(gpus, ways))
        for name, alike in _by_resource(migs, "gpu" if single else "").items() if strategy != "none" else ():
            found.update(_divided(name, alike, gpus, ways))
    return {PREFIX + name: value for name, value in sorted(found.items())}


def machine(path: str = PRODUCT_NAME) -> str:
    """Read the model of this machine, which a pod sees as its node does; it is unknown where there is no DMI."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return value(file.read(256)) or UNKNOWN
    except OSError:
        return UNKNOWN


def value(text: str, *more: str) -> str:
    """Spell a label's value.

    Args:
        text: any; what is too long of it goes.
        more: words that follow, none of which goes.

    Returns:
        what Kubernetes takes; "" if nothing of the text can be in a value.
    """
    end = "".join(f"-{word}" for one in more for word in [_spelled(one)] if word)
    begin = _spelled(text)[: LONGEST - len(end)].rstrip(_EDGE)
    return begin + end if begin else ""


def _spelled(text: str) -> str:
    return "-".join(_OUTSIDE.sub("", text).split()).strip(_EDGE)


def _of_node(gpus: Sequence[Gpu], model: str) -> dict[str, str]:
    classes = {gpu["pci_class"] for gpu in gpus}
    cliques = {gpu["fabric"] for gpu in gpus if gpu["fabric"]}
    found = {
        "gpu.machine": model,
        "gpu.mode": MODES.get(classes.pop(), UNKNOWN) if len(classes) == 1 else UNKNOWN,
        "mig.capable": _bool(any(gpu["mig_capable"] for gpu in gpus)),
        "vgpu.present": _bool(any(gpu["vgpu"] for gpu in gpus)),
    }
    return {**found, "gpu.clique": cliques.pop()} if len(cliques) == 1 else found


def _sharing(settings: Settings) -> dict[str, str]:
    return {"mps.capable": _bool(any(group.mps for group in settings.sharing))}


def _versions(snapshot: Snapshot) -> dict[str, str]:
    """Say the versions of driver and CUDA; the labels with fewer words are deprecated."""
    found = {}
    driver, cuda = value(snapshot["driver"]["version"]), snapshot["driver"]["cuda"]
    if driver:
        found["cuda.driver-version.full"] = driver
    parts = driver.split(".")
    if 2 <= len(parts) <= 3:
        for short, name, part in zip(("major", "minor", "rev"), ("major", "minor", "revision"), [*parts, ""]):
            found[f"cuda.driver.{short}"] = found[f"cuda.driver-version.{name}"] = part
    if cuda:
        found["cuda.runtime-version.full"] = cuda
        for name, part in zip(("major", "minor"), cuda.split(".")):
            found[f"cuda.runtime.{name}"] = found[f"cuda.runtime-version.{name}"] = part
    return found


def _is_single(gpus: Sequence[Gpu], migs: Sequence[MigInstance]) -> bool:
    try:
        resources.check_single(gpus, migs, [])
    except GpushimError:
        return False
    return True


def _whole(gpus: Sequence[Gpu], ways: dict[str, Way]) -> dict[str, str]:
    """Say what GPUs there are; of several models, the one that most are of, and the first of these."""
    found = [gpu for gpu in gpus if not gpu["mig"]] or gpus
    model = _most(gpu["model"] for gpu in found)
    count = sum(gpu["model"] == model for gpu in gpus)
    alike = [gpu for gpu in found if gpu["model"] == model]
    one = min(alike, key=lambda gpu: not gpu["arch"])  # a sick one does not tell all
    way = _shared(ways[gpu["uuid"]] for gpu in alike if gpu["uuid"] in ways and not gpu["mig"])
    labels = _base("gpu", way, count, model)
    if one["memory"]:
        labels["gpu.memory"] = str(one["memory"])
    if one["arch"]:
        major, _, minor = one["arch"].partition(".")
        labels.update({"gpu.compute.major": major, "gpu.compute.minor": minor, "gpu.family": family(one["arch"])})
    return labels


def family(arch: str) -> str:
    """Name the family of a compute capability, such as 8.6."""
    number = tuple(int(part) for part in arch.split("."))
    return [UNDEFINED, *(name for first, name in FAMILIES.items() if first <= number)][-1]


def _invalid(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Say that MIG instances are not such as the strategy single needs them."""
    model = next(gpu["model"] for gpu in gpus if gpu["mig"])
    product = value(model, "MIG", "INVALID")
    return {**{f"gpu.{name}": "0" for name in ("count", "replicas", "memory")}, "gpu.product": product}


def _by_resource(migs: Sequence[MigInstance], only: str) -> dict[str, list[MigInstance]]:
    found: dict[str, list[MigInstance]] = {}
    for mig in migs:
        name = only or resources.name_of(mig, []).replace(PREFIX, "", 1)
        if name:
            found.setdefault(name, []).append(mig)
    return found


def _divided(name: str, migs: Sequence[MigInstance], gpus: Sequence[Gpu], ways: dict[str, Way]) -> dict[str, str]:
    """Say what MIG instances there are of a profile; of several models, as of GPUs."""
    models = {gpu["index"]: gpu["model"] for gpu in gpus}
    model = _most(models[mig["gpu"]] for mig in migs)
    one = next(mig for mig in migs if models[mig["gpu"]] == model)
    way = _shared(ways[mig["uuid"]] for mig in migs if mig["uuid"] in ways)
    labels = _base(name, way, len(migs), model, "MIG", one["profile"])
    if one["memory"]:
        labels[f"{name}.memory"] = str(one["memory"])
    return {**labels, **{f"{name}.{key}": str(number) for key, number in one["attributes"].items()}}


def _base(name: str, way: Way, count: int, model: str, *more: str) -> dict[str, str]:
    shared = ("SHARED",) if way.replicas > 1 and not way.renamed else ()
    product = value(model, *more, *shared)
    found = {"count": str(count), "replicas": str(way.replicas), "sharing-strategy": way.strategy}
    return {f"{name}.{key}": text for key, text in {**found, "product": product}.items() if text}


def _ways(snapshot: Snapshot, settings: Settings) -> dict[str, Way]:
    """Say of each device how it is given out, by UUID."""
    there = resources.find(snapshot, settings.values["mig-strategy"], settings.values["exclude"], [])
    names = {one.uuid: name for name, devices in there.items() for one in devices}
    parts: dict[str, list[tuple[str, Device]]] = {}
    for name, devices in division.divide(there, snapshot, settings.sharing, []).items():
        for device in devices:
            parts.setdefault(device.uuid, []).append((name, device))
    found = {uuid: _way(names[uuid], devices) for uuid, devices in parts.items()}
    if snapshot["platform"] in ALL_IN_ONE:  # where one device is all GPUs
        return {gpu["uuid"]: way for gpu in snapshot["gpus"] for way in found.values()}
    return found


def _way(resource: str, parts: Sequence[tuple[str, Device]]) -> Way:
    share = parts[0][1].share
    if len(parts) == 1 or share is None:
        return Way(1)
    return Way(len(parts), share.kind, all(name != resource for name, _ in parts))


def _shared(ways: Iterable[Way]) -> Way:
    """Choose what is said of several devices: that some are shared under their name, or else what most are."""
    found = [*ways]
    under_it = [way for way in found if way.replicas > 1 and not way.renamed]
    return Counter(under_it or found).most_common(1)[0][0] if found else NOT_GIVEN


def _most(names: Iterable[str]) -> str:
    return Counter(names).most_common(1)[0][0]  # of equal ones, the first


def _bool(answer: bool) -> str:
    return str(answer).lower()
