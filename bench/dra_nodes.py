#!/usr/bin/env python3
"""Measure what the DRA drivers of many nodes ask of one API server, and print it.

    tests/apart.py .venv/bin/python bench/dra_nodes.py [--nodes N] [--rest SECONDS] [--away SECONDS]

Needs root, tools/setup.sh and the archive of Kubernetes (tests/e2e/kube.py). The API server with its etcd and the
drivers' cluster halves are real, the halves 25 to a process; the nodes' halves are this process. Each node has 8 GPUs
in one slice. Requests are those of the API server's audit log; CPU is the API server's and etcd's. Phases:

    begin     all nodes' first slices are desired at once
    rest      nothing happens; a watch lasts 300 to 600 s, so less shows nothing
    write     all nodes' slices change at once
    break     the API server is killed, and started again at once: all watches end in the same moment
    away      the same, and it is away for some time
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP / name) for name in (".", "tests", "plugin", "shim", "hook", "vendor")]

from bench.audit import Audit  # noqa: E402
from bench.many import ENVIRONMENT, Load, halves, measure, until  # noqa: E402

from e2e.apiserver import Api  # noqa: E402
from gpuplugin.cluster import in_cluster, parts  # noqa: E402
from gpuplugin.dra import offered  # noqa: E402
from unit.gpuplugin.snapshots import gpu, snapshot  # noqa: E402

RULES: list[dict[str, Any]] = [
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "update", "delete"],
    },
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
]


def main() -> None:
    """Measure and print."""
    measure(__doc__, 600, RULES, be, Simulation)


def be(folder: str, *names: str) -> None:
    """Be the cluster halves of some nodes until a signal comes."""
    works = [
        part
        for name in names
        for part in in_cluster.half({**ENVIRONMENT, "NODE_NAME": name}, "", "", f"{folder}/{name}", folder)
    ]
    parts.run(works)


@dataclass
class Node:
    """A node's half.

    Attributes:
        told: time.time() when slices were desired last.
        published: when the other half said that they are there; 0.0 while it did not.
        problem: what it said last.
    """

    name: str
    told: float = 0.0
    published: float = 0.0
    problem: str = ""
    _line: bytes = b'{"pool": null}\n'
    _writer: asyncio.StreamWriter | None = None
    _server: Any = field(default=None, repr=False)

    @property
    def there(self) -> bool:
        """Whether the cluster half is connected."""
        return self._writer is not None

    async def listen(self, folder: Path) -> None:
        """Make its socket."""
        self._server = await asyncio.start_unix_server(self._met, f"{folder}/{self.name}")

    def want(self, slices: list[list[dict[str, Any]]]) -> None:
        """Have slices published."""
        assert self._writer
        self._line = json.dumps({"pool": {"slices": slices}}).encode() + b"\n"
        self.told, self.published = time.time(), 0.0
        self._writer.write(self._line)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(self._line)
        while line := await reader.readline():
            said = json.loads(line).get("published", {})
            self.problem = said.get("problem", "")
            if not self.problem and said.get("generation"):
                self.published = self.published or time.time()


def devices(taint: str) -> list[list[dict[str, Any]]]:
    """Return a node's slices, of 8 GPUs with a taint."""
    found = offered.devices(snapshot([gpu(n) for n in range(8)], driver={"version": "580.65.06", "cuda": "13.0"}))
    row = {"key": "gpu.nvidia.com/xid", "value": taint, "effect": "None"}
    return offered.slices(found, {one.name: [row] for one in found} if taint else {})


class Simulation:
    """The nodes, and what they cost.

    Args:
        server: the API server.
        audit: its log.
        folder: with the service account; gets the sockets.
        names: of the nodes.
    """

    def __init__(self, server: Api, audit: Audit, folder: Path, names: list[str]) -> None:
        self._server, self._folder = server, folder
        self._nodes = [Node(name) for name in names]
        self._load = Load(server, audit, len(names), "resourceslices")

    async def run(self, rest: float, away: float) -> None:
        """Go through the phases."""
        for node in self._nodes:
            await node.listen(self._folder)
        with halves(self._server, __file__, self._folder, [node.name for node in self._nodes]) as pids:
            await until(lambda: all(node.there for node in self._nodes), "all are connected")
            await self._written("begin", "")
            await asyncio.sleep(5)
            await self._load.rest(rest, pids)
            await self._written("write", "79")
            await self._load.broken("break", 0.0)
            await self._load.broken(f"away {away:.0f} s", away)

    async def _written(self, name: str, taint: str) -> None:
        """Have all nodes' slices written at once."""
        desired = devices(taint)
        self._load.begin()
        for node in self._nodes:
            node.want(desired)
        await until(self._are_written, f"all are written; { ({node.problem for node in self._nodes}) }")
        took = sorted(node.published - node.told for node in self._nodes)
        await asyncio.sleep(3)
        self._load.end(name)
        print(f"  {'':12}a node's slice: median {median(took):.2f} s, longest {took[-1]:.2f} s")

    def _are_written(self) -> bool:
        return all(node.published for node in self._nodes)


if __name__ == "__main__":
    main()
