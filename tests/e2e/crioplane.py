"""The cluster of plane.py with CRI-O 1.36 (engines29.py) as its node's engine, and no containerd.

Images lie in a store of Podman's that CRI-O only reads; pods take nothing else (`podman load` on a real node).
Out of scope: the cluster's other parts (plane.py), CRI-O's settings (crio.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from e2e import chroots, crio, engines29, kube, leftovers, plane, podman, programs, worker
from e2e.controlplane import NODE, api_server, daemon
from e2e.crio import Crio
from e2e.engines import SYSTEM_PATH, Containerd, run
from e2e.plane import Cluster

LIBRARY = "docker.io/library"
PLUGINS = "/usr/lib/cni"
PREPARE = """
mkdir -p /var/lib/cni /run/systemd/system /usr/libexec/crio/real
cp "$1/systemctl" /usr/bin/systemctl
chmod 755 /usr/bin/systemctl
for name in runc crun; do
    mv "/usr/libexec/crio/$name" /usr/libexec/crio/real
    cp "$1/low-level" "/usr/libexec/crio/$name"
    chmod 755 "/usr/libexec/crio/$name"
done
"""
# In the place of runc and crun: CRI-O asks them for limits of huge pages, as kubelet does, and for all capabilities
# for a privileged container, whatever the machine has, and they refuse. Of containerd settings say what to leave out.
LOW_LEVEL = """#!/usr/bin/python3 -IS
import json, os, sys
words = sys.argv[1:]
if "--bundle" in words:
    path = words[words.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        spec = json.load(file)
    spec["linux"]["resources"].pop("hugepageLimits", None)
    with open("/proc/self/status") as file:
        (bounding,) = (int(line.split()[1], 16) for line in file if line.startswith("CapBnd:"))
    if not bounding >> 24 & 1:
        for names in spec["process"]["capabilities"].values():
            names[:] = [name for name in names if name != "CAP_SYS_RESOURCE"]
    with open(path, "w") as file:
        json.dump(spec, file)
program = "/usr/libexec/crio/real/" + os.path.basename(sys.argv[0])
os.execv(program, [program, *words])
"""


def store(directory: Path, archives: dict[str, Path], *more: str) -> Path:
    """Load image archives into a store of Podman's, also under the names that Docker Hub gives them.

    Args:
        directory: to make.
        archives: by name and tag, as in `debian:local`.
        more: other tags of the last one.

    Returns:
        directory.
    """
    for name, archive in archives.items():
        podman.store(directory, archive)
        podman.tag(directory, f"localhost/{name}", f"{LIBRARY}/{name}")
    for tag in more:
        podman.tag(directory, f"{LIBRARY}/{[*archives][-1]}", tag)
    return directory


@contextlib.contextmanager
def cluster(images: Path, *directories: Path, monitor: str) -> Iterator[Cluster]:
    """Run a cluster, as plane.cluster does; its `containerd` is CRI-O's process.

    Args:
        images: what `store` has made; `docker.io/library/pause:local` must be among them.
        directories: to be seen on the node under their own paths, read-only.
        monitor: what the settings of CRI-O's own runtimes say of the monitor's cgroup.

    Yields:
        The cluster, whose node is ready.
    """
    kubernetes = programs.kubernetes()
    lower = f"{engines29.lower()}:{chroots.tree('plane')}"  # the programs of the one and those of the other
    with leftovers.state() as state, contextlib.ExitStack() as stack:
        stack.enter_context(worker.unit_made(state))
        seen = (*kubernetes, images, *directories)
        place = stack.enter_context(chroots.entered("crio", *seen, view="v1", lower=lower, network=True))
        engine = Crio(state, place.prefix, "v1")
        _prepare(engine, images, monitor)
        work = state / "plane"
        server = stack.enter_context(api_server(place, work))
        command, before = " ".join(engine.command), worker.in_unit(state)
        process = stack.enter_context(daemon(place, work, command, *crio.READY, before=before))
        stack.enter_context(plane.controlling(place, work))
        assert process.answers(), process.log.read_text()[-3000:]
        # kube.py asks nothing of a containerd that CRI-O has not.
        own = (f"--kubeconfig={work}/kubelet-{kube.NAME}", f"--node-ip={NODE}", f"--cert-dir={work}/pki/kubelet")
        node = stack.enter_context(kube.node(cast(Containerd, engine), place, *own, settings=worker.SETTINGS))
        stack.enter_context(worker.restarting(process, state / "socket/systemctl.asked"))
        found = Cluster(node, work, process, server)
        found.wait_for(lambda: plane.usable(found, kube.NAME), "the node is ready")
        yield found


def _prepare(engine: Crio, images: Path, monitor: str) -> None:
    """Write what CRI-O and systemctl's callers read."""
    network = {"cni/net.d/pods.conflist": worker.network(plane.PODS.format(1))}
    pause = f"{LIBRARY}/pause:local"
    crio.lay_out(engine, [images], network, pause=pause, plugins=PLUGINS, monitor=monitor)
    (engine.state / "systemctl").write_text(worker.SYSTEMCTL.replace("/run/containerd", "/run/crio"))
    (engine.state / "low-level").write_text(LOW_LEVEL)
    run([*engine.prefix, "/bin/sh", "-euc", PREPARE, "sh", str(engine.state)], env={"PATH": SYSTEM_PATH})
