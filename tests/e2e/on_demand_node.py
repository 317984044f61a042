"""A node whose GPUs are cut on demand: its simulated NVML, the process that lists GPUs, and the DRA driver.

Out of scope: kubelet and the API server (dranode.py, test_dra_on_demand_plane.py).
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fakehost
from e2e.dranode import Driver, becomes
from e2e.plugins import environment
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host


@dataclass
class Node:
    """A node, its driver, and the process that lists its GPUs."""

    host: Host
    driver: Driver
    refresh: subprocess.Popen[bytes]

    @property
    def flag(self) -> str:
        """The setting by which GPUs are cut on demand: all but the last."""
        return f"--on-demand={','.join(str(gpu.index) for gpu in self.host.gpus[:-1])}"

    def restart(self) -> None:
        """Kill the driver, and start it again."""
        self.driver.stop(signal.SIGKILL)
        self.driver.start(self.flag)
        self.driver.register()
        becomes(self.driver, self.names)

    def names(self) -> list[str]:
        """Return the names of published devices, in their order."""
        pool = self.driver.pools[-1] if self.driver.pools else None
        return [row["name"] for slice_ in pool["slices"] for row in slice_ if "attributes" in row] if pool else []

    def name(self, index: int, profile: str, start: int) -> str:
        """Return the name of a partition."""
        return f"mig-{self.host.gpus[index].uuid[4:]}-{profile.replace('.', '-').replace('+', '-')}-{start}"

    def taints(self) -> dict[str, str]:
        """Return the ends of keys of taints, by name of the device."""
        rows = [row for slice_ in self.driver.pools[-1]["slices"] for row in slice_]
        return {row["name"]: taint["key"].rpartition("/")[2] for row in rows for taint in row.get("taints", ())}

    def instances(self) -> list[tuple[int, str, str]]:
        """Return GPU, profile and placement of what NVML has; a GPU instance alone has no profile."""
        self.host.adopt()
        profiles = {(gpu.index, mig.gi): mig.profile for gpu in self.host.gpus for mig in gpu.mig}
        return sorted(
            (gpu.index, profiles.get((gpu.index, instance.gi), ""), instance.placement)
            for gpu in self.host.gpus
            for instance in gpu.instances
        )

    def prepare(self, uid: str, *names: str) -> list[str] | str:
        """Have a claim prepared that has these devices; return what containers get by CDI, or the error."""
        self.driver.allocate(uid, *names)
        answer = self.driver.prepare(uid)[uid]
        return answer if isinstance(answer, str) else [name for row in answer for name in row["cdi_device_ids"]]

    def uuids(self, index: int = 0) -> list[str]:
        """Return the CDI names of the MIG devices that a GPU has."""
        self.host.adopt()
        return [f"nvidia.com/gpu={mig.uuid}" for mig in self.host.gpus[index].mig]


@contextlib.contextmanager
def on_demand(root: Path, count: int, kind: type[Driver] = Driver, *flags: str) -> Iterator[Node]:
    """Run a node with GPUs that are cut on demand, and one that is not.

    Args:
        root: of its driver.
        count: of these GPUs.
        kind: of the DRA driver.
        flags: more of its.
    """
    cache = str(TOP / ".cache" / "fakehost")
    host = fakehost.build(str(root), count + 1, mig={index: [] for index in range(count)}, compile_cache=cache)
    folder = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))  # of sockets, whose paths are short
    env = settings(folder, host.root)
    command = [str(TOP / "bin" / "gpushim"), "refresh", "--keep"]
    with (folder / "refresh.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(env))
    node = Node(host, kind(folder, env), process)
    try:
        node.driver.start(node.flag, *flags)
        node.driver.register()
        yield node
    finally:
        node.driver.stop()
        process.kill()
        process.wait()
        shutil.rmtree(folder)
