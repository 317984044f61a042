"""The supervisor of an MPS group, by hand, as a node of kube.py has no systemd; its daemon is the simulated host's.

Out of scope: what a supervisor does by itself (unit/gpuplugin/mps/test_supervisor.py).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from e2e.engines import SYSTEM_PATH, run
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import PROGRAM
from gpuplugin.mps import mps

SECONDS = 30.0


class Supervisor:
    """The supervisor of a group, where containerd sees what it mounts.

    Args:
        node: in whose mount namespace it runs.
        env: variables of its own.
        group: its name.
    """

    def __init__(self, node: Node, env: dict[str, str], group: str) -> None:
        self.node, self.env, self.group, self.log = node, env, group, node.work / f"{group}.log"
        self.file = str(node.work / f"{group}.pid")
        self.place = mps.Folders(env["GPUSHIM_STATE"], group)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [*self.node.place.prefix, "/bin/sh", "-c", 'echo $$ >"$1" && shift && exec "$@"', "sh", self.file]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*words, "/usr/bin/python3", "-B", str(PROGRAM), "--mps", self.group], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env={"PATH": SYSTEM_PATH, **self.env}, start_new_session=True,
            )  # fmt: skip
        assert until(lambda: os.path.exists(self.place.state), SECONDS), self.log.read_text()

    def kill(self, signal: str, pid: int) -> None:
        """Send a signal to a process of the node's."""
        run([*self.node.place.prefix, "/bin/sh", "-c", f"kill -{signal} {pid}"])

    def daemon(self) -> int:
        return int(json.loads(Path(self.place.state).read_text())["pid"])

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            self.kill("TERM", int(Path(self.file).read_text()))
        try:
            process.wait(SECONDS)
        finally:
            process.kill()
            process.wait()


def writable(node: Node, root: str) -> None:
    """Let the node write to a simulated host, where the driver keeps compute modes."""
    run([*node.place.prefix, "/bin/mount", "-o", "remount,bind,rw", root])
