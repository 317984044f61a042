"""A Kubernetes cluster: etcd, API server, scheduler, controller-manager, a node beside them, and others that join it.

Each node has mount, PID and network namespaces of its own (worker.py), so that its ports and addresses are no one
else's; those of the first have the control plane, too. The programs are those of programs.py and Debian's.
There is no kube-proxy: the API server answers at the address that is its service's.
Out of scope: gpushim, and GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import asked, chroots, helm, leftovers, programs, worker
from e2e.chroots import Chroot
from e2e.controlplane import NODE, api_server, daemon, served
from e2e.engines import SYSTEM_PATH, Daemon, run
from e2e.kube import NAME
from e2e.leftovers import until
from e2e.worker import Worker

SECONDS = 60.0
LOOK = 0.1  # seconds between looks
PODS = "10.244.{}.0/24"  # addresses of a node's pods, by its number
ADDRESS = "10.249.0.{}"  # a node's, by its number; the first one's is NODE
CONTROLLERS = """kube-controller-manager --kubeconfig={work}/admin --leader-elect=false
    --root-ca-file={work}/pki/apiserver.crt --service-account-private-key-file={work}/key"""
SCHEDULER = "kube-scheduler --kubeconfig={work}/admin --leader-elect=false"
# The arguments: the other node's network, the link's name, addresses of that node and its pods, and one's own.
LINK = """
ip link add "$2" type veth peer name first netns "$1"
ip link set "$2" up
ip route add "$3" dev "$2" src "$5"
ip route add "$4" via "$3" dev "$2" src "$5"
"""
# The arguments: the address of the node and of the first.
UP = """
mkdir -p /root
ip link set lo up
ip address add "$1/32" dev lo
ip link set first up
ip route add "$2" dev first src "$1"
ip route add default via "$2" dev first src "$1"
"""


@dataclass
class Cluster(Worker):
    """The cluster, and its first node; it runs until its block ends.

    Attributes:
        server: the API server's process.
    """

    server: Daemon

    @property
    def kubeconfig(self) -> Path:
        """An administrator's credentials, for clients in the node's network."""
        return self.work / "admin"

    def helm(self, action: str, *words: Any, **more: Any) -> Any:
        """Change a release, as helm.release."""
        return helm.release(self.place.network, self.kubeconfig, action, *words, **more)

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
        found = asked.get(self.work / "proxy", *words)
        if found is not None:
            return found
        text = self.kubectl("get", "--output=json", "--ignore-not-found", *words)
        return dict(json.loads(text)) if text else {}

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

    def allocatable(self, node: str = NAME) -> dict[str, str]:
        """Return what the API says that a node can give."""
        found: dict[str, str] = self.get("node", node)["status"]["allocatable"]
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
def cluster(
    *images: Path,
    directories: tuple[Path, ...] = (),
    flags: str = "",
    controllers: str = "",
    nodes: Collection[str] = (NAME,),
) -> Iterator[Cluster]:
    """Run a cluster.

    Args:
        images: archives of pods' images; `docker.io/library/pause:local` must be among them.
        directories: to be seen on the node under their own paths, read-only.
        flags: more of the API server's.
        controllers: more of the controller-manager's.
        nodes: with others that may be `joined`.

    Yields:
        The cluster, whose node is ready and has the service account of namespace default.
    """
    kubernetes = programs.kubernetes()
    with leftovers.state() as state, contextlib.ExitStack() as stack:
        stack.enter_context(worker.unit_made(state))
        place = stack.enter_context(chroots.entered("plane", *kubernetes, *directories, view="v1", network=True))
        worker.prepare(place, state, PODS.format(1))
        work = state / "plane"
        server = stack.enter_context(api_server(place, work, flags, nodes))
        containerd = stack.enter_context(worker.engine(place, state, work, images))
        stack.enter_context(controlling(place, work, controllers))
        node = stack.enter_context(worker.kubelet(place, state, work / f"kubelet-{NAME}", NAME, NODE))
        found = Cluster(node, work, containerd, server)
        found.wait_for(lambda: usable(found, NAME), "the node is ready")
        yield found


@contextlib.contextmanager
def controlling(place: Chroot, work: Path, more: str = "") -> Iterator[None]:
    """Run what makes a cluster of an API server that has been started, for the block.

    Args:
        place: the Debian that it runs in.
        work: as for `api_server`.
        more: flags of the controller-manager's.
    """
    served(place, work)
    with contextlib.ExitStack() as stack:
        for command in (f"{CONTROLLERS} {more}", SCHEDULER, asked.PROXY):
            stack.enter_context(daemon(place, work, command))
        assert until((work / "proxy").exists, SECONDS)
        yield


@contextlib.contextmanager
def joined(found: Cluster, name: str, number: int, *images: Path) -> Iterator[Worker]:
    """Have one more node during the block.

    Args:
        found: the cluster, which has credentials of this node.
        name: of the node.
        number: of the node: 2 or more.
        images: as for `cluster`.

    Yields:
        The node, which is ready.
    """
    with leftovers.state() as state, contextlib.ExitStack() as stack:
        work = state / "plane"
        work.mkdir()
        stack.enter_context(worker.unit_made(state))
        place = stack.enter_context(chroots.entered("plane", programs.path("kubelet"), view="v1", network=True))
        worker.prepare(place, state, PODS.format(number))
        _link(found.place, place, number)
        containerd = stack.enter_context(worker.engine(place, state, work, images))
        credentials, address = found.work / f"kubelet-{name}", ADDRESS.format(number)
        node = stack.enter_context(worker.kubelet(place, state, credentials, name, address))
        found.wait_for(lambda: usable(found, name), f"{name} is ready")
        yield Worker(node, work, containerd)


def _link(first: Chroot, other: Chroot, number: int) -> None:
    """Join the networks of the first node and another, so that each reaches the other's pods."""
    there, pods = ADDRESS.format(number), PODS.format(number)
    with open(other.network, "rb") as network:  # which has no name that both see
        fd = network.fileno()
        words = ["/bin/sh", "-euc", LINK, "sh", f"/proc/self/fd/{fd}", f"node{number}", there, pods, NODE]
        subprocess.run([*first.prefix, *words], check=True, pass_fds=[fd], env={"PATH": SYSTEM_PATH})
    run([*other.prefix, "/bin/sh", "-euc", UP, "sh", there, NODE])


def usable(found: Cluster, name: str) -> bool:
    """Return whether pods can run: the node is ready and without a taint, and they can have an account."""
    node = found.get("node", name)
    states = {row["type"]: row["status"] for row in node.get("status", {}).get("conditions", ())}
    account = found.get("serviceaccount", "default")
    return states.get("Ready") == "True" and not node["spec"].get("taints") and bool(account)
