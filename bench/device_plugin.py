#!/usr/bin/env python3
"""Measure what the device plugin costs a node, and print it.

    bench/device_plugin.py [--python PROGRAM ...] [--rounds N] [--rest SECONDS]

Needs root and tools/setup.sh; runs under a Python that has grpcio, as .venv's. The plugin itself runs under each
PROGRAM (by default /usr/bin/python3 and .venv's) on simulated hosts, whose snapshot is valid, against the tests'
kubelet in this process. Each time is the least of all rounds: other work on the machine adds to the rest; the median
of Allocate stands beside it. Rows:

    registered      from posix_spawn to the kubelet's having the list
    CPU at rest     of all threads (schedstat), of the children that watch, of those that have ended; in a second row
                    where a GPU is not in /sys, so that a refresh comes every 30 s, and of what does it in a third
                    and both again with both fronts, whose driver no kubelet registers
    memory          resident, and what of it is this process' alone (Private_* of smaps_rollup); no child runs then
    Allocate        for 10 of 560 devices (8 GPUs, 7 MIG instances each, 10 replicas), written to a record on the disk
                    of $TMPDIR: in process, through gRPC
    health          one GPU's change, for 8 GPUs with 336 replicas each: until the list is ready to be sent
    preferred       for 8 of 16 GPUs: the table of all sets, the slowest size of an answer, through gRPC
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Awaitable, Callable, Iterator

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP / name) for name in (".", "tests", "plugin", "shim", "vendor")]

from bench import scenes  # noqa: E402
from bench.processes import memory, scheduled  # noqa: E402

from gpuplugin.allocation import offer  # noqa: E402
from gpuplugin.allocation.allocation import ANNOTATIONS, CRI, MOUNTS, Delivery  # noqa: E402
from gpuplugin.allocation.registry import Registry  # noqa: E402
from gpuplugin.devices import changes, preferred  # noqa: E402
from gpuplugin.kubelet.v1beta1 import write_list  # noqa: E402
from gpuplugin.record import divisions  # noqa: E402
from gpuplugin.record.kubelet_watch import KubeletWatch  # noqa: E402
from gpuplugin.record.record_form import fresh  # noqa: E402
from gpuplugin.settings import resources, settings  # noqa: E402
from gpushim.ground import system  # noqa: E402
from unit.gpuplugin.kubelet.fake import Kubelet, until  # noqa: E402
from unit.gpuplugin.snapshots import gpu, mig, snapshot  # noqa: E402

Measure = Callable[[Kubelet, int], Awaitable[dict[str, str]]]

START = f"""
import sys
sys.path[:0] = ["{TOP}/shim", "{TOP}/plugin", "{TOP}/vendor"]
from gpuplugin.cli import main
main()
"""
PYTHONS = ["/usr/bin/python3", str(TOP / ".venv/bin/python")]
GPU = "nvidia.com/gpu"
SHARING = {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": 10}]}}}
SETTLED = 32.0  # seconds after which nothing of the start is left: kubelet is asked more and more rarely
PASSING = 60.0  # seconds, with two refreshes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PROGRAM", help="a Python with grpcio, again for more")
    parser.add_argument("--rounds", type=int, default=10, help="starts, and calls in hundreds (default 10)")
    parser.add_argument("--rest", type=float, default=20, metavar="SECONDS", help="how long it rests (default 20)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        with tempfile.TemporaryDirectory(prefix="gpushim-bench-") as state:
            os.environ["GPUSHIM_STATE"] = state
            logging.disable()
            print(json.dumps(inside(options.rounds)))
        return
    for python in options.python or PYTHONS:
        asked = [python, "-c", "import grpc, platform; print(platform.python_version(), grpc.__version__)"]
        versions = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
        print("\nPython {}, grpcio {} ({})".format(*versions, python))
        words = [python, "-B", __file__, "--inside", "--rounds", str(options.rounds)]
        rows = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        with tempfile.TemporaryDirectory(prefix="gpushim-bench-") as work:
            rows.update(asyncio.run(outside(Path(work), python, options.rounds, options.rest)))
        for name, value in rows.items():
            print(f"  {name:<44} {value}")


def times(rounds: int, work: Callable[[], object]) -> list[float]:
    """Return the milliseconds of several runs."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return found


def least(rounds: int, work: Callable[[], object]) -> float:
    """Return the milliseconds of the shortest of several runs."""
    return min(times(rounds, work))


def both(found: list[float]) -> str:
    """Return the least of some milliseconds, and their median."""
    return f"{min(found):.2f} ms; median {statistics.median(found):.2f} ms"


def resource(devices: list[resources.Device], registry: Registry | None = None) -> offer.Resource:
    """Return a resource with these devices, told by three strategies at once; a record is begun for them."""
    delivery = Delivery(strategies=[MOUNTS, CRI, ANNOTATIONS])
    found = offer.Resource(GPU, settings.resolve({}, {}, {}, ""), delivery, *([registry.grant] if registry else []))
    found.have(devices, {})
    return found


def begun(host: Any, devices: list[resources.Device]) -> Registry:
    """Return a registry with a record in which these devices can be given out."""
    registry, desired, units = Registry(lambda work: work, KubeletWatch(str)), {GPU: devices}, resources.units(host)
    file, record = registry.watch.file, fresh(system.boot() or "")
    record["kubelet"] = [registry.watch.identify(), 0.0]
    file.prepare()
    with file.locked():
        file.write(divisions.divide(record, desired, {}, changes.settled({}, desired, {}, units), units, 1))
    return registry


def inside(rounds: int) -> dict[str, str]:
    """Measure what needs no process of its own."""
    host = snapshot([gpu(n, mig=True) for n in range(8)], [mig(n, i) for n in range(8) for i in range(7)])
    divided = resources.replicated(resources.find(host, "single", [], [])[GPU], 10)
    parts = resource(divided, begun(host, divided))
    ten = {"devices_ids": [*parts.devices][::56]}
    some = {"available_deviceIDs": [*parts.devices], "must_include_deviceIDs": [], "allocation_size": 10}
    whole = resources.find(snapshot([gpu(n) for n in range(16)]), "none", [], [])[GPU]
    draw = random.Random(1)
    steps = [*preferred.BUS.values(), preferred.NVLINK]
    weights = {(one, other): draw.choice(steps) for one in range(16) for other in range(16)}
    names = [device.id for device in whole]

    def table() -> None:
        preferred._list_sets.cache_clear()
        preferred.nearest(whole, weights)

    choose = preferred.nearest(whole, weights)
    # A few more free ones than are asked for: few sets of all are left.
    wishes = [(draw.sample(names, size + 1), size) for size in range(1, 16) for _ in range(50)]
    slowest = max(least(3, partial(choose, free, [], size)) for free, size in wishes)
    replicas = resource(resources.replicated(whole[:8], 336))
    turns = itertools.cycle([{whole[0].uuid: "sick"}, {}])

    def mark_unhealthy() -> None:
        replicas.mark_unhealthy(next(turns))
        write_list(replicas.name, replicas.listed.values())

    return {
        "Allocate of 560, in process": both(times(rounds * 100, lambda: parts.allocate(ten))),
        f"health of a GPU, {len(replicas.devices)} devices": f"{least(rounds * 10, mark_unhealthy):.2f} ms",
        "preferred, 10 of 560, in memory": f"{least(rounds * 10, lambda: parts.prefer(some)):.3f} ms",
        "preferred, 16 GPUs: table": f"{least(rounds, table):.1f} ms",
        "preferred, 16 GPUs: slowest answer": f"{slowest:.3f} ms",
    }


async def outside(work: Path, python: str, rounds: int, rest: float) -> dict[str, str]:
    """Measure the process."""
    host = scenes.settings(work, "eight", 8, scenes.RUNC)
    await serving(work, python, host, [], nothing)  # which writes bytecode, as a package's installation does
    starts = [(await serving(work, python, host, [], nothing))["time"] for _ in range(rounds)]
    rows = {"registered": f"{min(starts):.0f} ms"}
    rows.update(await serving(work, python, host, [], lambda _, pid: resting(pid, rest)))
    fronts = ["--fronts=device-plugin,dra", f"--socket={work}/socket"]
    both_rows = await serving(work, python, host, fronts, lambda _, pid: resting(pid, rest))
    rows.update({f"{name}, both fronts": text for name, text in both_rows.items() if name != "time"})
    host = scenes.settings(work, "unbound", 8, scenes.RUNC, bound=7)
    with kept(host) as keeping:
        rows.update(await serving(work, python, host, [], lambda _, pid: refreshing(pid, keeping)))
    (work / "sharing.json").write_text(json.dumps(SHARING))
    words = ["--mig-strategy=single", "--device-list-strategy=volume-mounts", f"--config-file={work}/sharing.json"]
    host = scenes.settings(work, "divided", 8, scenes.RUNC, mig=True)
    rows.update(await serving(work, python, host, words, lambda kubelet, pid: allocating(kubelet, pid, rounds)))
    host = scenes.settings(work, "sixteen", 16, scenes.RUNC)
    rows.update(await serving(work, python, host, [], lambda kubelet, pid: preferring(kubelet, pid, rounds)))
    return {name: text for name, text in rows.items() if name != "time"}


async def serving(work: Path, python: str, env: dict[str, str], words: list[str], measure: Measure) -> dict[str, Any]:
    """Run the plugin while something is measured, and return that, and after how many milliseconds it was known."""
    kubelet = Kubelet(work / "kubelet" / "device-plugins")
    kubelet.folder.mkdir(parents=True, exist_ok=True)
    await kubelet.start()
    command = [python, "-I", "-c", START, f"--kubelet-dir={work}/kubelet", *words]
    began = time.perf_counter()
    plugin = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        await until(lambda: kubelet.lists.get(GPU) or plugin.poll() is not None, 60)
        took = (time.perf_counter() - began) * 1000
        assert plugin.poll() is None, f"it has ended: {command}"
        return {**await measure(kubelet, plugin.pid), "time": took}
    finally:
        plugin.terminate()
        plugin.wait()
        await kubelet.stop()


async def nothing(kubelet: Kubelet, pid: int) -> dict[str, str]:
    """Measure the start alone."""
    return {}


async def resting(pid: int, seconds: float) -> dict[str, str]:
    """Measure what it does when nothing happens."""
    return {f"CPU at rest, in {seconds:.0f} s": await spent(pid, seconds), "memory, 8 GPUs, at rest": memory(pid)}


@contextlib.contextmanager
def kept(env: dict[str, str]) -> Iterator[int]:
    """Run what keeps the snapshot true, as packages do; returns its pid."""
    command = [sys.executable, str(TOP / "bin/gpushim"), "refresh", "--keep"]
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


async def refreshing(pid: int, keeping: int) -> dict[str, str]:
    """Measure the same where the snapshot is renewed again and again, and what renews it."""
    name = "the same, a refresh every 30 s"
    texts = await asyncio.gather(spent(pid, PASSING), spent(keeping, PASSING))
    return dict(zip((name, "gpushim refresh --keep meanwhile"), texts))


async def spent(pid: int, seconds: float) -> str:
    """Return how much CPU a process and its children take in 20 s."""
    await asyncio.sleep(SETTLED)
    before = cpu(pid)
    await asyncio.sleep(seconds)
    own, watching, ended = ((after - then) * 20_000 / seconds for after, then in zip(cpu(pid), before))
    return f"{own:.1f} ms; children that watch {watching:.1f} ms, that have ended {ended:.0f} ms; in 20 s"


async def allocating(kubelet: Kubelet, pid: int, rounds: int) -> dict[str, str]:
    """Measure Allocate for devices of many."""
    ids = [*kubelet.lists[GPU]]
    spent = await taken(rounds * 100, lambda: kubelet.allocate(GPU, *ids[::56]))
    return {f"Allocate of {len(ids)}, through gRPC": both(spent), "memory after that, 560 devices": memory(pid)}


async def preferring(kubelet: Kubelet, pid: int, rounds: int) -> dict[str, str]:
    """Measure GetPreferredAllocation with many whole GPUs."""
    ids = [*kubelet.lists[GPU]]
    request = {"container_requests": [{"available_deviceIDs": ids, "allocation_size": 8}]}
    names = ("PreferredAllocationRequest", "PreferredAllocationResponse")
    client = kubelet.clients[GPU]
    spent = await taken(rounds * 100, lambda: client.call("GetPreferredAllocation", request, names))
    shortest = f"{min(spent):.2f} ms"
    return {f"preferred, {len(ids)} GPUs, through gRPC": shortest, "memory after that, 16 GPUs": memory(pid)}


async def taken(rounds: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    """Return the milliseconds of several calls."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1000)
    return found


def cpu(pid: int) -> tuple[float, float, float]:
    """Return the seconds of CPU of a process's threads, of its children that watch, and of those that have ended."""
    words = [(thread / "children").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    watching = [one for row in words for one in row.split() if "gpushim-" in Path(f"/proc/{one}/comm").read_text()]
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
    return scheduled(pid), sum(map(scheduled, watching)), sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
