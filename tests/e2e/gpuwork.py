"""Simulated GPUs at work, for a picture of the dashboard. Out of scope: what must be true of it (the tests)."""

from __future__ import annotations

import math
import time

from e2e.kube import Node
from fakehost import Host


def work(node: Node, host: Host, limits: dict[str, int], seconds: float = 200.0) -> None:
    """Let GPUs work, pods come and go, and one GPU get into trouble, as long as a picture shows.

    Args:
        node: that has the pods.
        host: with four GPUs, the third in MIG mode.
        limits: what a pod asks for.
        seconds: for which it goes on.
    """
    began, jobs, done = time.monotonic(), 0, 0
    while (since := time.monotonic() - began) < seconds:
        for gpu, phase in ((0, 0.0), (1, 1.3), (3, 2.6)):
            load = max(0.0, math.sin(since / 25 + phase)) * (0.9 - 0.15 * gpu) + 0.04
            noise = 0.5 + 0.5 * math.sin(7 * since + gpu)
            percent, power = int(100 * load), int(1000 * (62 + 300 * load + 9 * noise))
            host.figure(gpu, gpu_utilization=percent, memory_utilization=percent // 2, power=power)
            host.figure(gpu, temperature=int(36 + 36 * load + 2 * noise), processes=1 + int(4 * load))
            host.figure(gpu, memory_used=int((0.08 + 0.8 * load) * (40 << 30)))
        for place, mig in enumerate(host.gpus[2].mig):
            used = 0.5 + 0.4 * math.sin(since / (17 + 9 * place))
            host.figure(2, gi=mig.gi, memory_used=int(used * (5 << 30)), processes=1 - place)
        wave = math.sin(since / 30)
        host.figure(2, temperature=int(44 + 6 * wave), power=int(1e5 * (1.2 + 0.3 * wave)), memory_used=6 << 30)
        if since > 12 * jobs:
            jobs += 1
            node.create(f"job-{jobs % 2}", limits)
            node.remove(f"job-{(jobs + 1) % 2}")
        if done < 1 and since > 110:
            done = 1
            host.xid(3, 79)
        if done < 2 and since > 150:
            done = 2
            host.hang(3)
        time.sleep(1)
    host.hang(None)
