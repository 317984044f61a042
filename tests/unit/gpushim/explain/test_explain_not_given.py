"""What explain says of what a container does not get, and the one reason for each thing that does not count."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from gpushim.explain import not_given
from gpushim.explain.explain import build_spec, explain
from gpushim.ground.machines import LOADERS
from gpushim.oci import device_list
from unit.gpushim.decision import inventories
from unit.gpushim.explain.explanations import DEVICES, asked, shape
from unit.gpushim.explain.explanations import known as known  # a fixture

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
MACHINE = platform.machine()


def missed(report: dict[str, Any]) -> dict[str, str]:
    return {row["what"]: row["why"] for row in report["not_given"]}


@pytest.mark.parametrize(
    ("asks", "brings"),
    [
        ("compute,utility", {"video": "/cuvid", "graphics": "/dev/nvidia-modeset and", "display": "and",
                             "compat32": "/32/cuda"}),
        ("utility", {"compute": "/dev/nvidia-uvm and", "graphics": "and", "display": "and", "video": "and"}),
        ("graphics,compute,utility", {"display": "/xorg/nvidia_drv.so", "video": "/cuvid", "compat32": "and 1 more"}),
        ("all", {}),
    ],
)  # fmt: skip
def test_capabilities_that_were_not_asked_for(known: dict[str, Any], asks: str, brings: dict[str, str]) -> None:
    told = missed(explain(shape([f"{DEVICES}=0", f"{CAPABILITIES}={asks}"])))
    assert set(told) == {f"capability {name}" for name in brings}
    assert not [name for name, some in brings.items() if some not in told[f"capability {name}"]]


def test_what_capabilities_would_bring_is_what_they_bring(known: dict[str, Any]) -> None:
    known["files"] = {**inventories.BARE, "ngx": [{"path": "/ngx", "kind": "data"}]}
    assert missed(explain(shape([f"{DEVICES}=0"])))["capability ngx"].endswith("it would bring /ngx")
    report = explain(shape([f"{DEVICES}=0", f"{CAPABILITIES}=ngx"]))
    assert "/ngx" in [edit["value"].get("destination") for edit in report["edits"] if edit["kind"] == "mount"]


@pytest.mark.parametrize("env", [[f"{DEVICES}=void"], [], [f"{DEVICES}=9"]])
def test_without_a_plan_there_is_nothing_to_miss(known: dict[str, Any], env: list[str]) -> None:
    assert missed(explain(shape(env))) == {}


@pytest.mark.parametrize("spec", inventories.FOREIGN_ONLY)
def test_devices_of_others_bring_no_driver(known: dict[str, Any], tmp_path: Path, spec: Any) -> None:
    known["policy"] = inventories.with_specs(tmp_path)["policy"]
    report = explain({**spec, "root": {"path": "/r"}})
    assert (missed(report), report["requirements"]) == ({}, [])
    assert asked(report, CAPABILITIES)[0][1] == "does nothing: no GPU of this host is asked for"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([f"/lib/ld-musl-{MACHINE}.so.1", "/etc/alpine-release"], f"it has musl's (/lib/ld-musl-{MACHINE}.so.1)"),
        (["/etc/passwd"], "its programs are static"),
        ([LOADERS[MACHINE], "/etc/passwd"], ""),
        ([LOADERS[MACHINE], f"/lib/ld-musl-{MACHINE}.so.1"], ""),
        ([], ""),
    ],
)
@pytest.mark.parametrize("link", ["", "/"])
def test_an_image_that_cannot_run_the_drivers_programs(
    known: dict[str, Any], tmp_path: Path, files: list[str], says: str, link: str
) -> None:
    """Links of the image lead nowhere but into the image: the host's own loader is not meant."""
    for path in files:
        (tmp_path / ("usr" + path)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ("usr" + path)).touch()
    for name in ("lib", "lib64", "etc"):
        (tmp_path / name).symlink_to(f"{link}usr/{name}")
    spec = {**shape([f"{DEVICES}=0"]), "root": {"path": str(tmp_path)}}
    why = missed(explain(spec)).get("programs of the driver", "")
    assert says in why
    assert bool(says) == bool(why)


@pytest.mark.parametrize(("rootfs", "looked"), [("{}", True), ("{}/gone", False), ("", False), (None, True)])
def test_a_rootfs_that_config_json_does_not_name(
    known: dict[str, Any], tmp_path: Path, rootfs: str | None, looked: bool
) -> None:
    """Of one that is not known nothing is said, whatever the host has where the made-up spec says that it is."""
    (tmp_path / "etc").mkdir()
    spec = {**shape([f"{DEVICES}=0"]), "root": {"path": str(tmp_path)}}
    report = explain(spec, rootfs=rootfs.format(tmp_path) if rootfs else rootfs)
    assert ("programs of the driver" in missed(report)) is looked


def test_looking_at_a_rootfs_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert not_given._no_glibc(str(tmp_path)) == ""
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NVIDIA_VISIBLE_DEVICE", DEVICES),
        ("NVIDIA_VISBLE_DEVICES", DEVICES),
        ("NVIDIA_VISIBEL_DEVICES", DEVICES),
        ("NVIDIA_VISIBLE_DEVIZES", DEVICES),
        ("NVIDIA_VISIBLE_DEVICESS", DEVICES),
        ("VNIDIA_VISIBLE_DEVICES", DEVICES),
        ("NVIDA_VISIBLE_DEVICES", DEVICES),
        ("nvidia_visible_devices", DEVICES),
        ("NVIDIA-VISIBLE-DEVICES", DEVICES),
        ("NVIDIA_DRIVER_CAPABILITES", CAPABILITIES),
        ("NVIDIA_REQIRE_CUDA", "NVIDIA_REQUIRE_*"),
        ("NVIDIA_REQUIRED_CUDA", "NVIDIA_REQUIRE_*"),
        ("A_GPUS", "A_GPU"),
        ("NVIDIA_REQIRE_" + "X" * 60, ""),  # an image may make names as long as it likes
        ("NVIDIA_REQUIRE_CUDA", ""),
        (DEVICES, ""),
        ("NVIDIA_VISIBLE", ""),
        ("NVIDIA_PRODUCT_NAME", ""),
        ("CUDA_VISIBLE_DEVICES", ""),
        ("PATH", ""),
        ("", ""),
    ],
)
def test_a_name_that_is_nearly_one_that_counts(name: str, meant: str) -> None:
    assert not_given.meant(name, ["A_GPU"]) == meant


@pytest.mark.parametrize("env", [[], [f"{DEVICES}=0"], [f"{DEVICES}=9"]])
def test_a_slip_is_told_beside_whatever_else(known: dict[str, Any], env: list[str]) -> None:
    report = explain(shape(["VNIDIA_VISIBLE_DEVICES=1", *env]))
    assert asked(report, "VNIDIA_VISIBLE_DEVICES")[0][1] == f"is unknown to gpushim; is {DEVICES} meant?"
    if not env:
        assert report["nothing"].startswith(f"{DEVICES} is not set (but VNIDIA_VISIBLE_DEVICES is), and no mount")


@pytest.mark.parametrize(
    ("env", "nothing"),
    [
        ([], f"{DEVICES} is not set, and no mount or annotation names a device"),
        ([f"{DEVICES}="], f"{DEVICES} is empty"),
        ([f"{DEVICES}=void"], f"{DEVICES} says void: whoever set it so has given the container what it gets"),
    ],
)
def test_why_there_is_no_request(known: dict[str, Any], env: list[str], nothing: str) -> None:
    report = explain(shape(env))
    assert (report["nothing"], report["edits"], report["refusal"], report["source"]) == (nothing, [], None, None)


UNPRIVILEGED = "is ignored while the container is unprivileged and [requests] accept-env-when-unprivileged is false"
STRICT = {"accept-env-when-unprivileged": False}
MOUNT = f"{device_list.DEVICE_LIST}/0"
CHANNEL = f"{device_list.DEVICE_LIST}/imex/3"


@pytest.mark.parametrize(
    ("env", "mounts", "rules", "what", "effect"),
    [
        ([f"{DEVICES}=0"], [], STRICT, DEVICES, UNPRIVILEGED),
        ([f"{DEVICES}="], [], STRICT, DEVICES, "is empty"),
        ([f"{DEVICES}=void"], [], STRICT, DEVICES,
         "says void: whoever set it so has given the container what it gets"),
        ([f"{DEVICES}=0", f"{CAPABILITIES}=x"], [], {}, DEVICES, "names the devices"),
        ([f"{DEVICES}=0", f"{CAPABILITIES}=x"], [], {}, CAPABILITIES, "does nothing: the request is refused"),
        ([f"{DEVICES}={device_list.DEVICE_LIST}"], [], {}, DEVICES, "does nothing: the request is refused"),
        ([f"{DEVICES}=0"], [MOUNT], {}, f"mount {MOUNT}",
         "is ignored while [requests] accept-volume-mounts is false"),
        ([], [MOUNT], {}, f"mount {MOUNT}", "is ignored while [requests] accept-volume-mounts is false"),
        ([f"{DEVICES}=void"], [MOUNT], {"accept-volume-mounts": True}, f"mount {MOUNT}",
         "does nothing: there is no request"),
        ([f"{DEVICES}=1"], [MOUNT], {"accept-volume-mounts": True}, DEVICES,
         "is ignored: the devices are named by mounts"),
        ([f"{DEVICES}=1"], [MOUNT, CHANNEL], {"accept-volume-mounts": True}, f"mount {CHANNEL}",
         "names an IMEX channel"),
        ([f"{DEVICES}=1"], [CHANNEL], {}, f"mount {CHANNEL}",
         "is ignored while [requests] accept-volume-mounts is false"),
        (["NVIDIA_GDS=enabled", DEVICES + "=1"], [MOUNT], {"accept-volume-mounts": True, **STRICT}, "NVIDIA_GDS",
         UNPRIVILEGED),
        (["NVIDIA_GDS=enabled", DEVICES + "=none"], [], {}, "NVIDIA_GDS", "does nothing without a GPU"),
        (["NVIDIA_REQUIRE_A= ", DEVICES + "=0"], [], {}, "NVIDIA_REQUIRE_A", "does nothing: it is empty"),
        (["NVIDIA_REQUIRE_A=cuda>1", DEVICES + "=0", "NVIDIA_DISABLE_REQUIRE=1"], [], {}, "NVIDIA_REQUIRE_A",
         "is ignored: NVIDIA_DISABLE_REQUIRE is true"),
        (["NVIDIA_REQUIRE_A=cuda>1", DEVICES + "=0"], [], {"disable-require": True}, "NVIDIA_REQUIRE_A",
         "is ignored: [requests] disable-require is true"),
        (["NVIDIA_REQUIRE_JETPACK=x", DEVICES + "=0"], [], {}, "NVIDIA_REQUIRE_JETPACK",
         "is ignored: it is about Jetson's releases"),
        (["NVIDIA_DISABLE_REQUIRE=yes", DEVICES + "=0"], [], {}, "NVIDIA_DISABLE_REQUIRE",
         "does nothing: yes is not true"),
        (["NVIDIA_IMEX_CHANNELS=", DEVICES + "=0"], [], {}, "NVIDIA_IMEX_CHANNELS", "does nothing: it is empty"),
        (["CUDA_MPS_PIPE_DIRECTORY=/x", DEVICES + "=0"], [], {}, "CUDA_MPS_PIPE_DIRECTORY",
         "does nothing: [mps] enabled decides"),
        (["CUDA_VERSION=9.0"], [], {}, "CUDA_VERSION", "names the devices"),
        (["CUDA_VERSION=9.0", DEVICES + "=0"], [], {}, "CUDA_VERSION", "an image from before NVIDIA_REQUIRE_CUDA"),
        (["NVIDIA_IMEX_CHANNELS=all", DEVICES + "=0"], [], {}, "NVIDIA_IMEX_CHANNELS",
         "names no IMEX channel: all, none and void mean none"),
        (["NVIDIA_IMEX_CHANNELS=3", DEVICES + "=0"], [], {"ignore-imex-channel-requests": True},
         "NVIDIA_IMEX_CHANNELS",
         "is ignored while [requests] ignore-imex-channel-requests is true"),
        (["NVIDIA_IMEX_CHANNELS=3", DEVICES + "=0"], [CHANNEL], {"accept-volume-mounts": True},
         "NVIDIA_IMEX_CHANNELS",
         "is ignored: mounts name the IMEX channels"),
    ],
)  # fmt: skip
def test_the_one_reason(
    known: dict[str, Any], env: list[str], mounts: list[str], rules: dict[str, Any], what: str, effect: str
) -> None:
    known["policy"]["requests"].update(rules)
    report = explain(build_spec(env, False, {}, [("/dev/null", path) for path in mounts]))
    assert asked(report, what)[-1][1] == effect


def test_a_mount_of_something_else_names_nothing_nor_does_what_an_annotation_beats(known: dict[str, Any]) -> None:
    known["policy"]["requests"]["accept-volume-mounts"] = True
    key = "cdi.k8s.io/x"
    mounts = [("/dev/zero", MOUNT), ("/dev/null", MOUNT[:-1] + "1")]
    report = explain(build_spec([f"{DEVICES}=0"], False, {key: "nvidia.com/gpu=0"}, mounts))
    beaten = "is ignored: the devices are named by annotations"
    assert [(row["what"], row["effect"]) for row in report["asked"][:4]] == [
        (f"annotation {key}", "names the devices"),
        (f"mount {MOUNT}", "names no device: its source is not /dev/null"),
        (f"mount {MOUNT[:-1]}1", beaten),
        (DEVICES, beaten),
    ]


def test_an_annotation_that_policy_forbids(known: dict[str, Any]) -> None:
    known["policy"]["requests"]["accept-annotations-when-unprivileged"] = False
    report = explain(build_spec([], False, {"cdi.k8s.io/x": "nvidia.com/gpu=0"}, []))
    why = "while the container is unprivileged and [requests] accept-annotations-when-unprivileged is false"
    assert asked(report, "annotation cdi.k8s.io/x") == [("config.json", f"is ignored {why}")]


@pytest.mark.parametrize(("item", "words"), [("2", "name an instance: 2:0"), ("2:0", ""), ("0", ""), ("all", "")])
def test_a_gpu_in_mig_mode_asked_for_by_itself(known: dict[str, Any], item: str, words: str) -> None:
    report = explain(shape([f"{DEVICES}={item}"]))
    assert report["refusal"] is None
    assert [sentence.rpartition("; ")[2] for sentence in report["ignored"]] == [words] * bool(words)
