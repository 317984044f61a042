from __future__ import annotations

import copy
from typing import Any

import pytest

from gpushim import edits
from gpushim.errors import GpushimError

NODE = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "uid": 0, "gid": 0}
MOUNT = {"destination": "/usr/bin/nvidia-smi", "source": "/d/usr/bin/nvidia-smi", "type": "bind", "options": ["ro"]}
HOOK = {"path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart"], "env": ["PATH=/bin"]}
ALL: list[tuple[str, Any]] = [
    ("node", NODE),
    ("rule", (195, 0)),
    ("mount", MOUNT),
    ("env", ("NVIDIA_VISIBLE_DEVICES", "0")),
    ("gid", 44),
    ("hook", HOOK),
]


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


def test_a_second_time_changes_nothing() -> None:
    spec: dict[str, Any] = {"process": {"env": ["A=1"]}, "hooks": {"prestart": [{"path": "/x"}], "createRuntime": []}}
    edits.apply(copy.deepcopy(ALL), spec)
    before = copy.deepcopy(spec)
    assert not edits.apply(copy.deepcopy(ALL), spec)
    assert spec == before


def test_the_engines_own_node_is_kept() -> None:
    theirs = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 384}
    spec = {"linux": {"devices": [theirs]}}
    assert not edits.apply([("node", NODE)], spec)
    assert spec == {"linux": {"devices": [theirs]}}


def test_another_device_under_our_path_is_refused() -> None:
    spec = {"linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 3}]}}
    with pytest.raises(GpushimError, match=r"/dev/nvidia0, as device 195:3 instead of 195:0"):
        edits.apply([("node", NODE)], spec)


def test_the_users_mount_of_the_same_destination_is_kept() -> None:
    spec = {"mounts": [{"destination": "/usr/bin/nvidia-smi", "source": "/mine"}]}
    assert not edits.apply([("mount", MOUNT)], spec)


DENY_ALL = {"allow": False, "access": "rwm"}
ALLOW_ALL = {"allow": True, "access": "rwm"}


@pytest.mark.parametrize(
    ("rules", "added"),
    [
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
    ],
)
def test_a_rule_is_added_only_where_the_device_is_not_allowed_yet(rules: list[Any], added: bool) -> None:
    spec: dict[str, Any] = {"linux": {"resources": {"devices": list(rules)}}}
    assert edits.apply([("rule", (195, 0))], spec) is added
    assert len(spec["linux"]["resources"]["devices"]) == len(rules) + added


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
    assert edits.apply([("env", ("N", "0"))], spec) is (env != result)
    assert spec["process"]["env"] == result


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
@pytest.mark.parametrize("name", ["nvidia-container-runtime-hook", "nvidia-container-toolkit", "gpushim-hook"])
def test_another_nvidia_hook_makes_room_for_ours(stage: str, name: str) -> None:
    other = {"path": "/usr/sbin/setkey"}
    spec: dict[str, Any] = {"hooks": {stage: [{"path": f"/opt/{name}", "args": [name, "prestart"]}, other]}}
    assert edits.apply([("hook", HOOK)], spec)
    assert [hook["path"] for hook in spec["hooks"]["prestart"]][-1] == "/usr/bin/gpushim-hook"
    assert sum(len(hooks) for hooks in spec["hooks"].values()) == 2
    assert other in spec["hooks"][stage]


def test_a_hook_of_an_older_version_is_replaced() -> None:
    spec: dict[str, Any] = {"hooks": {"prestart": [{**HOOK, "args": ["gpushim-hook", "prestart", "--old"]}]}}
    assert edits.apply([("hook", HOOK)], spec)
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
