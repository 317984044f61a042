"""Groups of nodes by the ids that they have in a container's user namespace."""

from __future__ import annotations

from typing import Any

import pytest

from gpushim.decision import groups

NODE = "/dev/nvidia0"


def of(mode: int, maps: Any) -> tuple[list[int], list[str]]:
    ignored: list[str] = []
    inventory: Any = {"nodes": {NODE: [195, 0, mode, 0, 44]}}
    return [edit.value for edit in groups.inside([NODE], inventory, maps, ignored)], ignored


@pytest.mark.parametrize(
    ("maps", "found"),
    [
        ([{"containerID": 7, "hostID": 44, "size": 1}], [7]),
        ([{"containerID": 0, "hostID": 40, "size": 10}], [4]),
        ([{"containerID": 0, "hostID": 40, "size": 5}], [4]),
        ([{"containerID": 0, "hostID": 40, "size": 4}], []),
        ([{"containerID": 0, "hostID": 100000, "size": 65536}], []),
        ([{"containerID": 0, "hostID": 45, "size": 1}, "no map", {"hostID": 44}], []),
        (None, []),
    ],
)
def test_a_group_has_another_id_or_none(maps: Any, found: list[int]) -> None:
    gids, ignored = of(0o660, maps)
    assert gids == found
    assert bool(ignored) is not bool(found)


def test_a_node_for_everybody_needs_no_group() -> None:
    assert of(0o666, None) == ([], [])


def test_each_group_that_is_not_there_is_named() -> None:
    rows: dict[str, Any] = {f"/dev/nvidia{n}": [195, n, 0o660, 0, gid] for n, gid in enumerate((44, 44, 45))}
    ignored: list[str] = []
    inventory: Any = {"nodes": rows}
    assert groups.inside([*rows], inventory, None, ignored) == []
    first, second = ignored
    assert first.startswith("group 44, which alone may open /dev/nvidia0 and 1 more")
    assert second.startswith("group 45, which alone may open /dev/nvidia2 (mode 0660)")
