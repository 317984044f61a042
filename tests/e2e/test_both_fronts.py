"""One process with both fronts, on a node whose kubelet and API server are the test's.

Out of scope: a cluster's (test_dra_walk.py, test_chart_dra.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.dranode import Driver, env, folder, host, port, refresh
from e2e.prometheus import get
from e2e.trees import TOP
from fakehost import Host
from gpushim.refresh import plugin_socket
from unit.gpuplugin.kubelet.fake import Kubelet, until

__all__ = ["env", "folder", "host", "port"]
GPU = "nvidia.com/gpu"


@asynccontextmanager
async def running(folder: Path, env: dict[str, str], *flags: str) -> AsyncIterator[tuple[Driver, Kubelet]]:
    """Run the process beside a kubelet that has both fronts."""
    (folder / "device-plugins").mkdir()
    kubelet = Kubelet(folder / "device-plugins")
    await kubelet.start()
    one = Driver(folder, env, program=TOP / "bin/gpushim-device-plugin")
    try:
        await asyncio.to_thread(one.start, "--fronts=device-plugin,dra", *flags)
        await asyncio.to_thread(one.register)
        await until(lambda: "Healthy" in kubelet.lists.get(GPU, {}).values() and one.devices())
        yield one, kubelet
    finally:
        assert await asyncio.to_thread(one.stop) == 0
        await kubelet.stop()


def ask(env: dict[str, str], word: str) -> dict[str, Any]:
    """Ask the process as root."""
    question = json.dumps({"do": word}).encode() + b"\n"
    answer: dict[str, Any] = json.loads(plugin_socket.exchange(env["GPUSHIM_STATE"], question, 30))
    return answer


def free(one: Driver, kubelet: Kubelet) -> str:
    """Return the UUID of a GPU that both offer."""
    return next(uuid for uuid, health in kubelet.lists[GPU].items() if health == "Healthy" and uuid in one.devices())


def test_what_one_gives_the_other_does_not(env: dict[str, str], folder: Path, host: Host) -> None:
    async def story() -> None:
        async with running(folder, env) as (one, kubelet):
            claimed = free(one, kubelet)
            one.allocate("u", one.devices()[claimed]["name"])
            (device,) = (await asyncio.to_thread(one.prepare, "u"))["u"]
            assert device["cdi_device_ids"] == [f"nvidia.com/gpu={claimed}"]
            await until(lambda: kubelet.lists[GPU][claimed] == "Unhealthy")
            given = free(one, kubelet)
            await kubelet.allocate(GPU, given)
            await until(lambda: one.taints().get(given) == {"device-plugin": "allocated"})
            one.allocate("v", one.devices()[given]["name"])
            assert given in (await asyncio.to_thread(one.prepare, "v"))["v"]

    asyncio.run(story())


def test_they_share_metrics_children_and_the_socket(env: dict[str, str], folder: Path, host: Host, port: int) -> None:
    async def story() -> None:
        async with running(folder, env, f"--metrics=127.0.0.1:{port}") as (one, _):
            answer = await asyncio.to_thread(ask, env, "status")
            assert answer["fronts"] == ["device-plugin", "dra"]
            assert answer["resources"][0]["registered"]
            assert answer["dra"]["registered"]
            text = (await asyncio.to_thread(get, port, "/metrics"))[1]
            for name in ("gpushim_device_plugin_devices", "gpushim_dra_driver_devices"):
                assert re.search(f"^{name}{{", text, re.MULTILINE)
            figures = re.findall(r"^gpushim_gpu_figures_up\{.*UUID=\"([^\"]+)\"", text, re.MULTILINE)
            assert sorted(figures) == sorted({*figures})
            assert one.process
            children = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
            modes = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
            assert len(modes) == len({*modes})

    asyncio.run(story())


def test_both_let_go_and_take(env: dict[str, str], folder: Path, host: Host) -> None:
    async def story() -> None:
        async with running(folder, env) as (one, kubelet):
            assert (await asyncio.to_thread(ask, env, "release"))["closed"]
            await until(lambda: {*kubelet.lists[GPU].values()} == {"Unhealthy"} and not one.devices())
            await asyncio.to_thread(ask, env, "take")
            await asyncio.to_thread(refresh, env)  # the driver may be another since
            await until(lambda: one.devices() and "Healthy" in kubelet.lists[GPU].values(), 30)

    asyncio.run(story())


@pytest.mark.parametrize("fronts", ['["device-plugin"]', '["dra"]'])
def test_another_choice_of_fronts_ends_it(env: dict[str, str], folder: Path, host: Host, fronts: str) -> None:
    """Whoever starts it starts it again."""
    config = Path(env["GPUSHIM_CONFIG"])
    before = config.read_text()
    config.write_text(f'{before}\n[device-plugin]\nfronts = ["device-plugin", "dra"]\n')
    one = Driver(folder, env, program=TOP / "bin/gpushim-device-plugin")
    one.start()
    config.write_text(f"{before}\n[device-plugin]\nfronts = {fronts}\n")
    assert one.process
    assert one.process.wait(30) == 0
    assert not [name for name in os.listdir(folder / "plugins_registry") if name.startswith("gpushim")]
