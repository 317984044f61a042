"""Edits of foreign CDI specs replace what is there."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpushim.oci import edits
from gpushim.oci.edits import Edit
from unit.gpushim.oci.example_edits import FOREIGN, OWNED, SET_NODE


def test_what_cdi_specs_bring_lands_in_an_empty_spec() -> None:
    spec: dict[str, Any] = {}
    assert edits.apply(copy.deepcopy(FOREIGN), spec)
    allow = {"allow": True, "type": "b", "major": 7, "minor": 1, "access": "rwm"}
    assert spec == {
        "linux": {"devices": [SET_NODE], "resources": {"devices": [allow]}, "intelRdt": {"closID": "c"}},
        "mounts": [FOREIGN[2].value],
        "process": {"env": ["A="], "user": {"additionalGids": [7]}},
        "hooks": {"createContainer": [FOREIGN[4].value[1]], "prestart": [FOREIGN[5].value[1]]},
    }


@pytest.mark.parametrize(
    ("devices", "user", "result"),
    [
        ([], OWNED, [{**SET_NODE, **OWNED}]),
        ([], {"uid": 0, "gid": 6}, [{**SET_NODE, "gid": 6}]),
        ([{"path": "/dev/y"}], {}, [{"path": "/dev/y"}, SET_NODE]),
        ([{**SET_NODE, "fileMode": 1}], OWNED, [{**SET_NODE, "fileMode": 1}]),
        ([{**SET_NODE, "minor": 2}, {"path": "/dev/y"}], {}, [{"path": "/dev/y"}, SET_NODE]),
        ([{**SET_NODE, "type": "c"}], {}, [SET_NODE]),
        ([SET_NODE, {**SET_NODE, "minor": 2}], {}, [SET_NODE]),
    ],
)
def test_a_node_of_a_cdi_spec_takes_the_place_of_another(devices: list[Any], user: Any, result: list[Any]) -> None:
    spec: dict[str, Any] = {"process": {"user": user}, "linux": {"devices": copy.deepcopy(devices)}}
    assert edits.apply([Edit("set-node", SET_NODE)], spec) is (devices != result)
    assert spec["linux"]["devices"] == result
    assert not edits.apply([Edit("set-node", SET_NODE)], spec)


@pytest.mark.parametrize(
    ("destinations", "result"),
    [
        ([], "/opt*"),
        (["/proc", "/srv"], "/proc /srv /opt*"),
        (["/proc", "/opt", "/srv"], "/proc /opt* /srv"),
        (["/opt", "/srv", "/opt"], "/opt /srv /opt*"),
        (["/proc", "/opt/a", "/opt/b"], "/proc /opt* /opt/a /opt/b"),
        (["/", "/optical", "/op"], "/ /optical /op /opt*"),
    ],
)
def test_a_mount_of_a_cdi_spec_takes_the_place_of_another_and_hides_none(
    destinations: list[str], result: str
) -> None:
    spec: dict[str, Any] = {"mounts": [{"destination": path} for path in destinations]}
    assert edits.apply([FOREIGN[2]], spec)
    shown = [mount["destination"] + "*" * (len(mount) > 1) for mount in spec["mounts"]]
    assert " ".join(shown) == result
    assert not edits.apply([FOREIGN[2]], spec)


def test_an_equal_hook_of_a_stage_stays_alone() -> None:
    hook = FOREIGN[4].value[1]
    spec: dict[str, Any] = {"hooks": {"createContainer": [{"path": "/a"}, hook, {"path": "/b"}]}}
    assert not edits.apply([FOREIGN[4]], spec)
    assert edits.apply([Edit("stage-hook", ("createContainer", {**hook, "args": ["x"]}))], spec)
    assert len(spec["hooks"]["createContainer"]) == 4
