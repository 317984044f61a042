"""The API server with etcd alone, without a node: it says whether objects are right, and nothing runs.

In namespaces of its own. Out of scope: how it is started (controlplane.py), what becomes of objects (plane.cluster).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import chroots, controlplane, leftovers, programs
from e2e.engines import SYSTEM_PATH, Daemon


@dataclass
class Api:
    """An API server; it runs until its block ends.

    Attributes:
        prefix: what to put before a command that shall reach it.
        work: directory with credentials and logs.
        network: file of the network namespace from which it is reached.
        place: the Debian that it runs in.
        daemon: the server itself, once it runs.
    """

    prefix: tuple[str, ...]
    work: Path
    network: str
    place: chroots.Chroot
    daemon: Daemon | None = None

    def kubectl(self, *words: str, objects: list[dict[str, Any]] | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as an administrator; objects are what it reads."""
        command = [*self.prefix, "/usr/bin/kubectl", f"--kubeconfig={self.work}/admin", *words]
        said = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects or []})
        env = {"PATH": SYSTEM_PATH, "HOME": "/root"}
        return subprocess.run(command, input=said, capture_output=True, text=True, check=False, env=env, timeout=60)


@contextlib.contextmanager
def api(flags: str = "") -> Iterator[Api]:
    """Run an API server, with more flags, with an empty store for the block."""
    kubernetes = programs.kubernetes()
    with leftovers.state() as state, contextlib.ExitStack() as stack:
        place = stack.enter_context(chroots.entered("plane", *kubernetes, network=True))
        found = Api(place.prefix, state / "plane", place.network, place)
        found.daemon = stack.enter_context(controlplane.api_server(place, found.work, flags))
        controlplane.served(place, found.work)
        yield found
