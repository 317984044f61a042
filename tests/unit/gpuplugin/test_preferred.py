"""Preferred allocation: near sets of GPUs, spread or packed replicas, and never an error."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpuplugin import preferred, resources
from gpuplugin.preferred import nearest, nearness, shared
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU = "nvidia.com/gpu"


def whole(count: int) -> list[resources.Device]:
    return resources.find(snapshot([gpu(n) for n in range(count)]), "none", [], [])[GPU] if count else []


def names(*indices: int) -> list[str]:
    return [uuid(index) for index in indices]


# Two islands of four, with NVLink within, and a PCIe switch for each pair.
ISLANDS = nearness(
    {
        one: [
            [other, 10 if one // 2 == other // 2 else 50, 4 * (one // 4 == other // 4)]
            for other in range(8)
            if other != one
        ]
        for one in range(8)
    }
)


def test_a_set_within_an_island() -> None:
    choose = nearest(whole(8), ISLANDS)
    assert choose(names(*range(8)), [], 4) == names(0, 1, 2, 3)
    assert choose(names(0, 1, 4, 5, 6, 7), [], 4) == names(4, 5, 6, 7)
    assert choose(names(1, 2, 4, 5), [], 2) == names(4, 5)  # behind one switch, too
    assert choose(names(0, 1, 2, 5, 6), names(5), 2) == names(5, 6)


@given(st.data(), st.integers(0, 7), st.integers(0, 9))
def test_the_best_of_all_sets(data: st.DataObject, count: int, size: int) -> None:
    pairs = list(itertools.combinations(range(count), 2))
    level = data.draw(st.lists(st.sampled_from([0, 10, 20, 30, 40, 50]), min_size=len(pairs), max_size=len(pairs)))
    links = data.draw(st.lists(st.integers(0, 12), min_size=len(pairs), max_size=len(pairs)))
    weights = {}
    for (one, other), bus, link in zip(pairs, level, links):
        weights[one, other] = weights[other, one] = preferred.BUS[bus] + preferred.NVLINK * link
    available = data.draw(st.lists(st.sampled_from(range(count)), unique=True)) if count else []
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size)) if available else []
    chosen = nearest(whole(count), weights)(names(*available), names(*must), size)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    assert set(names(*must)) <= set(chosen) <= set(names(*available))

    def worth(some: tuple[int, ...]) -> int:
        return sum(weights[pair] for pair in itertools.combinations(some, 2))

    sets = [some for some in itertools.combinations(sorted(available), len(chosen)) if set(must) <= set(some)]
    found = tuple(index for index in range(count) if uuid(index) in chosen)
    assert worth(found) == max(map(worth, sets))


def test_what_cannot_be_met_is_no_error() -> None:
    choose = nearest(whole(2), {})
    assert choose(names(0, 7), names(9), 2) == [*names(9), *names(0)][:2]
    assert choose([], [], 3) == []
    assert choose(names(0), [], -1) == []
    assert nearest(whole(20), {})(names(*range(20)), names(19), 2) == names(19, 0)


HOST = snapshot([gpu(n, mig=True) for n in range(2)], [mig(n, i) for n in range(2) for i in range(3)])


def test_instances_are_spread_or_packed() -> None:
    migs = resources.find(HOST, "single", [], [])[GPU]
    ids = [device.id for device in migs]
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
