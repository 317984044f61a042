"""A Kubernetes cluster of one node: etcd, API server, scheduler, controller-manager, kubelet, containerd, networks.

All of it has mount, PID and network namespaces of its own (chroots.py), so that its ports and addresses are no one
else's. The programs are those of kube.py's archive and Debian's. There is no kube-proxy: the API server answers at
the address that is its service's. Nothing can be pulled: images come from archives.
Out of scope: gpushim, and GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import chroots, helm, kube, leftovers
from e2e.chroots import Chroot
from e2e.controlplane import NODE, api_server, daemon, served
from e2e.engines import CONTAINERD, CTR, SYSTEM_PATH, Containerd, Daemon, run
from e2e.installed import CONTAINERD as CONFIG
from e2e.kube import NAME, Node
from e2e.leftovers import until

SECONDS = 60.0
LOOK = 0.25  # seconds between looks, each of which takes a tenth of a processor's
SETTINGS: dict[str, object] = {"address": "0.0.0.0", "nodeStatusUpdateFrequency": "2s"}  # kubelet's; not after 10 s
PODS = "10.244.0.0/16"
NETWORK = """
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
"""
CNI = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
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
CONTROLLERS = """kube-controller-manager --kubeconfig={work}/admin --leader-elect=false
    --root-ca-file={work}/pki/apiserver.crt --service-account-private-key-file={work}/key"""
SCHEDULER = "kube-scheduler --kubeconfig={work}/admin --leader-elect=false"


@dataclass
class Cluster:
    """The cluster; it runs until its block ends.

    Attributes:
        node: its node.
        work: directory with credentials and logs, seen inside and outside.
        containerd: its engine's process, which may be restarted.
        server: the API server's process.
    """

    node: Node
    work: Path
    containerd: Daemon
    server: Daemon

    @property
    def kubeconfig(self) -> Path:
        """An administrator's credentials, for clients in the node's network."""
        return self.work / "admin"

    @property
    def place(self) -> Chroot:
        """The Debian that is the node."""
        return self.node.place

    def run(self, line: str, *, check: bool = True) -> str:
        """Run a line of shell as root on the node, and return what it prints."""
        env = {"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
        done = run([*self.place.prefix, "/bin/sh", "-c", f"cd /root; {line}"], check=check, env=env)
        return done.stdout + done.stderr

    def helm(self, action: str, *words: Any, **more: Any) -> Any:
        """Change a release, as helm.release."""
        return helm.release(self.place.network, self.kubeconfig, action, *words, **more)

    def write(self, path: str, text: str) -> None:
        """Write a file of the node."""
        script = 'mkdir -p "${1%/*}"; printf %s "$2" >"$1"'
        run([*self.place.prefix, "/bin/sh", "-euc", script, "sh", path, text])

    def restart_containerd(self) -> None:
        """Restart containerd, as systemd does; containers go on."""
        self.containerd.stop()
        self.containerd.start()
        assert self.containerd.answers(), self.containerd.log.read_text()[-3000:]

    def load(self, archive: Path) -> None:
        """Import an image archive for pods."""
        self.node.engine.load(archive, ("k8s.io",))

    def kubectl(self, *words: str, said: str = "", check: bool = True) -> str:
        """Run kubectl as an administrator.

        Args:
            words: its arguments.
            said: what it reads.
            check: fail, with what it says, unless it succeeds.

        Returns:
            What it prints, with its errors if they are no failure.
        """
        command = [*self.place.prefix, "/usr/bin/kubectl", f"--kubeconfig={self.kubeconfig}", *words]
        env = {"PATH": SYSTEM_PATH, "HOME": "/root"}
        done = subprocess.run(
            command, input=said, capture_output=True, text=True, check=False, env=env, timeout=2 * SECONDS
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *objects: dict[str, Any] | str) -> None:
        """Apply objects, or texts in YAML."""
        texts = (one if isinstance(one, str) else json.dumps(one) for one in objects)
        self.kubectl("apply", "--filename=-", said="\n---\n".join(texts))

    def get(self, *words: str) -> dict[str, Any]:
        """Return what `kubectl get` finds; nothing if there is no such object."""
        text = self.kubectl("get", "--output=json", "--ignore-not-found", *words)
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    @contextlib.contextmanager
    def watching(self, file: Path, *words: str) -> Iterator[None]:
        """Have `kubectl get --watch` write to a file during the block, which has something then already."""
        client = ["/usr/bin/kubectl", f"--kubeconfig={self.kubeconfig}", "get", "--watch", *words]
        with file.open("wb") as output:
            process = subprocess.Popen(
                [*self.place.prefix, *client], stdin=subprocess.DEVNULL, stdout=output, start_new_session=True
            )
            try:
                self.wait_for(lambda: file.stat().st_size, "the watch says something")
                yield
            finally:
                os.killpg(process.pid, signal.SIGKILL)  # the prefix forks, and hands no signal on
                process.wait()

    def pods(self, *words: str, namespace: str = "default") -> dict[str, dict[str, Any]]:
        """Return the pods of a namespace by name; words go to `kubectl get`."""
        rows = self.get("pods", f"--namespace={namespace}", *words).get("items", ())
        return {row["metadata"]["name"]: row for row in rows}

    def allocatable(self) -> dict[str, str]:
        """Say what the API says that the node can give."""
        found: dict[str, str] = self.get("node", NAME)["status"]["allocatable"]
        return found

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = SECONDS) -> float:
        """Wait until something is so.

        Args:
            condition: whether it is; its last answer is told if it never comes true.
            what: it is, in words.
            seconds: how long to wait at most.

        Returns:
            How long that took, in seconds.
        """
        began = time.monotonic()
        assert until(lambda: bool(condition()), seconds, LOOK), f"never: {what}\n{self.events()}"
        return time.monotonic() - began

    def events(self) -> str:
        """What went on, for the message of a failure."""
        pods = self.kubectl("get", "pods", "--all-namespaces", "--output=wide", check=False)
        return (
            pods + self.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", check=False)[-4000:]
        )


@contextlib.contextmanager
def _unit(name: str) -> Iterator[str]:
    """Make the cgroup of a unit, and remove it once what was in it has ended."""
    group = Path("/sys/fs/cgroup/systemd", name)
    group.mkdir(parents=True)
    try:
        yield name
    finally:
        assert until(lambda: not (group / "cgroup.procs").read_text(), SECONDS), f"{name} has processes"
        group.rmdir()
        with contextlib.suppress(OSError):
            group.parent.rmdir()  # the machine's own, or another test's


@contextlib.contextmanager
def _restarting(found: Cluster, asked: Path) -> Iterator[None]:
    """Restart containerd during the block whenever `systemctl` is run for it on the node."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.05):
            if asked.exists():
                found.restart_containerd()
                asked.unlink()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def cluster(*images: Path, directories: tuple[Path, ...] = (), flags: str = "") -> Iterator[Cluster]:
    """Run a cluster.

    Args:
        images: archives of pods' images; `docker.io/library/pause:local` must be among them.
        directories: to be seen on the node under their own paths, read-only.
        flags: more of the API server's.

    Yields:
        The cluster, whose node is ready and has the service account of namespace default.
    """
    program = kube.program()
    with leftovers.state() as state, contextlib.ExitStack() as stack:
        unit = stack.enter_context(_unit(f"system.slice/{state.name}.service"))
        place = stack.enter_context(chroots.entered("plane", program.parent, *directories, view="v1", network=True))
        _prepare(place, state)
        work = state / "plane"
        server = stack.enter_context(api_server(place, work, flags))
        in_unit = ("/bin/sh", "-euc", UNIT, "sh", unit)
        containerd = stack.enter_context(daemon(place, work, CONTAINERD, CTR, "version", before=in_unit))
        assert containerd.answers(), containerd.log.read_text()[-3000:]
        engine = Containerd(state, place.prefix)
        for archive in images:
            engine.load(archive, ("k8s.io",))
        served(place, work)
        for command in (CONTROLLERS, SCHEDULER):
            stack.enter_context(daemon(place, work, command))
        own = (f"--kubeconfig={work}/kubelet", f"--node-ip={NODE}", f"--cert-dir={work}/pki/kubelet")
        node = stack.enter_context(kube.node(engine, place, *own, settings=SETTINGS))
        found = Cluster(node, work, containerd, server)
        stack.enter_context(_restarting(found, state / "systemctl.asked"))
        found.wait_for(lambda: _usable(found), "the node is ready")
        yield found


def _prepare(place: Chroot, state: Path) -> None:
    """Write what containerd and systemctl's callers read."""
    (state / "containerd.toml").write_text(CONFIG + NETWORK)
    (state / "cni.json").write_text(json.dumps(CNI))
    (state / "systemctl").write_text(SYSTEMCTL)
    run([*place.prefix, "/bin/sh", "-euc", PREPARE, "sh", str(state)])


def _usable(found: Cluster) -> bool:
    """Say whether pods can run: the node is ready and without a taint, and they can have an account."""
    node = found.get("node", NAME)
    states = {row["type"]: row["status"] for row in node.get("status", {}).get("conditions", ())}
    account = found.get("serviceaccount", "default")
    return states.get("Ready") == "True" and not node["spec"].get("taints") and bool(account)
