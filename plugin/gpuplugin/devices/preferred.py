"""Which of the devices that are free a container had best get: near each other, or spread, or packed.

An answer is advice: kubelet pads or cuts it. Allocate accepts it if it accepts any set of its size. An error would
refuse the pod, so there is none, whatever is asked.
Whole GPUs: of all sets of the size asked for the one with most NVLinks within, and of such the nearest on the bus, by
a table made once. Links to NVSwitches make all pairs equal, so that the bus decides. MIG instances and replicas:
spread over GPUs, or packed on few. In memory only, as allocation.py. Budget: 4 ms for 16 GPUs, the table 0.1 s.
Out of scope: how near GPUs are (gpushim.inventory), kubelet's messages (endpoint.py).
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
    """Weigh pairs of GPUs.

    Args:
        peers: by index of a GPU, [index of another, topology level, number of NVLinks between them].
    """
    return {
        (one, other): BUS.get(level, 0) + NVLINK * links
        for one, near in peers.items()
        for other, level, links in near
    }


def weight(weights: Mapping[tuple[int, int], int], one: tuple[int, int], other: tuple[int, int]) -> int:
    """Weigh how near two GPUs are, each told by its index and its NUMA node.

    Args:
        weights: of `nearness`; a pair that it does not have is far.
        one: of them.
        other: of them.
    """
    return weights.get((one[0], other[0]), 0) + NUMA * (one[1] == other[1] >= 0)


def allowed(devices: Sequence[Device], weights: Mapping[tuple[int, int], int], packed: bool) -> Choice:
    """Return a choice that Allocate does not refuse (allocation.check), wherever one of its size can be made.

    Args:
        devices: all of a resource.
        weights: as for `nearest`.
        packed: as for `shared`.
    """
    daemons: dict[str, list[Device]] = {}  # a process can have one of MPS
    for one in devices:
        daemons.setdefault(one.share.group if one.share else "", []).append(one)
    known = {one.id for one in devices}
    parts = [_Part(some, weights, packed) for some in daemons.values()]

    def choose(available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
        must = known.intersection(required)
        fits = [part for part in parts if part.room(available, must, size) >= size and must <= part.devices.keys()]
        if not fits:
            return _padded([], available, required, size)
        best = (min if packed else max)(fits, key=lambda part: part.room(available, must, size))
        return _padded(best.choose(best.free(available, size), required, size), available, required, size)

    return choose


class _Part:
    """Devices of a resource that one container may have several of.

    Args:
        devices: which.
        weights: as for `nearest`.
        packed: as for `shared`.
    """

    def __init__(self, devices: Sequence[Device], weights: Mapping[tuple[int, int], int], packed: bool) -> None:
        self.devices = {one.id: one for one in devices}
        self._single = {one.id for one in devices if one.share and one.share.single}
        self._distinct = any(one.share and one.share.distinct for one in devices)
        whole = all(one.id == one.uuid and ":" not in one.index for one in devices)
        self.choose = nearest(devices, weights) if whole else shared(devices, packed, self._distinct)

    def free(self, available: Sequence[str], size: int) -> list[str]:
        """List what can be in a choice of a size."""
        return [name for name in available if name in self.devices and (size < 2 or name not in self._single)]

    def room(self, available: Sequence[str], must: set[str], size: int) -> int:
        """Say how many a choice can have; none if what it must have is not allowed together."""
        ids = {*self.free(available, size), *self.free([*must], size)}
        uuids = {self.devices[name].uuid for name in ids} if self._distinct else ids
        apart = len({self.devices[name].uuid for name in must if name in self.devices})
        return len(uuids) if not self._distinct or apart == len(must) else 0


def nearest(devices: Sequence[Device], weights: Mapping[tuple[int, int], int]) -> Choice:
    """Return a choice of whole GPUs that are near each other.

    Args:
        devices: all of them.
        weights: of `nearness`; a pair that it does not have is far.
    """
    places = {device.id: place for place, device in enumerate(devices)}
    known = [(device.gpu, device.numa) for device in devices]
    pairs = tuple(tuple(weight(weights, one, other) for other in known) for one in known)
    sets = _sets(pairs) if len(pairs) <= LARGEST else None

    def choose(available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
        must = {places[name] for name in required if name in places}
        free = {places[name] for name in available if name in places} | must
        known = size - len(set(required) - places.keys())
        best = must
        if len(must) < known <= len(free):
            best = _grown(pairs, free, must, known) if sets is None else _first(sets[known], free, must)
        return _padded([name for name, place in places.items() if place in best], available, required, size)

    return choose


def _first(sets: Sequence[int], free: set[int], must: set[int]) -> set[int]:
    """Find the first set, as bits, that has all GPUs it must have, and no others than free ones."""
    without, within = ~sum(1 << place for place in free), sum(1 << place for place in must)
    found = next(one for one in sets if not one & without and one & within == within)
    return {place for place in free if found >> place & 1}


@lru_cache(maxsize=1)  # a new snapshot seldom has other pairs
def _sets(pairs: Pairs) -> list[array[int]]:
    """List all sets of GPUs as bits, by size, the nearest first; in arrays, as lists would be 5 MiB on the way."""
    total = array("q", bytes(8 << len(pairs)))
    for place, row in enumerate(pairs):
        first = 1 << place
        near = array("q", bytes(8 << place))  # of this GPU to each set of those before
        for other in range(place):
            for rest in range(1 << other):
                near[1 << other | rest] = near[rest] + row[other]
        for rest in range(first):
            total[first | rest] = total[rest] + near[rest]
    sets = [array("H") for _ in range(len(pairs) + 1)]
    for one in range(len(total)):
        sets[bin(one).count("1")].append(one)
    # Stable: of equals the one of lower indices.
    return [array("H", sorted(same, key=total.__getitem__, reverse=True)) for same in sets]


def _grown(pairs: Pairs, free: set[int], must: set[int], size: int) -> set[int]:
    """Find a set of many GPUs: add the nearest one by one to those it must have, or to one after the other."""
    best: tuple[int, set[int]] = (-1, must)
    for begin in [must] if must else [{one} for one in sorted(free)[:: len(free) // LARGEST + 1]]:
        chosen, worth = set(begin), 0
        near = {place: sum(pairs[place][one] for one in chosen) for place in sorted(free - chosen)}
        while len(chosen) < size:
            place = max(near, key=near.__getitem__)
            worth += near.pop(place)
            chosen.add(place)
            for other in near:
                near[other] += pairs[place][other]
        best = max(best, (worth, chosen), key=lambda pair: pair[0])
    return best[1]


def shared(devices: Sequence[Device], packed: bool, distinct: bool = False) -> Choice:
    """Return a choice of replicas and MIG instances.

    Args:
        devices: all of them.
        packed: whether GPUs of which most is given out come first, or last; and so for the instances of a GPU.
        distinct: one replica of each GPU or MIG instance, as long as there are others.
    """
    known = {device.id: device for device in devices}
    of_gpu = Counter(device.gpu for device in devices)
    of_one = Counter(device.uuid for device in devices)
    sign = -1 if packed else 1

    def choose(available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
        chosen = [name for name in dict.fromkeys(required) if name in known]
        here = Counter(known[name].gpu for name in chosen)
        free: dict[int, dict[str, list[str]]] = {}  # ids by GPU and UUID, the first last
        mine = {known[name].uuid for name in chosen} if distinct else set()
        rest = {name for name in set(available) - set(required) if name in known and known[name].uuid not in mine}
        for name in reversed([name for name in known if name in rest]):
            free.setdefault(known[name].gpu, {}).setdefault(known[name].uuid, []).append(name)
        gpus = {gpu: sign * (of_gpu[gpu] - sum(map(len, free[gpu].values()))) for gpu in sorted(free)}
        ones = {uuid: sign * (of_one[uuid] - len(ids)) for some in free.values() for uuid, ids in some.items()}
        while len(chosen) < size and gpus:
            gpu = min(gpus, key=lambda gpu: (gpus[gpu], here[gpu]))
            uuid = min(reversed(free[gpu]), key=ones.__getitem__)
            chosen.append(free[gpu][uuid].pop())
            gpus[gpu] += sign
            ones[uuid] += sign
            here[gpu] += 1
            if distinct or not free[gpu][uuid]:
                del free[gpu][uuid]
            if not free[gpu]:
                del gpus[gpu]
        return _padded(chosen, available, required, size)

    return choose


def _padded(chosen: Sequence[str], available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
    """Bring a choice to its size, with what is wanted anyway first."""
    return list(dict.fromkeys([*required, *chosen, *available]))[: max(size, 0)]
