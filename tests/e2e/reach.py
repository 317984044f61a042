"""Which GPUs the running containers of a node can reach, looked at from inside, and whether each may.

A process joins each container's cgroup and opens the nodes of all GPUs and MIG instances that there may be, in a
directory of its own: no cgroup lets through what its device rules forbid. Beside it stands what is in /dev.
Out of scope: what pods were promised before their container runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from e2e.expect import GPU_MAJOR
from e2e.kube import Node
from e2e.leftovers import groups, until
from fakehost import Host, ci_cap, gi_cap

SECONDS = 30.0
BEGINS = 2.0  # seconds from runc's first process to a container's
DEFAULT = "default"  # a namespace
ENDING = ["sh", "-c", "trap exit TERM; sleep 100000 & wait"]  # a container's command that ends when it is told
PLACES = ("/sys/fs/cgroup/devices", "/sys/fs/cgroup")  # of the controller of devices: cgroup v1, v2
MPS, BY_MPS = b"\0CUDA_MPS_PIPE_DIRECTORY=", " by MPS"
# The arguments: a directory of nodes; files to join cgroups by, by container, as JSON.
OPEN = """
import errno, json, os, sys
os.chdir(sys.argv[1])
nodes, found = os.listdir(), {}
def opened(node):
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as problem:
        return errno.errorcode[problem.errno]
    return "opens"
for name, procs in json.loads(sys.argv[2]).items():
    out, into = os.pipe()
    if not os.fork():
        with open(procs, "w") as file:  # which fails if the container has ended
            file.write("0")
        os.write(into, json.dumps({node: opened(node) for node in nodes}).encode())
        os._exit(0)
    os.close(into)
    with open(out) as said:
        text = said.read()
    os.wait()
    if text:
        found[name] = json.loads(text)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Part:
    """A GPU or a MIG instance that a container has.

    Attributes:
        minor: of the GPU's node.
        caps: numbers of the instance's nodes; none of a whole GPU.
        way: in which it is shared; "" if it is exclusive.
    """

    minor: int
    caps: tuple[int, ...]
    way: str

    @property
    def own(self) -> set[str]:
        """The nodes that nobody else reaches if it is exclusive."""
        return {f"nvidia-cap{number}" for number in self.caps} or {f"nvidia{self.minor}"}

    @property
    def nodes(self) -> set[str]:
        """The nodes that a container with it has."""
        return self.own | {f"nvidia{self.minor}"}

    def excludes(self, other: Part) -> bool:
        """Return whether two containers cannot have these at one time."""
        if self.minor != other.minor:
            return False
        if self.caps and other.caps and not self.own & other.own:
            return False
        return bool(self.caps) != bool(other.caps) or not self.way or self.way != other.way


def part(host: Host, resource: str, device: str, by_mps: bool = False) -> Part | None:
    """Return what a device's id of a resource stands for; None if the host does not have it."""
    uuid, shared, _ = device.partition("::")
    way = f"{resource}{BY_MPS * by_mps}" if shared else ""
    for gpu in host.gpus:
        if gpu.uuid == uuid:
            return Part(gpu.minor, (), way)
        for mig in gpu.mig:
            if mig.uuid == uuid:
                return Part(gpu.minor, (gi_cap(gpu.minor, mig.gi), ci_cap(gpu.minor, mig.gi, mig.ci)), way)
    return None


@dataclass
class Containers:
    """The containers with GPUs that run on a node, or have run.

    Attributes:
        node: whose they are.
        host: whose GPUs.
        folder: of the nodes that are tried.
        parts: what each has had since it was first seen.
        given: the same as resources and ids.
        pods: each one's pod.
    """

    node: Node
    host: Host
    folder: Path
    parts: dict[str, list[Part]] = field(default_factory=dict)
    given: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    pods: dict[str, str] = field(default_factory=dict)

    def running(self) -> dict[str, int]:
        """List the containers in which a process runs, and one process of each: runc's own is not what runs there.

        One that has just been started is waited for: for long where kubelet lists it as running. Others may never
        start, of a kubelet that went between a create and its start.
        """
        top = next(path for path in (Path(place, self.node.engine.state.name) for place in PLACES) if path.is_dir())

        def first() -> dict[str, int]:
            boxes = [(group, pids) for group, pids in groups(top) if len(os.path.basename(group)) == 64]
            return {f"{group}/cgroup.procs": pids[0] for group, pids in boxes if pids}

        def begun() -> bool:
            listed = self.node.containers()
            return not any(_begins(pid) for path, pid in first().items() if path.split("/")[-2] in listed)

        until(lambda: not any(map(_begins, first().values())), BEGINS)
        assert until(begun, SECONDS), "a container has not begun"
        return {path: pid for path, pid in first().items() if not _begins(pid)}

    def opened(self) -> dict[str, set[str]]:
        """List the containers that reach a GPU now, and the nodes that each can open: which it also has in /dev."""
        self._make()
        running = self.running()
        files = {os.path.basename(os.path.dirname(path)): path for path in running}
        words = [sys.executable, "-IS", "-c", OPEN, str(self.folder), json.dumps(files)]
        said = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=SECONDS).stdout)
        found = {}
        for name, answers in said.items():
            assert {*answers.values()} <= {"ENXIO", "EPERM"}, answers  # no driver stands behind the nodes
            nodes = {node for node, answer in answers.items() if answer == "ENXIO"}
            there = _there(running[files[name]])
            if there is not None and (nodes or there):
                assert there == nodes, f"{self.pods.get(name)} has {there} in /dev and opens {nodes}"
                found[name] = nodes
        return found

    def look(self) -> dict[str, list[Part]]:
        """See to it that each container reaches what it was given, and nothing that is another's alone.

        Returns:
            what the containers have that run now.
        """
        opened = self.opened()
        for name in {*opened} - {*self.parts}:
            self._meet(name)
        opened = {name: nodes for name, nodes in opened.items() if name in self.parts}
        for name, nodes in opened.items():
            given = {node for one in self.parts[name] for node in one.nodes}
            assert nodes == given, f"{self.pods[name]} opens {nodes} and was given {given}"
        for one, other in combinations(opened, 2):
            for mine, theirs in ((one, other), (other, one)):
                alone = {node for part in self.parts[mine] if not part.way for node in part.own}
                twice = alone & opened[theirs]
                assert not twice, f"{twice} is {self.pods[mine]}'s alone, and {self.pods[theirs]} opens it"
            clash = [(a, b) for a in self.parts[one] for b in self.parts[other] if a.excludes(b)]
            assert not clash, f"{self.pods[one]} and {self.pods[other]} have {clash}"
        return {name: self.parts[name] for name in opened}

    def end(self, *names: str) -> None:
        """Remove pods, and wait for their containers' end: of static pods kubelet knows nothing before that."""
        self.node.remove(*names)
        assert until(lambda: not self.left(*names), SECONDS), names

    def left(self, *names: str) -> set[str]:
        """List containers of pods, of all without a name, that run still."""
        seen = {box for box, pod in self.pods.items() if not names or pod in names}
        return seen & {os.path.basename(os.path.dirname(path)) for path in self.running()}

    def offered(self, view: dict[str, list[str]], running: dict[str, list[Part]]) -> list[str]:
        """List what kubelet would give out though a container that runs excludes it.

        Args:
            view: as kubelet has it; what a container was given is kubelet's own to count.
            running: as `look` has it.
        """
        found = []
        for name, had in running.items():
            for resource, one in ((resource, one) for resource, ids in view.items() for one in ids):
                offer = part(self.host, resource, one)
                if not offer or (resource, one) in self.given[name]:
                    continue
                if any(offer.excludes(replace(each, way=each.way.removesuffix(BY_MPS))) for each in had):
                    found.append(f"{one} of {resource} beside {self.pods[name]}")
        return found

    def _make(self) -> None:
        """Make the nodes of all GPUs and MIG instances, those of others before stay."""
        self.folder.mkdir(exist_ok=True)
        for gpu in self.host.gpus:
            caps = [cap for mig in gpu.mig for cap in (gi_cap(gpu.minor, mig.gi), ci_cap(gpu.minor, mig.gi, mig.ci))]
            for name, major, minor in (
                (f"nvidia{gpu.minor}", GPU_MAJOR, gpu.minor),
                *((f"nvidia-cap{cap}", self.host.majors["nvidia-caps"], cap) for cap in caps),
            ):
                with contextlib.suppress(FileExistsError):
                    os.mknod(self.folder / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))

    def _meet(self, name: str) -> None:
        """Ask kubelet what a container was given."""
        pids: list[int] = []

        def known() -> bool:
            pids[:] = [pid for path, pid in self.running().items() if f"/{name}/" in path]
            return not pids or bool(self.node.held(self.node.containers().get(name, "")))

        assert until(known, SECONDS), f"{name} runs, and kubelet does not say what it has: {self.node.said()}"
        pod = self.node.containers().get(name, "")
        given = [(resource, one) for resource, ids in self.node.held(pod).items() for one in ids]
        with contextlib.suppress(OSError, IndexError):
            by_mps = MPS in b"\0" + Path(f"/proc/{pids[0]}/environ").read_bytes()
            parts = [part(self.host, resource, one, by_mps) for resource, one in given]
            assert all(parts), f"{pod} has {given}, which the host has not"
            self.parts[name], self.given[name], self.pods[name] = [one for one in parts if one], given, pod


class Pods(Containers):
    """Those in a cluster's namespace default: the chart's own, elsewhere, have GPUs without asking."""

    def running(self) -> dict[str, int]:
        """List those containers in which a process runs, and one process of each."""
        found = super().running()
        return {path: pid for path, pid in found.items() if self.namespace(path, pid) == DEFAULT}

    def namespace(self, path: str, pid: int) -> str:
        """Read the namespace of a process's container where containerd has it, for kubelet may be away.

        Args:
            path: of the container's cgroup.procs.
            pid: the process; "" is returned if it has ended.
        """
        tasks = self.node.engine.state / "io.containerd.runtime.v2.task/k8s.io"
        try:
            text = (tasks / path.split("/")[-2] / "config.json").read_text()
        except FileNotFoundError:
            assert until(lambda: not os.path.exists(f"/proc/{pid}"), SECONDS), f"{path} is not in {tasks}"
            return ""
        return str(json.loads(text)["annotations"]["io.kubernetes.cri.sandbox-namespace"])


def _begins(pid: int) -> bool:
    """Return whether a process is runc's first of a container, or has ended: its rules and /dev are not there."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return not words or words.endswith(b"runc\0init\0")  # by a path, where the shim has executed it
    except OSError:
        return False


def _there(pid: int) -> set[str] | None:
    """List the nodes of GPUs and MIG instances in a process's /dev; None if it has ended."""
    top = Path(f"/proc/{pid}/root/dev")
    try:
        names = [*os.listdir(top), *(os.listdir(top / "nvidia-caps") if (top / "nvidia-caps").is_dir() else ())]
    except OSError:
        return None
    return {name for name in names if name.removeprefix("nvidia").removeprefix("-cap").isdigit()}
