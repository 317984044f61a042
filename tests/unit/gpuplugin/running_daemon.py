"""A daemon between a snapshot that a test changes and a kubelet that is the test's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpuplugin import daemon
from gpuplugin.allocation import kubelet_view
from gpuplugin.allocation.plugin_front import PluginFront
from gpuplugin.health import watch_children
from gpuplugin.kubelet import endpoint
from gpuplugin.record import kubelet_watch, transitions
from gpuplugin.settings import settings
from gpuplugin.settings.sources import Sources
from gpuplugin.snapshot import node_snapshot
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.kubelet.fake import Kubelet
from unit.gpuplugin.snapshots import gpu, snapshot

GPU = "nvidia.com/gpu"
GONE = GpushimError("there is no snapshot", 12)


class Host:
    """A host whose snapshot a test changes."""

    def __init__(self, state: Path) -> None:
        self._path = state / "inventory.json"
        self.has(snapshot([gpu(0), gpu(1)]))

    def has(self, found: Any) -> None:
        """Have another snapshot."""
        self.found = found
        (self._path.parent / "new").write_text("")
        os.replace(self._path.parent / "new", self._path)


class FakeChild:
    """In the place of a child: it says what a test says."""

    all: ClassVar[dict[str, FakeChild]] = {}

    def __init__(self, name: str, words: Any, heard: Any, mark_unwatched: Any, *_: Any, **__: Any) -> None:
        self.heard, self.mark_unwatched, self.words = heard, mark_unwatched, words
        self.name, self.pid, self.does = name, 0, ""
        self.all[name] = self

    def begin(self) -> None:
        self.does = self.does or "begin"

    def again(self) -> None:
        self.does = "again"

    async def stop(self, patient: bool = False) -> bool:
        self.does = ""
        return True


@pytest.fixture
def top() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kd", dir="/tmp"))
    (path / "device-plugins").mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def host(top: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    (top / "state").mkdir()
    host = Host(top / "state")
    monkeypatch.setenv("GPUSHIM_STATE", str(top / "state"))
    monkeypatch.setenv("GPUSHIM_CONFIG", str(top / "config.toml"))
    monkeypatch.setattr(node_snapshot, "read", lambda state, before=None: (host.found, None if host.found else GONE))
    FakeChild.all.clear()
    monkeypatch.setattr(watch_children, "Child", FakeChild)
    for module, names in ((kubelet_view, ("ASK", "TICK", "QUIET")), (kubelet_watch, ("TICK", "YOUNG"))):
        for name in names:
            monkeypatch.setattr(module, name, 0.1)
    monkeypatch.setattr(transitions, "QUIET", 0.1)
    monkeypatch.setattr(endpoint, "SETTLED", 0.1)
    return host


class Files(Sources):
    """What settings are read from, without files."""

    folders: Any = ()

    def __init__(self, read: Any, changed: Any) -> None:
        super().__init__({}, {})
        self.__dict__.update(read=read, changed=changed)


@contextlib.asynccontextmanager
async def running(
    top: Path, reread: Any = None, having: Any = None, changed: Any = bool, **values: Any
) -> AsyncIterator[Kubelet]:
    """A kubelet and the daemon, which a signal ends."""
    kubelet = Kubelet(top / "device-plugins")
    await kubelet.start()
    sources = Files(reread, changed) if reread else None
    task = asyncio.create_task(agent(having or told(top, **values), sources).run())
    try:
        yield kubelet
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 5)
        await kubelet.stop()
        assert not list((top / "device-plugins").iterdir())


def agent(settings: settings.Settings, sources: Sources | None = None) -> daemon.Agent:
    """An agent with the device plugin alone."""
    return daemon.Agent(settings, sources, [PluginFront])


def told(top: Path, **values: Any) -> settings.Settings:
    return settings.resolve({}, {}, {"kubelet-dir": str(top), **values}, "")


def health(*well: str, sick: tuple[str, ...] = ()) -> dict[str, str]:
    return {**dict.fromkeys(well, "Healthy"), **dict.fromkeys(sick, "Unhealthy")}


def sliced(top: Path, replicas: int) -> settings.Settings:
    path = top / "nvidia.yaml"
    path.write_text(
        f"sharing: {{timeSlicing: {{renameByDefault: true, resources: [{{name: gpu, replicas: {replicas}}}]}}}}"
    )
    return settings.resolve({}, {}, {"kubelet-dir": str(top)}, str(path))


def wanted(top: Path) -> Path:
    """The file by which the node is asked for another snapshot."""
    return top / "state/device-plugin/wanted"
