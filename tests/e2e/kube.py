"""A real Kubernetes node without a cluster: kubelet with static pods, over containerd 2 of the newest Debian.

Out of scope: where its kubelet is from (programs.py), how containerd is started (engines.py), the Debian below
(chroots.py), the plugin.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from e2e import cri, programs
from e2e.chroots import Chroot
from e2e.engines import Containerd, members
from e2e.expect import INSIDE, PROBE, probe
from e2e.leftovers import SHIM_SECONDS, groups, processes, removed, until
from fakehost import Host
from gpuplugin.kubelet.v1beta1 import POD_RESOURCES, reader, writer

NAME = "testnode"
CLAIMS = "claims"  # stands for a resource, of what pods have by DRA
SECONDS = 60.0
# What kubelet would change of the machine's kernel settings; in its mount namespace they are files.
KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
SETTINGS = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "failCgroupV1": False,
    "failSwapOn": False,
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": True,
    "enforceNodeAllocatable": [],
    "makeIPTablesUtilChains": False,
    "localStorageCapacityIsolation": False,
    "protectKernelDefaults": False,
    "resolvConf": "",
    "address": "127.0.0.1",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "fileCheckFrequency": "1s",
    "syncFrequency": "10s",
    "oomScoreAdj": 0,
    "imageGCHighThresholdPercent": 100,
    "evictionHard": dict.fromkeys(
        ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
    ),
}
PREPARE = """
kubelet=$1 usual=$2 root=$3 settings=$4
shift 4
mkdir -p "$root" /var/lib/kubelet
mount --bind "$usual" /var/lib/kubelet
if [ "$root" != /var/lib/kubelet ]; then mount --bind "$kubelet" "$root"; fi
for path do mount --bind "$settings/$path" "/proc/sys/$path"; done
rm -f /etc/resolv.conf
: > /etc/resolv.conf
"""


@dataclass
class Pod:
    """What kubelet says of a pod."""

    phase: str
    why: str
    container: str


@dataclass
class Node:
    """A node; its kubelet runs between `start` and `stop`."""

    engine: Containerd
    place: Chroot
    work: Path
    ports: list[int]
    kubelet_dir: Path
    usual: Path  # which stands for /var/lib/kubelet, where device plugins are whatever kubelet's directory is
    flags: tuple[str, ...] = ()
    name: str = NAME
    _process: subprocess.Popen[bytes] | None = None
    _pods: dict[str, int] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """What kubelet has said."""
        return self.work / "kubelet.log"

    def start(self) -> None:
        """Start kubelet, as systemd does: again where a port of it is somebody's just now. Wait until it answers."""
        deadline = time.monotonic() + SECONDS
        self._start()
        while self._ended() and "address already in use" in self.said() and time.monotonic() < deadline:
            self._start()
        assert not self._ended(), self.said()

    def _start(self) -> None:
        command = [*self.place.prefix, str(programs.path("kubelet")), f"--config={self.work}/kubelet.json"]
        command += [f"--hostname-override={self.name}", "--v=2", *self.flags]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )  # fmt: skip
        socket_path = self.usual / "device-plugins" / "kubelet.sock"
        up = until(lambda: self._ended() or (socket_path.exists() and bool(self._get("/healthz", 2))), SECONDS)
        assert up, f"kubelet does not come up: {self.said()}"

    def said(self) -> str:
        """The end of what kubelet has said."""
        return self.log.read_text(errors="replace")[-3000:]

    @property
    def runs(self) -> bool:
        """Whether kubelet runs."""
        return not self._ended()

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End kubelet; its pods go on."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            group = self._process.pid  # what enters the namespace ends before kubelet does
            assert until(lambda: self._ended() and not members(group), 30), "kubelet does not end"
            self._process = None

    def _get(self, path: str, port: int = 1) -> str:
        return fetch(self.place, f"http://127.0.0.1:{self.ports[port]}{path}")

    def create(self, name: str, limits: dict[str, int], **more: Any) -> None:
        """Ask for a pod.

        Args:
            name: its name.
            limits: extended resources of its container.
            more: members of the container, or "spec" for members of the pod's specification.
        """
        spec = more.pop("spec", {})
        container = {
            "name": "main",
            "image": "docker.io/library/debian:local",
            "imagePullPolicy": "Never",
            "command": ["sleep", "100000"],
            "resources": {"limits": {key: str(number) for key, number in limits.items()}},
            "volumeMounts": [{"name": "probe", "mountPath": INSIDE}],
            **more,
        }
        self._pods[name] = self._pods.get(name, 0) + 1
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": {"again": str(self._pods[name])}},
            "spec": {
                "hostNetwork": True,
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                "volumes": [{"name": "probe", "hostPath": {"path": str(PROBE)}}],
                **spec,
            },
        }
        aside = self.work / "pod"
        aside.write_text(json.dumps(pod))
        aside.rename(self.work / "manifests" / f"{name}.json")  # kubelet takes half a file for a pod

    def pod(self, name: str, limits: dict[str, int], **more: Any) -> Pod:
        """Create a pod, and wait until it runs or is refused."""
        self.create(name, limits, **more)
        return self.wait(name)

    def wait(self, name: str) -> Pod:
        """Wait until a pod runs or is refused."""
        found: list[Pod] = []

        def settled() -> bool:
            found[:] = [one for one in [self.status(name)] if one]
            return bool(found) and (found[0].phase == "Failed" or bool(found[0].container or found[0].why))

        assert until(settled, SECONDS), f"{name}: {found} {self.said()}"
        return found[0]

    def status(self, name: str) -> Pod | None:
        """What kubelet says of a pod, if it knows it as it was asked for last."""
        for pod in json.loads(self._get("/pods") or "{}").get("items") or ():
            again = pod["metadata"].get("annotations", {}).get("again")
            if pod["metadata"]["name"] == f"{name}-{self.name}" and again == str(self._pods.get(name)):
                status = pod["status"]
                states = (status.get("containerStatuses") or [{}])[0]
                running = "running" in states.get("state", {})
                waiting = states.get("state", {}).get("waiting", {})
                why = status.get("message") or (
                    waiting.get("message") if "Error" in waiting.get("reason", "") else ""
                )
                container = states.get("containerID", "").rpartition("/")[2] if running else ""
                return Pod(status.get("phase", ""), why or "", container)
        return None

    def look(self, container: str, host: Host, indices: list[int]) -> str:
        """Run the probe in a container."""
        return self.run(container, probe(host, indices))

    def run(self, container: str, command: list[str]) -> str:
        """Run a command in a container and return what it prints."""
        client = cri.Client(self.engine.socket, self.work)  # not `engine.cri`, which removes all pods
        try:
            return client.execute(container, *command)
        finally:
            client.close()

    def remove(self, *names: str) -> None:
        """Remove pods, and wait until they have given back what they had."""
        for name in names or tuple(self._pods):
            (self.work / "manifests" / f"{name}.json").unlink(missing_ok=True)
        left = {f"{name}-{self.name}" for name in names or self._pods}

        def gone() -> bool:
            text = self._get("/pods")  # what it knows of, and then what has devices
            known = {pod["metadata"]["name"] for pod in json.loads(text)["items"] or ()} if text else left
            return not left & known and not any(self.held(name.rpartition("-")[0]) for name in left)

        assert until(gone, SECONDS), f"{left} are still there"

    def clean(self) -> None:
        """Remove the pods that kubelet has left behind, as it does when it ends."""
        client = cri.Client(self.engine.socket, self.work)

        def remove(pod: str) -> None:
            with contextlib.suppress(cri.RefusedError):  # a container of it is being started just now
                client.kill(pod)
                client.remove_pod(pod)

        def gone() -> bool:  # what kubelet asked for last may still be under way
            found = self.engine.kept()
            [*several.map(remove, [identity for identity, is_pod in found.items() if is_pod])]
            return not found

        with ThreadPoolExecutor(8) as several:  # each waits for processes to end
            assert until(gone, SECONDS), processes(self.engine.state)
        client.close()
        self._end_lost()

    def end_shims(self) -> None:
        """Remove all pods, and end shims that are lost."""
        self.remove()
        self._end_lost()

    def _end_lost(self) -> None:
        """End what containerd forgets of a sandbox made while kubelet ends: shims, and what has lost its own."""

        def lost() -> set[int]:
            pods = Path("/sys/fs/cgroup").glob(f"*/{self.engine.state.name}/kubepods")
            inside = {pid for top in pods for _, pids in groups(top) for pid in pids}
            return {*processes(self.engine.state, "/containerd-shim"), *inside}

        if until(lambda: not lost(), SHIM_SECONDS):
            return
        for pid in lost():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ask(self, method: str, answer: str) -> dict[str, Any]:
        """Ask the pod-resources API."""
        path = f"unix:{self.kubelet_dir}/pod-resources/kubelet.sock"
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))
        with grpc.insecure_channel(path, options=options) as channel:
            call = channel.unary_unary(POD_RESOURCES + method, writer("Empty"), reader(answer))
            while True:
                try:
                    found: dict[str, Any] = call({}, timeout=5, wait_for_ready=True)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    time.sleep(0.02)  # it answers ten calls at once, and a hundred a second
                else:
                    return found

    def allocatable(self, resource: str = "nvidia.com/gpu") -> list[str]:
        """Ids that kubelet would give out, all of them that are well."""
        return self.everything().get(resource, [])

    def everything(self) -> dict[str, list[str]]:
        """Ids that kubelet would give out, by resource."""
        found: dict[str, list[str]] = {}
        for row in self.ask("GetAllocatableResources", "AllocatableResourcesResponse")["devices"]:
            found.setdefault(row["resource_name"], []).extend(row["device_ids"])
        return {name: sorted(ids) for name, ids in found.items()}

    def alone(self) -> None:
        """Wait until it knows that no plugin is left: the connection of the next would end with the last one's."""
        assert until(lambda: not any(self.everything().values()), SECONDS), self.everything()

    def healths(self, name: str) -> dict[str, str]:
        """How a pod's status says that its devices are, by id."""
        rows = json.loads(self._get("/pods") or "{}").get("items") or ()
        boxes = [one for row in rows if row["metadata"]["name"] == f"{name}-{self.name}" for one in _boxes(row)]
        listed = [one for box in boxes for row in box.get("allocatedResourcesStatus", ()) for one in row["resources"]]
        return {one["resourceID"]: one["health"] for one in listed}

    def containers(self) -> dict[str, str]:
        """The pods of containers that run, by container."""
        rows = json.loads(self._get("/pods") or "{}").get("items") or ()
        listed = [(row["metadata"]["name"].removesuffix(f"-{self.name}"), box) for row in rows for box in _boxes(row)]
        return {
            box["containerID"].rpartition("/")[2]: name for name, box in listed if "running" in box.get("state", {})
        }

    def checkpoint(self) -> tuple[dict[str, list[str]], list[dict[str, Any]]]:
        """Read what kubelet would know after a restart: ids by resource, and what it has given out."""
        text = (self.usual / "device-plugins" / "kubelet_internal_checkpoint").read_text()
        data: dict[str, Any] = json.loads(text)["Data"]
        return data["RegisteredDevices"] or {}, data["PodDeviceEntries"] or []

    def held(self, name: str) -> dict[str, list[str]]:
        """Ids that a pod has, by resource."""
        return self.everybody().get(name, {})

    def everybody(self) -> dict[str, dict[str, list[str]]]:
        """Ids that pods have at one time, by pod and resource; what they have by claims is that of CLAIMS."""
        found: dict[str, dict[str, list[str]]] = {}
        for pod in self.ask("List", "ListPodResourcesResponse")["pod_resources"]:
            rows = [(row["resource_name"], row["device_ids"]) for box in pod["containers"] for row in box["devices"]]
            claims = [
                one for box in pod["containers"] for row in box["dynamic_resources"] for one in row["claim_resources"]
            ]
            cdi = [one["name"] for row in claims for one in row["cdi_devices"]]
            names = {name.rpartition("=")[2] for name in cdi if not name.startswith("gpushim/claim=")}
            for name, ids in [*rows, (CLAIMS, sorted(names))]:
                if ids:
                    found.setdefault(pod["name"].removesuffix(f"-{self.name}"), {}).setdefault(name, []).extend(ids)
        return found


def fetch(place: Chroot, url: str) -> str:
    """Return what answers at a URL in a Debian's network; nothing if nobody does.

    Args:
        place: the Debian.
        url: of http.
    """

    def get() -> str:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    try:
        return place.reach(get)
    except OSError:
        return ""


def _boxes(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return pod["status"].get("containerStatuses") or []


def _ports(count: int) -> list[int]:
    """Find ports that are free now, and that the kernel gives to nobody while kubelet is away."""
    found: set[int] = set()
    while len(found) < count:
        port = secrets.randbelow(12000) + 20000
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.add(port)
    return [*found]


@contextlib.contextmanager
def node(
    engine: Containerd,
    place: Chroot,
    *flags: str,
    settings: dict[str, object] | None = None,
    name: str = NAME,
    root: str = "/var/lib/kubelet",
) -> Iterator[Node]:
    """Make a node of a containerd, and run its kubelet.

    Args:
        engine: the containerd, with the pods' images.
        place: the Debian that it runs in.
        flags: more of kubelet's.
        settings: more of kubelet's, or others than SETTINGS.
        name: of the node.
        root: kubelet's directory.
    """
    work = Path(tempfile.mkdtemp(prefix="k", dir=engine.state))
    ports, kubelet = _ports(3), work / "k"  # short, for sockets lie in it
    usual = kubelet if root == "/var/lib/kubelet" else work / "u"
    for folder in ("k", "u", "manifests", "settings", "logs"):
        (work / folder).mkdir()
    for key, value in KERNEL.items():
        (work / "settings" / key).parent.mkdir(parents=True, exist_ok=True)
        (work / "settings" / key).write_text(value + "\n")
    settings = {
        **SETTINGS,
        **(settings or {}),
        "containerRuntimeEndpoint": f"unix://{engine.socket}",
        "staticPodPath": str(work / "manifests"),
        "podLogsDir": str(work / "logs"),
        "cgroupRoot": "/" + engine.state.name,
        **dict(zip(("port", "readOnlyPort", "healthzPort"), ports)),
    }
    (work / "kubelet.json").write_text(json.dumps(settings))
    script = [*place.prefix, "/bin/sh", "-euc", PREPARE, "sh"]
    script += [str(kubelet), str(usual), root, str(work / "settings"), *KERNEL]
    subprocess.run(script, check=True)
    for group in Path("/sys/fs/cgroup").glob("*/cgroup.procs"):
        mine = group.parent / engine.state.name
        mine.mkdir(exist_ok=True)
        for file in ("cpuset.mems", "cpuset.cpus"):
            if (mine / file).exists():
                (mine / file).write_text((group.parent / file).read_text())
    found = Node(engine, place, work, ports, kubelet, usual, (f"--root-dir={root}", *flags), name)
    found.start()
    try:
        yield found
    finally:
        found.stop()
        found.clean()
        unmount = [*place.prefix, "/bin/umount", "-R", *{"/var/lib/kubelet", root}]
        gone = until(lambda: subprocess.run(unmount, check=False).returncode == 0, SECONDS)
        assert gone, "something holds a mount of kubelet's"  # what ends with the last pod may, for a moment
        for top in Path("/sys/fs/cgroup").glob(f"*/{engine.state.name}"):
            assert until(functools.partial(removed, top), SECONDS), f"{top} is busy"
