"""Limits of GPU memory: who may ask, what counts, and what cannot be kept."""

from __future__ import annotations

from typing import Any

import pytest

from gpushim.decision import memory
from gpushim.decision.plan import plan
from gpushim.ground.errors import CONFIG, INVENTORY, REQUEST, GpushimError
from gpushim.oci import request
from unit.gpushim.decision.inventories import NVML, UUIDS, snapshot

GIB = 1 << 30
VARIABLE, ANNOTATION = "env GPUSHIM_MEMORY_LIMIT", "annotation gpushim/memory-limit"


def host(driver: str = "615.71", **requests: Any) -> Any:
    found = snapshot()
    found["driver"]["version"] = driver
    for mig in found["mig"]:
        mig["memory"] = 5120
    found["policy"] = {**found["policy"], "requests": {**found["policy"]["requests"], **requests}}
    return found


def _closed() -> Any:
    found = host()
    requests = {**found["policy"]["requests"], "accept-env-when-unprivileged": False, "accept-volume-mounts": True}
    found["policy"] = {**found["policy"], "requests": requests}
    return found


def asks(*env: str, annotations: dict[str, str] | None = None, devices: str = "0,1", inventory: Any = None) -> Any:
    spec = {"process": {"env": [f"NVIDIA_VISIBLE_DEVICES={devices}", *env]}, "annotations": annotations or {}}
    return request.read(spec, (inventory or host())["policy"])


def decided(inventory: Any, *env: str, **more: Any) -> dict[int, int]:
    asked = asks(*env, inventory=inventory, **more)
    return {
        limit.gpu: limit.size for limit in plan(asked, inventory, {"rootfs": "/r", "userns": False, "hook": "/h"})[2]
    }


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("20Gi", {"": 20 * GIB}),
        ("0=20Gi, GPU-1=8G", {"0": 20 * GIB, "GPU-1": 8 * 10**9}),
        ("17179869184", {"": 16 * GIB}),
        ("512Mi", {"": GIB // 2}),
    ],
)
def test_limits_as_they_are_written(text: str, sizes: dict[str, int]) -> None:
    assert memory.parse(text, "x") == sizes


@pytest.mark.parametrize(
    "text",
    ["20", "20GB", "-1Gi", "1.5Gi", "Gi", "0=", "=1Gi", "1Gi,2Gi", "0=1Gi,0=2Gi", "1Gi,0=2Gi", "٣Gi", "9" * 30, ""],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(GpushimError, match=r"20Gi|one for each") as refusal:
        memory.parse(text, "x")
    assert refusal.value.exit_code == REQUEST


def test_a_container_without_a_limit_has_none() -> None:
    assert decided(host()) == {}
    assert decided(host("535.1")) == {}


@pytest.mark.parametrize(
    ("env", "limits"),
    [
        ("20Gi", {0: 20 * GIB, 1: 20 * GIB}),
        ("1=8Gi", {1: 8 * GIB}),
        (f"{UUIDS[0]}=8Gi,1=9Gi", {0: 8 * GIB, 1: 9 * GIB}),
        ("00000000:00:00.0=8Gi", {0: 8 * GIB}),
    ],
)
def test_a_limit_for_each_gpu_or_for_some(env: str, limits: dict[int, int]) -> None:
    assert decided(host(), f"GPUSHIM_MEMORY_LIMIT={env}") == limits


def test_of_several_the_smallest_counts() -> None:
    annotation = {"gpushim/memory-limit": "8Gi"}
    assert decided(host(), "GPUSHIM_MEMORY_LIMIT=9Gi", annotations=annotation) == {0: 8 * GIB, 1: 8 * GIB}
    assert decided(host(), "GPUSHIM_MEMORY_LIMIT=7Gi", annotations=annotation) == {0: 7 * GIB, 1: 7 * GIB}


def test_what_root_mounts_counts_whatever_a_pod_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", "/srv/state")
    inventory = _closed()
    mounts = [f"/srv/state/limits/{UUIDS[0]}={2 * GIB}", "/elsewhere/limits/x=1", "/dev/null"]
    folders = ["/run/gpushim/limits/a", "/b", "/var/run/nvidia-container-devices/0"]
    spec = {
        "process": {"env": ["GPUSHIM_MEMORY_LIMIT=30Gi"]},
        "mounts": [{"source": source, "destination": path} for source, path in zip(mounts, folders)],
    }
    asked = request.read(spec, inventory["policy"])
    assert asked is not None
    (limit,) = plan(asked, inventory, {"rootfs": "/r", "userns": False, "hook": "/h"})[2]
    assert (limit.size, limit.source) == (2 * GIB, f"mount {mounts[0]}")


@pytest.mark.parametrize(
    ("asked", "size"), [((), 4), (("GPUSHIM_MEMORY_LIMIT=6Gi",), 6), (("GPUSHIM_MEMORY_LIMIT=60Gi",), 10)]
)
def test_the_administrators_default_and_most(asked: tuple[str, ...], size: int) -> None:
    inventory = host(**{"memory-limit-default": "4Gi", "memory-limit-most": "10Gi"})
    assert decided(inventory, *asked, devices="0") == {0: size * GIB}
    assert decided(host(**{"memory-limit-most": "10Gi"}), devices="0") == {0: 10 * GIB}


def test_who_may_not_ask_is_told() -> None:
    inventory = _closed()
    spec = {"annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=0"}, "process": {"env": ["GPUSHIM_MEMORY_LIMIT=1Gi"]}}
    asked = request.read(spec, inventory["policy"])
    assert asked is not None
    assert asked.memory == []
    assert any("GPUSHIM_MEMORY_LIMIT limits nothing" in sentence for sentence in asked.ignored)


@pytest.mark.parametrize(
    ("driver", "devices", "env", "why"),
    [
        ("535.183.01", "0", "20Gi", "the driver 535.183.01 keeps none; it needs 615 or newer"),
        ("615.71", "2:0", "4Gi", "MIG instance MIG-1 has 5120 MiB"),
        ("615.71", "0", "1=4Gi", 'limits the GPU "1", which the container does not get'),
    ],
)
def test_what_cannot_be_kept_is_refused(driver: str, devices: str, env: str, why: str) -> None:
    with pytest.raises(GpushimError) as refusal:
        decided(host(driver), f"GPUSHIM_MEMORY_LIMIT={env}", devices=devices)
    assert why in str(refusal.value)
    assert refusal.value.exit_code == (REQUEST if "does not get" in why else INVENTORY)


def test_a_mig_instance_within_the_limit_needs_none() -> None:
    assert decided(host(), "GPUSHIM_MEMORY_LIMIT=20Gi", devices="2:0") == {}


def test_a_limit_that_is_only_wanted_is_told() -> None:
    inventory = host("535.183.01", **{"memory-limits": "wanted"})
    asked = asks("GPUSHIM_MEMORY_LIMIT=20Gi", inventory=inventory)
    assert plan(asked, inventory, {"rootfs": "/r", "userns": False, "hook": "/h"})[2] == []
    assert ["keeps none" in sentence for sentence in asked.ignored] == [True] * 2  # of each GPU


def test_what_is_wanted_is_forgiven_for_each_gpu_alone() -> None:
    """An image that asks for what cannot be kept of a MIG instance has the limits of its GPUs all the same."""
    inventory = host(**{"memory-limits": "wanted", "memory-limit-most": "30Gi"})
    limits = decided(inventory, "GPUSHIM_MEMORY_LIMIT=2:0=16Mi", devices="0,2:0")
    assert limits == {0: 30 * GIB}


def test_a_variable_without_end_is_refused() -> None:
    with pytest.raises(GpushimError, match="more than 65536 characters"):
        asks("GPUSHIM_MEMORY_LIMIT=" + "0=1Gi," * 20000)


def test_a_size_of_config_toml_that_is_too_small_names_it() -> None:
    with pytest.raises(GpushimError, match="memory-limit-most has") as refusal:
        decided(host(**{"memory-limit-most": "20"}))
    assert refusal.value.exit_code == CONFIG


def test_the_hook_gets_all_that_it_needs() -> None:
    inventory = host()
    edits, _, limits = plan(
        asks("GPUSHIM_MEMORY_LIMIT=0=1Gi"), inventory, {"rootfs": "/r", "userns": False, "hook": "/h"}
    )
    args = edits[-1].value["args"]
    place = args.index("--memory-limits")
    words = ["required", "--memory", f"00000000:00:00.0={GIB}", "--nvml", NVML["path"]]
    assert args[place + 1 : place + 6] == words
    assert [str(limit) for limit in limits] == [f"at most 1024 MiB of GPU 0 ({VARIABLE})"]
    assert str(limits[0]) in edits[-1].why


def test_a_cdi_spec_has_the_hook_look_where_each_container_is_limited() -> None:
    nowhere: Any = {"rootfs": "", "userns": False, "hook": "/h"}
    every, wanted = ["--memory-every", "yes"], ["--memory-limits", "wanted"]
    for most, how, words in (
        ("", "required", []),
        ("4Gi", "required", every),
        ("", "wanted", wanted),
        ("4Gi", "wanted", [*wanted, *every]),
    ):
        edits = plan(asks(), host(**{"memory-limit-most": most, "memory-limits": how}), nowhere)[0]
        args = edits[-1].value["args"]
        assert args[len(args) - len(words) :] == words
        assert len([word for word in args if word.startswith("--memory")]) == len(words) / 2
