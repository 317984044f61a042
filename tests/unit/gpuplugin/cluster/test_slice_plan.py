"""Which slices are written and deleted, whatever is there; and what counts as the same device."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.cluster import slice_content, slice_plan
from gpuplugin.cluster.slice_plan import Plan, Slice

NODE = "node-1"


def there(name: int | str, generation: int, count: int, content: str = "a", **changed: Any) -> Slice:
    """A slice by its number, or a foreign one by its name."""
    called = name if isinstance(name, str) else slice_plan.name(NODE, name)
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": count}
    found = slice_plan.parse_slice(
        {
            "metadata": {
                "name": called,
                "uid": f"uid-{called}",
                "resourceVersion": "5",
                "ownerReferences": [{"kind": "Node", "name": NODE}],
                **changed.get("metadata", {}),
            },
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": NODE,
                "pool": {**pool, **changed.get("pool", {})},
                "devices": [{"name": content}],
                **changed.get("spec", {}),
            },
        },
        NODE,
    )
    assert found
    return found


def planned(seen: list[Slice], desired: str) -> Plan:
    """Plan for slices of one device each."""
    return slice_plan.plan(seen, NODE, len(desired), lambda at, one: one.devices == [{"name": desired[at]}])


def short(found: Plan) -> tuple[list[str], list[str], list[str], int]:
    def last(name: str) -> str:
        return name.rpartition("-")[2]

    writes = [f"{index}:{last(name)}{'=' if one else ''}" for index, name, one in found.writes]
    return [last(one.name) for one in found.first], writes, [last(one.name) for one in found.after], found.generation


ABC = [there(number, 7, 3, content) for number, content in enumerate("abc")]


@pytest.mark.parametrize(
    ("seen", "desired", "wanted"),
    [
        ([], "a", ([], ["0:0000"], [], 1)),
        ([there(0, 7, 1)], "a", ([], [], [], 7)),
        ([there(0, 7, 1)], "b", ([], ["0:0000="], [], 8)),
        ([there(0, 7, 1)], "", ([], [], ["0000"], 8)),
        ([there(0, 7, 1)], "ab", ([], ["0:0001", "1:0002"], ["0000"], 8)),
        (ABC, "abc", ([], [], [], 7)),
        (ABC, "abd", ([], ["0:0003", "1:0004", "2:0005"], ["0000", "0001", "0002"], 8)),
        ([*ABC[:1], *ABC[2:]], "abc", ([], ["1:0001"], [], 7)),
        ([*ABC, there(3, 8, 3, "a")], "abd", ([], ["1:0004", "2:0005"], ["0000", "0001", "0002"], 8)),
        ([*ABC, there(3, 8, 3, "x")], "abd", ([], ["0:0003=", "1:0004", "2:0005"], ["0000", "0001", "0002"], 9)),
        ([there(0, 7, 1), there("other-x", 9, 1)], "a", ([], ["0:0000="], ["x"], 10)),
        ([there(0, 7, 1), there("other-x", 1 << 60, 1)], "a", (["x"], [], [], 7)),
        ([there(0, 7, 1), there("other-x", 9, 1, pool={"name": "p"})], "a", (["x"], [], [], 7)),
        ([there(0, 7, 1, spec={"sharedCounters": [{}]})], "a", ([], ["0:0000="], [], 8)),
        ([there(0, 7, 1, metadata={"ownerReferences": []})], "a", ([], ["0:0000="], [], 8)),
    ],
)
def test_plans(seen: list[Slice], desired: str, wanted: Any) -> None:
    assert short(planned(seen, desired)) == wanted


def test_a_slice_that_waits_for_its_deletion_is_not_deleted_again() -> None:
    waiting = there("other-x", 7, 1, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert planned([waiting, there(0, 8, 1)], "a").empty


@pytest.mark.parametrize("node", ["n", "a" * 253, f"{'a' * 217}.{'b' * 35}"])
def test_names_are_in_order_and_not_too_long(node: str) -> None:
    names = [slice_plan.name(node, number) for number in (0, 9, 10, 999)]
    assert names == sorted(names)
    assert all(len(name) <= 253 and ".-" not in name for name in names)


@pytest.mark.parametrize(
    ("desired", "found", "same"),
    [
        ({"capacity": {"m": {"value": "1024Mi"}}}, {"capacity": {"m": {"value": "1Gi"}}}, True),
        ({"capacity": {"m": {"value": "1024Mi"}}}, {"capacity": {"m": {"value": "2Gi"}}}, False),
        ({"attributes": {"m": {"string": "1024Mi"}}}, {"attributes": {"m": {"string": "1Gi"}}}, False),
        ({"attributes": {}, "taints": []}, {}, True),
        ({"attributes": {"a": {"bool": False}}}, {"attributes": {"a": {"int": 0}}}, False),
        ({"attributes": {"a": {"int": 1}}}, {"attributes": {"a": {"int": True}}}, False),
        ({"taints": [{"key": "k"}]}, {"taints": [{"key": "k", "timeAdded": "t"}]}, True),
        ({"taints": [{"key": "k", "timeAdded": "s"}]}, {"taints": [{"key": "k", "timeAdded": "t"}]}, False),
        ({}, {"attributes": {"timeAdded": {"int": 1}}}, False),
    ],
)
def test_the_same(desired: Any, found: Any, same: bool) -> None:
    assert slice_content.same([desired], [found]) == same


def test_what_is_dropped() -> None:
    desired = [{"name": "a", "taints": [{"key": "k"}], "attributes": {"x": {"ints": [1]}}}]
    found = [{"name": "a", "attributes": {"x": {}}}]
    assert sorted(slice_content.dropped(desired, found)) == ["spec.devices[].attributes.*", "spec.devices[].taints"]


def test_a_taint_keeps_its_time() -> None:
    taint = {"key": "k", "effect": "NoExecute"}
    found = slice_content.dated(
        [{"name": "a", "taints": [taint]}], [[{"name": "a", "taints": [{**taint, "timeAdded": "t"}]}]]
    )
    assert found == [{"name": "a", "taints": [{**taint, "timeAdded": "t"}]}]
