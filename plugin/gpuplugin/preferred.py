"""Which of the devices that are free a container had best get: near each other, or spread, or packed.

An answer is advice: kubelet pads or cuts it. An error would refuse the pod, so there is none.
Whole GPUs: the set of the size asked for whose pairs are nearest each other, by a table of all sets made once; MIG
instances and replicas: spread over GPUs, or packed on few.
Out of scope: how near GPUs are (gpushim.inventory), kubelet's messages (endpoint.py).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplugin.resources import Device

    Choice = Callable[[Sequence[str], Sequence[str], int], list[str]]  # available, wanted anyway, how many

LARGEST = 16  # GPUs, of which all sets are looked at
# How near two GPUs are, by nvmlGpuTopologyLevel_t; each NVLink between them counts more than any of these.
BUS = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
NVLINK = 100


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


def nearest(devices: Sequence[Device], weights: Mapping[tuple[int, int], int]) -> Choice:
    """Return a choice of whole GPUs that are near each other."""
    names = [device.id for device in devices]
    places = {name: place for place, name in enumerate(names)}
    pairs = [[weights.get((one.gpu, other.gpu), 0) for other in devices] for one in devices]
    sets = _sets(pairs) if len(names) <= LARGEST else None

    def choose(available: Sequence[str], wanted: Sequence[str], size: int) -> list[str]:
        free = sum(1 << places[name] for name in dict.fromkeys([*available, *wanted]) if name in places)
        must = sum(1 << places[name] for name in dict.fromkeys(wanted) if name in places)
        best = (
            must
            if sets is None
            else next((one for one in _of(sets, size) if not one & ~free and not must & ~one), must)
        )
        chosen = [name for place, name in enumerate(names) if best >> place & 1]
        return _padded(chosen, available, wanted, size)

    return choose


def _of(sets: Sequence[Sequence[int]], size: int) -> Sequence[int]:
    return sets[size] if 0 <= size < len(sets) else ()


def _sets(pairs: Sequence[Sequence[int]]) -> list[list[int]]:
    """List all sets of GPUs as bits, by size, the nearest first."""
    total = [0] * (1 << len(pairs))
    for place, row in enumerate(pairs):
        first = 1 << place
        near = [0] * first  # of this GPU to each set of those before
        for other in range(place):
            for rest in range(1 << other):
                near[1 << other | rest] = near[rest] + row[other]
        for rest in range(first):
            total[first | rest] = total[rest] + near[rest]
    sets: list[list[int]] = [[] for _ in range(len(pairs) + 1)]
    for one in range(len(total)):
        sets[bin(one).count("1")].append(one)
    for same in sets:
        same.sort(key=lambda one: -total[one])  # stable: of equals the one of lower indices
    return sets


def shared(devices: Sequence[Device], packed: bool) -> Choice:
    """Return a choice of replicas and MIG instances.

    Args:
        devices: all of them.
        packed: whether GPUs of which most is given out come first, or last.
    """
    known = {device.id: device for device in devices}
    sizes = Counter(device.gpu for device in devices)

    def choose(available: Sequence[str], wanted: Sequence[str], size: int) -> list[str]:
        free = [name for name in known if name in set(available) - set(wanted)]
        chosen = [name for name in dict.fromkeys(wanted) if name in known]
        left = Counter(known[name].gpu for name in free)
        here = Counter(known[name].gpu for name in chosen)
        while len(chosen) < size and free:
            # packed: the fullest GPU; distributed: the emptiest, and of those the one least picked in this call.
            rank = {gpu: (left[gpu] - sizes[gpu],) if packed else (sizes[gpu] - left[gpu], here[gpu]) for gpu in left}
            name = min(free, key=lambda name: rank[known[name].gpu])
            free.remove(name)
            left[known[name].gpu] -= 1
            here[known[name].gpu] += 1
            chosen.append(name)
        return _padded(chosen, available, wanted, size)

    return choose


def _padded(chosen: Sequence[str], available: Sequence[str], wanted: Sequence[str], size: int) -> list[str]:
    """Bring a choice to its size, with what is wanted anyway first."""
    return list(dict.fromkeys([*wanted, *chosen, *available]))[: max(size, 0)]
