"""Limits reach the real program soon after a container is there, and never while the GPUs are let go.

Kubelet's answers and the host's containers are a test's; the program asks the simulated host's NVML.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest

import fakehost
from gpuplugin.kubelet import podresources
from gpuplugin.limits import enforce, nvml_limits
from gpuplugin.limits.enforce import KernelLimits
from gpuplugin.processes import child
from gpuplugin.settings import settings
from gpuplugin.settings.resources import Device, Share
from gpuplugin.settings.sharing import TIME_SLICING, Group
from gpuplugin.snapshot import node_snapshot
from unit.gpuplugin import watched
from unit.gpuplugin.kubelet.fake import until

GPU, CACHE = "nvidia.com/gpu", str(Path(__file__).parents[4] / ".cache" / "fakehost")
SLICED = settings.resolve({}, {}, {})
SLICED.sharing = (Group(GPU, None, GPU, 2, memory=1024),)
WHOLE = settings.resolve({}, {}, {})


class Scene:
    """A kubelet with a pod that may have both parts of a GPU, and the container of it."""

    def __init__(self, top: Path, driver: str) -> None:
        self.host = fakehost.build(str(top / "host"), 1, driver=driver, compile_cache=CACHE)
        found = watched.snapshot(self.host)
        self.snapshot: Any = {**found, "platform": "native", "stamp": {"module": driver, "gpus": {}}}
        share = Share(TIME_SLICING, memory=1024)
        uuid = self.host.gpus[0].uuid
        self.parts = {f"{uuid}::{n}": Device(f"{uuid}::{n}", uuid, "0", 0, share=share) for n in range(2)}
        self.allocated: list[tuple[float, list[str]]] = []
        resource = SimpleNamespace(devices=self.parts, allocated=self.allocated)
        registry: Any = SimpleNamespace(served={GPU: SimpleNamespace(resource=resource)})
        self.cgroup = top / "cgroup"
        self.cgroup.mkdir()
        (self.cgroup / "cgroup.controllers").touch()
        self.held: list[str] = []
        self.containers = 0
        self.asked = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.made = KernelLimits(registry, lambda: "", self.start)

    def start(self, work: Any) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    async def holders(self, _: str, resources: Any) -> list[dict[str, Any]]:
        self.asked += 1
        row = {"namespace": "default", "pod": "one", "container": "main", "resource": GPU, "devices": self.held}
        return [row] if self.held else []

    def listed(self, *_: Any) -> tuple[list[dict[str, Any]], list[str]]:
        return [{"name": "default/one/main", "pid": 7, "id": "c" * 64}] * self.containers, []

    def give(self, *numbers: int) -> None:
        self.held = [[*self.parts][number] for number in numbers]
        self.allocated.append((time.time(), self.held))

    def told(self) -> list[int]:
        """MiB that the driver was told."""
        path = Path(self.host.root, "usr/lib/fakehost/memory-limits")
        lines = path.read_text().splitlines() if path.exists() else []
        assert {line.split()[1] for line in lines} <= {str(self.cgroup)}
        return [int(line.split()[2]) >> 20 for line in lines]

    @property
    def pid(self) -> int:
        return self.made._child.pid

    @contextlib.asynccontextmanager
    async def running(self, having: Any = SLICED) -> AsyncIterator[None]:
        self.made.look(self.snapshot, having)
        keep = self.start(self.made.keep())
        try:
            yield
        finally:
            keep.cancel()
            pid = self.pid
            await self.made.stop()
            assert not (pid and os.path.exists(f"/proc/{pid}"))

    def run(self, body: Callable[[], Any], having: Any = SLICED) -> None:
        async def whole() -> None:
            async with self.running(having):
                await body()

        asyncio.run(whole())


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    from gpushim.containers import holders

    scene = Scene(tmp_path, getattr(request, "param", "615.10"))
    monkeypatch.setattr(podresources, "holders", scene.holders)
    monkeypatch.setattr(holders, "holders", scene.listed)
    monkeypatch.setattr(nvml_limits, "CGROUPS", str(scene.cgroup))
    monkeypatch.setattr(nvml_limits, "cgroup_of", lambda pid, name: str(scene.cgroup))
    monkeypatch.setattr(enforce, "TICK", 0.02)
    monkeypatch.setattr(child, "FIRST", 0.05)
    return scene


def test_a_container_gets_its_limit_when_it_is_there(scene: Scene) -> None:
    async def body() -> None:
        await until(lambda: scene.made.state["kernel"])
        await until(lambda: scene.asked)
        scene.give(0, 1)
        before = scene.asked
        await until(lambda: scene.asked > before + 5)  # it is looked for again and again
        assert scene.told() == []
        scene.containers = 1
        assert await until(scene.told) < 2
        assert scene.told() == [2048]
        await until(lambda: scene.made.state["set"])
        before = scene.asked
        await asyncio.sleep(0.2)
        assert scene.asked <= before + 1  # no more: all that was given out is known
        assert scene.made.notes == []

    scene.run(body)


def test_what_is_set_is_not_set_again_but_by_another_program(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr(enforce, "ASK", 0.05)
        scene.give(0)
        scene.containers = 1
        await until(lambda: scene.made.state["set"])
        before = scene.asked
        await until(lambda: scene.asked > before + 3)
        assert scene.told() == [1024]
        os.kill(scene.pid, 9)
        await until(lambda: scene.told() == [1024, 1024])
        scene.held, scene.containers = [], 0
        await until(lambda: not scene.made.state["set"])

    scene.run(body)


def test_nothing_runs_while_the_gpus_are_let_go(scene: Scene) -> None:
    async def body() -> None:
        await until(lambda: scene.made.state["kernel"])
        pid = scene.pid
        await scene.made.stop(patient=True)
        assert not os.path.exists(f"/proc/{pid}")
        assert (scene.pid, scene.made.state["kernel"]) == (0, None)
        scene.give(0)
        scene.containers = 1
        scene.made.look(scene.snapshot, SLICED)
        await until(scene.told)

    scene.run(body)


def test_without_limits_in_the_settings_no_program_runs(scene: Scene) -> None:
    async def body() -> None:
        assert (scene.pid, len(scene.tasks)) == (0, 1)
        scene.made.look(scene.snapshot, SLICED)
        await until(lambda: scene.made.state["kernel"])
        scene.made.look(scene.snapshot, WHOLE)
        await until(lambda: not scene.pid)

    scene.run(body, WHOLE)


@pytest.mark.parametrize("scene", ["580.10"], indirect=True)
def test_where_it_cannot_that_is_said_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        await until(lambda: scene.made.state["kernel"] is False)
        await until(lambda: not scene.pid)
        scene.give(0)
        scene.made.look(scene.snapshot, SLICED)
        await asyncio.sleep(0.3)
        assert (scene.pid, scene.asked) == (0, 0)
        assert "driver 615 or newer; limits of shares are kept by MPS" in scene.made.notes[0]
        assert caplog.messages == scene.made.notes

    scene.run(body)


def test_what_the_driver_refuses_is_said_once_and_tried_again(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        monkeypatch.setattr(enforce, "ASK", 0.05)
        await until(lambda: scene.made.state["kernel"])
        (scene.cgroup / "cgroup.controllers").unlink()
        scene.cgroup.rmdir()
        scene.give(0)
        scene.containers = 1
        await until(lambda: scene.made.state["set"])
        before = scene.asked
        await until(lambda: scene.asked > before + 3)
        assert [message.endswith("Invalid Argument") for message in caplog.messages] == [True]
        scene.cgroup.mkdir()
        await until(lambda: scene.told() == [1024])

    scene.run(body)


def test_in_a_pod_nothing_is_asked_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(node_snapshot.POD, "10.0.0.1")
    scene = Scene(tmp_path, "580.65.06")
    sliced = settings.resolve({}, {}, {})
    sliced.sharing = SLICED.sharing
    for _ in range(2):
        scene.made.look(scene.snapshot, sliced)
    assert not scene.tasks
    assert len(caplog.messages) == 1
    assert "a pod cannot see which cgroup is whose; limits of shares are kept by MPS" in scene.made.notes[0]
    assert scene.made.state["kernel"] is False
    scene.made.look(scene.snapshot, settings.resolve({}, {}, {}))
    assert scene.made.notes == []
