"""Metrics of a daemon beside a kubelet, as a scraper gets them."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from gpuplugin.kubelet import podresources
from gpuplugin.metrics import container_memory, exporter, exposition, meter
from gpuplugin.metrics.container_memory import Holding
from gpuplugin.metrics.httpd import Answer
from gpuplugin.processes import instances
from gpuplugin.snapshot import node_requests, release
from gpushim.containers.memory_use import Use
from gpushim.decision import memory
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.metrics.http_client import ask, get
from unit.gpuplugin.running_daemon import GPU, FakeChild, Host, health, host, running, top
from unit.gpuplugin.snapshots import uuid

__all__ = ["host", "top"]
OWN = "gpushim_device_plugin_"
WELL = health(uuid(0), uuid(1))


class Silent(FakeChild):
    """A child that does not answer."""

    def __init__(self, *words: Any, fed: bool) -> None:
        super().__init__(*words[:6])

    def say(self, line: object) -> bool:
        return False


@pytest.fixture(autouse=True)
def again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "Child", Silent)
    monkeypatch.setattr(exporter, "PATIENCE", 0.05)


def values(body: bytes, reader: Any = parse) -> dict[tuple[str, ...], float]:
    """Take a scrape apart: values by name and labels' values, in the order of the labels' names."""
    text = body.decode().partition("\r\n\r\n")[2]
    samples = [one for family in reader(text) for one in family.samples]
    found = {(one.name, *(value for _, value in sorted(one.labels.items()))): one.value for one in samples}
    assert len(found) == len(samples)
    return found


def at(top: Path) -> dict[str, str]:
    return {"metrics": f"unix:{top}/m"}


async def scraped(top: Path, *rows: str) -> dict[tuple[str, ...], float]:
    return values(await ask(f"{top}/m", get("/metrics", *rows)))


async def ready(top: Path) -> None:
    """Wait until it says that it is."""
    while b"200 OK" not in await ask(f"{top}/m", get("/readyz")):
        await asyncio.sleep(0.01)


def test_what_the_plugin_does(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PACE", 0.0)

    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            await kubelet.allocate(GPU, uuid(0))
            with pytest.raises(grpc.aio.AioRpcError):
                await kubelet.allocate(GPU, "GPU-none")
            found = await scraped(top)
            assert found[f"{OWN}devices", "healthy", "", GPU] == 2
            assert found[f"{OWN}registrations_total", GPU] == found[f"{OWN}registered", GPU] == 1
            assert found[f"{OWN}allocation_seconds_count", GPU] == 2
            assert found[f"{OWN}allocation_seconds_bucket", "+Inf", GPU] == 2
            assert found[f"{OWN}allocation_errors_total", GPU] == 1
            assert found[f"{OWN}messages_total", "error"] == 1
            assert found[f"{OWN}pod_resources_up",] == 1
            FakeChild.all["events"].heard({"xid": 79, "gpu": uuid(1), "gi": None, "ci": None})
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), sick=(uuid(1),)))
            found = await scraped(top)
            assert found[f"{OWN}devices", "healthy", "", GPU] == found[f"{OWN}devices", "unhealthy", "xid", GPU] == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("file", "row", "status"),
    [
        ("secret\n", "Authorization: Bearer secret", 200),
        ("secret", "authorization: bearer  secret ", 200),
        ("secret", "Authorization: Bearer secre", 401),
        ("secret", "Authorization: Basic secret", 401),
        ("secret", "X: y", 401),
        ("", "Authorization: Bearer ", 503),
        ("two words", "Authorization: Bearer two words", 503),
        ("x" * 4097, f"Authorization: Bearer {'x' * 4097}", 503),
        (None, "Authorization: Bearer secret", 503),
    ],
)
def test_metrics_are_read_with_the_token_alone(
    top: Path, host: Host, file: str | None, row: str, status: int
) -> None:
    token = top / "token"
    if file is not None:
        token.write_text(file)

    async def run() -> None:
        async with running(top, **at(top), **{"metrics-token-file": str(token)}) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            await ready(top)  # kubelet's probes have none
            assert (await ask(f"{top}/m", get("/metrics", row))).startswith(f"HTTP/1.1 {status} ".encode())
            token.write_text("another")  # as kubelet does when the Secret changes
            body = await ask(f"{top}/m", get("/metrics", "Authorization: Bearer another"))
            assert body.startswith(b"HTTP/1.1 200 ")

    asyncio.run(run())


def test_a_snapshot_that_nobody_keeps_true_is_said(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PACE", 0.0)
    monkeypatch.setattr(node_requests, "ANSWER", 0.1)

    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            assert (await scraped(top))[f"{OWN}snapshot_up",] == 1
            host.has(None)
            while (await scraped(top))[f"{OWN}snapshot_up",]:
                await asyncio.sleep(0.05)

    asyncio.run(run())


def test_who_accepts_openmetrics_gets_it(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            body = await ask(
                f"{top}/m", get("/metrics", "Accept: text/html, application/openmetrics-text;version=1.0.0")
            )
            assert b"Content-Type: application/openmetrics-text" in body
            assert values(body, parse_open)[f"{OWN}registrations_total", GPU] == 1

    asyncio.run(run())


def test_healthz_and_readyz(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            kubelet.refuses = "not now"
            await until((top / "m").exists)
            assert b"200 OK" in await ask(f"{top}/m", get("/healthz"))
            assert b"503 " in await ask(f"{top}/m", get("/readyz"))
            await asyncio.sleep(0)
            kubelet.refuses = ""
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            await asyncio.wait_for(ready(top), 8)
            assert b"404 " in await ask(f"{top}/m", get("/"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kinds", "held", "status", "said"),
    [
        ([[], []], False, 200, "ok"),
        ([["unwatched"], []], False, 200, "1 of 2 GPUs are unhealthy"),
        ([["ecc"], ["unwatched"]], False, 200, "2 of 2 GPUs are unhealthy"),
        ([["unwatched"], ["xid", "unwatched"]], False, 503, "no GPU is watched, so all are unhealthy: why"),
        ([["unwatched"], ["unwatched"]], True, 200, "2 of 2"),
        ([], False, 200, "ok"),
    ],
)
def test_ready_unless_no_gpu_is_watched(kinds: list[list[str]], held: bool, status: int, said: str) -> None:
    rows = {f"GPU-{number}": [SimpleNamespace(kind=kind, text="why") for kind in row]
            for number, row in enumerate(kinds)}  # fmt: skip
    about: Any = lambda: (None, {"gpus": [{"uuid": uuid} for uuid in rows]}, rows, True)  # noqa: E731
    registry: Any = SimpleNamespace(unready=str)
    nothing: Any = None

    async def asked() -> Answer:
        return await exporter.Exporter([registry], nothing, nothing, lambda: held, about)._answer("/readyz", "", "")

    found = asyncio.run(asked())
    assert (found.status, said in found.body.decode()) == (status, True)


@pytest.mark.parametrize("address", ["", "unix:"])
def test_others_on_the_node_know_whether_it_serves_metrics(top: Path, host: Host, address: str) -> None:
    async def run() -> None:
        async with running(top, metrics=address and at(top)["metrics"]) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            if address:
                await until(lambda: instances.anyone(release.folder(), instances.METRICS))
            assert instances.anyone(release.folder(), instances.METRICS) == bool(address)
        assert not instances.anyone(release.folder(), instances.METRICS)

    asyncio.run(run())


def test_ready_while_another_instance_serves(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            path = top / "device-plugins" / "gpushim-gpu.sock"
            path.unlink()
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(str(path))
                other.listen()
                kubelet.refuses = "not you"
                await asyncio.wait_for(ready(top), 8)
            path.unlink()

    asyncio.run(run())


def test_what_cannot_be_told_is_said_and_ends_nothing(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporter, "PACE", 0.0)

    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            with monkeypatch.context() as without:
                without.setitem(sys.modules, "prometheus_client.exposition", None)
                for _ in range(2):
                    body = await ask(f"{top}/m", get("/metrics"))
                    assert body.startswith(b"HTTP/1.1 503 ")
                    assert b"install python3-prometheus-client" in body
            assert sum("prometheus-client" in one for one in caplog.messages) == 1
            assert (await scraped(top))[f"{OWN}registered", GPU] == 1

    asyncio.run(run())


def test_a_kubelet_that_does_not_answer_delays_no_scrape(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> None:
        await asyncio.sleep(60)

    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            monkeypatch.setattr(podresources, "listed", silent)
            found = await asyncio.wait_for(scraped(top), 2)
            assert found[f"{OWN}pod_resources_up",] == 0
            assert found[f"{OWN}registered", GPU] == 1

    asyncio.run(run())


def test_what_containers_use_is_told_as_soon_as_it_is_known(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Holding(uuid(0), "ns", "a", "main")
    monkeypatch.setattr(exporter, "PACE", 0.0)
    monkeypatch.setattr(exposition, "holdings", lambda state: [one])
    monkeypatch.setattr(memory, "missing", lambda snapshot: "")
    monkeypatch.setattr(container_memory, "_look", lambda *words: ({row: Use(5, 9) for row in words[3]}, ""))

    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            found: dict[tuple[str, ...], float] = {}
            while not found:
                lines = (await scraped(top)).items()
                found = {name: value for name, value in lines if name[0].startswith("gpushim_gpu_container_memory")}
            assert [(name[0][29:], "main" in name, value) for name, value in found.items()] == [
                ("used_bytes", True, 5),
                ("limit_bytes", True, 9),
            ]

    asyncio.run(run())


def test_many_scrapes_cost_one(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def listed(*words: object) -> podresources.Listed:
        asked.append(words)
        return podresources.Listed([], [])

    async def run() -> None:
        async with running(top, **at(top)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            monkeypatch.setattr(exporter, "podresources", SimpleNamespace(listed=listed))
            monkeypatch.setattr(exporter, "PACE", 60.0)
            for _ in range(20):
                await asyncio.gather(*(scraped(top) for _ in range(5)))
            assert len(asked) == 1

    asyncio.run(run())
