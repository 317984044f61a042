"""The labels of a node, as NVIDIA's GPU feature discovery names and spells them, from the snapshot.

Source of names and values: GPU feature discovery of NVIDIA's k8s-device-plugin 0.20. What is not known has no label.
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
MIG_STATE = PREFIX + "mig.config.state"  # of health.mig_layout, which is no fact of the snapshot
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
class Replication:
    """How devices are offered.

    Attributes:
        replicas: how often each; 0 stands for a device that is not offered.
        strategy: of sharing: none, time-slicing or mps.
        renamed: the replicas have a resource of their own.
    """

    replicas: int
    strategy: str = "none"
    renamed: bool = False


NOT_OFFERED = Replication(0)


def labels(snapshot: Snapshot, settings: Settings, model: str) -> dict[str, str]:
    """Return the labels of a node but TIMESTAMP, sorted by name; none where no GPU is offered.

    Raises:
        GpushimError: groups of sharing do not go together, or not with these GPUs.
    """
    excluded = () if snapshot["platform"] in ALL_IN_ONE else settings.values["exclude"]
    gpus, migs = resources.included(snapshot, excluded, [])
    if snapshot["error"] or not gpus:
        return {}
    strategy = settings.values["mig-strategy"]
    fields = {**_node_labels(gpus, model), **_version_labels(snapshot), **_sharing(settings)}
    if strategy != "none":
        fields["mig.strategy"] = strategy
    single = strategy == "single" and any(gpu["mig"] for gpu in gpus)
    if single and not _is_single(gpus, migs):
        fields.update(_gpu_labels(gpus, {}), **_invalid_mig_labels(gpus))
    else:
        replications = _replications(snapshot, settings)
        fields.update(_gpu_labels(gpus, replications))
        for name, instances in (
            _group_by_resource(migs, "gpu" if single else "").items() if strategy != "none" else ()
        ):
            fields.update(_mig_labels(name, instances, gpus, replications))
    return {PREFIX + name: value for name, value in sorted(fields.items())}


def machine(path: str = PRODUCT_NAME) -> str:
    """Read the model of this machine, which a pod sees as its node does; it is unknown where there is no DMI."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return value(file.read(256)) or UNKNOWN
    except OSError:
        return UNKNOWN


def value(text: str, *words: str) -> str:
    """Return a label's value, spelled as Kubernetes takes it; "" if nothing of the text can be in a value.

    Args:
        text: any; what is too long of it goes.
        words: that follow, none of which goes.
    """
    end = "".join(f"-{spelled}" for word in words for spelled in [_spelled(word)] if spelled)
    begin = _spelled(text)[: LONGEST - len(end)].rstrip(_EDGE)
    return begin + end if begin else ""


def _spelled(text: str) -> str:
    return "-".join(_OUTSIDE.sub("", text).split()).strip(_EDGE)


def _node_labels(gpus: Sequence[Gpu], model: str) -> dict[str, str]:
    classes = {gpu["pci_class"] for gpu in gpus}
    cliques = {gpu["fabric"] for gpu in gpus if gpu["fabric"]}
    fields = {
        "gpu.machine": model,
        "gpu.mode": MODES.get(classes.pop(), UNKNOWN) if len(classes) == 1 else UNKNOWN,
        "mig.capable": _bool(any(gpu["mig_capable"] for gpu in gpus)),
        "vgpu.present": _bool(any(gpu["vgpu"] for gpu in gpus)),
    }
    return {**fields, "gpu.clique": cliques.pop()} if len(cliques) == 1 else fields


def _sharing(settings: Settings) -> dict[str, str]:
    return {"mps.capable": _bool(any(group.mps for group in settings.sharing))}


def _version_labels(snapshot: Snapshot) -> dict[str, str]:
    """Return the versions of driver and CUDA; the labels with fewer words are deprecated."""
    fields = {}
    driver, cuda = value(snapshot["driver"]["version"]), snapshot["driver"]["cuda"]
    if driver:
        fields["cuda.driver-version.full"] = driver
    parts = driver.split(".")
    if 2 <= len(parts) <= 3:
        for short, name, part in zip(("major", "minor", "rev"), ("major", "minor", "revision"), [*parts, ""]):
            fields[f"cuda.driver.{short}"] = fields[f"cuda.driver-version.{name}"] = part
    if cuda:
        fields["cuda.runtime-version.full"] = cuda
        for name, part in zip(("major", "minor"), cuda.split(".")):
            fields[f"cuda.runtime.{name}"] = fields[f"cuda.runtime-version.{name}"] = part
    return fields


def _is_single(gpus: Sequence[Gpu], migs: Sequence[MigInstance]) -> bool:
    try:
        resources.check_single(gpus, migs, [])
    except GpushimError:
        return False
    return True


def _gpu_labels(gpus: Sequence[Gpu], replications: dict[str, Replication]) -> dict[str, str]:
    """Return the labels of GPUs; of several models, the one that most are of, and the first of these."""
    candidates = [gpu for gpu in gpus if not gpu["mig"]] or gpus
    model = _most_common(gpu["model"] for gpu in candidates)
    count = sum(gpu["model"] == model for gpu in gpus)
    same_model = [gpu for gpu in candidates if gpu["model"] == model]
    example = min(same_model, key=lambda gpu: not gpu["arch"])  # a sick one does not tell all
    replication = _choose(
        replications[gpu["uuid"]] for gpu in same_model if gpu["uuid"] in replications and not gpu["mig"]
    )
    labels = _base_labels("gpu", replication, count, model)
    if example["memory"]:
        labels["gpu.memory"] = str(example["memory"])
    if example["arch"]:
        major, _, minor = example["arch"].partition(".")
        labels.update({"gpu.compute.major": major, "gpu.compute.minor": minor, "gpu.family": family(example["arch"])})
    return labels


def family(arch: str) -> str:
    """Return the name of the family of a compute capability, such as 8.6."""
    number = tuple(int(part) for part in arch.split("."))
    return [UNDEFINED, *(name for first, name in FAMILIES.items() if first <= number)][-1]


def _invalid_mig_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the labels of MIG instances that are not such as the strategy single needs them."""
    model = next(gpu["model"] for gpu in gpus if gpu["mig"])
    product = value(model, "MIG", "INVALID")
    return {**{f"gpu.{name}": "0" for name in ("count", "replicas", "memory")}, "gpu.product": product}


def _group_by_resource(migs: Sequence[MigInstance], only: str) -> dict[str, list[MigInstance]]:
    by_name: dict[str, list[MigInstance]] = {}
    for mig in migs:
        name = only or resources.name_of(mig, []).replace(PREFIX, "", 1)
        if name:
            by_name.setdefault(name, []).append(mig)
    return by_name


def _mig_labels(
    name: str, migs: Sequence[MigInstance], gpus: Sequence[Gpu], replications: dict[str, Replication]
) -> dict[str, str]:
    """Return the labels of a profile's MIG instances; of several models, as of GPUs."""
    models = {gpu["index"]: gpu["model"] for gpu in gpus}
    model = _most_common(models[mig["gpu"]] for mig in migs)
    example = next(mig for mig in migs if models[mig["gpu"]] == model)
    replication = _choose(replications[mig["uuid"]] for mig in migs if mig["uuid"] in replications)
    labels = _base_labels(name, replication, len(migs), model, "MIG", example["profile"])
    if example["memory"]:
        labels[f"{name}.memory"] = str(example["memory"])
    return {**labels, **{f"{name}.{key}": str(number) for key, number in example["attributes"].items()}}


def _base_labels(name: str, replication: Replication, count: int, model: str, *words: str) -> dict[str, str]:
    shared = ("SHARED",) if replication.replicas > 1 and not replication.renamed else ()
    product = value(model, *words, *shared)
    fields = {"count": str(count), "replicas": str(replication.replicas), "sharing-strategy": replication.strategy}
    return {f"{name}.{key}": text for key, text in {**fields, "product": product}.items() if text}


def _replications(snapshot: Snapshot, settings: Settings) -> dict[str, Replication]:
    """Return by UUID how each device is offered."""
    devices_by_resource = resources.find(snapshot, settings.values["mig-strategy"], settings.values["exclude"], [])
    names = {device.uuid: name for name, devices in devices_by_resource.items() for device in devices}
    parts: dict[str, list[tuple[str, Device]]] = {}
    for name, devices in division.divide(devices_by_resource, snapshot, settings.sharing, []).items():
        for device in devices:
            parts.setdefault(device.uuid, []).append((name, device))
    replications = {uuid: _replication(names[uuid], devices) for uuid, devices in parts.items()}
    if snapshot["platform"] in ALL_IN_ONE:  # where one device is all GPUs
        return {gpu["uuid"]: replication for gpu in snapshot["gpus"] for replication in replications.values()}
    return replications


def _replication(resource: str, parts: Sequence[tuple[str, Device]]) -> Replication:
    share = parts[0][1].share
    if len(parts) == 1 or share is None:
        return Replication(1)
    return Replication(len(parts), share.kind, all(name != resource for name, _ in parts))


def _choose(replications: Iterable[Replication]) -> Replication:
    """Choose the label for several devices: that some are shared under their name, or else what most are."""
    every = [*replications]
    own_name = [replication for replication in every if replication.replicas > 1 and not replication.renamed]
    return Counter(own_name or every).most_common(1)[0][0] if every else NOT_OFFERED


def _most_common(names: Iterable[str]) -> str:
    return Counter(names).most_common(1)[0][0]  # of equal ones, the first


def _bool(answer: bool) -> str:
    return str(answer).lower()
