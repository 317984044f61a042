"""In which order devices are offered, and which of them NVLinks join."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.dra.offered import devices
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid


def order_of(host: Any, spread: bool = False) -> list[str]:
    return [one.uuid for one in devices(host, (), spread, str)]


def links(*groups: dict[int, int]) -> list[dict[str, Any]]:
    """GPUs with as many NVLinks to others as the mappings say."""
    return [
        gpu(n, numa=-1, peers=[[other, 50, count] for other, count in row.items()]) for n, row in enumerate(groups)
    ]


def test_groups_are_those_that_nvlinks_join() -> None:
    gpus = links({1: 2, 2: 0}, {0: 2, 3: 1, 2: 0}, {0: 0, 1: 0}, {1: 1}, {5: 4}, {4: 4})
    found = [
        one.body["attributes"]["nvlinkGroup"]["string"]
        for one in sorted(devices(snapshot(gpus), (), False, str), key=lambda one: one.uuid)
    ]
    first, second = f"nvlink-{uuid(0)}", f"nvlink-{uuid(4)}"
    assert found == [first, first, uuid(2), first, second, second]


def test_a_group_goes_over_others_in_any_order() -> None:
    found = devices(snapshot(links({3: 1}, {3: 1, 2: 1}, {1: 1}, {0: 1, 1: 1})), (), False, str)
    assert {one.body["attributes"]["nvlinkGroup"]["string"] for one in found} == {f"nvlink-{uuid(0)}"}


# A DGX-1: NVLinks between GPUs, not all of which have any.
MESH = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], 1),
}


def peers(count: int, pairs: dict[tuple[int, int], int], level: int = 50) -> list[dict[str, Any]]:
    rows = [{other: pairs.get((min(n, other), max(n, other)), 0) for other in range(count)} for n in range(count)]
    return [gpu(n, numa=-1, peers=[[o, level, c] for o, c in row.items() if o != n]) for n, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("gpus", "order"),
    [
        ([gpu(n, numa=-1) for n in range(4)], [0, 1, 2, 3]),
        ([gpu(n, numa=n % 2) for n in range(4)], [0, 2, 1, 3]),
        (peers(4, {(0, 2): 4, (1, 3): 4}), [0, 2, 1, 3]),
        (peers(4, {(0, 3): 4, (1, 2): 4, (2, 3): 1}), [0, 3, 2, 1]),
        ([gpu(n, numa=-1, pci=f"00000000:{9 - n:02x}:00.0") for n in range(3)], [2, 1, 0]),  # by address
        ([], []),
    ],
)
def test_near_gpus_stand_beside_each_other(gpus: list[Any], order: list[int]) -> None:
    assert order_of(snapshot(gpus)) == [uuid(n) for n in order]


def test_first_ones_of_a_mesh_have_links() -> None:
    order = [int(one[4:12], 16) for one in order_of(snapshot(peers(8, MESH)))]
    beside = [MESH.get((min(pair), max(pair)), 0) for pair in zip(order, order[1:])]
    assert beside == [2] * 7


def test_the_order_outlives_other_indices_and_another_order_of_the_driver() -> None:
    gpus = [gpu(n, numa=n % 2, mig=n > 3) for n in range(6)]
    migs = [mig(n, place, profile) for n in (4, 5) for place, profile in enumerate(("3g.20gb", "1g.5gb"))]
    moved = [{**one, "index": 5 - one["index"]} for one in reversed(gpus)]
    other = [{**one, "gpu": 5 - one["gpu"], "index": 9 - one["index"]} for one in reversed(migs)]
    assert devices(snapshot(gpus, migs), (), False, str) == devices(snapshot(moved, other), (), False, str)


def test_instances_stand_by_gpu_and_the_small_ones_first() -> None:
    gpus = [gpu(0, mig=True), gpu(1), gpu(2, mig=True), gpu(3, mig=True)]
    large = {"memory": 19968, "profile": "3g.20gb"}
    migs = [
        *({**mig(0, 0), **large}, mig(0, 1), {**mig(0, 2), "gi": 9}),
        *(mig(2, 0), mig(2, 1), {**mig(3, 0), **large}, mig(3, 1)),
    ]
    packed = [(2, 0), (2, 1), (0, 1), (0, 2), (0, 0), (3, 1), (3, 0)]
    turns = [(2, 0), (0, 1), (3, 1), (2, 1), (0, 2), (3, 0), (0, 0)]
    for spread, order in ((False, packed), (True, turns)):
        found = order_of(snapshot(gpus, migs), spread)
        assert found == [uuid(1), *(uuid(parent * 16 + place, "MIG") for parent, place in order)]
