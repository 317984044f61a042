from __future__ import annotations

import copy
from typing import Any

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.oci import edits
from gpushim.oci.edits import Edit
from unit.gpushim.oci.example_edits import ALL, FOREIGN, HOOK, MOUNT, NODE


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
