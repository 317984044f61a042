"""The daemon and the file that is the snapshot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gpuplugin.processes import moments
from gpuplugin.snapshot import node_requests, node_snapshot
from gpushim.ground import system
from gpushim.ground.errors import DRIVER, GpushimError
from gpushim.inventory import ensure
from unit.gpuplugin.kubelet.fake import Kubelet, until
from unit.gpuplugin.running_daemon import GPU, Host, agent, health, host, running, told, top
from unit.gpuplugin.snapshot.saved_snapshot import saved
from unit.gpuplugin.snapshots import gpu, uuid

__all__ = ["host", "top"]
READ = node_snapshot.read


@pytest.fixture(autouse=True)
def files(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_snapshot, "read", READ)


def test_given_out_while_the_snapshot_lives(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_requests, "ANSWER", 0.3)
    monkeypatch.setattr(moments, "EACH", 0.1)
    state = top / "state"

    async def run() -> None:
        async with running(top, **{"fail-on-init-error": False}) as kubelet:
            await until(lambda: (state / "device-plugin/wanted").exists())
            assert not kubelet.lists
            saved(state)
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))
            saved(state, looked=system.clock() - 5, life=5)
            await until(lambda: kubelet.lists[GPU] == health(sick=(uuid(0),)))
            assert "is out of date; gpushim refresh --keep" in caplog.text
            asked = json.loads((state / "device-plugin/wanted").read_text())
            assert (asked["refresh"], asked["units"]) == (True, [])
            saved(state)
            await until(lambda: kubelet.lists[GPU] == health(uuid(0)))

    asyncio.run(run())


def test_a_node_that_is_of_a_newer_version(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_requests, "ANSWER", 0.3)
    monkeypatch.setattr(moments, "EACH", 0.1)
    state, newer = top / "state", {"gpushim": "99", "form": ensure.FORM + 1, "colours": ["green"]}
    saved(state)

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))
            saved(state, gpus=[gpu(0, colour=0), gpu(1)], **newer)
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), uuid(1)))
            saved(state, version=ensure.FORM + 1, **newer)
            await until(lambda: kubelet.lists[GPU] == health(sick=(uuid(0), uuid(1))))
            assert "is written by gpushim 99, and this is" in caplog.text

    asyncio.run(run())


def test_another_driver_ends_it(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(node_snapshot.POD, "10.0.0.1")
    saved(top / "state")

    async def run() -> None:
        kubelet, plugin = Kubelet(top / "device-plugins"), agent(told(top))
        await kubelet.start()
        task = asyncio.create_task(plugin.run())
        await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))
        saved(top / "state", module="590")
        with pytest.raises(GpushimError, match="now 590 and was 580") as refused:
            await asyncio.wait_for(task, 8)
        assert refused.value.exit_code == DRIVER
        await kubelet.stop()

    asyncio.run(run())


def test_without_a_snapshot_from_the_start_it_ends_if_the_settings_say_so(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_requests, "ANSWER", 0.1)
    (top / "state/inventory.json").unlink()
    plugin = agent(told(top))
    with pytest.raises(GpushimError, match=r"there is no .*; gpushim refresh --keep"):
        asyncio.run(asyncio.wait_for(plugin.run(), 8))
