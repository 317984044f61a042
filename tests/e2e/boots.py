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

from e2e.leftovers import groups, processes, removed, until
from e2e.plane import Cluster

SECONDS = 30.0
BOOK, BOOT = "/var/lib/gpushim/device-plugin/book.json", re.compile('"boot":"[^"]*"')
OTHER = "00000000-0000-4000-8000-000000000000"
# The argument: kubelet's directory.
EMPTY = """
while read -r _ _ _ _ path _; do
    case $path in /run/containerd/io.* | /run/netns/* | "$1"/pods/* | /var/lib/kubelet/pods/*) echo "$path" ;; esac
done </proc/self/mountinfo | sort -r | while read -r path; do umount -l "$path" || true; done
rm -rf /run/containerd/io.containerd.* /run/containerd/runc /run/netns /run/gpushim /run/cdi /run/nvidia*
"""


def boot(cluster: Cluster) -> None:
    """Have the node boot; kubelet runs afterwards, and knows what it had on disk.

    Args:
        cluster: whose control plane goes on, as if it were elsewhere.
    """
    state = cluster.node.engine.state
    cluster.node.stop(signal.SIGKILL)
    cluster.containerd.stop(signal.SIGKILL)

    def left() -> list[int]:
        inside = [
            pid for top in Path("/sys/fs/cgroup").glob(f"*/{state.name}") for _, pids in groups(top) for pid in pids
        ]
        return [*processes(state, "/containerd-shim"), *inside]

    def ended() -> bool:
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left()

    assert until(ended, SECONDS), left()
    for top in Path("/sys/fs/cgroup").glob(f"*/{state.name}/kubepods"):
        assert until(partial(removed, top), SECONDS), f"{top} is busy"
    cluster.run(f"set -- {cluster.node.kubelet_dir}; {EMPTY}")
    found = cluster.run(f"cat {BOOK}")
    assert BOOT.search(found), found
    cluster.write(BOOK, BOOT.sub(f'"boot":"{OTHER}"', found))
    cluster.containerd.start()
    assert cluster.containerd.answers(), cluster.containerd.log.read_text()[-3000:]
    cluster.node.start()
