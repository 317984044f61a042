"""A boot of a cluster's node: what runs there ends without a word, and what lies in memory is gone.

The machine's boot id stays: of what was written with it, that is changed. Out of scope: the machine itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from functools import partial
from pathlib import Path

from e2e.leftovers import groups, removed, until
from e2e.worker import Worker, unit

SECONDS = 30.0
RECORD, BOOT = "/var/lib/gpushim/device-plugin/allocations.json", re.compile('"boot":"[^"]*"')
OTHER = "00000000-0000-4000-8000-000000000000"
# The argument: kubelet's directory.
EMPTY = """
while read -r _ _ _ _ path _; do
    case $path in /run/containerd/io.* | /run/netns/* | "$1"/pods/* | /var/lib/kubelet/pods/*) echo "$path" ;; esac
done </proc/self/mountinfo | sort -r | while read -r path; do umount -l "$path" || true; done
rm -rf /run/containerd/io.containerd.* /run/containerd/runc /run/netns /run/gpushim /run/cdi /run/nvidia*
"""


def boot(cluster: Worker) -> None:
    """Have a node boot; kubelet runs afterwards, and knows what it had on disk.

    Args:
        cluster: the node, whose control plane goes on, as if it were elsewhere.
    """
    off(cluster)
    on(cluster)


def off(worker: Worker) -> None:
    """End all that a node runs, without a word."""
    state = worker.node.engine.state
    worker.node.stop(signal.SIGKILL)
    worker.containerd.stop(signal.SIGKILL)

    def left() -> list[int]:
        tops = [*Path("/sys/fs/cgroup").glob(f"*/{state.name}"), unit(state)]
        return [pid for top in tops for _, pids in groups(top) for pid in pids]

    def ended() -> bool:
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left()

    assert until(ended, SECONDS), left()
    for top in Path("/sys/fs/cgroup").glob(f"*/{state.name}/kubepods"):
        assert until(partial(removed, top), SECONDS), f"{top} is busy"


def on(worker: Worker) -> None:
    """Start a node that is off; kubelet runs afterwards."""
    worker.run(f"set -- {worker.node.kubelet_dir}; {EMPTY}")
    found = worker.run(f"cat {RECORD}")
    assert BOOT.search(found), found
    worker.write(RECORD, BOOT.sub(f'"boot":"{OTHER}"', found))
    worker.containerd.start()
    assert worker.containerd.answers(), worker.containerd.log.read_text()[-3000:]
    worker.node.start()
