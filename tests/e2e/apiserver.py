"""The API server with etcd alone, without a node: it says whether objects are right, and nothing runs.

All of it is plane.py's, in namespaces of its own. Out of scope: what becomes of objects (plane.cluster).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import chroots, kube, leftovers, plane
from e2e.engines import SYSTEM_PATH, run
from e2e.leftovers import until

NETWORK = 'ip link set lo up; mkdir -p /root; for address do ip address add "$address/32" dev lo; done'


@dataclass
class Api:
    """An API server; it runs until its block ends.

    Attributes:
        prefix: what to put before a command that shall reach it.
        work: directory with credentials and logs.
    """

    prefix: tuple[str, ...]
    work: Path

    def kubectl(self, *words: str, objects: list[dict[str, Any]] | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as an administrator; objects are what it reads."""
        command = [*self.prefix, "/usr/bin/kubectl", f"--kubeconfig={self.work}/admin", *words]
        said = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects or []})
        env = {"PATH": SYSTEM_PATH, "HOME": "/root"}
        return subprocess.run(command, input=said, capture_output=True, text=True, check=False, env=env, timeout=60)


@contextlib.contextmanager
def api() -> Iterator[Api]:
    """Run an API server with an empty store for the block."""
    program = kube.program()
    with leftovers.state() as state, contextlib.ExitStack() as stack:
        place = stack.enter_context(chroots.entered("plane", program.parent, network=True))
        run([*place.prefix, "/bin/sh", "-euc", NETWORK, "sh", plane.NODE, plane.API])
        found = Api(place.prefix, state / "plane")
        plane._credentials(found.work)
        for command in (plane.ETCD, f"{plane.APISERVER} --allow-privileged=true"):
            stack.enter_context(plane._daemon(place, found.work, command))
        certificate = found.work / "pki/apiserver.crt"
        ready = until(certificate.exists, 60) and until(
            lambda: not found.kubectl("get", "--raw=/readyz").returncode, 60
        )
        assert ready, (found.work / "kube-apiserver.log").read_text()[-3000:]
        yield found
