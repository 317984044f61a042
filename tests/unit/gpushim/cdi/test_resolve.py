from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushim.cdi import resolve
from gpushim.ground.errors import INVENTORY, REQUEST, GpushimError
from gpushim.oci import edits
from gpushim.oci.edits import HOOK_ENV, NODE_OPTIONS, Edit
from unit.gpushim.oci.example_edits import ALL

BIN = "/opt/gpushim/bin"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of specs; hooks and mount sources count as there, whatever their path."""
    exists = resolve._require_file
    monkeypatch.setattr(
        resolve, "_require_file", lambda spec, path: exists(spec, path) if "/missing/" in path else None
    )
    return tmp_path


def resolved(directory: Path, device: Any, common: Any = None, userns: bool = False) -> list[Edit]:
    """Return what a device with these edits brings."""
    devices = [{"name": "a", "containerEdits": device}, {"name": "b", "containerEdits": {"env": ["B=1"]}}]
    document = {"cdiVersion": "1.1.0", "kind": "v/c", "devices": devices, "containerEdits": common}
    (directory / "v.json").write_text(json.dumps(document))
    return resolve.edits(["v/c=a"], [str(directory)], {"rootfs": "", "userns": userns, "hook": f"{BIN}/gpushim-hook"})


def refusal(directory: Path, device: Any) -> str:
    with pytest.raises(GpushimError) as caught:
        resolved(directory, device)
    assert caught.value.exit_code == INVENTORY
    assert str(directory / "v.json") in str(caught.value)
    return str(caught.value)


def test_a_specs_own_edits_come_once_before_those_of_its_first_device(directory: Path) -> None:
    resolved(directory, {"env": ["A=1"]}, {"env": ["COMMON=1"]})
    other = {"cdiVersion": "0.3.0", "kind": "w/c", "devices": [{"name": "x", "containerEdits": {"env": ["X="]}}]}
    (directory / "w.json").write_text(json.dumps(other))
    bundle: Any = {"userns": False, "hook": f"{BIN}/gpushim-hook"}
    found = resolve.edits(["w/c=x", "v/c=b", "v/c=a"], [str(directory)], bundle)
    assert found == [Edit("env", pair) for pair in (("X", ""), ("COMMON", "1"), ("B", "1"), ("A", "1"))]


NULL = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}


@pytest.mark.parametrize(
    ("given_", "node", "rule"),
    [
        ({"path": "/dev/null"}, NULL, ("c", 1, 3, "rwm")),
        ({"path": "/dev/null", "permissions": "rw"}, NULL, ("c", 1, 3, "rw")),
        ({"path": "/dev/null", "type": "c", "major": 1, "minor": 3}, NULL, ("c", 1, 3, "rwm")),
        ({"path": "/dev/null", "type": "u"}, {**NULL, "type": "u"}, ("c", 1, 3, "rwm")),
        ({"path": "/dev/x", "hostPath": "/dev/null"}, {**NULL, "path": "/dev/x"}, ("c", 1, 3, "rwm")),
        ({"path": "/dev/null", "fileMode": 0o600}, {**NULL, "fileMode": 0o600}, ("c", 1, 3, "rwm")),
        ({"path": "/dev/null", "fileMode": 0}, {**NULL, "fileMode": 0}, ("c", 1, 3, "rwm")),
        ({"path": "/dev/null", "uid": 7, "gid": 0}, {**NULL, "uid": 7, "gid": 0}, ("c", 1, 3, "rwm")),
        ({"path": "/dev/null", "uid": None, "hostPath": None}, NULL, ("c", 1, 3, "rwm")),
        (
            {"path": "/dev/gone", "type": "b", "major": 7, "minor": 1},
            {"path": "/dev/gone", "type": "b", "major": 7, "minor": 1},
            ("b", 7, 1, "rwm"),
        ),
    ],
)
def test_a_node_is_completed_from_the_hosts(
    directory: Path, given_: Any, node: dict[str, Any], rule: tuple[Any, ...]
) -> None:
    assert resolved(directory, {"deviceNodes": [given_]}) == [Edit("set-node", node), Edit("rule", rule)]


def test_a_fifo_has_neither_numbers_nor_a_rule(directory: Path) -> None:
    node = {"path": "/dev/pipe", "type": "p", "fileMode": 384}
    assert resolved(directory, {"deviceNodes": [node]}) == [Edit("set-node", node)]


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"path": "/dev/gone"}, "needs the device node /dev/gone, which cannot be used (No such file or directory)"),
        ({"path": "/dev/gone", "type": "c"}, "/dev/gone"),
        ({"path": "/dev/gone", "major": 1, "minor": 3}, "/dev/gone"),
        ({"path": "/dev/x", "hostPath": "/etc/passwd"}, "needs the device node /etc/passwd, which is not one"),
        ({"path": "/dev/stdin"}, "which is not one of type b, c or p"),
        ({"path": "/dev/null", "type": "b"}, "which is not one of type b"),
        (
            {"path": "/dev/null", "major": 1, "minor": 5},
            "/dev/null is the device 1:5, but it is 1:3; the spec is out",
        ),
        ({"path": "/dev/null", "type": "c", "major": 508}, "is the device 508:0, but it is 1:3"),
    ],
)
def test_a_node_that_the_host_lacks_is_refused(directory: Path, given_: Any, words: str) -> None:
    assert words in refusal(directory, {"deviceNodes": [given_]})


def test_in_a_user_namespace_a_node_of_another_path_is_mounted(directory: Path) -> None:
    given_ = [{"path": "/dev/x", "hostPath": "/dev/null"}, {"path": "/dev/null"}]
    mount = {"destination": "/dev/x", "source": "/dev/null", "type": "bind", "options": NODE_OPTIONS}
    rule = Edit("rule", ("c", 1, 3, "rwm"))
    assert resolved(directory, {"deviceNodes": given_}, userns=True) == [
        Edit("set-mount", mount), rule, Edit("set-node", NULL), rule,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given_", "mount"),
    [
        ({"options": ["ro", "rbind"]}, {"options": ["ro", "rbind"]}),
        ({"options": ["ro"]}, {"options": ["ro", "rbind"], "type": "bind"}),
        ({}, {"options": ["rbind"], "type": "bind"}),
        ({"type": "bind"}, {"options": [], "type": "bind"}),
        ({"type": "none", "options": ["bind"]}, {"options": ["bind"], "type": "none"}),
        ({"type": "tmpfs", "hostPath": "tmpfs"}, {"options": [], "type": "tmpfs", "source": "tmpfs"}),
    ],
)
def test_a_mount(directory: Path, given_: dict[str, Any], mount: dict[str, Any]) -> None:
    found = resolved(directory, {"mounts": [{"hostPath": "/lib/x", "containerPath": "/y", **given_}]})
    assert found == [Edit("set-mount", {"destination": "/y", "source": "/lib/x", **mount})]


@pytest.mark.parametrize(
    "given_",
    [
        {"mounts": [{"hostPath": "/missing/x", "containerPath": "/y", "options": ["rbind"]}]},
        {"mounts": [{"hostPath": "/missing/x", "containerPath": "/y"}]},
        {"hooks": [{"hookName": "prestart", "path": "/missing/x"}]},
    ],
)
def test_a_file_that_the_host_lacks_is_refused(directory: Path, given_: Any) -> None:
    assert "needs /missing/x, which is not on this host" in refusal(directory, given_)


def test_a_hook_without_an_environment_gets_one(directory: Path) -> None:
    hooks = [
        {"hookName": "createContainer", "path": "/bin/x", "args": ["x", "y"], "timeout": 3},
        {"hookName": "poststop", "path": "/bin/x", "env": []},
        {"hookName": "startContainer", "path": "/missing/in/the/container", "env": ["A=1"]},
    ]
    assert resolved(directory, {"hooks": hooks}) == [
        Edit(
            "stage-hook", ("createContainer", {"path": "/bin/x", "args": ["x", "y"], "timeout": 3, "env": HOOK_ENV})
        ),
        Edit("stage-hook", ("poststop", {"path": "/bin/x", "env": HOOK_ENV})),
        Edit("stage-hook", ("startContainer", {"path": "/missing/in/the/container", "env": ["A=1"]})),
    ]


@pytest.mark.parametrize(
    ("path", "args", "ours"),
    [
        ("/usr/bin/nvidia-cdi-hook", ["nvidia-cdi-hook", "chmod"], ["nvidia-cdi-hook", "chmod"]),
        (
            "/missing/nvidia-cdi-hook",
            ["x", "update-ldcache", "--folder", "/l"],
            ["x", "update-ldcache", "--folder", "/l"],
        ),
        (
            "/usr/bin/nvidia-ctk",
            ["nvidia-ctk", "hook", "chmod", "--mode", "1"],
            ["nvidia-cdi-hook", "chmod", "--mode", "1"],
        ),
        ("/missing/nvidia-ctk", ["nvidia-ctk", "--debug", "hook", "hook"], ["nvidia-cdi-hook", "hook"]),
    ],
)
def test_hooks_of_nvidias_tools_run_through_ours(
    directory: Path, path: str, args: list[str], ours: list[str]
) -> None:
    given_ = {"hookName": "createContainer", "path": path, "args": args, "env": ["NVIDIA_CTK_DEBUG=false"]}
    hook = {"path": f"{BIN}/nvidia-cdi-hook", "args": ours, "env": ["NVIDIA_CTK_DEBUG=false"]}
    assert resolved(directory, {"hooks": [given_]}) == [Edit("stage-hook", ("createContainer", hook))]


@pytest.mark.parametrize(
    ("stage", "path", "args"),
    [
        ("createContainer", "/usr/bin/nvidia-ctk", ["nvidia-ctk", "system", "x"]),
        ("createContainer", "/usr/bin/nvidia-ctk", None),
        ("createContainer", "/opt/other-hook", ["nvidia-cdi-hook", "hook"]),
        ("startContainer", "/usr/bin/nvidia-cdi-hook", ["nvidia-cdi-hook", "chmod"]),
    ],
)
def test_other_hooks_are_left_alone(directory: Path, stage: str, path: str, args: list[str] | None) -> None:
    given_ = {"hookName": stage, "path": path, "args": args}
    (edit,) = resolved(directory, {"hooks": [given_]})
    at, hook = edit.value
    assert (at, hook["path"], hook.get("args")) == (stage, path, args)


def test_groups_and_rdt(directory: Path) -> None:
    given_ = {"additionalGids": [0, 44], "intelRdt": {"closID": "x", "l3CacheSchema": None, "enableMBM": False}}
    assert resolved(directory, given_) == [Edit("rdt", {"closID": "x", "enableMBM": False}), Edit("gid", 44)]


def test_network_devices_are_refused(directory: Path) -> None:
    given_ = {"netDevices": [{"hostInterfaceName": "eth1", "name": "eth0"}]}
    assert "gives network devices" in refusal(directory, given_)


def test_an_unknown_device_is_a_wrong_request(directory: Path) -> None:
    with pytest.raises(GpushimError, match='the device "v/c=z"; gpushim cdi list') as caught:
        resolve.edits(["v/c=z"], [str(directory)], {"rootfs": "", "userns": False, "hook": ""})
    assert caught.value.exit_code == REQUEST


def nvidia_like() -> dict[str, Any]:
    """Edits of the shape that NVIDIA's tools write, with nodes that every Linux has."""

    def hook(*args: str) -> dict[str, Any]:
        path = "/usr/bin/nvidia-cdi-hook"
        env = ["NVIDIA_CTK_DEBUG=false"]
        return {"hookName": "createContainer", "path": path, "args": ["nvidia-cdi-hook", *args], "env": env}

    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    return {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/dev/zero", "fileMode": 438, "permissions": "rwm"}],
        "mounts": [{"hostPath": library, "containerPath": library, "options": options}],
        "hooks": [hook("create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so"), hook("update-ldcache")],
        "additionalGids": [44],
    }


def test_a_spec_as_nvidias_tools_write_it_makes_the_container_engines_make(directory: Path) -> None:
    device = {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null", "gid": 44}], "additionalGids": [44]}
    given_ = nvidia_like()
    spec: dict[str, Any] = {
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "PATH=/bin"], "user": {"uid": 1000, "gid": 0}},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    }
    found = resolved(directory, device, given_)
    assert edits.apply(copy.deepcopy(found), spec)
    path = given_["mounts"][0]["hostPath"]
    allow = {"allow": True, "type": "c", "access": "rwm"}
    hooks = [{key: value for key, value in hook.items() if key != "hookName"} for hook in given_["hooks"]]
    assert spec == {
        "process": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "PATH=/bin"],
            "user": {"uid": 1000, "gid": 0, "additionalGids": [44]},
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": path, "source": path, "options": given_["mounts"][0]["options"]},
        ],
        "hooks": {"createContainer": [{**hook, "path": f"{BIN}/nvidia-cdi-hook"} for hook in hooks]},
        "linux": {
            "devices": [
                {"path": "/dev/nvidiactl", "type": "c", "major": 1, "minor": 5, "fileMode": 438, "uid": 1000},
                {
                    "path": "/dev/nvidia0",
                    "type": "c",
                    "major": 1,
                    "minor": 3,
                    "fileMode": 438,
                    "uid": 1000,
                    "gid": 44,
                },
            ],
            "resources": {"devices": [{**allow, "major": 1, "minor": 5}, {**allow, "major": 1, "minor": 3}]},
        },
    }
    before = copy.deepcopy(spec)
    assert not edits.apply(found, spec)
    assert spec == before


PATHS = st.sampled_from(
    ["/dev/null", "/dev/zero", "/dev/gone", "/etc", "/missing/x", "/y", "/y/z", "/", "tmpfs", "x"]
)
TEXTS = st.text("ab=/:,\u00e9", max_size=6)
NUMBERS = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 3, 5])


def some(needed: Any = None, **members: Any) -> Any:
    optional = {name: value | st.none() for name, value in members.items()}
    return st.fixed_dictionaries(needed or {}, optional=optional)


NODE = some(
    {"path": PATHS}, hostPath=PATHS, type=st.sampled_from("cbup"), major=NUMBERS, minor=NUMBERS, fileMode=NUMBERS,
    permissions=st.sampled_from(["", "r", "rwm", "x"]), uid=NUMBERS, gid=NUMBERS,
)  # fmt: skip
MOUNT = some(
    {"hostPath": PATHS, "containerPath": PATHS}, type=st.sampled_from(["bind", "tmpfs", ""]), options=st.lists(TEXTS)
)
HOOK = some(
    {"hookName": st.sampled_from(["prestart", "createContainer", "startContainer", "x"]), "path": PATHS},
    args=st.lists(st.sampled_from(["hook", "x"])), env=st.lists(st.sampled_from(["A=1"])), timeout=NUMBERS,
)  # fmt: skip
EDITS = some(
    env=st.lists(st.sampled_from(["A=1", "A=2", "B=", "NVIDIA_VISIBLE_DEVICES=void"])),
    deviceNodes=st.lists(NODE, max_size=3),
    mounts=st.lists(MOUNT, max_size=3),
    hooks=st.lists(HOOK, max_size=3),
    additionalGids=st.lists(NUMBERS, max_size=2),
    intelRdt=some(closID=TEXTS),
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EDITS, EDITS, st.booleans())
def test_any_spec_is_refused_in_words_or_lands_for_good(
    directory: Path, device: Any, common: Any, userns: bool
) -> None:
    try:
        found = resolve.last_counts(resolved(directory, device, common, userns))
    except GpushimError as error:
        assert error.exit_code == INVENTORY  # noqa: PT017 - either way is well
        return
    spec: dict[str, Any] = {"process": {"user": {"uid": os.getpid()}}}
    edits.apply(copy.deepcopy(found), spec)
    before = copy.deepcopy(spec)
    assert not edits.apply(found, spec)
    assert spec == before


def test_of_two_edits_about_the_same_thing_the_later_counts() -> None:
    mount = Edit("set-mount", {**ALL[2].value, "source": "/mine"})
    node = Edit("set-node", {**ALL[0].value, "minor": 9})
    both = [*ALL, mount, node, Edit("env", ("NVIDIA_VISIBLE_DEVICES", "void")), Edit("env", ("A", "1"))]
    assert resolve.last_counts(both) == [ALL[1], ALL[4], ALL[5], *both[6:]]


def test_reasons_are_outside_equality_and_those_of_equal_edits_meet() -> None:
    one, other = Edit("env", ("A", "1"), ["x"]), Edit("env", ("A", "1"), ["y"])
    assert one == other != Edit("env", ("A", "2"), ["x"])
    (kept,) = resolve.last_counts([one, other])
    assert kept.why == ["x", "y"]
