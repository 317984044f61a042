"""What a container gets, strategy by strategy, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpuplugin import allocation, resources
from gpuplugin.allocation import ANNOTATIONS, CRI, ENVVAR, MOUNTS, Ways
from gpushim.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU = "nvidia.com/gpu"
LIST = "/var/run/nvidia-container-devices"
HOST = snapshot([gpu(0), gpu(1, problem="XID 79 on it"), gpu(2, mig=True)], [mig(2, 0)])
DEVICES = resources.by_id(resources.find(HOST, "mixed", [], [])[GPU])
TWO = (uuid(0), uuid(2, "MIG"))


def told(**by: Any) -> dict[str, Any]:
    """What a container with a GPU and a MIG instance gets."""
    found = resources.find(HOST, "mixed", [], [])
    return allocation.answer([found[GPU][0], found["nvidia.com/mig-1g.5gb"][0]], GPU, Ways(**by))


MIG = uuid(32, "MIG")
MOUNTED = [{"container_path": f"{LIST}/{name}", "host_path": "/dev/null"} for name in (uuid(0), MIG)]
NAMED = [{"name": f"{GPU}={uuid(0)}"}, {"name": f"{GPU}={MIG}"}]
ANNOTATED = {"cdi.k8s.io/gpushim-device-plugin_gpu": f"{GPU}={uuid(0)},{GPU}={MIG}"}


@pytest.mark.parametrize(
    ("by", "wanted"),
    [
        ({}, {"envs": {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{MIG}"}}),
        ({"by_index": True}, {"envs": {"NVIDIA_VISIBLE_DEVICES": "0,2:0"}}),
        ({"ways": [MOUNTS]}, {"envs": {"NVIDIA_VISIBLE_DEVICES": LIST}, "mounts": MOUNTED}),
        ({"ways": [ENVVAR, MOUNTS]}, {"envs": {"NVIDIA_VISIBLE_DEVICES": LIST}, "mounts": MOUNTED}),
        ({"ways": [CRI]}, {"envs": {}, "cdi_devices": NAMED}),
        ({"ways": [ANNOTATIONS]}, {"envs": {}, "annotations": ANNOTATED}),
        ({"ways": [CRI, ANNOTATIONS]}, {"envs": {}, "cdi_devices": NAMED, "annotations": ANNOTATED}),
        (
            {"ways": [CRI, MOUNTS]},
            {"envs": {"NVIDIA_VISIBLE_DEVICES": LIST}, "mounts": MOUNTED, "cdi_devices": NAMED},
        ),
        (
            {"imex": [0], "features": ["gds"]},
            {
                "envs": {
                    "NVIDIA_GDS": "enabled",
                    "NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{MIG}",
                    "NVIDIA_IMEX_CHANNELS": "0",
                }
            },
        ),
        (
            {"ways": [CRI], "imex": [0], "features": ["gds"], "control": ["/dev/nvidiactl"]},
            {
                "envs": {"NVIDIA_GDS": "enabled"},
                "cdi_devices": [*NAMED, {"name": f"{GPU}=imex-channel-0"}, {"name": f"{GPU}=gds"}],
            },
        ),
    ],
)
def test_answers(by: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert told(**by) == wanted


def test_imex_channels_among_the_mounts() -> None:
    assert told(ways=[MOUNTS], imex=[3])["mounts"][-1]["container_path"] == f"{LIST}/imex/3"


def test_nodes_are_passed() -> None:
    passed = told(control=["/dev/nvidiactl"], dev_root="/run/nvidia/driver")["devices"]
    nodes = [
        "/dev/nvidia0",
        "/dev/nvidia2",
        "/dev/nvidia-caps/nvidia-cap74",
        "/dev/nvidia-caps/nvidia-cap75",
        "/dev/nvidiactl",
    ]
    assert [one["container_path"] for one in passed] == nodes
    assert {(one["host_path"], one["permissions"]) for one in passed} == {
        (f"/run/nvidia/driver{path}", "rw") for path in nodes
    }


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (["GPU-7"], f"nvidia.com/gpu has no device GPU-7; it has {uuid(0)}, {uuid(1)}"),
        ([uuid(1)], f"{uuid(1)} of nvidia.com/gpu cannot be used: XID 79 on it; these can: {uuid(0)}"),
        ([uuid(0), uuid(0)], f"kubelet asks for {uuid(0)} of nvidia.com/gpu 2 times"),
    ],
)
def test_refusals(ids: list[str], why: str) -> None:
    with pytest.raises(GpushimError, match=why):
        allocation.check(ids, GPU, DEVICES)


def test_two_replicas_of_a_gpu_are_one() -> None:
    twice = resources.by_id(resources.replicated([DEVICES[uuid(0)]], 2))
    with pytest.raises(GpushimError, match=f"has no device {uuid(0)}; it has {uuid(0)}::0, {uuid(0)}::1"):
        allocation.check([uuid(0)], GPU, twice)
    (one,) = allocation.check([f"{uuid(0)}::1", f"{uuid(0)}::0"], GPU, twice)
    assert allocation.answer([one], GPU, Ways())["envs"]["NVIDIA_VISIBLE_DEVICES"] == uuid(0)


def test_an_answer_takes_less_than_a_millisecond() -> None:
    host = snapshot([gpu(n, mig=True) for n in range(8)], [mig(n, i) for n in range(8) for i in range(7)])
    devices = resources.by_id(resources.replicated(resources.find(host, "single", [], [])[GPU], 10))
    ids = list(devices)[::7]

    def once() -> float:
        began = time.perf_counter()
        allocation.answer(allocation.check(ids, GPU, devices), GPU, Ways(ways=[MOUNTS, CRI, ANNOTATIONS]))
        return time.perf_counter() - began

    assert len(devices) == 560
    assert min(once() for _ in range(20)) < 0.001
