"""What a GPU can be cut into: each MIG profile at each of its placements, as devices that exclude each other.

A partition is published before it is made. Counters of its GPU say what goes with what: each memory slice by its
number, so that placements that overlap exclude each other, and sums of compute slices and engines, of which some
profiles have the only one. The GPU is in MIG mode all the while, as in NVIDIA's driver on GPUs whose mode a reset
changes; so the whole of it is the profile that has all slices.
Order counts, for the allocator takes the first device that fits: small profiles come before large ones, and of each
profile the last placement first, since the large profiles without a choice begin at slice 0 (bench/fragments.py).
Pure. Out of scope: what NVML is asked for profiles, and who makes partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.dra import offered
from gpuplugin.dra.offered import COUNTED, GPU, MIG, Offered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from gpushim.mig.fit import Profile

SETS = 8  # of counters, in a slice (resource.k8s.io/v1, ResourceSliceMaxCounterSets)
ENGINES = {name: key for name, key in COUNTED.items() if key.startswith("engines.")}


def divide(
    whole: Offered, profiles: Sequence[Profile], occupied: Collection[tuple[int, int]] = ()
) -> tuple[list[Offered], dict[str, Any]]:
    """Return a GPU's partitions, in the order of publication, and its set of counters.

    Args:
        whole: the GPU.
        profiles: that it has.
        occupied: memory slices of instances that somebody else made, as placements: what touches them is left out.
    """
    name = whole.name
    total = _sum_up(profiles)
    devices = [
        _consuming(_partition(whole, profile, placement), name, _consumed(profile, placement))
        for profile, placement in _ordered(profiles)
        if not any(_overlap(placement, other) for other in occupied)
    ]
    return devices, {"name": name, "counters": _quantities(total)}


def name_partition(gpu: str, profile: str, start: int) -> str:
    """Return the name of a partition: mig-<uuid>-1g-10gb-me-4 for 1g.10gb+me at slice 4.

    Args:
        gpu: name of its GPU.
        profile: its name, of which some have "-me", which is less than those without.
        start: its first memory slice.
    """
    label = profile.replace("-", "-no-").replace(".", "-").replace("+", "-")
    return f"{MIG}-{gpu.removeprefix(f'{GPU}-')}-{label}-{start}"


def is_partition(device: Offered) -> bool:
    """Return whether a device is made for a claim, and removed with it."""
    return "consumesCounters" in device.body


def is_unmade(device: Offered) -> bool:
    """Return whether a device is a partition that is not there: it has a name in the place of a UUID."""
    return is_partition(device) and device.uuid.lower() == device.name


def slices(
    devices: Sequence[Offered], counters: Sequence[dict[str, Any]], taints: Mapping[str, Sequence[dict[str, Any]]]
) -> list[list[dict[str, Any]]]:
    """Return all that a node publishes, as `offered.slices`, with sets of counters before the devices.

    Args:
        devices: in their order.
        counters: sets of them, of GPUs that are cut on demand.
        taints: by UUID; a partition that is not there has its GPU's.
    """
    uuids = {device.name: find_unit(device) for device in devices}
    return [[*counters[start : start + SETS]] for start in range(0, len(counters), SETS)] + offered.slices(
        devices, {name: taints[uuid] for name, uuid in uuids.items() if uuid in taints}
    )


def find_unit(device: Offered) -> str:
    """Return the UUID of what there is of a device: a partition that is not there has its GPU."""
    return get_parent(device) if is_unmade(device) else device.uuid


def get_parent(device: Offered) -> str:
    """Return the UUID of the GPU that a device is or is a part of."""
    return str(device.body["attributes"]["parentUUID"]["string"])


def _ordered(profiles: Sequence[Profile]) -> Iterator[tuple[Profile, tuple[int, int]]]:
    for profile in sorted(profiles, key=lambda profile: (profile.memory, profile.slices, profile.name)):
        for placement in sorted(profile.placements, reverse=True):
            yield profile, placement


def _partition(whole: Offered, profile: Profile, placement: tuple[int, int]) -> Offered:
    """Return a partition as a MIG instance is described."""
    name = name_partition(whole.name, profile.name, placement[0])
    texts = {"type": MIG, "uuid": name, "profile": profile.name, "nvlinkGroup": whole.uuid}
    numbers = {name: str(profile.counted.get(key, 0)) for name, key in COUNTED.items()}
    numbers["memory"] = f"{profile.memory}Mi"
    attributes = {name: {"string": text} for name, text in texts.items()}
    body = {
        "name": name,
        "attributes": {**whole.body["attributes"], **attributes, "migEnabled": {"bool": True}},
        "capacity": {**whole.body["capacity"], **{name: {"value": value} for name, value in numbers.items()}},
    }
    return Offered(name, f"MIG-{name.removeprefix(f'{MIG}-')}", body)


def _consumed(profile: Profile, placement: tuple[int, int]) -> dict[str, int]:
    start, size = placement
    engines = {_hyphenate(name): profile.counted.get(key, 0) for name, key in ENGINES.items()}
    slices = {f"memory-slice-{number}": 1 for number in range(start, start + size)}
    return {"compute-slices": profile.slices, **engines, **slices}


def _sum_up(profiles: Sequence[Profile]) -> dict[str, int]:
    """Return all that a GPU has: the largest number of each, which the profile has that is all of it."""
    total: dict[str, int] = {}
    for profile in profiles:
        for placement in profile.placements:
            for name, number in _consumed(profile, placement).items():
                total[name] = max(number, total.get(name, 0))
    return total


def _consuming(device: Offered, counter_set: str, numbers: Mapping[str, int]) -> Offered:
    consumed = [{"counterSet": counter_set, "counters": _quantities(numbers)}]
    return device._replace(body={**device.body, "consumesCounters": consumed})


def _quantities(numbers: Mapping[str, int]) -> dict[str, dict[str, str]]:
    return {name: {"value": str(number)} for name, number in numbers.items() if number}


def _hyphenate(name: str) -> str:
    """Return a capacity's name as a counter's, which has no capitals: copy-engines of copyEngines."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def _overlap(placement: tuple[int, int], other: tuple[int, int]) -> bool:
    return placement[0] < sum(other) and other[0] < sum(placement)
