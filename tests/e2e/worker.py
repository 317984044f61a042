"""A node of a cluster: its containerd in a unit of its own, what stands for its systemd, its network, its kubelet.

It is an entered Debian (chroots.py). Pods have a network, and images come from archives, as nothing can be pulled.
Out of scope: the control plane, and what joins nodes to it (plane.py).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e import kube
from e2e.chroots import Chroot
from e2e.controlplane import daemon
from e2e.engines import CONTAINERD, CTR, SYSTEM_PATH, Containerd, Daemon, run
from e2e.installed import CONTAINERD as CONFIG
from e2e.kube import Node
from e2e.leftovers import until

SECONDS = 60.0
SETTINGS: dict[str, object] = {"address": "0.0.0.0", "nodeStatusUpdateFrequency": "2s"}  # kubelet's; not after 10 s
NETWORK = """
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
"""
# The argument: a directory for what an overlay cannot hold.
PREPARE = """
state=$1
mkdir -p /etc/containerd /etc/cni/net.d /run/containerd /var/lib/containerd /var/lib/cni "$state/root"
mount --bind "$state" /run/containerd
mount --bind "$state/root" /var/lib/containerd
cp "$state/containerd.toml" /etc/containerd/config.toml
cp "$state/cni.json" /etc/cni/net.d/pods.conflist
mkdir -p /run/systemd/system
cp "$state/systemctl" /usr/bin/systemctl
chmod 755 /usr/bin/systemctl
"""
# What systemd does for gpushim's sake: it has containerd in a unit, and restarts it. The rest succeeds.
SYSTEMCTL = """#!/bin/sh
[ "$1" = restart ] || exit 0
cd /run/containerd
echo "$*" >systemctl.$$
mv systemctl.$$ systemctl.asked
while [ -e systemctl.asked ]; do sleep 0.05; done
"""
UNIT = 'echo 0 >"/sys/fs/cgroup/systemd/$1/cgroup.procs"; shift; exec "$@"'


@dataclass
class Worker:
    """A node.

    Attributes:
        node: its kubelet.
        work: directory with credentials and logs, seen inside and outside.
        containerd: its engine's process, which may be restarted.
    """

    node: Node
    work: Path
    containerd: Daemon

    @property
    def place(self) -> Chroot:
        """The Debian that is the node."""
        return self.node.place

    def run(self, line: str, *, check: bool = True) -> str:
        """Run a line of shell as root on the node, and return what it prints."""
        env = {"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
        done = run([*self.place.prefix, "/bin/sh", "-c", f"cd /root; {line}"], check=check, env=env)
        return done.stdout + done.stderr

    def write(self, path: str, text: str) -> None:
        """Write a file of the node."""
        script = 'mkdir -p "${1%/*}"; printf %s "$2" >"$1"'
        run([*self.place.prefix, "/bin/sh", "-euc", script, "sh", path, text])

    def load(self, archive: Path) -> None:
        """Import an image archive for pods."""
        self.node.engine.load(archive, ("k8s.io",))


def prepare(place: Chroot, state: Path, pods: str) -> None:
    """Write what containerd and systemctl's callers read.

    Args:
        place: the node.
        state: a directory for its engine's state.
        pods: addresses of its pods, as in 10.244.1.0/24.
    """
    (state / "containerd.toml").write_text(CONFIG + NETWORK)
    (state / "cni.json").write_text(network(pods))
    (state / "systemctl").write_text(SYSTEMCTL)
    run([*place.prefix, "/bin/sh", "-euc", PREPARE, "sh", str(state)])


def network(pods: str) -> str:
    """Return what CNI reads of the network with these addresses of pods."""
    ranges = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [{"type": "ptp", "ipMasq": False, "ipam": ranges}]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})


@contextlib.contextmanager
def engine(place: Chroot, state: Path, work: Path, images: Sequence[Path]) -> Iterator[Daemon]:
    """Run a prepared node's containerd, with the images of these archives, for the block.

    Args:
        place: the node.
        state: as for `prepare`; its unit is made.
        work: for the log.
        images: archives of pods' images.
    """
    with daemon(place, work, CONTAINERD, CTR, "version", before=in_unit(state)) as found:
        assert found.answers(), found.log.read_text()[-3000:]
        for archive in images:
            Containerd(state, place.prefix).load(archive, ("k8s.io",))
        with restarting(found, state / "systemctl.asked"):
            yield found


@contextlib.contextmanager
def kubelet(place: Chroot, state: Path, kubeconfig: Path, name: str, address: str) -> Iterator[Node]:
    """Run a node's kubelet, whose engine runs, for the block.

    Args:
        place: the node.
        state: as for `prepare`.
        kubeconfig: the kubelet's credentials.
        name: of the node.
        address: of the node.
    """
    own = (f"--kubeconfig={kubeconfig}", f"--node-ip={address}", f"--cert-dir={state}/pki")
    with kube.node(Containerd(state, place.prefix), place, *own, settings=SETTINGS, name=name) as found:
        yield found


def unit(state: Path) -> Path:
    """Return the cgroup of the unit in which the engine with this state is, and its shims."""
    return Path("/sys/fs/cgroup/systemd", _name(state))


def in_unit(state: Path) -> tuple[str, ...]:
    """Return what to put before a command that is to run in the unit."""
    return "/bin/sh", "-euc", UNIT, "sh", _name(state)


def _name(state: Path) -> str:
    return f"system.slice/{state.name}.service"


@contextlib.contextmanager
def unit_made(state: Path) -> Iterator[None]:
    """Make the unit's cgroup, and remove it once what was in it has ended."""
    group = unit(state)
    group.mkdir(parents=True)
    try:
        yield
    finally:
        assert until(lambda: not (group / "cgroup.procs").read_text(), SECONDS), f"{group} has processes"
        group.rmdir()
        with contextlib.suppress(OSError):
            group.parent.rmdir()  # the machine's own, or another test's


@contextlib.contextmanager
def restarting(engine: Daemon, asked: Path) -> Iterator[None]:
    """Restart an engine, as systemd does, during the block whenever `systemctl` is run for it; containers go on."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.05):
            if asked.exists():
                engine.stop()
                engine.start()
                assert engine.answers(), engine.log.read_text()[-3000:]
                asked.unlink()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
