"""A cluster's node with the package's programs, as units would run them: what lists GPUs, and the two halves.

They are this machine's, in the node's namespaces: the node's Debian has no grpcio. Its MPS units are started by what
stands for systemd (mpsclient.py).
Out of scope: the chart's pods (dradeployed.py).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e import claims, controlplane, plane, worker
from e2e.engines import Daemon, run
from e2e.kube import NAME
from e2e.mpsclient import STARTS
from e2e.plane import Cluster
from e2e.trees import TOP

CLASSES = {claims.DRIVER: "gpu", "mig.nvidia.com": "mig"}
STRANGER = 12345  # a user's number, of no rights
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
PYTHON = f"/usr/bin/{VERSION}"  # for which grpcio is compiled
LIBRARIES = [f"/usr/lib/x86_64-linux-gnu/{name}" for name in ("libstdc++.so.6", "libgcc_s.so.1")]
CONFIG = """[driver]
root = "{root}"
[device-plugin]
fronts = ["dra"]
kubeconfig = "{work}/kubelet-{node}"
"""


@dataclass
class Packaged:
    """The programs of a package on a node.

    Attributes:
        cluster: of one node, which is this.
        listing: what lists GPUs.
        driver: what gives them out.
        other: its half at the API server.
    """

    cluster: Cluster
    listing: Daemon
    driver: Daemon
    other: Daemon

    @property
    def log(self) -> str:
        """What they have said."""
        return "".join(daemon.log.read_text() for daemon in (self.listing, self.driver, self.other))

    def python(self, script: str, *words: str) -> str:
        """Run a script of Python with gpushim's modules on the node; return what it prints."""
        paths = ":".join(str(TOP / name) for name in ("plugin", "shim", "hook", "vendor"))
        command = ["/usr/bin/env", f"PYTHONPATH={paths}", "/usr/bin/python3", "-Bc", script, *words]
        return run([*self.cluster.place.prefix, *command]).stdout


@contextlib.contextmanager
def packaged(root: str, settings: str, *images: Path) -> Iterator[Packaged]:
    """Run a cluster whose node has the package, and gives out GPUs by claims alone.

    Args:
        root: of its driver.
        settings: more of [device-plugin].
        images: as for `plane.cluster`.
    """
    seen = (f"/usr/lib/{VERSION}", PYTHON, *LIBRARIES)
    with plane.cluster(*images, directories=(*map(Path, seen),)) as cluster, contextlib.ExitStack() as stack:
        work = cluster.work
        cluster.run(f"umount {TOP}/vendor; ln -s {TOP}/bin/gpushim* /usr/bin; chmod 600 {work}/kubelet-{NAME}")
        cluster.run("install -d -m 755 /run/gpushim-dra")
        cluster.write("/usr/bin/systemctl", worker.SYSTEMCTL.replace("#!/bin/sh\n", STARTS))
        cluster.write("/etc/gpushim/config.toml", CONFIG.format(root=root, work=work, node=NAME) + settings)
        cluster.apply(*(device_class(name, kind) for name, kind in CLASSES.items()))
        python = ("/usr/bin/env", f"PYTHONPATH={TOP}/.venv/lib/{VERSION}/site-packages", PYTHON, "-B")
        user = ("/usr/bin/setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
        words = f"--socket=/run/gpushim-dra/s --node-name={NAME}"
        lines = {
            f"{TOP}/bin/gpushim refresh --keep": python,
            f"{TOP}/bin/gpushim-device-plugin {words} --cluster-user={STRANGER}": python,
            f"{TOP}/bin/gpushim-dra-driver --cluster {words}": (*user, *python),
        }
        daemons = (controlplane.daemon(cluster.place, work, line, before=before) for line, before in lines.items())
        yield Packaged(cluster, *map(stack.enter_context, daemons))


def device_class(name: str, kind: str) -> dict[str, object]:
    """Return the class of devices of a kind."""
    expression = f"device.driver == '{claims.DRIVER}' && device.attributes['{claims.DRIVER}'].type == '{kind}'"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"apiVersion": claims.VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
