"""What a container gets, strategy by strategy, and what is refused."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from gpuplugin.allocation import allocation
from gpuplugin.allocation.allocation import ANNOTATIONS, CRI, ENVVAR, MOUNTS, Delivery
from gpuplugin.settings import resources
from gpuplugin.settings.resources import Device, Share
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU = "nvidia.com/gpu"
LIST = "/var/run/nvidia-container-devices"


def by_id(devices: list[Device]) -> dict[str, Device]:
    return {device.id: device for device in devices}


HOST = snapshot([gpu(0), gpu(1, problem="XID 79 on it"), gpu(2, mig=True)], [mig(2, 0)])
DEVICES = by_id(resources.find(HOST, "mixed", [], [])[GPU])


def told(**by: Any) -> dict[str, Any]:
    """What a container with a GPU and a MIG instance gets."""
    found = resources.find(HOST, "mixed", [], [])
    return allocation.answer([found[GPU][0], found["nvidia.com/mig-1g.5gb"][0]], GPU, Delivery(**by))


MIG = uuid(32, "MIG")
MOUNTED = [{"container_path": f"{LIST}/{name}", "host_path": "/dev/null"} for name in (uuid(0), MIG)]
NAMED = [{"name": f"{GPU}={uuid(0)}"}, {"name": f"{GPU}={MIG}"}]
ANNOTATED = {"cdi.k8s.io/gpushim-device-plugin_gpu": f"{GPU}={uuid(0)},{GPU}={MIG}"}


@pytest.mark.parametrize(
    ("by", "desired"),
    [
        ({}, {"envs": {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{MIG}"}}),
        ({"by_index": True}, {"envs": {"NVIDIA_VISIBLE_DEVICES": "0,2:0"}}),
        (
            {"strategies": [MOUNTS], "by_index": True},
            {
                "envs": {"NVIDIA_VISIBLE_DEVICES": LIST},
                "mounts": [{"container_path": f"{LIST}/{name}", "host_path": "/dev/null"} for name in ("0", "2:0")],
            },
        ),
        (
            {"strategies": [CRI], "by_index": True, "kind": "example.com/gpu"},
            {"envs": {}, "cdi_devices": [{"name": "example.com/gpu=0"}, {"name": "example.com/gpu=2:0"}]},
        ),
        (
            {"strategies": [ENVVAR, ANNOTATIONS], "annotation_prefix": "nvidia.cdi.k8s.io/"},
            {
                "envs": {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{MIG}"},
                "annotations": {key.replace("cdi", "nvidia.cdi", 1): text for key, text in ANNOTATED.items()},
            },
        ),
        ({"strategies": [MOUNTS]}, {"envs": {"NVIDIA_VISIBLE_DEVICES": LIST}, "mounts": MOUNTED}),
        ({"strategies": [ENVVAR, MOUNTS]}, {"envs": {"NVIDIA_VISIBLE_DEVICES": LIST}, "mounts": MOUNTED}),
        ({"strategies": [CRI]}, {"envs": {}, "cdi_devices": NAMED}),
        ({"strategies": [ANNOTATIONS]}, {"envs": {}, "annotations": ANNOTATED}),
        ({"strategies": [CRI, ANNOTATIONS]}, {"envs": {}, "cdi_devices": NAMED, "annotations": ANNOTATED}),
        (
            {"strategies": [CRI, MOUNTS]},
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
            {"strategies": [CRI], "imex": [0], "features": ["gds"], "control": ["/dev/nvidiactl"]},
            {
                "envs": {"NVIDIA_GDS": "enabled"},
                "cdi_devices": [*NAMED, {"name": f"{GPU}=imex-channel-0"}, {"name": f"{GPU}=gds"}],
            },
        ),
    ],
)
def test_answers(by: dict[str, Any], desired: dict[str, Any]) -> None:
    assert told(**by) == desired


LONGEST = "nvidia.com/mig-" + "5" * (resources.LONGEST_NAME - 15) + ".shared"


@pytest.mark.parametrize("resource", [GPU, "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.24gb.me.all.shared", LONGEST])
def test_an_annotation_of_each_resource(resource: str) -> None:
    (key,) = allocation.answer([DEVICES[uuid(0)]], resource, Delivery(strategies=[ANNOTATIONS]))["annotations"]
    prefix, _, name = key.partition("/")
    assert (prefix, name) == ("cdi.k8s.io", "gpushim-device-plugin_" + resource.partition("/")[2])
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", name)


def test_no_devices_are_no_error() -> None:
    found = allocation.answer([], GPU, Delivery(strategies=allocation.STRATEGIES, imex=[0], features=["gds"]))
    assert not {"annotations", "cdi_devices"} & found.keys()
    assert allocation.answer([], GPU, Delivery())["envs"] == {"NVIDIA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("strategies", "names", "said"),
    [
        ([ENVVAR], [GPU, "nvidia.com/mig-1g.5gb"], True),
        ([ENVVAR], [GPU], False),
        ([ENVVAR], [], False),
        ([ENVVAR, MOUNTS], [GPU, "nvidia.com/mig-1g.5gb"], False),
        ([ENVVAR, CRI], [GPU, "nvidia.com/mig-1g.5gb"], False),
        ([ANNOTATIONS], [GPU, "nvidia.com/mig-1g.5gb"], False),
    ],
)
def test_what_two_resources_in_a_container_come_to_is_said(
    strategies: list[str], names: list[str], said: bool
) -> None:
    notes = allocation.clash(Delivery(strategies=strategies), {name: [] for name in names})
    assert [", ".join(names) in note and "choose volume-mounts or cdi-cri" in note for note in notes] == [True] * said


def test_imex_channels_among_the_mounts() -> None:
    assert told(strategies=[MOUNTS], imex=[3])["mounts"][-1]["container_path"] == f"{LIST}/imex/3"


def test_nodes_are_passed() -> None:
    passed = told(control=["/dev/nvidiactl"], imex=[7], dev_root="/run/nvidia/driver")["devices"]
    nodes = [
        "/dev/nvidia0",
        "/dev/nvidia2",
        "/dev/nvidia-caps/nvidia-cap74",
        "/dev/nvidia-caps/nvidia-cap75",
        "/dev/nvidia-caps-imex-channels/channel7",
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
        (
            [uuid(1)],
            f"{uuid(1)} of nvidia.com/gpu cannot be used: XID 79 on it; a pod that is made anew gets another",
        ),
        ([uuid(0), uuid(0)], f"kubelet asks for {uuid(0)} of nvidia.com/gpu 2 times"),
    ],
)
def test_refusals(ids: list[str], why: str) -> None:
    with pytest.raises(GpushimError, match=why):
        allocation.check(ids, GPU, DEVICES)


def test_nodes_of_wsl_below_the_root() -> None:
    host = snapshot([gpu(0, uuid=""), gpu(1, uuid="")], platform="wsl", nodes={"/dev/dxg": []})
    found = allocation.answer(resources.find(host, "none", [], [])[GPU], GPU, Delivery(control=()))
    assert found["envs"] == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert found["devices"] == [{"container_path": "/dev/dxg", "host_path": "/dev/dxg", "permissions": "rw"}]


def test_a_refusal_of_many_is_short() -> None:
    many = by_id(resources.replicated([*DEVICES.values()], 1000))
    with pytest.raises(GpushimError) as refused:
        allocation.check(["x" * 5000], GPU, many)
    assert len(str(refused.value)) < 1200
    assert "and 1984 more" in str(refused.value)


def test_two_replicas_of_a_gpu_are_one() -> None:
    twice = by_id(resources.replicated([DEVICES[uuid(0)]], 2))
    with pytest.raises(GpushimError, match=f"has no device {uuid(0)}; it has {uuid(0)}::0, {uuid(0)}::1"):
        allocation.check([uuid(0)], GPU, twice)
    (one,) = allocation.check([f"{uuid(0)}::1", f"{uuid(0)}::0"], GPU, twice)
    assert allocation.answer([one], GPU, Delivery())["envs"]["NVIDIA_VISIBLE_DEVICES"] == uuid(0)


def test_an_answer_takes_less_than_a_millisecond() -> None:
    host = snapshot([gpu(n, mig=True) for n in range(8)], [mig(n, i) for n in range(8) for i in range(7)])
    devices = by_id(resources.replicated(resources.find(host, "single", [], [])[GPU], 10))
    ids = list(devices)[::7]

    def once() -> float:
        began = time.perf_counter()
        allocation.answer(allocation.check(ids, GPU, devices), GPU, Delivery(strategies=[MOUNTS, CRI, ANNOTATIONS]))
        return time.perf_counter() - began

    assert len(devices) == 560
    assert min(once() for _ in range(20)) < 0.001


def shared(index: int, number: int, **more: Any) -> Device:
    """A replica of a GPU."""
    name = uuid(index)
    return Device(f"{name}::{number}", name, str(index), index, share=Share(**{"kind": "time-slicing", **more}))


def checked(*devices: Device) -> list[str]:
    return [one.uuid for one in allocation.check([one.id for one in devices], GPU, by_id([*devices]))]


def test_a_single_replica_is_all_that_a_container_gets() -> None:
    assert checked(shared(0, 1, single=True)) == [uuid(0)]
    with pytest.raises(GpushimError, match="which is shared, and failRequestsGreaterThanOne is true"):
        checked(shared(0, 1, single=True), shared(1, 0, single=True))


def test_distinct_replicas_are_of_different_gpus() -> None:
    assert checked(shared(0, 1, distinct=True), shared(1, 1, distinct=True)) == [uuid(0), uuid(1)]
    said = f"asks for 3 of {GPU}, each on another GPU .* 2 of those that kubelet has chosen are on {uuid(1)}: fewer"
    with pytest.raises(GpushimError, match=said):
        checked(*(shared(gpu, number, distinct=True) for gpu, number in ((0, 0), (1, 0), (1, 1))))


def test_a_container_has_one_daemon_of_mps() -> None:
    one, two = shared(0, 0, kind="mps", group="a"), shared(1, 0, kind="mps", group="b")
    assert checked(one, shared(1, 0, kind="mps", group="a")) == [uuid(0), uuid(1)]
    for other in (two, shared(1, 0)):
        with pytest.raises(GpushimError, match="are not all of one MPS daemon"):
            checked(one, other)


EVERY = [list(strategies) for size in (1, 2, 3, 4) for strategies in combinations(allocation.STRATEGIES, size)]


@pytest.mark.parametrize("strategies", EVERY, ids=",".join)
def test_a_client_of_mps_is_told_its_daemon_in_every_way(
    strategies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", "/var/state")
    device = shared(0, 3, kind="mps", group="gpu-2", memory=2048, threads=25)
    with_it, without = (
        allocation.answer([one], GPU, Delivery(strategies=strategies))
        for one in (device, replace(device, share=None))
    )
    assert with_it["envs"] == {**without["envs"], "CUDA_MPS_PIPE_DIRECTORY": "/run/gpushim/mps/gpu-2/pipe"}
    pipes = {"container_path": "/run/gpushim/mps/gpu-2/pipe", "host_path": "/var/state/mps/gpu-2/pipe"}
    shm = {"container_path": "/dev/shm", "host_path": "/var/state/mps/gpu-2/private/shm"}
    assert with_it["mounts"] == [*without.get("mounts", []), {**pipes, "read_only": True}, shm]
    assert "::" not in str(with_it)
    assert {key: with_it[key] for key in without if key not in ("envs", "mounts")} == {
        key: without[key] for key in without if key not in ("envs", "mounts")
    }


def test_a_slice_tells_the_container_its_limits() -> None:
    slices = [shared(n, 0, kind="mps", group="g", memory=2048, threads=25, sliced=True) for n in (0, 1)]
    envs = allocation.answer(slices, GPU, Delivery())["envs"]
    assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{uuid(0)}=2048M,{uuid(1)}=2048M"
    assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"


def test_two_resources_of_which_one_is_of_mps_are_said() -> None:
    there = {GPU: [DEVICES[uuid(0)]], "nvidia.com/m": [shared(1, 0, kind="mps", group="m")]}
    (note,) = allocation.clash(Delivery(strategies=[CRI]), there)
    assert note.startswith("a container that asks for nvidia.com/m and for another resource can use")
    assert allocation.clash(Delivery(strategies=[ENVVAR]), there)[0] == note
    assert len(allocation.clash(Delivery(strategies=[ENVVAR]), there)) == 2
