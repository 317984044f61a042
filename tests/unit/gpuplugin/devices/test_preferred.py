"""Preferred allocation: near sets of GPUs, spread or packed replicas, and never an error."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations as pairs
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.allocation import allocation
from gpuplugin.allocation.allocation import Delivery
from gpuplugin.allocation.offer import Resource
from gpuplugin.devices import preferred
from gpuplugin.devices.preferred import nearest, nearness, shared
from gpuplugin.settings import resources, settings
from gpuplugin.settings.resources import Share
from gpuplugin.settings.sharing import MPS, TIME_SLICING
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow

GPU = "nvidia.com/gpu"


def whole(count: int) -> list[resources.Device]:
    return resources.find(snapshot([gpu(n) for n in range(count)]), "none", [], [])[GPU] if count else []


def names(*indices: int) -> list[str]:
    return [uuid(index) for index in indices]


def host(count: int, level: Any, links: Any) -> dict[tuple[int, int], int]:
    """Weights where functions of two GPUs, the lower one first, tell level and links."""
    rows = {
        one: [
            [other, level(*sorted((one, other))), links(*sorted((one, other)))]
            for other in range(count)
            if other != one
        ]
        for one in range(count)
    }
    return nearness(rows)


# Two islands of four, with NVLink within, and a PCIe switch for each pair.
ISLANDS = host(8, lambda a, b: 10 if a // 2 == b // 2 else 50, lambda a, b: 4 * (a // 4 == b // 4))
# A DGX-1: NVLinks between GPUs, not all of which have any; PCIe switches for two, sockets for four.
MESH = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], 1),
}


def socket(a: int, b: int) -> int:
    """The level where a socket has four GPUs, and a PCIe switch two."""
    return 10 if a // 2 == b // 2 else 40 if a // 4 == b // 4 else 50


DGX1 = host(8, socket, lambda a, b: MESH.get((a, b), 0))
SWITCHED = host(8, socket, lambda a, b: 18)


def test_a_set_within_an_island() -> None:
    choose = nearest(whole(8), ISLANDS)
    assert choose(names(*range(8)), [], 4) == names(0, 1, 2, 3)
    assert choose(names(0, 1, 4, 5, 6, 7), [], 4) == names(4, 5, 6, 7)
    assert choose(names(1, 2, 4, 5), [], 2) == names(4, 5)  # behind one switch, too
    assert choose(names(0, 1, 2, 5, 6), names(5), 2) == names(5, 6)


@pytest.mark.parametrize(
    ("weights", "free", "must", "size", "best"),
    [
        (DGX1, range(8), (), 1, (0,)),
        (DGX1, range(8), (), 2, (2, 3)),  # two links, and one PCIe switch
        (DGX1, (0, 1, 3), (), 2, (0, 3)),  # two links, not one and the same switch
        (DGX1, range(8), (), 4, (0, 1, 2, 3)),
        (DGX1, (0, 1, 4, 5, 6, 7), (), 4, (4, 5, 6, 7)),
        (DGX1, (0, 5, 6), (), 2, (5, 6)),
        (DGX1, (1, 2, 4, 7), (4,), 2, (4, 7)),
        (SWITCHED, (1, 2, 3, 4), (), 2, (2, 3)),  # all have links: one PCIe switch
        (SWITCHED, (0, 2, 4, 6), (), 2, (0, 2)),  # one socket
        (SWITCHED, (3, 4, 5, 6, 7), (), 4, (4, 5, 6, 7)),
        ({}, (1, 2, 3), (), 2, (2, 3)),  # nothing but NUMA nodes is known
        ({}, (0, 3, 5), (), 2, (0, 3)),
    ],
)
def test_the_best_set(weights: Any, free: Any, must: Any, size: int, best: tuple[int, ...]) -> None:
    assert nearest(whole(8), weights)(names(*free), names(*must), size) == names(*best)


def test_a_numa_node_counts_less_than_any_step_of_the_bus() -> None:
    """0 and 2 are of two nodes, and a level nearer than 0 and 1, which are of one."""
    weights = host(4, lambda a, b: 40 if (a, b) == (0, 2) else 50, lambda a, b: 0)
    assert nearest(whole(4), weights)(names(0, 1, 2), [], 2) == names(0, 2)


def test_no_numa_node_is_not_a_common_one() -> None:
    devices = [replace(one, numa=-1 if one.gpu < 2 else 0) for one in whole(4)]
    assert nearest(devices, {})(names(0, 1, 2, 3), [], 2) == names(2, 3)


def test_of_equal_gpus_the_one_of_which_a_container_has_less() -> None:
    """It has one of GPU 0 already; both GPUs have as many that are free."""
    ids = [one.id for one in MIGS]
    assert shared(MIGS, packed=False)(ids[1:5], ids[:1], 2)[1] in ids[3:]


def test_a_link_counts_more_than_the_bus_of_all_pairs() -> None:
    weights = host(16, lambda a, b: 50 if b == 15 else 0, lambda a, b: int((a, b) == (0, 15)))
    assert uuid(15) in nearest(whole(16), weights)(names(*range(16)), [], 15)


@given(st.data(), st.integers(0, 7), st.integers(0, 9))
def test_the_best_of_all_sets(data: st.DataObject, count: int, size: int) -> None:
    levels, links = st.sampled_from([0, 10, 60]), st.integers(0, 3)
    weights = {}
    for one, other in pairs(range(count), 2):
        weights[one, other] = weights[other, one] = data.draw(levels) + preferred.NVLINK * data.draw(links)
    available = data.draw(st.lists(st.sampled_from(range(count)), unique=True)) if count else []
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size)) if available else []
    chosen = nearest(whole(count), weights)(names(*available), names(*must), size)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    assert set(names(*must)) <= set(chosen) <= set(names(*available))

    def worth(some: Sequence[int]) -> int:
        return sum(weights[pair] + preferred.NUMA * (pair[0] // 2 == pair[1] // 2) for pair in pairs(some, 2))

    sets = [some for some in pairs(sorted(available), len(chosen)) if set(must) <= set(some)]
    assert worth([index for index in range(count) if uuid(index) in chosen]) == max(map(worth, sets))


HOST = snapshot([gpu(n, mig=True) for n in range(2)], [mig(n, i) for n in range(2) for i in range(3)])
MIGS = resources.find(HOST, "single", [], [])[GPU]
CHOICES = {
    "near": (nearest(whole(8), ISLANDS), names(*range(8))),
    "without links": (nearest(whole(8), {}), names(*range(8))),
    "many": (nearest(whole(20), {}), names(*range(20))),
    "none": (nearest([], {}), []),
    "spread": (shared(MIGS, packed=False), [one.id for one in MIGS]),
    "packed": (shared(MIGS, packed=True), [one.id for one in MIGS]),
}


@pytest.mark.parametrize("kind", CHOICES)
@given(data=st.data())
def test_any_request_is_answered(kind: str, data: st.DataObject) -> None:
    choose, known = CHOICES[kind]
    name = st.sampled_from([*known, "GPU-unknown", "", "\0"])
    available, must = data.draw(st.lists(name, max_size=30)), data.draw(st.lists(name, max_size=9))
    size = data.draw(st.integers(-3, 25) | st.sampled_from([-(1 << 31), (1 << 31) - 1]))
    chosen = choose(available, must, size)
    assert len(chosen) == len(set(chosen)) == max(0, min(size, len({*available, *must})))
    assert set(chosen) <= {*available, *must}
    assert set(must) <= set(chosen) or set(chosen) <= set(must)


def test_of_many_gpus_near_ones_are_found() -> None:
    weights = host(24, lambda a, b: 50, lambda a, b: 4 * (a // 4 == b // 4))
    choose = nearest(whole(24), weights)
    assert choose(names(0, 1, 2, *range(7, 24)), [], 4) == names(8, 9, 10, 11)
    assert choose(names(*range(24)), names(21), 3) == names(21, 20, 22)


def test_the_sets_are_listed_once_for_equal_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = preferred._list_sets.cache_info().misses
    for _ in range(3):
        nearest(whole(5), {})
    assert preferred._list_sets.cache_info().misses == before + 1


def test_unknown_and_lost_gpus_are_the_last_choice() -> None:
    choose = nearest(whole(4), ISLANDS)
    assert choose(["GPU-lost", *names(3, 2)], [], 2) == names(2, 3)
    assert choose(names(0, 2, 3), ["GPU-lost"], 3) == ["GPU-lost", *names(2, 3)]
    assert choose(["GPU-lost", *names(3)], [], 2) == ["GPU-lost", *names(3)]


def test_instances_are_spread_or_packed() -> None:
    migs, ids = MIGS, [device.id for device in MIGS]
    assert shared(migs, packed=False)(ids, [], 3) == [ids[0], ids[3], ids[1]]
    assert shared(migs, packed=True)(ids, [], 3) == ids[:3]
    assert shared(migs, packed=False)(ids[1:], [], 1) == [ids[3]]  # of the first GPU one is given out
    assert shared(migs, packed=True)(ids[:2] + ids[3:], [], 1) == [ids[0]]
    assert shared(migs, packed=True)(ids, [ids[5]], 1) == [ids[5]]


def test_replicas_one_from_each_gpu() -> None:
    replicas = resources.replicated(whole(3), 2)
    ids = [device.id for device in replicas]
    assert shared(replicas, packed=False)(ids, [], 3) == [ids[0], ids[2], ids[4]]
    assert shared(replicas, packed=True)(ids, [], 3) == [ids[0], ids[1], ids[2]]


def test_two_replicas_are_of_two_instances() -> None:
    replicas = resources.replicated(MIGS[:3], 4)
    ids = [device.id for device in replicas]
    assert shared(replicas, packed=False)(ids, [], 4) == [ids[0], ids[4], ids[8], ids[1]]
    assert shared(replicas, packed=True)(ids, [], 5) == ids[:5]


@pytest.mark.parametrize("packed", [False, True])
def test_distinct_replicas_are_of_different_gpus(packed: bool) -> None:
    replicas = resources.replicated(whole(4), 3)
    ids = [device.id for device in replicas]
    choose = shared(replicas, packed=packed, distinct=True)
    assert {name.partition("::")[0] for name in choose(ids, [], 4)} == {uuid(n) for n in range(4)}
    assert choose([ids[0], ids[1], *ids[2:9]], [ids[0]], 2)[1] in ids[3:9]
    assert len(choose([*ids[:3], ids[3]], [], 3)) == 3  # more than there are: Allocate refuses it


def test_distinct_replicas_are_packed_or_spread() -> None:
    replicas = resources.replicated(whole(3), 3)
    free = [device.id for device in replicas][2:8]  # one is left of the first, two of the last
    packed, spread = (shared(replicas, packed=packed, distinct=True)(free, [], 2) for packed in (True, False))
    assert [{name.partition("::")[0] for name in names} for names in (packed, spread)] == [
        {uuid(0), uuid(2)},
        {uuid(1), uuid(2)},
    ]


def test_a_choice_of_replicas_takes_no_square_of_them() -> None:
    replicas = resources.replicated(whole(8), 1000)
    ids = [device.id for device in replicas]
    looked = 0

    class Counted(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal looked
            looked += 1
            return str.__hash__(self)

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, other)

    chosen = shared(replicas, packed=False)([Counted(name) for name in ids], [], 4000)
    assert len(chosen) == 4000
    assert looked < 10 * len(ids)


def group(name: str, indices: Sequence[int], replicas: int, **rules: Any) -> list[resources.Device]:
    """The replicas of some GPUs, of one entry of sharing."""
    share = Share(MPS if name else TIME_SLICING, group=name, **rules)
    return resources.replicated([one for one in whole(8) if one.gpu in indices], replicas, share)


def refusal(ids: Sequence[str], devices: dict[str, resources.Device]) -> str:
    try:
        allocation.check(ids, GPU, devices)
    except GpushimError as error:
        return str(error)
    return ""


MIXED = {
    "two daemons": [*group("gpu", [0, 1], 2), *group("gpu-2", [2], 3)],
    "a daemon and whole GPUs": [*group("gpu", [0], 3), *whole(8)[1:4]],
    "distinct": group("", [0, 1, 2], 3, distinct=True),
    "two distinct daemons": [*group("gpu", [0, 1], 2, distinct=True), *group("gpu-2", [2], 3, distinct=True)],
    "single": group("", [0, 1], 2, single=True),
    "single and whole": [*group("", [0], 3, single=True), *whole(8)[1:4]],
    "single by MPS and whole": [*group("gpu", [0], 3, single=True), *whole(8)[1:4]],
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("devices", MIXED.values(), ids=MIXED)
@given(data=st.data())
def test_what_is_preferred_is_allocated_wherever_anything_is(
    devices: list[resources.Device], packed: bool, data: st.DataObject
) -> None:
    known, names = {one.id: one for one in devices}, [one.id for one in devices]
    available = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=2))
    size = data.draw(st.integers(max(1, len(must)), len(available)))
    chosen = preferred.allowed(devices, {}, packed)(available, must, size)
    assert (len(chosen), {*must} <= {*chosen} <= {*available}) == (size, True)
    can = any(not refusal(ids, known) for ids in pairs(available, size) if {*must} <= {*ids})
    why = refusal(chosen, known)
    assert not why if can else "; ask for " in why


def test_a_device_that_is_sick_is_the_last_choice() -> None:
    resource = Resource(GPU, settings.resolve({}, {}, {}), Delivery())
    resource.have(whole(3), {})
    resource.mark_unhealthy({uuid(0): "XID 79"})
    request = {
        "must_include_deviceIDs": [],
        "allocation_size": 2,
        "available_deviceIDs": ["GPU-gone", *names(0, 1, 2)],
    }
    assert resource.prefer(request)["deviceIDs"] == names(1, 2)
    assert len(resource.prefer({**request, "allocation_size": 4})["deviceIDs"]) == 4
