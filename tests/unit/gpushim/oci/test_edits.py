from __future__ import annotations

import copy
from typing import Any

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.oci import edits
from gpushim.oci.edits import Edit
from unit.gpushim.oci.example_edits import ALL, FOREIGN, HOOK, MOUNT, NODE, OWNED, SET_NODE


def test_all_kinds_land_in_an_empty_spec() -> None:
    spec: dict[str, Any] = {}
    assert edits.apply(copy.deepcopy(ALL), spec)
    assert spec == {
        "linux": {
            "devices": [NODE],
            "resources": {"devices": [{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}]},
        },
        "mounts": [MOUNT],
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"], "user": {"additionalGids": [44]}},
        "hooks": {"prestart": [HOOK]},
    }


@pytest.mark.parametrize("given", [ALL, FOREIGN, ALL + FOREIGN, FOREIGN + ALL], ids=["own", "cdi", "both", "turned"])
def test_a_second_time_changes_nothing(given: list[Edit]) -> None:
    spec: dict[str, Any] = {"process": {"env": ["A=1"]}, "hooks": {"prestart": [{"path": "/x"}], "createRuntime": []}}
    edits.apply(copy.deepcopy(given), spec)
    before = copy.deepcopy(spec)
    assert not edits.apply(copy.deepcopy(given), spec)
    assert spec == before


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


def test_of_two_edits_about_the_same_thing_the_later_counts() -> None:
    mount = Edit("set-mount", {**MOUNT, "source": "/mine"})
    node = Edit("set-node", {**NODE, "minor": 9})
    both = [*ALL, mount, node, Edit("env", ("NVIDIA_VISIBLE_DEVICES", "void")), Edit("env", ("A", "1"))]
    assert edits.last_counts(both) == [ALL[1], ALL[4], ALL[5], *both[6:]]


def test_the_engines_own_node_is_kept() -> None:
    theirs = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 384}
    spec = {"linux": {"devices": [theirs]}}
    assert not edits.apply([Edit("node", NODE)], spec)
    assert spec == {"linux": {"devices": [theirs]}}


def test_another_device_under_our_path_is_refused() -> None:
    spec = {"linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 3}]}}
    with pytest.raises(GpushimError, match=r"/dev/nvidia0, as device 195:3 instead of 195:0"):
        edits.apply([Edit("node", NODE)], spec)


def test_the_users_mount_of_the_same_destination_is_kept() -> None:
    spec = {"mounts": [{"destination": "/usr/bin/nvidia-smi", "source": "/mine"}]}
    assert not edits.apply([Edit("mount", MOUNT)], spec)


DENY_ALL = {"allow": False, "access": "rwm"}
ALLOW_ALL = {"allow": True, "access": "rwm"}


RULES: list[tuple[list[Any], bool]] = [
    ([], True),
    ([DENY_ALL], True),
    ([ALLOW_ALL], False),
    ([DENY_ALL, ALLOW_ALL], False),
    ([ALLOW_ALL, DENY_ALL], True),
    ([{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}], False),
    ([{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}], False),
    ([{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "r"}], True),
    ([{"allow": True, "type": "c", "major": 195, "access": "rw"}], False),
    ([{"allow": True, "type": "c", "major": 195, "minor": -1, "access": "rw"}], False),
    ([{"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"}], True),
    ([{"allow": True, "type": "b", "major": 195, "minor": 0, "access": "rw"}], True),
    ([{"allow": True, "type": "a", "access": "rwm"}], False),
    ([ALLOW_ALL, {"allow": False, "type": "c", "major": 195, "minor": 0, "access": "w"}], True),
    ([ALLOW_ALL, {"allow": False, "type": "c", "major": 195, "minor": 0, "access": "m"}], False),
    ([{"allow": True}], False),
    ([{"allow": True, "type": ""}], False),
    ([ALLOW_ALL, {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "r"}], False),
]


@pytest.mark.parametrize(("rules", "added"), RULES)
def test_a_rule_is_added_only_where_the_device_is_not_allowed_yet(rules: list[Any], added: bool) -> None:
    spec: dict[str, Any] = {"linux": {"resources": {"devices": list(rules)}}}
    assert edits.apply([Edit("rule", ("c", 195, 0, "rw"))], spec) is added
    assert len(spec["linux"]["resources"]["devices"]) == len(rules) + added


@pytest.mark.parametrize("rules", [rules for rules, _ in RULES])
@pytest.mark.parametrize("minors", [(0, 1, 2, 0), (2, 1, 0, 0)])
def test_rules_of_one_major_number_land_as_each_would_alone(rules: list[Any], minors: tuple[int, ...]) -> None:
    more = [Edit("rule", ("c", 195, minor, access)) for minor in minors for access in ("r", "rw", "m")]
    together, alone = ({"linux": {"resources": {"devices": list(rules)}}} for _ in range(2))
    edits.apply(more, together)
    for one in more:
        edits.apply([one], alone)
    assert together == alone


@pytest.mark.parametrize(
    ("rule", "wanted", "added"),
    [
        ({"type": "c", "access": "rw"}, ("c", 1, 3, "rwm"), True),
        ({"type": "c", "access": "rwm"}, ("c", 1, 3, "m"), False),
        ({"type": "c", "access": "rw"}, ("b", 1, 3, "r"), True),
        ({"type": "a", "access": "rwm"}, ("b", 1, 3, "rwm"), False),
        ({"type": "b", "access": "r", "major": 1}, ("b", 1, 3, "r"), False),
    ],
)
def test_a_rule_of_any_type_and_access(rule: dict[str, Any], wanted: tuple[Any, ...], added: bool) -> None:
    spec: dict[str, Any] = {"linux": {"resources": {"devices": [{"allow": True, **rule}]}}}
    assert edits.apply([Edit("rule", wanted)], spec) is added


@pytest.mark.parametrize(
    ("env", "result"),
    [
        (["A=1"], ["A=1", "N=0"]),
        (["N=0"], ["N=0"]),
        (["N=all", "A=1"], ["N=0", "A=1"]),
        (["N=all", "A=1", "N=0"], ["N=0", "A=1"]),
        (["NN=1", "N"], ["NN=1", "N", "N=0"]),
        (["N=1", "N=2", "N=3"], ["N=0"]),
    ],
)
def test_a_variable_ends_up_once(env: list[str], result: list[str]) -> None:
    spec = {"process": {"env": list(env)}}
    assert edits.apply([Edit("env", ("N", "0"))], spec) is (env != result)
    assert spec["process"]["env"] == result


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
@pytest.mark.parametrize("name", ["nvidia-container-runtime-hook", "nvidia-container-toolkit", "gpushim-hook"])
def test_another_nvidia_hook_makes_room_for_ours(stage: str, name: str) -> None:
    other = {"path": "/usr/sbin/setkey"}
    spec: dict[str, Any] = {"hooks": {stage: [{"path": f"/opt/{name}", "args": [name, "prestart"]}, other]}}
    assert edits.apply([Edit("hook", HOOK)], spec)
    assert [hook["path"] for hook in spec["hooks"]["prestart"]][-1] == "/usr/bin/gpushim-hook"
    assert sum(len(hooks) for hooks in spec["hooks"].values()) == 2
    assert other in spec["hooks"][stage]


def test_a_hook_of_an_older_version_is_replaced() -> None:
    spec: dict[str, Any] = {
        "hooks": {"prestart": [{**HOOK, "args": ["gpushim-hook", "prestart", "--rootfs", "/old"]}]}
    }
    assert edits.apply([Edit("hook", HOOK)], spec)
    assert spec["hooks"]["prestart"] == [HOOK]


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"linux": []}, "linux"),
        ({"linux": {"devices": {}}}, "linux.devices"),
        ({"linux": {"devices": [1]}}, "linux.devices"),
        ({"linux": {"resources": "x"}}, "resources"),
        ({"mounts": {}}, "mounts"),
        ({"mounts": ["x"]}, "mounts"),
        ({"process": "x"}, "process"),
        ({"process": {"user": []}}, "user"),
        ({"hooks": []}, "hooks"),
        ({"hooks": [1]}, "hooks"),
        ({"hooks": {"prestart": {}}}, "hooks.prestart"),
        ({"hooks": {"prestart": [None]}}, "hooks.prestart"),
    ],
)
def test_a_wrong_type_is_named(spec: dict[str, Any], where: str) -> None:
    with pytest.raises(GpushimError, match=where.replace(".", r"\.")):
        edits.apply(copy.deepcopy(ALL), spec)


@pytest.mark.parametrize("absent", [{}, {"linux": None, "mounts": None, "hooks": None, "process": None}])
def test_null_counts_as_absent(absent: dict[str, Any]) -> None:
    assert edits.apply(copy.deepcopy(ALL), absent)
    assert absent["mounts"] == [MOUNT]


def test_reasons_are_outside_equality_and_those_of_equal_edits_meet() -> None:
    one, other = Edit("env", ("A", "1"), ["x"]), Edit("env", ("A", "1"), ["y"])
    assert one == other != Edit("env", ("A", "2"), ["x"])
    (kept,) = edits.last_counts([one, other])
    assert kept.why == ["x", "y"]
