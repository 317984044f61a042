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
    write     once more after that

The last lines are for 5000 nodes: what is per node, times 5000.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Iterator

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP / name) for name in (".", "tests", "plugin", "shim", "hook", "vendor")]

from bench.audit import Audit, Request, kinds, peak  # noqa: E402
from bench.processes import scheduled, session  # noqa: E402

import scratch  # noqa: E402
from e2e import controlplane  # noqa: E402
from e2e.apiserver import Api, api  # noqa: E402
from gpuplugin.cluster import dra_in_cluster, parts  # noqa: E402
from gpuplugin.dra import offered  # noqa: E402
from unit.gpuplugin.snapshots import gpu, snapshot  # noqa: E402

PLACE, ACCOUNT = "dra", "driver"
USER = f"system:serviceaccount:{PLACE}:{ACCOUNT}"
TOGETHER = 25  # halves of a process
MANY = 5000
DEADLINE = 120.0  # seconds for anything
FETCHED = "apiserver_storage_list_fetched_objects_total"
QUIET = 40.0  # seconds after a break in which nodes may still come: the longest pause, and a bit
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--rest", type=float, default=600, metavar="SECONDS", help="how long it rests (default 600)")
    parser.add_argument("--away", type=float, default=30, metavar="SECONDS", help="API server away (default 30)")
    parser.add_argument("--halves", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.halves:
        halves(*options.halves)
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch.top()) as folder:
        os.chmod(folder, 0o755)
        audit = Audit(Path(folder), USER)
        with api(audit.flags) as server:
            names = [f"node-{number}" for number in range(options.nodes)]
            account(server, Path(folder), names)
            asyncio.run(Simulation(server, audit, Path(folder), names).run(options.rest, options.away))


def halves(folder: str, *names: str) -> None:
    """Be the cluster halves of some nodes until a signal comes."""
    environment = {"KUBERNETES_SERVICE_HOST": controlplane.API, "KUBERNETES_SERVICE_PORT": "443"}
    works = [
        part
        for name in names
        for part in dra_in_cluster.half({**environment, "NODE_NAME": name}, f"{folder}/{name}", folder)
    ]
    parts.run(works)


def account(server: Api, folder: Path, names: list[str]) -> None:
    """Make the nodes and a service account with the driver's rights, and what kubelet mounts of it."""
    role = {"kind": "ClusterRole", "name": ACCOUNT, "apiGroup": "rbac.authorization.k8s.io"}
    rbac = "rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": PLACE}
    metadata = {"name": ACCOUNT}
    objects: list[dict[str, Any]] = [
        *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**metadata, "namespace": PLACE}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": metadata, "rules": RULES},
        {
            "apiVersion": rbac,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
    ]
    done = server.kubectl("create", "--filename=-", objects=objects)
    assert not done.returncode, done.stderr
    token = server.kubectl("create", "token", ACCOUNT, f"--namespace={PLACE}").stdout
    for file, text in (("token", token), ("namespace", PLACE)):
        (folder / file).write_text(text)
    (folder / "ca.crt").write_bytes((server.work / "pki/apiserver.crt").read_bytes())


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
        self._server, self._audit, self._folder = server, audit, folder
        self._nodes = [Node(name) for name in names]

    async def run(self, rest: float, away: float) -> None:
        """Go through the phases."""
        for node in self._nodes:
            await node.listen(self._folder)
        with self._halves() as pids:
            await self._until(lambda: all(node.there for node in self._nodes), "all are connected")
            found = {"begin": await self._written("begin", "")}
            await asyncio.sleep(5)
            found["rest"] = await self._rested(rest, pids)
            found["write"] = await self._written("write", "79")
            found["break"] = await self._broken("break", 0.0)
            found["away"] = await self._broken(f"away for {away:.0f} s", away)
            await self._written("write", "48")
        self._derive(found, rest)

    @contextlib.contextmanager
    def _halves(self) -> Iterator[list[int]]:
        names, running = [node.name for node in self._nodes], []
        for at in range(0, len(names), TOGETHER):
            words = ["nsenter", f"--net={self._server.network}", sys.executable, "-B", __file__, "--halves"]
            with (self._folder / "log").open("ab") as log:
                words += [str(self._folder), *names[at : at + TOGETHER]]
                running.append(subprocess.Popen(words, stderr=log))
        try:
            yield [one.pid for one in running]
        finally:
            for one in running:
                one.send_signal(signal.SIGTERM)
                one.wait(10)

    async def _until(self, condition: Any, what: str) -> None:
        began = time.monotonic()
        while not condition():
            problems = {node.problem for node in self._nodes if node.problem}
            assert time.monotonic() - began < DEADLINE, f"never: {what}; {problems}"
            await asyncio.sleep(0.02)

    async def _written(self, name: str, taint: str) -> list[Request]:
        """Have all nodes' slices written at once."""
        before, wanted = self._cpu(), devices(taint)
        began = time.time()
        for node in self._nodes:
            node.want(wanted)
        await self._until(lambda: all(node.published for node in self._nodes), "all are written")
        took = sorted(node.published - node.told for node in self._nodes)
        await asyncio.sleep(3)
        found = self._audit.requests(began)
        self._say(name, found, before)
        print(f"  {'':12}a node's slice: median {median(took):.2f} s, longest {took[-1]:.2f} s")
        return found

    async def _rested(self, seconds: float, pids: list[int]) -> list[Request]:
        before, own, began = self._cpu(), sum(map(scheduled, pids)), time.time()
        await asyncio.sleep(seconds)
        found = self._audit.requests(began)
        self._say(f"rest, {seconds:.0f} s", found, before)
        spent = (sum(map(scheduled, pids)) - own) * 600 / seconds / len(self._nodes)
        each = len(found) * 60 / seconds / len(self._nodes)
        print(f"  {'':12}a node: {each:.2f} requests a minute; {spent:.2f} s of CPU in 10 min for its cluster half")
        return found

    async def _broken(self, name: str, away: float) -> list[Request]:
        """Kill the API server, and have it back."""
        assert self._server.daemon
        began = time.time()
        self._server.daemon.stop(signal.SIGKILL)
        await asyncio.sleep(away)
        self._server.daemon.start()
        await asyncio.to_thread(controlplane.served, self._server.place, self._server.work)
        await asyncio.sleep(QUIET)
        found = self._audit.requests(began)
        self._say(name, found, 0.0)
        first = found[0].at if found else 0.0
        watches = [one.at - first for one in found if one.what.startswith("watch") and one.status < 300]
        last = f"median {median(watches):.1f} s, last {watches[-1]:.1f} s after the first request" if watches else ""
        print(f"  {'':12}{len(watches)} watches: {last}; {self._fetched():.0f} slices were read from etcd")
        return found

    def _fetched(self) -> float:
        """Return how many slices the API server has read from etcd to answer lists, since its start."""
        said = self._server.kubectl("get", "--raw=/metrics").stdout.splitlines()
        rows = [row.split()[-1] for row in said if row.startswith(FETCHED) and '"resourceslices"' in row]
        return sum(map(float, rows))

    def _cpu(self) -> float:
        assert self._server.daemon
        assert self._server.daemon.process
        return sum(map(scheduled, session(self._server.daemon.process.pid)))

    def _say(self, name: str, found: list[Request], before: float) -> None:
        text = f"{len(found)} requests, {peak(found)} in a second, {peak(found, 0.1)} in 0.1 s: {kinds(found)}"
        print(f"  {name:12}{text}; {self._cpu() - before:.1f} s of CPU", flush=True)

    def _derive(self, found: dict[str, list[Request]], rest: float) -> None:
        times = MANY / len(self._nodes)
        print(f"{MANY} nodes:")
        print(f"  rest        {len(found['rest']) * times / rest:.1f} requests a second")
        for name in ("begin", "write", "break", "away"):
            each = found[name]
            print(f"  {name:12}{len(each) * times:.0f} requests, {peak(each) * times:.0f} in a second")


if __name__ == "__main__":
    main()
