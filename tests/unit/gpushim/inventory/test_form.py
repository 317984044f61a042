"""The promise of the snapshot's form: the reader of the form before reads the next one, and the reverse.

tests/data/snapshots has what a refresh wrote of each form. A change of the members means a new FORM and its file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.settings import resources
from gpushim.inventory import ensure, save
from unit.gpushim.inventory.machine import Machine

DATA = Path(__file__).parents[3] / "data/snapshots"
GONE = [".driver.library-directory", ".policy.driver.library-directory"]  # which no reader has read
FORMS = sorted(int(path.stem) for path in DATA.iterdir())


def saved(number: int) -> Any:
    return json.loads((DATA / f"{number}.json").read_text())


def of_form_10(found: Any) -> dict[str, Any]:
    """Read a snapshot as the plugin did that knew form 10 alone; what it needs of one is here for good."""
    assert found["version"] == 10, "it would call all devices Unhealthy"
    facts = {
        name: found[name] for name in ("platform", "source", "error", "missing", "notes", "nodes", "driver", "life")
    }
    gpus = [(gpu["index"], gpu["uuid"], gpu["numa"], gpu["node"], gpu["problem"]) for gpu in found["gpus"]]
    migs = [(mig["gpu"], mig["index"], mig["uuid"], mig["profile"], mig["nodes"]) for mig in found["mig"]]
    return {**facts, "gpus": gpus, "mig": migs, "stamp": (found["stamp"]["boot"], found["stamp"]["module"])}


def shape(value: Any) -> Any:
    """Return the members of JSON with their types, of a list those of its first element."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return [shape(one) for one in value[:1]] if isinstance(value, list) else type(value)


def lacks(old: Any, new: Any, where: str = "") -> list[str]:
    """List what a shape had and another has not, or has as another type."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = [lacks(one, new.get(key), f"{where}.{key}") for key, one in old.items()]
        return [place for places in found for place in places]
    if isinstance(old, list) and isinstance(new, list):
        return lacks(old[0], new[0], where) if old and new else []
    return [] if old == new else [where]


def test_the_newest_is_what_a_refresh_writes(machine: Machine) -> None:
    machine.build([{}, {"mig": [(1, 0, "3g.20gb")]}])
    now = machine.refreshed()
    fixture = saved(FORMS[-1])
    assert (FORMS[-1], now["form"], now["version"]) == (ensure.FORM, ensure.FORM, ensure.READABLE)
    by_data = ("nodes", "files", "stamp", "inputs")  # of which the file has less
    one, other = ({key: value for key, value in found.items() if key not in by_data} for found in (fixture, now))
    assert (lacks(shape(one), shape(other)), lacks(shape(other), shape(one))) == ([], [])
    assert all(now[key].keys() == fixture[key].keys() for key in ("stamp", "inputs"))


@pytest.mark.parametrize("newer", [number for number in FORMS if number > 10])
def test_the_reader_before_reads_what_is_newer(newer: int) -> None:
    assert of_form_10(saved(newer)).keys() == of_form_10(saved(10)).keys()
    assert {*lacks(shape(saved(10)), shape(saved(newer)))} <= {*GONE}


@pytest.mark.parametrize("number", FORMS)
def test_this_reader_reads_all_since_the_oldest(number: int) -> None:
    assert FORMS[0] == save.OLDEST
    assert save.understood(saved(number))
    found = save.completed(saved(number))
    assert lacks(shape(saved(FORMS[-1])), shape(found)) == []
    devices = resources.find(found, "mixed", [], [])
    assert {name: len(row) for name, row in devices.items()} == {"nvidia.com/gpu": 1, "nvidia.com/mig-3g.20gb": 1}


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({}, True),
        ({"form": ensure.FORM + 1, "colours": ["green"]}, True),
        ({"form": ensure.FORM + 9, "version": ensure.FORM}, True),
        ({"form": ensure.FORM + 1, "version": ensure.FORM + 1}, False),
        ({"form": save.OLDEST - 1, "version": save.OLDEST - 1}, False),
        ({"version": None}, False),
        ({"form": "11"}, False),
    ],
)
def test_what_is_understood(change: dict[str, Any], read: bool) -> None:
    assert save.understood({**saved(FORMS[-1]), **change}) == read


@pytest.mark.parametrize(
    ("change", "true"),
    [
        ({"gpushim": "99"}, True),
        ({"gpushim": "99", "form": ensure.FORM + 1, "more": {}}, True),
        ({"form": ensure.FORM + 1, "version": ensure.FORM + 1}, False),
        ({"looked": 0.0, "life": 1}, False),
        ({"inputs": {}}, False),
        ({"told": {}}, False),
        ({"stamp": []}, False),
    ],
)
def test_one_of_another_version_is_true_as_long_as_the_host_is_the_same(
    machine: Machine, change: dict[str, Any], true: bool
) -> None:
    machine.build(1)
    found = machine.refreshed()
    path = Path(machine.state, ensure.SNAPSHOT)
    path.write_text(json.dumps({**found, "stamp": {**found["stamp"], "a new fact": 1}, **change}))
    assert ensure.read(machine.config, machine.state) is None  # a create takes its own version's alone
    assert (save.of_another(machine.config, machine.state) is not None) == true
    Path(machine.config).write_text("[log]\n")
    assert save.of_another(machine.config, machine.state) is None
