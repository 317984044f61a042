"""What a GPU is offered to be cut into, and in which order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from bench import fragments as bench

from gpuplugin.dra import offered
from gpuplugin.dra.offered import Offered
from gpuplugin.dra.partitions import divide
from gpuplugin.settings.forms import LABEL
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid


def partitions_of(model: str, *occupied: tuple[int, int]) -> tuple[list[Offered], dict[str, Any]]:
    (whole,) = offered.devices(snapshot([gpu(0)]), resolve=str)
    return divide(whole, bench.profiles_of(model), occupied)


def named(devices: list[Offered]) -> list[tuple[str, int]]:
    """Profiles of devices, and their first memory slices."""
    return [
        (
            device.body["attributes"]["profile"]["string"],
            min(
                int(name.rpartition("-")[2])
                for name in device.body["consumesCounters"][0]["counters"]
                if name.startswith("memory-slice-")
            ),
        )
        for device in devices
    ]


def fits(devices: list[Offered], counter_set: dict[str, Any], *names: tuple[str, int]) -> bool:
    """Whether the counters of a GPU are enough for these devices together."""
    total = {name: int(row["value"]) for name, row in counter_set["counters"].items()}
    for name in names:
        (consumed,) = devices[named(devices).index(name)].body["consumesCounters"]
        assert consumed["counterSet"] == counter_set["name"]
        for counter, row in consumed["counters"].items():
            total[counter] -= int(row["value"])
    return min(total.values()) >= 0


def test_small_ones_are_first_and_of_a_profile_the_last_placement() -> None:
    devices, _ = partitions_of("A30")
    assert named(devices) == [
        *(("1g.6gb", start) for start in (3, 2, 1, 0)),
        *(("1g.6gb+me", start) for start in (3, 2, 1, 0)),
        *((name, start) for name in ("2g.12gb", "2g.12gb+me") for start in (2, 0)),
        ("4g.24gb", 0),
    ]


@pytest.mark.parametrize(
    ("names", "fit"),
    [
        ([("1g.10gb", start) for start in range(7)], True),
        ([("3g.40gb", 0), ("3g.40gb", 4)], True),
        ([("4g.40gb", 0), ("3g.40gb", 4)], True),
        ([("4g.40gb", 0), ("3g.40gb", 0)], False),
        ([("2g.20gb", 4), ("1g.10gb", 5)], False),
        ([("2g.20gb", 4), ("1g.10gb", 6), ("1g.10gb", 3)], True),
        ([("1g.10gb+me", 0), ("1g.10gb+me", 1)], False),
        ([("7g.80gb", 0), ("1g.10gb", 6)], False),
        ([("7g.80gb", 0)], True),
    ],
)
def test_placements_exclude_each_other_where_they_overlap(names: list[tuple[str, int]], fit: bool) -> None:
    assert fits(*partitions_of("H100-80"), *names) is fit


def test_what_touches_an_instance_of_somebody_else_is_left_out() -> None:
    devices, _ = partitions_of("A100-40", (4, 4))
    names = named(devices)
    assert {start for name, start in names if name == "1g.5gb"} == {0, 1, 2, 3}
    assert ("4g.20gb", 0) in names
    assert not {("3g.20gb", 4), ("7g.40gb", 0), ("1g.10gb", 6)}.intersection(names)


@pytest.mark.parametrize("model", bench.MODELS)
def test_it_is_what_the_api_server_takes(model: str) -> None:
    """And each has the attributes and capacities of an instance that is there: a selector may ask for any."""
    devices, counter_set = partitions_of(model)
    present = offered.devices(snapshot([gpu(0, mig=True)], [mig(0, 0)]), resolve=str)[0].body
    names = [device.name for device in devices]
    assert len(names) == len({*names}) <= offered.IN_SLICE
    for device in devices:
        assert LABEL.fullmatch(device.name)
        assert offered.type_of(device.name) == device.body["attributes"]["type"]["string"]
        assert device.body["attributes"].keys() == present["attributes"].keys()
        assert device.body["capacity"].keys() == present["capacity"].keys()
    assert LABEL.fullmatch(counter_set["name"])
    assert len(counter_set["counters"]) <= 32
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in counter_set["counters"])


def test_a_name_says_profile_and_placement() -> None:
    devices, _ = partitions_of("H100-80")
    assert f"mig-{uuid(0).removeprefix('GPU-')}-1g-10gb-me-4" in {device.name for device in devices}


@pytest.mark.parametrize("model", bench.MODELS)
@pytest.mark.parametrize("gpus", [1, 8])
def test_first_fit_fragments_no_more_than_in_the_order_of_names(model: str, gpus: int) -> None:
    devices = bench.publish(model, gpus)
    (_, fragmented), (_, by_name) = map(bench.refuse_mean, (devices, bench.by_name(devices)))
    assert fragmented < by_name or (model == "A30" and fragmented == by_name)  # which is the same in a mirror
