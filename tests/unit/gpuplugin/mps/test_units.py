"""Units of MPS: looked at beside a host and settings that may not go together."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.mps import mps
from gpuplugin.mps.mps import Units
from gpuplugin.settings.settings import Settings
from gpuplugin.settings.sharing import Group, Mps
from gpuplugin.snapshot import release
from gpushim.ground import system
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.running_daemon import GPU, Host, health, host, running, told, top
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

__all__ = ["host", "top"]


def by_mps(top: Path) -> Settings:
    found = told(top)
    found.sharing = (Group(GPU, None, GPU, 2, mps=Mps(None, None, False)),)
    return found


def test_a_gpu_that_mps_cannot_share_any_more_ends_nothing(top: Path, host: Host) -> None:
    replicas = [f"{uuid(index)}::{number}" for index in (0, 1) for number in (0, 1)]

    async def run() -> None:
        async with running(top, having=by_mps(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(sick=(*replicas,)))
            host.has(snapshot([gpu(0), gpu(1, mig=True)]))
            await asyncio.sleep(0.3)
            assert kubelet.lists[GPU] == health(sick=(*replicas,))
            host.has(snapshot([gpu(0)]))
            await until(lambda: kubelet.lists[GPU] == health(sick=(*replicas[:2],)))

    asyncio.run(run())


def test_missing_units_are_started_once_in_a_while(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "SYSTEMD", str(top))
    started: list[Any] = []

    def start(work: Any) -> Any:
        started.append(work)
        work.close()

    one = Units(start)
    assert one.look(host.found, by_mps(top))
    assert not one.look(host.found, by_mps(top))
    assert len(started) == 1
    assert not Units(start).look(host.found, told(top))
    assert len(started) == 1


def test_where_systemd_is_not_the_node_is_asked(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "SYSTEMD", str(top / "none"))
    release.prepare()
    Units(lambda work: work.close()).look(host.found, by_mps(top))
    asked = json.loads((top / "state/device-plugin/wanted").read_text())
    assert (asked["refresh"], asked["units"]) == (False, ["gpushim-mps@gpu.service"])


@pytest.mark.parametrize(
    ("folder", "pod", "starts"), [("", "", True), ("/none", "10.0.0.1", True), ("/none", "", False)]
)
def test_what_starts_a_claims_units(
    top: Path, monkeypatch: pytest.MonkeyPatch, folder: str, pod: str, starts: bool
) -> None:
    monkeypatch.setattr(system, "SYSTEMD", f"{top}{folder}")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", pod)
    assert bool(mps.no_starter()) is not starts


@pytest.mark.parametrize("group", ["claim-12345678-1234-4234-8234-123456789012-0", "former"])
def test_what_a_group_has_left_as_it_had_it_is_not_given_out(
    top: Path, host: Host, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unit is started, which puts that back."""
    started: list[str] = []
    monkeypatch.setattr(Units, "_begin", lambda _, units: started.extend(units))
    place = top / f"state/mps/{group}/compute-modes.json"
    place.parent.mkdir(parents=True)
    well, left = health(uuid(0), uuid(1)), f'{{"{uuid(1)}": 0}}'

    async def run() -> None:
        async with running(top) as kubelet:
            for content, then in ((left, health(uuid(0), sick=(uuid(1),))), ("{}", well)):
                place.write_text(content)
                await until(lambda then=then: kubelet.lists.get(GPU) == then)  # type: ignore[misc]

    asyncio.run(run())
    assert {*started} == {f"gpushim-mps@{group}.service"}
