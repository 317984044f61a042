from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.config.policy import defaults, schema
from gpushim.ground import errors
from gpushim.inventory import nodes
from gpushim.oci import device_list, request
from gpushim.oci.authorization import FEATURES, VARIABLES

UUID = "GPU-11111111-1111-1111-1111-111111111111"
NVD = "NVIDIA_VISIBLE_DEVICES"
DIR = "/var/run/nvidia-container-devices"
ROOT_CAPABILITIES = {"bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"]}


def policy(**rules: Any) -> Any:
    found: Any = defaults()
    found["requests"].update((name.replace("_", "-"), value) for name, value in rules.items())
    found["cdi"]["foreign-kinds"] = ["*"]
    return found


def with_kinds(*kinds: str) -> Any:
    """A policy under which unprivileged containers may name devices of these kinds."""
    found = policy(accept_volume_mounts=True)
    found["cdi"]["foreign-kinds"] = list(kinds)
    return found


def bundle(*env: str, mounts: Any = (), annotations: Any = None, capabilities: Any = None) -> dict[str, Any]:
    listed = [{"destination": path, "source": "/dev/null"} if isinstance(path, str) else path for path in mounts]
    process = {"env": ["PATH=/bin", *env], "capabilities": capabilities}
    return {"process": process, "mounts": listed, "annotations": annotations}


def asked(spec: dict[str, Any], **rules: Any) -> request.Request:
    found = request.read(spec, policy(**rules))
    assert found is not None
    return found


def names(spec: dict[str, Any], **rules: Any) -> list[str] | None:
    found = request.read(spec, policy(**rules))
    return None if found is None else [text for _, _, text in found.devices]


def attempt(spec: Any, **rules: Any) -> tuple[request.Request | None, errors.GpushimError | None]:
    try:
        return request.read(spec, policy(**rules)), None
    except errors.GpushimError as error:
        return None, error


def refusal(spec: Any, **rules: Any) -> errors.GpushimError:
    with pytest.raises(errors.GpushimError) as caught:
        request.read(spec, policy(**rules))
    return caught.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("all", ["all"]), ("none", []), ("void", None), ("", None), (",", None), (",,", None), (" ", None),
        (" , ,", None), ("\t", None), ("0", ["0"]), ("0,", ["0"]), (",0", ["0"]), (" 0 ", ["0"]),
        ("0 , 2", ["0", "2"]),
        ("0,0", ["0"]), ("0,1,0", ["0", "1"]),
        ("2,0", ["2", "0"]), ("0-3", ["0", "1", "2", "3"]),
        ("0,void", None), ("void,all", None), ("none,void", None), (" void ", None),
        ("none,all", []), ("all,none", ["all"]), ("all-usable", ["all-usable"]), ("0,all-usable,all", ["all-usable"]),
        ("0,all", ["all"]), ("0,none", []), ("ALL", ["ALL"]), ("VOID", ["VOID"]), ("None", ["None"]), ("-1", ["-1"]),
        ("00", ["00"]), ("0x0", ["0x0"]), ("1e0", ["1e0"]),
        ("\u0660", ["\u0660"]), ("0:1", ["0:1"]), ("3b:00.0", ["3b:00.0"]),
        (UUID, [UUID]), (f"{UUID},{UUID.lower()}", [UUID]), ("GPU-11111111", ["GPU-11111111"]), ("a/b=0", ["a/b=0"]),
        ("evil.com/x=y", ["evil.com/x=y"]),
        ("nvidia.com/gpu=all", ["all"]), ("../x", ["../x"]),
        ("nvidia.com/gpu=0,0", ["0"]), ("runtime.nvidia.com/gpu=0,0", ["0"]),
        ("--ldconfig=/x", ["--ldconfig=/x"]),
        ("$(x)", ["$(x)"]), ("0;1", ["0;1"]), ("0\n1", ["0\n1"]), ("0=1", ["0=1"]),
    ],
)  # fmt: skip
def test_visible_devices(value: str, expected: list[str] | None) -> None:
    assert names(bundle(f"{NVD}={value}")) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ([], None),
        ([f"{NVD}=all", f"{NVD}=0"], ["0"]),
        ([f"{NVD}=0", f"{NVD}=1", f"{NVD}=2"], ["2"]),
        ([f"{NVD}=all", f"{NVD}="], None),
        ([f"{NVD}=all", f"{NVD}=void"], None),
        ([f"{NVD}=void", f"{NVD}=0"], ["0"]),
        ([f"{NVD}=0", NVD], ["0"]),
        ([NVD], None),
        ([f"{NVD}X=0"], None),
        ([f"X{NVD}=0"], None),
        ([f" {NVD}=0"], None),
        ([f"{NVD.lower()}=0"], None),
        (["=", "", "=x", f"{NVD}=0"], ["0"]),
        (["CUDA_VERSION=9.0"], ["all"]),
        (["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA="], ["all"]),
        (["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA=cuda>=9"], None),
        (["CUDA_VERSION="], None),
        (["CUDA_VERSIONS=9.0"], None),
        (["CUDA_VERSION=9.0", f"{NVD}="], None),
        (["CUDA_VERSION=9.0", f"{NVD}=void"], None),
        (["CUDA_VERSION=9.0", f"{NVD}=0"], ["0"]),
        (["CUDA_VERSION=9.0", "CUDA_VERSION="], None),
        (["NVIDIA_REQUIRE_CUDA=cuda>=9"], None),
    ],
)
def test_environment(env: list[str], expected: list[str] | None) -> None:
    assert names(bundle(*env)) == expected


@pytest.mark.parametrize(
    ("env", "expected", "source"),
    [
        (["A=0"], ["0"], "env A"),
        (["A=0", f"{NVD}=1"], ["0"], "env A"),
        (["B=1", "A=0"], ["0", "1"], "env A, B"),
        (["A=0,1", "B=1,2"], ["0", "1", "2"], "env A, B"),
        (["A=", f"{NVD}=1"], None, ""),
        (["A=", "B=3"], ["3"], "env A, B"),
        (["A-C=2", "C=1", f"{NVD}=1"], ["2"], "env A-C"),
        (["A=0", f"{NVD}=void"], None, ""),
        (["A=void", f"{NVD}=1"], None, ""),
        (["A=", "CUDA_VERSION=9.0"], None, ""),
        (["AA=0", f"{NVD}=1"], ["1"], f"env {NVD}"),
        (["A", f"{NVD}=1"], ["1"], f"env {NVD}"),
        ([f"A={DIR}"], [DIR], "env A"),
    ],
)
def test_swarm_variables(env: list[str], expected: list[str] | None, source: str) -> None:
    spec = bundle(*env)
    assert names(spec, swarm_variables=["A", "B", "A-C"]) == expected
    if expected is not None:
        assert asked(spec, swarm_variables=["A", "B", "A-C"]).source == source


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ([f"{DIR}/0"], ["0"]),
        ([f"{DIR}/0", f"{DIR}/1"], ["0", "1"]),
        ([f"{DIR}/1", f"{DIR}/0", f"{DIR}/1"], ["1", "0"]),
        ([f"{DIR}/all"], ["all"]),
        ([f"{DIR}/{UUID}"], [UUID]),
        ([f"{DIR}/0:1"], ["0:1"]),
        ([f"{DIR}/MIG-{UUID}/1/0"], [f"MIG-{UUID}/1/0"]),
        ([f"{DIR}//0/"], ["0"]),
        (["//var/./run/nvidia-container-devices/0"], ["0"]),
        ([f"{DIR}/0,1"], ["0,1"]),
        ([f"{DIR}/cdi/vendor.com/class/x"], ["vendor.com/class=x"]),
        ([f"{DIR}/cdi/vendor.com/class=x"], ["vendor.com/class=x"]),
        ([f"{DIR}/cdi/imex/class=x"], ["imex/class=x"]),
        ([f"{DIR}/cdi/nvidia.com/gpu/0", f"{DIR}/0"], ["0"]),
        ([f"{DIR}/imex/0"], ["9"]),
        ([f"{DIR}/imex/0", f"{DIR}/1"], ["1"]),
        ([f"{DIR}0"], ["9"]),
        ([DIR], ["9"]),
        ([f"{DIR}/"], ["9"]),
        (["/run/nvidia-container-devices/0"], ["9"]),
        (["var/run/nvidia-container-devices/0"], ["9"]),
        ([f"/x{DIR}/0"], ["9"]),
        ([{"destination": f"{DIR}/0", "source": "/dev/nulL"}], ["9"]),
        ([{"destination": f"{DIR}/0", "source": "dev/null"}], ["9"]),
        ([{"destination": f"{DIR}/0", "source": "/dev/null/x"}], ["9"]),
        ([{"destination": f"{DIR}/0"}], ["9"]),
        ([{"destination": f"{DIR}/0", "source": None}], ["9"]),
        ([{"destination": f"{DIR}/0", "source": "//dev/./null/"}], ["0"]),
        ([{"destination": f"{DIR}/0", "source": "/x/../dev/pts/../null"}], ["0"]),
        ([{"destination": f"{DIR}/0", "source": "/../dev/null"}], ["0"]),
        ([{}], ["9"]),
        ([], ["9"]),
    ],
)
def test_mounts_beat_the_variable_when_accepted(mounts: list[Any], expected: list[str]) -> None:
    spec = bundle(f"{NVD}=9", mounts=mounts)
    assert names(spec, accept_volume_mounts=True) == expected
    assert names(spec) == ["9"]


def test_accepted_mounts_are_the_source() -> None:
    found = asked(bundle(f"{NVD}={DIR}", mounts=[f"{DIR}/0", f"{DIR}/1"]), accept_volume_mounts=True)
    assert (found.source, found.text, found.ignored) == ("mounts", "0,1", [])


@pytest.mark.parametrize(("kinds", "count"), [(["*"], 2), (["a/b"], 2), (["c/d", "a/b"], 2)])
def test_kinds_that_may_be_named(kinds: list[str], count: int) -> None:
    found = request.read(bundle(f"{NVD}=0,a/b=x"), with_kinds(*kinds))
    assert found is not None
    assert len(found.devices) == count


@pytest.mark.parametrize("kinds", [[], ["c/d"], ["a/*"]])
@pytest.mark.parametrize(
    ("spec", "who"),
    [
        (bundle(f"{NVD}=0,a/b=x"), NVD),
        (bundle(annotations={"cdi.k8s.io/x": "a/b=x"}), "an annotation"),
        (bundle(mounts=[f"{DIR}/cdi/a/b/x"]), "a mount"),
    ],
    ids=["variable", "annotation", "mount"],
)
def test_a_kind_that_may_not_be_named_is_refused(kinds: list[str], spec: Any, who: str) -> None:
    with pytest.raises(errors.GpushimError, match=r"foreign-kinds does not have a/b") as caught:
        request.read(spec, with_kinds(*kinds))
    assert caught.value.exit_code == errors.REQUEST
    assert str(caught.value).startswith(f'{who} names the CDI device "a/b=x"')


@pytest.mark.parametrize(
    "spec",
    [
        bundle(f"{NVD}=nvidia.com/gpu=0"),
        bundle(f"{NVD}=nvidia.com/gpu=named-by-a-spec"),
        bundle(f"{NVD}=a/b=x", capabilities=ROOT_CAPABILITIES),
        bundle(annotations={"cdi.k8s.io/x": "a/b=x"}, capabilities=ROOT_CAPABILITIES),
    ],
    ids=["own", "of a spec of our kind", "privileged", "annotation"],
)
def test_foreign_kinds_are_about_others_devices_in_unprivileged_containers(spec: Any) -> None:
    assert request.read(spec, with_kinds()) is not None


@pytest.mark.parametrize("tail", ["..", "../x", "0/..", "0/../1", "cdi", "cdi/../x"])
def test_mounts_with_parent_directories_are_refused(tail: str) -> None:
    spec = bundle(mounts=[f"{DIR}/{tail}"])
    if ".." in tail:
        assert ".." in str(refusal(spec, accept_volume_mounts=True))
    assert request.read(spec, policy()) is None


@pytest.mark.parametrize(
    "tail", ["x", "a/b", "a/b/c/d", "a/b=c/d", "=", "a=b", "1a/b/c", "a/b/-", "a/b/c!", "a/b/=c"]
)
def test_malformed_cdi_mounts_are_refused(tail: str) -> None:
    error = refusal(bundle(mounts=[f"{DIR}/cdi/{tail}"]), accept_volume_mounts=True)
    assert error.exit_code == errors.REQUEST
    assert "cdi/vendor/class/device" in str(error)


def test_mounts_that_are_not_accepted_are_mentioned_once() -> None:
    found = asked(bundle(f"{NVD}=0", mounts=[f"{DIR}/1", f"{DIR}/2"]))
    assert len(found.ignored) == 1
    assert "accept-volume-mounts" in found.ignored[0]


@pytest.mark.parametrize("value", [DIR, DIR + "/", f" {DIR} "])
@pytest.mark.parametrize("rules", [{}, {"accept_volume_mounts": True}, {"accept_env_when_unprivileged": False}])
@pytest.mark.parametrize("tail", ["x0", "/imex/0"])
def test_path_of_the_mounts_is_never_a_device(value: str, rules: dict[str, Any], tail: str) -> None:
    error = refusal(bundle(f"{NVD}={value}", mounts=[DIR + tail]), **rules)
    assert error.exit_code == errors.REQUEST
    assert "volume-mounts" in str(error)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"cdi.k8s.io/x": "nvidia.com/gpu=1"}, ["1"]),
        ({"cdi.k8s.io/x": "nvidia.com/gpu=1, nvidia.com/gpu=0"}, ["1", "0"]),
        ({"cdi.k8s.io/b": "a/b=1", "cdi.k8s.io/a": "a/b=0"}, ["a/b=0", "a/b=1"]),
        ({"cdi.k8s.io/b": "a/b=1,a/b=1"}, ["a/b=1"]),
        ({"cdi.k8s.io/": "a/b=1"}, ["a/b=1"]),
        ({"cdi.k8s.io/a": "", "cdi.k8s.io/b": "a/b=1"}, ["a/b=1"]),
        ({"cdi.k8s.io/x": "nvidia.com/gpu=all"}, ["all"]),
        ({"cdi.k8s.io/x": "nvidia.com/gpu=none"}, []),
        ({"cdi.k8s.io/x": ""}, ["9"]),
        ({"cdi.k8s.io/x": " , "}, ["9"]),
        ({"cdi.k8s.io/x": None}, ["9"]),
        ({"cdi.k8s.iox": "a/b=1"}, ["9"]),
        ({"nvidia.cdi.k8s.io/x": "a/b=1"}, ["9"]),
        ({"other": "0", "x": 5}, ["9"]),
        ({}, ["9"]),
        (None, ["9"]),
    ],
)
def test_annotations_beat_everything_but_void(annotations: Any, expected: list[str]) -> None:
    spec = bundle(f"{NVD}=9", annotations=annotations, mounts=[f"{DIR}/x"] if expected != ["9"] else [])
    assert names(spec, accept_volume_mounts=True) == expected
    spec["process"]["env"].append(f"{NVD}=0,void")
    spec["linux"] = {"devices": [{"path": "/dev/nvidia0"}]}
    assert names(spec, accept_volume_mounts=True) is None


NODE = {"linux": {"devices": [{"path": "/dev/null"}, {"path": "/dev/nvidia0"}]}}
BOUND = {"mounts": [{"destination": "/dev/nvidiactl", "source": "/dev/nvidiactl"}]}


@pytest.mark.parametrize(
    ("annotation", "members", "expected"),
    [
        ("nvidia.com/gpu=0", {}, ["0"]),
        ("a.com/b=c,runtime.nvidia.com/gpu=0", {"linux": {"devices": [{"path": "/dev/null"}]}}, ["a.com/b=c", "0"]),
        ("nvidia.com/gpu=0", NODE, None),
        ("nvidia.com/gpu=0", BOUND, None),
        ("a.com/b=c", {}, None),
        ("nvidia.com/gpux=0", {}, None),
        ("", {}, None),
    ],
    ids=[
        "GPU",
        "beside others",
        "injected",
        "injected in a user namespace",
        "others",
        "another kind",
        "none",
    ],
)
def test_an_images_void_takes_away_nothing_that_kubelet_gives(
    annotation: str, members: Any, expected: list[str] | None
) -> None:
    """Of an engine that injects by CDI the nodes are there."""
    spec = {**bundle(f"{NVD}=void", annotations={"cdi.k8s.io/x": annotation}), **members}
    assert names(spec) == expected


def test_annotations_together_have_a_bound() -> None:
    each = ",".join(["nvidia.com/gpu=0"] * 2049)
    with pytest.raises(errors.GpushimError, match="the annotations name more than 4096 devices; name fewer"):
        request.read({"annotations": {f"cdi.k8s.io/{key}": each for key in "ab"}}, policy())


def test_annotation_prefixes_come_from_the_policy() -> None:
    rules = policy()
    rules["cdi"]["annotation-prefixes"] = ["nvidia.cdi.k8s.io/", "own/"]
    found = request.read(bundle(annotations={"own/x": "a/b=1", "cdi.k8s.io/x": "a/b=2"}), rules)
    assert found is not None
    assert (found.source, found.text) == ("annotations", "a/b=1")


@pytest.mark.parametrize(
    "value", ["0", "all", "void", "none", "a/b=1,0", "a b/c=d", "=", "/a/b=c", "\ud800", "x" * 9999]
)
def test_unqualified_annotations_are_refused_with_their_key(value: str) -> None:
    error = refusal(bundle(annotations={"cdi.k8s.io/pod": value}))
    assert error.exit_code == errors.REQUEST
    assert "cdi.k8s.io/pod" in str(error)


@pytest.mark.parametrize(
    ("capabilities", "privileged"),
    [
        (None, False),
        ({}, False),
        ({"bounding": None}, False),
        ({"bounding": []}, False),
        ({"bounding": ["CAP_SYS_ADMIN"]}, True),
        (ROOT_CAPABILITIES, True),
        ({"bounding": ["cap_sys_admin", "SYS_ADMIN"]}, False),
        ({"effective": ["CAP_SYS_ADMIN"], "permitted": ["CAP_SYS_ADMIN"]}, False),
        (["CAP_SYS_ADMIN"], True),
        (["CAP_CHOWN"], False),
        ([], False),
    ],
)
def test_privileged_is_sys_admin_in_the_bounding_set(capabilities: Any, privileged: bool) -> None:
    spec = bundle(f"{NVD}=0", capabilities=capabilities)
    assert asked(spec).privileged is privileged
    assert names(spec, accept_env_when_unprivileged=False) == (["0"] if privileged else None)


@pytest.mark.parametrize(
    ("linux", "privileged"),
    [
        ({}, True),
        ({"namespaces": [{"type": "pid"}, {"type": "mount", "path": "/proc/1/ns/mnt"}]}, True),
        ({"namespaces": [{"type": "user"}]}, False),
        ({"namespaces": [{"type": "user", "path": ""}]}, False),
        ({"namespaces": [{"type": "user", "path": "/proc/self/ns/user"}]}, True),
        ({"namespaces": [{"type": "user", "path": "/proc/self/ns/net"}]}, False),
        ({"namespaces": [{"type": "user", "path": "/nowhere"}]}, False),
        ({"namespaces": [{"type": "user", "path": "/\0"}]}, False),
        ({"uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}]}, False),
        ({"uidMappings": []}, True),
    ],
)
def test_power_over_a_user_namespace_of_its_own_is_no_privilege(linux: Any, privileged: bool) -> None:
    spec = {**bundle(f"{NVD}=0", capabilities=ROOT_CAPABILITIES), "linux": linux}
    assert asked(spec).privileged is privileged
    assert names(spec, accept_env_when_unprivileged=False) == (["0"] if privileged else None)


@pytest.mark.parametrize("spec", [{"process": {"capabilities": 1}}, {"process": {"env": ["NVIDIA_X=1"], "user": 1}}])
def test_nobody_looks_at_capabilities_that_decide_nothing(spec: Any) -> None:
    assert request.read(spec, policy(accept_env_when_unprivileged=False)) is None


@pytest.mark.parametrize(
    "env", [[f"{NVD}=all"], ["CUDA_VERSION=9.0"], ["A=0"], [f"{NVD}=none"], [f"{NVD}=bad", "NVIDIA_GDS=enabled"]]
)
def test_variables_of_an_unprivileged_container_can_be_forbidden(env: list[str]) -> None:
    ignored: list[str] = []
    rules = policy(accept_env_when_unprivileged=False, swarm_variables=["A"])
    assert request.read(bundle(*env), rules, ignored) is None
    assert len(ignored) == 1
    assert "accept-env-when-unprivileged" in ignored[0]


@pytest.mark.parametrize("env", [[], [f"{NVD}="], [f"{NVD}=void"]])
def test_nothing_asked_is_nothing_ignored(env: list[str]) -> None:
    ignored: list[str] = []
    assert request.read(bundle(*env), policy(accept_env_when_unprivileged=False), ignored) is None
    assert ignored == []


def test_mounts_and_annotations_need_no_privilege() -> None:
    rules = {"accept_env_when_unprivileged": False, "accept_volume_mounts": True}
    assert names(bundle(mounts=[f"{DIR}/0"]), **rules) == ["0"]
    assert names(bundle(annotations={"cdi.k8s.io/x": "a/b=0"}), **rules) == ["a/b=0"]


EVERY = ["compat32", "compute", "display", "graphics", "ngx", "utility", "video"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ([], ["compute", "utility"]),
        (["NVIDIA_DRIVER_CAPABILITIES="], ["compute", "utility"]),
        (["NVIDIA_DRIVER_CAPABILITIES= , "], ["compute", "utility"]),
        (["NVIDIA_DRIVER_CAPABILITIES=all"], EVERY),
        (["NVIDIA_DRIVER_CAPABILITIES=utility,all"], EVERY),
        (["NVIDIA_DRIVER_CAPABILITIES=utility"], ["utility"]),
        (["NVIDIA_DRIVER_CAPABILITIES=video, compute ,video"], ["compute", "video"]),
        (["NVIDIA_DRIVER_CAPABILITIES=compat32,graphics,display,ngx"], ["compat32", "display", "graphics", "ngx"]),
        (["NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_DRIVER_CAPABILITIES=ngx"], ["ngx"]),
        (["CUDA_VERSION=9.0"], EVERY),
        (["CUDA_VERSION=9.0", "NVIDIA_DRIVER_CAPABILITIES="], ["compute", "utility"]),
        (["CUDA_VERSION=9.0", "NVIDIA_DRIVER_CAPABILITIES=video"], ["video"]),
    ],
)
def test_driver_capabilities(env: list[str], expected: list[str]) -> None:
    assert asked(bundle(f"{NVD}=0", *env)).capabilities == expected


@pytest.mark.parametrize(
    ("env", "default", "expected"),
    [
        ([], ["all"], EVERY),
        ([], ["utility", "graphics"], ["graphics", "utility"]),
        (["NVIDIA_DRIVER_CAPABILITIES="], ["video"], ["video"]),
        (["NVIDIA_DRIVER_CAPABILITIES=utility"], ["all"], ["utility"]),
        (["CUDA_VERSION=9.0"], ["utility"], EVERY),
    ],
)
def test_the_policy_names_the_capabilities_of_who_names_none(
    env: list[str], default: Any, expected: list[str]
) -> None:
    assert asked(bundle(f"{NVD}=0", *env), default_capabilities=default).capabilities == expected


def test_the_schema_knows_every_capability() -> None:
    key = schema()["properties"]["requests"]["properties"]["default-capabilities"]
    assert key["items"]["enum"] == [*request.CAPABILITIES, "all"]


@pytest.mark.parametrize(
    "value",
    ["Utility", "ALL", "gpu", "all,foo", "utility;compute", "nvidia.com/gpu=all", "x\ny", "\ud800", "x" * 70000],
)
def test_unknown_capabilities_are_refused(value: str) -> None:
    error = refusal(bundle(f"{NVD}=0", f"NVIDIA_DRIVER_CAPABILITIES={value}"))
    assert error.exit_code == errors.REQUEST
    assert "NVIDIA_DRIVER_CAPABILITIES has " in str(error)
    assert len(str(error)) < 400
    assert str(error).isprintable()


REQUIRE = ["NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_REQUIRE_ARCH=arch>=8"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ([], []),
        (REQUIRE, ["NVIDIA_REQUIRE_ARCH", "NVIDIA_REQUIRE_CUDA"]),
        (["CUDA_VERSION=9.0"], ["CUDA_VERSION"]),
        (["NVIDIA_REQUIRE_JETPACK=x"], []),
        *[([*REQUIRE, f"NVIDIA_DISABLE_REQUIRE={word}"], []) for word in ("1", "t", "T", "TRUE", "true", "True")],
        *[
            ([REQUIRE[0], f"NVIDIA_DISABLE_REQUIRE={word}"], ["NVIDIA_REQUIRE_CUDA"])
            for word in ("", "0", "f", "false", "yes", "tRUE", " 1", "on")
        ],
        (["CUDA_VERSION=nonsense", "NVIDIA_DISABLE_REQUIRE=1"], []),
    ],
)
def test_requirements(env: list[str], expected: list[str]) -> None:
    spec = bundle(f"{NVD}=0", *env)
    assert [name for name, _ in asked(spec).requirements] == expected
    if "CUDA_VERSION=nonsense" not in env:
        assert asked(spec, disable_require=True).requirements == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []), ("all", []), ("none", []), ("void", []), ("0,all", []), ("0,none", []), ("none,5", []), (",", []),
        ("0", [0]), ("0,0", [0]), ("2, 1,2", [2, 1]), ("1048575", [1048575]),
    ],
)  # fmt: skip
def test_imex_channels(value: str, expected: list[int]) -> None:
    assert asked(bundle(f"{NVD}=0", f"NVIDIA_IMEX_CHANNELS={value}")).imex == expected


@pytest.mark.parametrize(
    "value", ["-1", "1048576", "2147483648", "00", "0-3", "x", "0,x", "1e1", "\u0660", "9" * 30, "ALL"]
)
def test_bad_imex_channels_are_refused(value: str) -> None:
    error = refusal(bundle(f"{NVD}=0", f"NVIDIA_IMEX_CHANNELS={value}"))
    assert error.exit_code == errors.REQUEST
    assert "IMEX" in str(error)
    assert request.read(bundle(f"NVIDIA_IMEX_CHANNELS={value}"), policy()) is None
    assert asked(bundle(f"{NVD}=0", f"NVIDIA_IMEX_CHANNELS={value}"), ignore_imex_channel_requests=True).imex == []


@pytest.mark.parametrize("tail", ["imex/x", "imex/all", "imex/0/1", "imex/-1", "imex/0,1", "imex/1048576"])
def test_bad_imex_mounts_are_refused(tail: str) -> None:
    spec = bundle(f"{NVD}=0", mounts=[f"{DIR}/{tail}"])
    assert refusal(spec, accept_volume_mounts=True).exit_code == errors.REQUEST
    assert asked(spec).imex == []


def test_imex_mounts_beat_the_variable() -> None:
    spec = bundle(f"{NVD}=0", "NVIDIA_IMEX_CHANNELS=5", mounts=[f"{DIR}/imex/3", f"{DIR}/imex/1", f"{DIR}/imex/3"])
    assert asked(spec, accept_volume_mounts=True).imex == [3, 1]
    assert asked(spec).imex == [5]


def test_imex_variable_needs_the_privilege_of_the_device_variable() -> None:
    spec = bundle("NVIDIA_IMEX_CHANNELS=5", annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    assert asked(spec).imex == [5]
    found = asked(spec, accept_env_when_unprivileged=False)
    assert found.imex == []
    assert found.ignored[0].startswith(
        "NVIDIA_IMEX_CHANNELS adds no IMEX channel while the container is unprivileged"
    )


@pytest.mark.parametrize("value", ["nvidia.com/gpu=all", "not a CDI name", "x" * 70000])
def test_annotations_can_be_forbidden(value: str) -> None:
    spec = bundle(f"{NVD}=1", annotations={"cdi.k8s.io/x": value, "cdi.k8s.io/y": ""})
    found = asked(spec, accept_annotations_when_unprivileged=False)
    assert (found.source, found.text) == (f"env {NVD}", "1")
    assert len(found.ignored) == 1
    assert found.ignored[0].startswith(
        "annotations (cdi.k8s.io/x) name no device while the container is unprivileged"
    )
    spec["annotations"] = {"cdi.k8s.io/x": ""}
    assert asked(spec, accept_annotations_when_unprivileged=False).ignored == []


@pytest.mark.parametrize(
    ("value", "enabled", "said"),
    [
        ("/run/nvidia-mps", False, True),
        ("/tmp/nvidia-mps/", False, True),
        ("/run/nvidia-mps", True, False),
        ("/mps/nvidia.com/gpu/pipe", False, False),
        ("", False, False),
    ],
)
def test_a_variable_brings_no_mps(value: str, enabled: bool, said: bool) -> None:
    rules = policy()
    rules["mps"]["enabled"] = enabled
    found = request.read(bundle(f"{NVD}=0", f"CUDA_MPS_PIPE_DIRECTORY={value}"), rules)
    assert found is not None
    assert [line.startswith("CUDA_MPS_PIPE_DIRECTORY does not let") for line in found.ignored] == [True] * said


def test_ignored_imex_channels_are_mentioned() -> None:
    found = asked(bundle(f"{NVD}=0", "NVIDIA_IMEX_CHANNELS=5"), ignore_imex_channel_requests=True)
    assert (found.imex, len(found.ignored)) == ([], 1)
    assert "ignore-imex-channel-requests" in found.ignored[0]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ([], []),
        (["NVIDIA_GDS=enabled"], ["gds"]),
        (["NVIDIA_NVSWITCH=enabled", "NVIDIA_GDRCOPY=enabled"], ["gdrcopy", "nvswitch"]),
        ([f"NVIDIA_{name}=enabled" for name in ("NVSWITCH", "GDRCOPY", "MOFED", "GDS")], list(FEATURES)),
        *[([f"NVIDIA_GDS={word}"], []) for word in ("", "1", "true", "Enabled", "enabled ", "disabled")],
        (["NVIDIA_GDS=enabled", "NVIDIA_GDS=no"], []),
        (["NVIDIA_FOO=enabled"], []),
    ],
)
def test_features(env: list[str], expected: list[str]) -> None:
    assert asked(bundle(f"{NVD}=0", *env)).features == expected
    assert request.read(bundle(*env), policy()) is None


@pytest.mark.parametrize("kind", ["config", "monitor"])
def test_mig_management(kind: str) -> None:
    entry = f"NVIDIA_MIG_{kind.upper()}_DEVICES="
    found = asked(bundle(f"{NVD}=all", entry + "all", capabilities=ROOT_CAPABILITIES))
    assert (found.mig_config, found.mig_monitor) == (kind == "config", kind == "monitor")
    found = asked(bundle(f"{NVD}=all", entry))
    assert (found.mig_config, found.mig_monitor) == (False, False)
    assert request.read(bundle(entry + "all"), policy()) is None


@pytest.mark.parametrize(
    ("value", "capabilities", "part"),
    [("all", None, "CAP_SYS_ADMIN"), ("0", ROOT_CAPABILITIES, "is all"), ("ALL", ROOT_CAPABILITIES, "is all")],
)
def test_mig_management_is_refused(value: str, capabilities: Any, part: str) -> None:
    for name in ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"):
        error = refusal(bundle(f"{NVD}=0", f"{name}={value}", capabilities=capabilities))
        assert error.exit_code == errors.REQUEST
        assert str(error).startswith(name)
        assert part in str(error)


@pytest.mark.parametrize(
    "value", ["0" * 65537, "x," * 40000, ",".join(map(str, range(4097))), "0-63," * 5000, "x" * 2**21]
)
def test_masses_are_refused(value: str) -> None:
    assert refusal(bundle(f"{NVD}={value}")).exit_code == errors.REQUEST
    assert refusal(bundle(annotations={"cdi.k8s.io/x": value})).exit_code == errors.REQUEST
    assert refusal(bundle(f"{NVD}=0", f"NVIDIA_IMEX_CHANNELS={value}")).exit_code == errors.REQUEST


def test_many_device_mounts_are_refused() -> None:
    spec = bundle(mounts=[f"{DIR}/{number}" for number in range(4097)])
    assert refusal(spec, accept_volume_mounts=True).exit_code == errors.REQUEST


def test_text_is_the_whole_value_and_source_its_name() -> None:
    value = ", ".join([UUID, *[str(number) for number in range(100)]])
    found = asked(bundle(f"{NVD}={value}"))
    assert (found.source, found.text) == (f"env {NVD}", value)
    assert asked(bundle("CUDA_VERSION=9.0")).source == "env CUDA_VERSION"


@pytest.mark.parametrize("spec", [{}, {"process": None}, {"process": {}}, {"process": {"env": None}, "mounts": None}])
def test_absent_parts_ask_for_nothing(spec: dict[str, Any]) -> None:
    assert request.read(spec, policy()) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"process": []}, {"process": "x"}, {"process": 1}, {"process": {"env": {}}}, {"process": {"env": "x"}},
        {"process": {"env": [1]}}, {"process": {"env": [None]}}, {"process": {"env": [f"{NVD}=0", ["x"]]}},
        {"mounts": {}}, {"mounts": "x"}, {"mounts": [1]}, {"mounts": [None]}, {"mounts": [{"destination": 1}]},
        {"mounts": [{"destination": f"{DIR}/0", "source": 1}]}, {"annotations": []}, {"annotations": "x"},
        {"annotations": {"cdi.k8s.io/x": 1}}, {"annotations": {"cdi.k8s.io/x": ["a/b=0"]}},
        {"process": {"env": [f"{NVD}=0"], "capabilities": 1}},
        {"process": {"env": [f"{NVD}=0"], "capabilities": {"bounding": {}}}},
        {"process": {"env": [f"{NVD}=0"], "capabilities": {"bounding": "CAP_SYS_ADMIN"}}},
    ],
)  # fmt: skip
def test_wrong_types_are_the_bundles_fault(spec: dict[str, Any]) -> None:
    assert refusal(spec).exit_code == errors.BUNDLE


WORDS = [
    "all",
    "none",
    "void",
    "0",
    "1",
    "0-2",
    "a/b=0",
    "nvidia.com/gpu=0",
    "0:1",
    UUID,
    "",
    " ",
    "x",
    "enabled",
    DIR,
]
NAMES = [
    NVD, "A", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_IMEX_CHANNELS", "NVIDIA_GDS", "NVIDIA_MIG_CONFIG_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "PATH",
]  # fmt: skip
VALUES = st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=4).map(",".join)
ENV = st.lists(st.tuples(st.sampled_from(NAMES), VALUES).map("=".join) | st.text(), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([f"{NVD}=0", f"{DIR}/0"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["env", "capabilities", "bounding", "destination"]) | st.text(), inner)
    ),
    max_leaves=8,
)
MOUNT = st.fixed_dictionaries(
    {
        "destination": st.sampled_from(["0", "..", "cdi/a/b/c", "cdi/x", "imex/1", "", " "]).map(
            lambda tail: f"{DIR}/{tail}"
        )
    },
    optional={"source": st.just("/dev/null") | JSON},
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "process": JSON
        | st.fixed_dictionaries({"env": ENV}, optional={"capabilities": JSON | st.just(ROOT_CAPABILITIES)}),
        "mounts": JSON | st.lists(MOUNT, max_size=3),
        "annotations": JSON | st.dictionaries(st.sampled_from(["cdi.k8s.io/x", "other"]), JSON | VALUES),
    },
)
RULES = st.fixed_dictionaries(
    {
        "accept_env_when_unprivileged": st.booleans(),
        "accept_volume_mounts": st.booleans(),
        "swarm_variables": st.sampled_from([[], ["A"], ["A", NVD]]),
    }
)


@given(SPECS, RULES)
def test_read_answers_or_refuses_in_one_sentence(spec: dict[str, Any], rules: dict[str, Any]) -> None:
    found, error = attempt(spec, **rules)
    if error:
        assert error.exit_code in (errors.REQUEST, errors.BUNDLE)
        assert str(error).isprintable()
    if found is not None:
        identities = [(kind, value) for kind, value, _ in found.devices]
        assert len(identities) == len(set(identities))
        assert all(getattr(found, slot) is not None for slot in request.Request.__slots__ if slot != "own")


@given(SPECS, RULES)
def test_whatever_is_looked_at_has_its_effect(spec: dict[str, Any], rules: dict[str, Any]) -> None:
    effects: dict[str, str] = {}
    ignored: list[str] = []
    try:
        found = request.read(spec, policy(**rules), ignored, effects)
    except errors.GpushimError:
        return
    naming = {what for what, effect in effects.items() if effect in (device_list.NAMES, device_list.NO_GPU)}
    if found is None:
        assert not naming
        return
    source = found.source.partition(" ")[0].rstrip("s")
    named = set(found.source[4:].split(", ")) if source == "env" else {what for what in effects if source in what}
    assert naming <= named
    assert naming
    env = dict(entry.split("=", 1) for entry in ((spec.get("process") or {}).get("env") or ()) if "=" in entry)
    known = [name for name in env if name in VARIABLES or name in rules["swarm_variables"] or name == NAMES[3]]
    assert [name for name in known if env[name].strip(" ,") and not effects.get(name)] == []
    assert (effects.get("NVIDIA_GDS") == "feature gds") == (bool(found.own) and "gds" in found.features)


@pytest.mark.parametrize(
    ("value", "words"),
    [("none", "says none: "), ("none,0", "says none: "), ("0,none", "says none: "), ("0", "names")],
)
def test_none_names_no_device(value: str, words: str) -> None:
    effects: dict[str, str] = {}
    request.read(bundle(f"{NVD}={value}"), policy(), [], effects)
    assert effects[NVD].startswith(words)


@pytest.mark.parametrize("annotations", [None, {"cdi.k8s.io/x": "nvidia.com/gpu=0"}])
def test_void_of_another_variable_has_its_effect(annotations: Any) -> None:
    effects: dict[str, str] = {}
    found = request.read(bundle("A=void", annotations=annotations), policy(swarm_variables=["A"]), [], effects)
    assert (found is None) == (annotations is None)
    assert effects["A"].startswith("is ignored" if annotations else "says void")


@given(SPECS, RULES)
def test_read_changes_nothing(spec: dict[str, Any], rules: dict[str, Any]) -> None:
    before = repr(spec)
    attempt(spec, **rules)
    assert repr(spec) == before


def test_reading_a_large_bundle_costs_a_bounded_number_of_calls() -> None:
    mounts = [{"destination": f"/mnt/{number}", "source": "/x"} for number in range(30)]
    spec = bundle(*[f"VARIABLE_{number}=x" for number in range(60)], f"{NVD}=0,1,2,3,4,5,6,7", mounts=mounts)
    rules = policy()
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        request.read(spec, rules)
    finally:
        sys.setprofile(None)
    assert calls < 600


def test_all_nodes_that_a_plan_may_have_are_known() -> None:
    folders = [folder for folder, _ in nodes.DIRECTORIES if folder != "/dev"]
    assert [path for path in (*nodes.EXPECTED, *folders) if not f"{path}/".startswith(device_list.NODES)] == []
