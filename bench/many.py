"""Many nodes' halves beside one API server: a service account for them, their processes, and what they ask and cost.

Out of scope: what the halves do (dra_nodes.py, plugin_nodes.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.audit import Audit, Request, kinds, peak
from bench.processes import scheduled, session

import scratch
from e2e import controlplane
from e2e.apiserver import Api, api

PLACE, ACCOUNT = "many", "half"
USER = f"system:serviceaccount:{PLACE}:{ACCOUNT}"
ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": controlplane.API, "KUBERNETES_SERVICE_PORT": "443"}  # of a pod
TOGETHER = 25  # halves of a process
DEADLINE = 120.0  # seconds for anything
QUIET = 40.0  # seconds after a break in which nodes may still come: the longest pause, and a bit


def measure(
    doc: str | None,
    rest: float,
    rules: list[dict[str, Any]],
    be: Callable[..., None],
    simulation: Callable[[Api, Audit, Path, list[str]], Any],
) -> None:
    """Be the program of a measurement, by its command line.

    Args:
        doc: what it says of itself.
        rest: seconds that it rests, by default.
        rules: rights of the halves' service account.
        be: is some nodes' cluster halves: by the directory, and their names.
        simulation: has `run`, which goes through the phases: by seconds of rest, and of the API server's absence.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--rest", type=float, default=rest, metavar="SECONDS", help=f"how long it rests ({rest:g})")
    parser.add_argument("--away", type=float, default=30, metavar="SECONDS", help="API server away (default 30)")
    parser.add_argument("--halves", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.halves:
        be(*options.halves)
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch.top()) as folder:
        os.chmod(folder, 0o755)
        audit = Audit(Path(folder), USER)
        with api(audit.flags) as server:
            names = [f"node-{number}" for number in range(options.nodes)]
            account(server, Path(folder), names, rules)
            asyncio.run(simulation(server, audit, Path(folder), names).run(options.rest, options.away))


def account(server: Api, folder: Path, names: list[str], rules: list[dict[str, Any]]) -> None:
    """Make the nodes and a service account with these rights, and what kubelet mounts of it."""
    role = {"kind": "ClusterRole", "name": ACCOUNT, "apiGroup": "rbac.authorization.k8s.io"}
    rbac = "rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": PLACE}
    metadata = {"name": ACCOUNT}
    objects: list[dict[str, Any]] = [
        *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**metadata, "namespace": PLACE}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": metadata, "rules": rules},
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


@contextlib.contextmanager
def halves(server: Api, program: str, folder: Path, names: list[str]) -> Iterator[list[int]]:
    """Run `PROGRAM --halves FOLDER NAME...` for nodes, some to a process, in the API server's network for the block.

    Yields:
        The processes.
    """
    running = []
    for at in range(0, len(names), TOGETHER):
        words = ["nsenter", f"--net={server.network}", sys.executable, "-B", program, "--halves"]
        with (folder / "log").open("ab") as log:
            words += [str(folder), *names[at : at + TOGETHER]]
            running.append(subprocess.Popen(words, stderr=log))
    try:
        yield [one.pid for one in running]
    finally:
        for one in running:
            one.send_signal(signal.SIGTERM)
            one.wait(10)


async def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    """Wait until something is so."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"never: {what}"
        await asyncio.sleep(0.02)


class Load:
    """What nodes ask of the API server, and what that costs it, phase by phase.

    Args:
        server: the API server.
        audit: its log.
        nodes: how many there are.
        resource: whose objects are counted that it reads from etcd to answer lists, as in nodes.
    """

    def __init__(self, server: Api, audit: Audit, nodes: int, resource: str) -> None:
        self._server, self._audit, self._nodes, self._resource = server, audit, nodes, resource
        self._before = (0.0, 0.0)

    def begin(self) -> None:
        """Begin a phase."""
        self._before = (time.time(), self._cpu())

    def end(self, name: str) -> list[Request]:
        """Print what a phase took; return its requests."""
        began, before = self._before
        found = self._audit.requests(began)
        text = f"{len(found)} requests, {peak(found)} in a second: {kinds(found)}"
        print(f"  {name:12}{text}; {max(0.0, self._cpu() - before):.1f} s of CPU", flush=True)
        return found

    async def rest(self, seconds: float, pids: list[int]) -> None:
        """Wait for some time, and say what a node took of it."""
        self.begin()
        own = sum(map(scheduled, pids))
        await asyncio.sleep(seconds)
        found = self.end("rest")
        spent = (sum(map(scheduled, pids)) - own) * 600 / seconds / self._nodes
        each = len(found) * 60 / seconds / self._nodes
        print(f"  {'':12}a node: {each:.2f} requests a minute; {spent:.2f} s of CPU in 10 min for its cluster half")

    async def broken(self, name: str, away: float) -> None:
        """Kill the API server, and have it back after some time."""
        assert self._server.daemon
        self._before = (time.time(), 0.0)
        self._server.daemon.stop(signal.SIGKILL)
        await asyncio.sleep(away)
        self._server.daemon.start()
        await asyncio.to_thread(controlplane.served, self._server.place, self._server.work)
        await asyncio.sleep(QUIET)
        found = self.end(name)
        first = found[0].at if found else 0.0
        watches = [one.at - first for one in found if one.what.startswith("watch") and one.status < 300]
        middle = watches[len(watches) // 2] if watches else 0.0
        last = f"median {middle:.1f} s, last {watches[-1]:.1f} s after the first request" if watches else ""
        read = f"{self._fetched():.0f} {self._resource} were read from etcd"
        print(f"  {'':12}{len(watches)} watches: {last}; {read}")

    def _fetched(self) -> float:
        """Return how many objects the API server has read from etcd to answer lists, since its start."""
        lines = self._server.kubectl("get", "--raw=/metrics").stdout.splitlines()
        name, of = "apiserver_storage_list_fetched_objects_total", f'"{self._resource}"'
        return sum(float(row.split()[-1]) for row in lines if row.startswith(name) and of in row)

    def _cpu(self) -> float:
        assert self._server.daemon
        assert self._server.daemon.process
        return sum(map(scheduled, session(self._server.daemon.process.pid)))
