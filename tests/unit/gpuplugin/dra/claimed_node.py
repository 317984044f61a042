"""A node whose driver prepares claims, beside an API server and a kubelet that a test speaks for."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpuplugin.devices.mps_group import MpsGroup
from gpuplugin.dra.claim_offer import Offer
from gpuplugin.dra.cutting import OnDemand
from gpuplugin.dra.prepare import Claims
from gpuplugin.dra.shared import Sharing
from gpuplugin.kubelet import cgroups, podresources
from gpuplugin.kubelet.podresources import Listed
from gpuplugin.mps import of_claims
from gpuplugin.processes import moments
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpushim.containers import kubelet
from gpushim.containers.kubelet import OWN_DRIVER, Claim
from gpushim.ground import system
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

if TYPE_CHECKING:
    from gpuplugin.record import record_form
    from gpuplugin.record.record_form import Record

NODE, KIND = "n", "nvidia.com/gpu"
HOST = snapshot([gpu(0), gpu(1)])
NAMES = {f"gpu-{number}": uuid(number) for number in (0, 1)}


class Device:
    """What is offered, as far as it counts here."""

    def __init__(self, name: str) -> None:
        self.uuid, self.body = NAMES[name], dict[str, Any]()


class Node:
    """A node, with what its API server has, and what kubelet lists.

    Attributes:
        claims: results by uid; None: it is not allocated.
        listed: claims that pods have: name and device.
        names: of the pods that have them; "" where that does not count.
        asked: uids, in their order.
        configs: of all claims.
        more: members of all results.
        users: uids of the pods that have all claims, as the API server knows it.
        running: uids of pods of which a process is left.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kubelet_dir: Path) -> None:
        self.plugins = kubelet_dir / kubelet.PLUGINS
        self.plugins.mkdir()
        self.claims: dict[str, tuple[str, ...] | None] = {}
        self.listed: list[tuple[str, str]] = []
        self.names = [""]
        self.pods: list[str] = []
        self.held: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.configs: list[dict[str, Any]] = []
        self.users: list[str] = []
        self.more: dict[str, Any] = {}
        self.running: set[str] = set()
        self.now = 1000.0
        self.answers = True
        monkeypatch.setattr(podresources, "listed", self._listed)
        monkeypatch.setattr(cgroups, "running", lambda uids, *_: frozenset(self.running.intersection(uids)))
        for module in ("prepare", "upkeep"):
            monkeypatch.setattr(f"gpuplugin.dra.{module}.time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(system, "clock", lambda: self.now)
        self.offer: Any = Offer({name: Device(name) for name in NAMES}, KIND, snapshot=HOST)  # type: ignore[misc]
        self.watch = KubeletWatch(lambda: str(kubelet_dir))
        self.watch.snapshot, self.file = HOST, self.watch.file
        self.file.prepare()
        sharing = Sharing(self.file, lambda work: asyncio.ensure_future(work), lambda: HOST)
        on_demand = OnDemand(lambda: self.offer.snapshot, lambda: self.offer.devices)
        self.driver = Claims(self.watch, self, NODE, lambda: self.offer, sharing, on_demand)  # type: ignore[arg-type]

    @property
    def record(self) -> Record:
        return self.file.read_current()

    @property
    def recorded(self) -> list[str]:
        """The uids of claims."""
        return [*self.record["claims"]]

    def share(self, uid: str, group: MpsGroup) -> None:
        """Have a claim share this."""
        with self.file.locked() as record:
            assert record
            claim: record_form.Claim = {**record["claims"][uid], "sharing": [of_claims.describe(group)]}
            self.file.write({**record, "claims": {**record["claims"], uid: claim}})

    def checkpoint(self, given: Mapping[str, str]) -> None:
        """Write kubelet's checkpoint: pods' uids by id."""
        entries = [
            {"PodUID": uid, "ContainerName": "c", "ResourceName": KIND, "DeviceIDs": {"-1": [name]}, "AllocResp": ""}
            for name, uid in given.items()
        ]
        data = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
        (self.plugins / kubelet.CHECKPOINT).write_text(json.dumps(data))

    def kubelet(self) -> socket.socket:
        """Start one, in the place of the one before."""
        path = self.plugins / kubelet.KUBELET_SOCKET
        path.unlink(missing_ok=True)
        found = socket.socket(socket.AF_UNIX)
        found.bind(str(path))
        found.listen()
        return found

    async def _listed(self, _: str) -> Listed | None:
        rows = [
            Claim("d", name, OWN_DRIVER, NODE, device, (f"k8s.{OWN_DRIVER}/claim=u-{device}",), pod)
            for name, device in self.listed
            for pod in self.names
        ]
        return Listed(self.held, rows, self.pods) if self.answers else None

    async def claim(self, asked: Mapping[str, str]) -> dict[str, Any] | None:
        self.asked.append(asked["uid"])
        if asked["uid"] not in self.claims:
            return None
        names = self.claims[asked["uid"]]
        row = {"request": "r", "driver": OWN_DRIVER, "pool": NODE, **self.more}
        results = [{**row, "device": name} for name in names or ()]
        status: dict[str, Any] = (
            {"allocation": {"devices": {"results": results, "config": self.configs}}} if results else {}
        )
        status["reservedFor"] = [{"resource": "pods", "name": uid, "uid": uid} for uid in self.users]
        return {"metadata": {"uid": asked["uid"]}, "status": status}

    async def prepare(self, uid: str, name: str = "") -> Any:
        return (await self.driver.prepare([{"uid": uid, "namespace": "d", "name": name or uid}]))[uid]

    async def unprepare(self, uid: str) -> None:
        await self.driver.unprepare([{"uid": uid, "namespace": "d", "name": uid}])

    async def later(self, seconds: float) -> None:
        """Let time pass, in which it looks for what has ended."""
        end = self.now + seconds
        while self.now < end:
            self.now += moments.EACH
            await self.driver._upkeep.look()
            await self.driver._release()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    with tempfile.TemporaryDirectory(prefix="kd", dir="/tmp") as folder:  # short, for sockets
        found = Node(monkeypatch, Path(folder))
        with found.kubelet():
            yield found
