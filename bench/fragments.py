#!/usr/bin/env python3
"""Count claims that a GPU's MIG placements leave no place for, by the order in which partitions are published.

    .venv/bin/python bench/fragments.py [--gpus N]

1,000 claims of random profiles arrive and end on a node's GPUs of one model, at random times that
keep the GPUs about full. Each gets the first device in the slices' order whose counters are left, as the scheduler
has it, or is refused. Refused by fragmentation is one for which there are compute and memory slices enough on the
node, but not beside each other. The other order is that of NVIDIA's DRA driver (driver.go of
kubernetes-sigs/dra-driver-nvidia-gpu): by GPU, and by the devices' names, so of a profile the first placement first.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP / name) for name in (".", "tests", "plugin", "shim", "hook", "vendor")]

from gpuplugin.dra import offered, partitions  # noqa: E402
from gpuplugin.dra.offered import Offered  # noqa: E402
from gpushim.mig.fit import Profile  # noqa: E402
from unit.gpuplugin.snapshots import gpu, snapshot  # noqa: E402

ARRIVALS, SEEDS, LOAD = 1000, 10, 0.9  # LOAD: memory slices that are asked for at a time, of those that there are
# Profiles of NVIDIA's MIG user guide: compute slices, memory slices, and at which of these they may begin.
ANY, PAIRS, HALVES = range(7), (0, 2, 4), (0, 4)
SEVENTHS = {
    "1g.{0}gb": (1, 1, ANY),
    "1g.{0}gb+me": (1, 1, ANY),
    "1g.{1}gb": (1, 2, (*PAIRS, 6)),
    "2g.{1}gb": (2, 2, PAIRS),
    "3g.{2}gb": (3, 4, HALVES),
    "4g.{2}gb": (4, 4, (0,)),
    "7g.{3}gb": (7, 8, (0,)),
}
QUARTERS = {
    "1g.{0}gb": (1, 1, range(4)),
    "1g.{0}gb+me": (1, 1, range(4)),
    "2g.{1}gb": (2, 2, (0, 2)),
    "2g.{1}gb+me": (2, 2, (0, 2)),
    "4g.{2}gb": (4, 4, (0,)),
}
MODELS = {
    "A100-40": (SEVENTHS, (5, 10, 20, 40)),
    "A100-80": (SEVENTHS, (10, 20, 40, 80)),
    "A30": (QUARTERS, (6, 12, 24)),
    "H100-80": (SEVENTHS, (10, 20, 40, 80)),
    "H200": (SEVENTHS, (18, 35, 71, 141)),
    "B200": (SEVENTHS, (23, 45, 90, 180)),
}


class Refused(NamedTuple):
    """How many claims got nothing, and how many of them by fragmentation."""

    all: int
    fragmented: int


def main() -> None:
    """Simulate and print."""
    gpus = int(sys.argv[2]) if sys.argv[1:2] == ["--gpus"] else 8
    print(f"{ARRIVALS} claims on {gpus} GPUs: refused by fragmentation (refused at all), mean of {SEEDS}")
    print(f"{'':9}{'gpushim':>18}{'by name':>18}")
    for model in MODELS:
        devices = publish(model, gpus)
        rows = [refuse_mean(order) for order in (devices, by_name(devices))]
        print(f"{model:9}" + "".join(f"{fragmented:10.1f} ({total:.1f})" for total, fragmented in rows))


def profiles_of(model: str) -> list[Profile]:
    rows, sizes = MODELS[model]
    whole = max(length for _, length, _ in rows.values())
    media = {True: {"engines.ofa": 1}, False: {}}
    return [
        Profile(
            0,
            name.format(*sizes),
            slices,
            0,
            [(start, length) for start in starts],
            length * sizes[0] * 1024,
            media[name.endswith("+me") or length == whole],
        )
        for name, (slices, length, starts) in rows.items()
    ]


def publish(model: str, count: int) -> list[Offered]:
    """Return the devices of a node, as they are published."""
    wholes = offered.devices(snapshot([gpu(index) for index in range(count)]), resolve=str)
    return [device for whole in wholes for device in partitions.divide(whole, profiles_of(model))[0]]


def by_name(devices: list[Offered]) -> list[Offered]:
    """Return devices as NVIDIA's driver orders them: the names of both have GPU, profile and placement in turn."""
    return sorted(devices, key=lambda device: device.name)


def refuse_mean(devices: list[Offered]) -> tuple[float, float]:
    rows = [simulate(devices, seed) for seed in range(SEEDS)]
    return sum(row.all for row in rows) / SEEDS, sum(row.fragmented for row in rows) / SEEDS


def simulate(devices: list[Offered], seed: int) -> Refused:
    """Have claims arrive and end."""
    draw = random.Random(seed)
    by_profile: dict[str, list[Counter[str]]] = {}
    for device in devices:
        by_profile.setdefault(device.body["attributes"]["profile"]["string"], []).append(consumed(device))
    free = Counter[str]()
    for device in devices:
        free |= consumed(device)  # the profile of all slices has all of its GPU
    names, clock, ends = sorted(by_profile), 0.0, list[tuple[float, Counter[str]]]()
    size = sum(count_slices(by_profile[name][0], "memory") for name in names) / len(names)
    lifetime, refused = LOAD * count_slices(free, "memory") / size, Counter[str]()
    for _ in range(ARRIVALS):
        clock += draw.expovariate(1)
        choices, life = by_profile[draw.choice(names)], draw.expovariate(1 / lifetime)
        for _, counters in (over := [row for row in ends if row[0] <= clock]):
            free.update(counters)
        ends = [row for row in ends if row not in over]
        choice = next(
            (counters for counters in choices if all(free[name] >= counters[name] for name in counters)), None
        )
        if choice:
            free.subtract(choice)
            ends.append((clock + life, choice))
            continue
        refused["all"] += 1
        refused["fragmented"] += all(
            count_slices(free, kind) >= count_slices(choices[0], kind) for kind in ("memory", "compute", "ofa")
        )
    return Refused(refused["all"], refused["fragmented"])


def consumed(device: Offered) -> Counter[str]:
    """Return what a device consumes, by GPU and counter."""
    return Counter(
        {
            f"{row['counterSet']} {name}": int(counter["value"])
            for row in device.body["consumesCounters"]
            for name, counter in row["counters"].items()
        }
    )


def count_slices(counters: Counter[str], kind: str) -> int:
    """Return the sum of a kind of counters: memory and compute slices, or ofa."""
    return sum(number for name, number in counters.items() if name.partition(" ")[2].startswith(kind))


if __name__ == "__main__":
    main()
