"""Which of the devices that are free a container had best get: near each other, or spread, or packed.

An answer is advice: kubelet pads or cuts it. Allocate accepts it if it accepts any set of its size. An error would
refuse the pod, so there is none, whatever is asked.
Whole GPUs: of all sets of the size asked for the one with most NVLinks within, and of such the nearest on the bus, by
a table made once. Links to NVSwitches make all pairs equal, so that the bus decides. MIG instances and replicas:
spread over GPUs, or packed on few. In memory only, as allocation.py. Budget: 4 ms for 16 GPUs, the table 0.1 s.
"""

from __future__ import annotations

from array import array
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplugin.settings.resources import Device

    Choice = Callable[[Sequence[str], Sequence[str], int], list[str]]  # available, wanted anyway, how many
    Pairs = tuple[tuple[int, ...], ...]  # how near two GPUs are, by their places

LARGEST = 16  # GPUs, of which all sets are looked at; of more, as many sets are tried
# How near two GPUs are, by nvmlGpuTopologyLevel_t.
BUS = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
NUMA = 5  # for a common NUMA node, which counts where the bus does not tell, as in some virtual machines
NVLINK = 10_000  # for each link: more than the bus of all 120 pairs of 16 GPUs


def nearness(peers: Mapping[int, Sequence[Sequence[int]]]) -> dict[tuple[int, int], int]:
    """Return the weights of pairs of GPUs.

    Args:
        peers: by index of a GPU, [index of another, topology level, number of NVLinks between them].
    """
    return {
        (gpu, peer): BUS.get(level, 0) + NVLINK * links for gpu, near in peers.items() for peer, level, links in near
    }


def weight(weights: Mapping[tuple[int, int], int], first: tuple[int, int], second: tuple[int, int]) -> int:
    """Return how near two GPUs are, each given by its index and its NUMA node.

    Args:
        weights: of `nearness`; a pair that it does not have is far.
    """
    return weights.get((first[0], second[0]), 0) + NUMA * (first[1] == second[1] >= 0)


def allowed(devices: Sequence[Device], weights: Mapping[tuple[int, int], int], packed: bool) -> Choice:
    """Return a choice that Allocate does not refuse (allocation.check), wherever one of its size can be made."""
    daemons: dict[str, list[Device]] = {}  # a process can have one of MPS
    for device in devices:
        daemons.setdefault(device.share.group if device.share else "", []).append(device)
    ids = {device.id for device in devices}
    parts = [_Part(group, weights, packed) for group in daemons.values()]

    def choose(available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
        must = ids.intersection(required)
        fits = [part for part in parts if part.room(available, must, size) >= size and must <= part.devices.keys()]
        if not fits:
            return _pad([], available, required, size)
        best = (min if packed else max)(fits, key=lambda part: part.room(available, must, size))
        return _pad(best.choose(best.free(available, size), required, size), available, required, size)

    return choose


class _Part:
    """Devices of a resource that one container may have several of."""

    def __init__(self, devices: Sequence[Device], weights: Mapping[tuple[int, int], int], packed: bool) -> None:
        self.devices = {device.id: device for device in devices}
        self._single = {device.id for device in devices if device.share and device.share.single}
        self._distinct = any(device.share and device.share.distinct for device in devices)
        all_whole = all(device.id == device.uuid and ":" not in device.index for device in devices)
        self.choose = nearest(devices, weights) if all_whole else shared(devices, packed, self._distinct)

    def free(self, available: Sequence[str], size: int) -> list[str]:
        """Return the ids that can be in a choice of a size."""
        return [name for name in available if name in self.devices and (size < 2 or name not in self._single)]

    def room(self, available: Sequence[str], must: set[str], size: int) -> int:
        """Return the number of devices that a choice can have; 0 if the required ones are not allowed together."""
        ids = {*self.free(available, size), *self.free([*must], size)}
        uuids = {self.devices[name].uuid for name in ids} if self._distinct else ids
        apart = len({self.devices[name].uuid for name in must if name in self.devices})
        return len(uuids) if not self._distinct or apart == len(must) else 0


def nearest(devices: Sequence[Device], weights: Mapping[tuple[int, int], int]) -> Choice:
    """Return a choice of whole GPUs that are near each other by the weights of `nearness`."""
    positions = {device.id: position for position, device in enumerate(devices)}
    gpus = [(device.gpu, device.numa) for device in devices]
    pairs = tuple(tuple(weight(weights, gpu, peer) for peer in gpus) for gpu in gpus)
    sets = _list_sets(pairs) if len(pairs) <= LARGEST else None

    def choose(available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
        must = {positions[name] for name in required if name in positions}
        free = {positions[name] for name in available if name in positions} | must
        count = size - len(set(required) - positions.keys())
        best = must
        if len(must) < count <= len(free):
            best = _grow(pairs, free, must, count) if sets is None else _find_first(sets[count], free, must)
        return _pad([name for name, position in positions.items() if position in best], available, required, size)

    return choose


def _find_first(sets: Sequence[int], free: set[int], must: set[int]) -> set[int]:
    """Return the first set, given as bits, that has all required GPUs, and else only free ones."""
    without, within = ~sum(1 << position for position in free), sum(1 << position for position in must)
    match = next(bits for bits in sets if not bits & without and bits & within == within)
    return {position for position in free if match >> position & 1}


@lru_cache(maxsize=1)  # a new snapshot seldom has other pairs
def _list_sets(pairs: Pairs) -> list[array[int]]:
    """Return all sets of GPUs as bits, by size, the nearest first; in arrays, as lists would be 5 MiB on the way."""
    total = array("q", bytes(8 << len(pairs)))
    for position, row in enumerate(pairs):
        first = 1 << position
        near = array("q", bytes(8 << position))  # of this GPU to each set of those before
        for peer in range(position):
            for subset in range(1 << peer):
                near[1 << peer | subset] = near[subset] + row[peer]
        for subset in range(first):
            total[first | subset] = total[subset] + near[subset]
    sets = [array("H") for _ in range(len(pairs) + 1)]
    for bits in range(len(total)):
        sets[bin(bits).count("1")].append(bits)
    # Stable: of equals the one of lower indices.
    return [array("H", sorted(bucket, key=total.__getitem__, reverse=True)) for bucket in sets]


def _grow(pairs: Pairs, free: set[int], must: set[int], size: int) -> set[int]:
    """Return a set of many GPUs: add the nearest one by one to the required ones, or to one after the other."""
    best: tuple[int, set[int]] = (-1, must)
    for begin in [must] if must else [{gpu} for gpu in sorted(free)[:: len(free) // LARGEST + 1]]:
        chosen, worth = set(begin), 0
        near = {nearest_gpu: sum(pairs[nearest_gpu][gpu] for gpu in chosen) for nearest_gpu in sorted(free - chosen)}
        while len(chosen) < size:
            nearest_gpu = max(near, key=near.__getitem__)
            worth += near.pop(nearest_gpu)
            chosen.add(nearest_gpu)
            for gpu in near:
                near[gpu] += pairs[nearest_gpu][gpu]
        best = max(best, (worth, chosen), key=lambda pair: pair[0])
    return best[1]


def shared(devices: Sequence[Device], packed: bool, distinct: bool = False) -> Choice:
    """Return a choice of replicas and MIG instances.

    Args:
        packed: whether GPUs of which most is given out come first, or last; and so for the instances of a GPU.
        distinct: one replica of each GPU or MIG instance, as long as there are others.
    """
    by_id = {device.id: device for device in devices}
    by_gpu = Counter(device.gpu for device in devices)
    by_uuid = Counter(device.uuid for device in devices)
    sign = -1 if packed else 1

    def choose(available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
        chosen = [name for name in dict.fromkeys(required) if name in by_id]
        chosen_by_gpu = Counter(by_id[name].gpu for name in chosen)
        free: dict[int, dict[str, list[str]]] = {}  # ids by GPU and UUID, the first last
        chosen_uuids = {by_id[name].uuid for name in chosen} if distinct else set()
        others = {
            name for name in set(available) - set(required) if name in by_id and by_id[name].uuid not in chosen_uuids
        }
        for name in reversed([name for name in by_id if name in others]):
            free.setdefault(by_id[name].gpu, {}).setdefault(by_id[name].uuid, []).append(name)
        gpus = {gpu: sign * (by_gpu[gpu] - sum(map(len, free[gpu].values()))) for gpu in sorted(free)}
        uuid_loads = {
            uuid: sign * (by_uuid[uuid] - len(ids)) for uuids in free.values() for uuid, ids in uuids.items()
        }
        while len(chosen) < size and gpus:
            gpu = min(gpus, key=lambda gpu: (gpus[gpu], chosen_by_gpu[gpu]))
            uuid = min(reversed(free[gpu]), key=uuid_loads.__getitem__)
            chosen.append(free[gpu][uuid].pop())
            gpus[gpu] += sign
            uuid_loads[uuid] += sign
            chosen_by_gpu[gpu] += 1
            if distinct or not free[gpu][uuid]:
                del free[gpu][uuid]
            if not free[gpu]:
                del gpus[gpu]
        return _pad(chosen, available, required, size)

    return choose


def _pad(chosen: Sequence[str], available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
    """Return a choice of the right size, with the required devices first."""
    return list(dict.fromkeys([*required, *chosen, *available]))[: max(size, 0)]
