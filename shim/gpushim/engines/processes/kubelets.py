"""The kubelet that runs on this host, as /proc tells: which directory it was given.

What it says is shown to people; no file is opened or executed by it. Which process is this host's says origin.py.
Out of scope: what lies in the directory (gpushim.containers.kubelet).
"""

from __future__ import annotations

import os

from gpushim.engines.processes import origin

PROGRAMS = ("kubelet", "kubelite")  # the latter is MicroK8s's, one process for all of Kubernetes
OPTION = "--root-dir"


def root_dir(proc: str = "/proc") -> str:
    """Return the directory that root's kubelet was told to use; "" if it was told none, or does not run."""
    for entry in sorted(os.listdir(proc)):
        folder = f"{proc}/{entry}"
        if not entry.isdigit() or origin.program(folder, proc, PROGRAMS) not in PROGRAMS:
            continue
        words = [os.fsdecode(word) for word in origin.data(f"{folder}/cmdline").split(b"\0")]
        values = [
            value if equals else "".join(words[position + 1 : position + 2])
            for position, (name, equals, value) in enumerate(word.partition("=") for word in words)
            if name == OPTION
        ]
        if values and values[-1].startswith("/"):
            return os.path.normpath(values[-1])
    return ""
