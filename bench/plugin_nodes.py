#!/usr/bin/env python3
"""Measure what the chart's pods beside the device plugin ask of one API server on many nodes, and print it.

    tests/apart.py .venv/bin/python bench/plugin_nodes.py [--nodes N] [--rest SECONDS] [--away SECONDS]

Needs root, tools/setup.sh and the archive of Kubernetes (tests/e2e/kube.py). The API server with its etcd and the
cluster halves are real, those of 25 nodes to a process: that of the plugin, which follows the node's label
(config.map) and posts labels (labels.publish=node-feature), and that of gpushim-node, which labels the node. The
nodes' halves are this process: files. Not there: kubelets, the scheduler, the chart's admission policy. Phases:

    begin     all pods of both DaemonSets begin at once
    rest      nothing happens; a watch lasts 300 to 600 s, so less shows nothing
    profile   the labels of all nodes name another profile at once
    labels    the plugins' labels change on all nodes at once, as by a change of the ConfigMap, which kubelets bring
    roll-out  all pods are restarted at once
    break     the API server is killed, and started again at once: all watches end in the same moment
    away      the same, and it is away for some time

Requests are those of the API server's audit log; CPU is the API server's.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP / name) for name in (".", "tests", "plugin", "shim", "hook", "vendor")]

from bench.audit import Audit  # noqa: E402
from bench.many import ENVIRONMENT, Load, halves, measure, until  # noqa: E402

from e2e.apiserver import Api  # noqa: E402
from e2e.definitions import definition  # noqa: E402
from gpuplugin.cluster import in_cluster, parts  # noqa: E402
from gpuplugin.cluster.cluster import Api as Client  # noqa: E402
from gpuplugin.cluster.installed_label import InstalledLabel  # noqa: E402
from gpuplugin.cluster.node_label import LABEL  # noqa: E402

FEATURES = "nodefeatures"
RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "patch"]},
    {"apiGroups": ["nfd.k8s-sigs.io"], "resources": [FEATURES], "verbs": ["get", "create", "patch"]},
]


def main() -> None:
    """Measure and print."""
    measure(__doc__, 660, RULES, be, Simulation)


def be(folder: str, *names: str) -> None:
    """Be the cluster halves of some nodes until a signal comes: on each what runs before the plugin, then all."""
    works = []
    for name in names:
        own, place = {**ENVIRONMENT, "NODE_NAME": name}, f"{folder}/{name}"
        (first,) = in_cluster.half(own, f"{place}/profile", "", "", folder)
        next(first())
        label = InstalledLabel(Client(own, folder), name, "gpushim/installed", f"{place}/labels", f"{place}/posted")
        works += [
            *in_cluster.half(own, f"{place}/profile", f"{place}/labels", "", folder),
            in_cluster.watching(label.look),
        ]
    parts.run(works)


class Simulation:
    """The nodes, and what they cost.

    Args:
        server: the API server.
        audit: its log.
        folder: with the service account; gets a directory for each node.
        names: of the nodes.
    """

    def __init__(self, server: Api, audit: Audit, folder: Path, names: list[str]) -> None:
        self._server, self._folder, self._names = server, folder, names
        self._load = Load(server, audit, len(names), "nodes")

    async def run(self, rest: float, away: float) -> None:
        """Go through the phases."""
        done = self._server.kubectl("create", "--filename=-", objects=[definition(FEATURES)])
        assert not done.returncode, done.stderr
        for name in self._names:
            (self._folder / name).mkdir()
        self._labels("1")
        self._load.begin()
        with halves(self._server, __file__, self._folder, self._names) as pids:
            await self._are_there("begin")
            await self._load.rest(rest, pids)
            await self._profiles()
            self._load.begin()
            self._labels("2")
            await asyncio.sleep(5)
            self._load.end("labels")
            self._load.begin()
        with halves(self._server, __file__, self._folder, self._names):
            await self._are_there("roll-out")
            await self._load.broken("break", 0.0)
            await self._load.broken(f"away {away:.0f} s", away)

    def _labels(self, count: str) -> None:
        """Have the plugins write their labels; what a real node has."""
        text = "".join(f"nvidia.com/{name}=x\n" for name in map("gpu.label-{}".format, range(25)))
        for name in self._names:
            (self._folder / name / "labels").write_text(f"nvidia.com/gpu.count={count}\n{text}")
            (self._folder / name / "posted").unlink(missing_ok=True)

    async def _are_there(self, phase: str) -> None:
        """Wait until all nodes have their labels, and watches."""
        for name in self._names:
            await until((self._folder / name / "posted").exists, f"{name} is labelled")
        await asyncio.sleep(5)
        self._load.end(phase)

    async def _profiles(self) -> None:
        """Name another profile on all nodes."""
        self._load.begin()
        words = ["/usr/bin/kubectl", f"--kubeconfig={self._server.work}/admin", "label", "nodes", "--all"]
        done = subprocess.run([*self._server.prefix, *words, f"{LABEL}=shared"], capture_output=True, check=False)
        assert not done.returncode, done.stderr
        for name in self._names:
            profile = self._folder / name / "profile"
            await until(lambda: profile.read_text() == "shared\n", f"{name} has its profile")  # noqa: B023
        self._load.end("profile")


if __name__ == "__main__":
    main()
