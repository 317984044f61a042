"""What containers of pods use of a limited GPU: kubelet's checkpoint, and cgroups that are plain directories."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.kubelet import cgroups
from gpuplugin.kubelet.podresources import Listed
from gpuplugin.metrics import container_memory
from gpuplugin.metrics.container_memory import ContainerMemory, Holding
from gpushim.containers import memory_use
from gpushim.containers.memory_use import Use
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

GIB = 1 << 30
RESOURCE = "nvidia.com/gpu"
POD = "kubepods.slice/kubepods-pod{}.slice"
USE = Use(GIB, 8 * GIB)
DIRECTORIES = cgroups.directories


class Node:
    """A node with one GPU, whose kubelet has given it to pods."""

    def __init__(self, top: Path) -> None:
        self.top, self.given, self.listed = top, list[Any](), Listed([], [])
        self.snapshot = snapshot([gpu(0)], driver={"version": "615.71", "root": "/"})
        (top / "cgroup").mkdir()
        (top / "cgroup/cgroup.controllers").touch()
        (top / "cgroup/dmem.capacity").write_text(f"nvidia/0000:10:00.0/vidmem {80 * GIB}\n")

    def give(self, pod: str, container: str = "main") -> None:
        ids = [f"{uuid(0)}::{len(self.given)}"]
        self.given.append(
            {"PodUID": f"uid-{pod}", "ContainerName": container, "ResourceName": RESOURCE, "DeviceIDs": {"0": ids}}
        )
        self.listed.devices.append(
            {"namespace": "ns", "pod": pod, "container": container, "resource": RESOURCE, "devices": ids}
        )
        data = {"PodDeviceEntries": self.given, "RegisteredDevices": {}}
        path = self.top / "device-plugins/kubelet_internal_checkpoint"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"Data": data, "Checksum": 0}))

    def cgroup(self, pod: str, name: str, limit: Any, used: int = GIB) -> None:
        folder = self.top / "cgroup" / POD.format(f"uid-{pod}".replace("-", "_")) / name
        folder.mkdir(parents=True)
        for file, value in (("dmem.max", limit), ("dmem.current", used)):
            (folder / file).write_text(f"nvidia/0000:10:00.0/vidmem {value}\n")

    def ask(self, *holdings: Holding) -> dict[Holding, Use]:
        async def run() -> Any:
            asked = ContainerMemory(asyncio.ensure_future, lambda: False)
            await asked.ask(10, str(self.top), self.snapshot, self.listed, lambda: holdings)
            return asked.uses()

        return dict(asyncio.run(run()))


def holding(pod: str) -> Holding:
    return Holding(uuid(0), "ns", pod, "main")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(cgroups, "directories", lambda uids: DIRECTORIES(uids, [str(tmp_path / "cgroup")]))
    return Node(tmp_path)


def test_a_container_with_a_limit_beside_those_of_its_pod_without(node: Node) -> None:
    node.give("a")
    node.cgroup("a", "cri-containerd-pause.scope", "max", 0)
    node.cgroup("a", "cri-containerd-side.scope", "max", 0)
    node.cgroup("a", "cri-containerd-main.scope", 8 * GIB)
    node.give("b")
    node.cgroup("b", "crio-main.scope", "max", 0)
    node.cgroup("b", "crio-main.scope/container", 8 * GIB)
    node.give("c")
    node.cgroup("c", "cri-containerd-main.scope", "max")
    assert node.ask(holding("a"), holding("b"), holding("c")) == {holding("a"): USE, holding("b"): USE}


def test_two_limited_cgroups_of_a_pod_are_told_of_neither(node: Node) -> None:
    node.give("a")
    for name in ("one", "two"):
        node.cgroup("a", f"cri-containerd-{name}.scope", 8 * GIB)
    assert node.ask(holding("a")) == {}


def test_without_checkpoint_or_cgroup_nothing_is_known(node: Node) -> None:
    node.listed.devices.append(
        {"namespace": "ns", "pod": "a", "container": "main", "resource": RESOURCE, "devices": ["x"]}
    )
    assert node.ask(holding("a")) == {}
    node.give("a")
    assert node.ask(holding("a")) == {}


@pytest.mark.parametrize("change", ["old driver", "released", "kubelet is away"])
def test_nobody_is_asked(node: Node, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(container_memory, "_look", lambda *_: pytest.fail("it is asked"))
    node.snapshot["driver"]["version"] = "610.1" if change == "old driver" else "615.71"
    listed = None if change == "kubelet is away" else node.listed

    async def run() -> None:
        asked = ContainerMemory(asyncio.ensure_future, lambda: change == "released")
        await asked.ask(1, str(node.top), node.snapshot, listed, list)
        await asked.stop()
        assert asked.uses() == {}

    asyncio.run(run())


def test_a_driver_that_hangs_delays_nobody_and_is_left_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that comes at last is none, and the next question comes only after a while."""
    asked: list[Any] = []

    def look(*words: Any) -> tuple[dict[Any, Use], str]:
        asked.append(words)
        time.sleep(0.3)
        return {}, "NVML has not answered for 5 s"

    monkeypatch.setattr(memory_use, "look", look)
    node.give("a")
    node.cgroup("a", "cri-containerd-main.scope", 8 * GIB)

    async def run() -> None:
        one = ContainerMemory(asyncio.ensure_future, lambda: False)
        began = time.monotonic()
        await one.ask(0.01, str(node.top), node.snapshot, node.listed, lambda: [holding("a")])
        assert time.monotonic() - began < 0.3
        await one.stop()
        for _ in range(3):
            await one.ask(1, str(node.top), node.snapshot, node.listed, lambda: [holding("a")])
        assert len(asked) == 1

    asyncio.run(run())
