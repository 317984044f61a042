"""A client of the container runtime interface (CRI v1), as far as the tests need it.

The messages are declared here, with the field numbers of `pkg/apis/runtime/v1/api.proto` in
kubernetes/cri-api, because no package of Debian 12 carries them. A map field is declared as the repeated
key and value pair that it is on the wire, and an enumeration as the integer that it is. Pods share the
host's network; those with a user namespace of their own may not, and have one in which nothing is.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "runtime.v1"
NODE, CONTAINER, POD = 2, 1, 0  # NamespaceMode
IDS = 65536  # that kubelet lends a pod with hostUsers: false
EXITED = 2  # ContainerState
PROPAGATIONS = {None: 0, "rprivate": 0, "rslave": 1, "rshared": 2}  # MountPropagation
CALL_SECONDS = 60.0
STOP_SECONDS = 10.0

# A network's plugin for pods that cannot share the host's: it says that all is done.
PLUGIN = """#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}' ;;
ADD) printf '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "%s"}],
"ips": [{"address": "10.1.2.3/24", "interface": 0}]}' "$CNI_NETNS" ;;
esac
"""
NETWORK = '{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}'

# One message per line: its name, then NAME=NUMBER:TYPE; a type with a star is repeated.
MESSAGES = """
Empty
Name id=1:string
Pair key=1:string value=2:string
Version version=1:string runtime_name=2:string runtime_version=3:string
IdMapping host_id=1:uint32 container_id=2:uint32 length=3:uint32
Users mode=1:int32 uids=2:*IdMapping gids=3:*IdMapping
Namespaces network=1:int32 pid=2:int32 ipc=3:int32 userns_options=5:Users
PodSecurity namespace_options=1:Namespaces privileged=6:bool
PodLinux cgroup_parent=1:string security_context=2:PodSecurity
PodMetadata name=1:string uid=2:string namespace=3:string attempt=4:uint32
Pod metadata=1:PodMetadata hostname=2:string log_directory=3:string annotations=7:*Pair linux=8:PodLinux
RunPodSandbox config=1:Pod runtime_handler=2:string
Image image=1:string user_specified_image=18:string
Mount container_path=1:string host_path=2:string readonly=3:bool propagation=5:int32 \
uid_mappings=6:*IdMapping gid_mappings=7:*IdMapping
Device container_path=1:string host_path=2:string permissions=3:string
Security privileged=2:bool namespace_options=3:Namespaces
Resources cpu_period=1:int64 cpu_quota=2:int64 cpu_shares=3:int64
Linux resources=1:Resources security_context=2:Security
Metadata name=1:string attempt=2:uint32
CdiDevice name=1:string
Container metadata=1:Metadata image=2:Image command=3:*string args=4:*string envs=6:*Pair mounts=7:*Mount \
devices=8:*Device annotations=10:*Pair log_path=11:string linux=15:Linux cdi_devices=17:*CdiDevice
CreateContainer pod_sandbox_id=1:string config=2:Container sandbox_config=3:Pod
StopContainer container_id=1:string timeout=2:int64
Status id=1:string state=3:int32 exit_code=7:int32 log_path=15:string
ContainerStatus status=1:Status
Listed id=1:string
List items=1:*Listed
OfPod pod=3:string
ListContainers filter=1:OfPod
UpdateContainerResources container_id=1:string linux=2:Resources
ExecSync container_id=1:string cmd=2:*string timeout=3:int64
Output stdout=1:bytes stderr=2:bytes exit_code=3:int32
"""


def _declare(text: str) -> dict[str, Any]:
    """Make message classes of a declaration in the form of MESSAGES."""
    field = descriptor_pb2.FieldDescriptorProto
    scalars = {name: getattr(field, f"TYPE_{name.upper()}") for name in ("string", "bytes", "bool")}
    scalars |= {name: getattr(field, f"TYPE_{name.upper()}") for name in ("int32", "int64", "uint32")}
    proto = descriptor_pb2.FileDescriptorProto(name="cri.proto", package=PACKAGE, syntax="proto3")
    for line in text.strip().splitlines():
        message, *fields = line.split()
        entry = proto.message_type.add(name=message)
        for declared in fields:
            name, _, rest = declared.partition("=")
            number, _, kind = rest.partition(":")
            label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            added = entry.field.add(name=name, number=int(number), label=label)
            if kind in scalars:
                added.type = scalars[kind]
            else:
                added.type, added.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    classes = {}
    for entry in proto.message_type:
        descriptor = pool.FindMessageTypeByName(f"{PACKAGE}.{entry.name}")
        classes[entry.name] = message_factory.GetMessageClass(descriptor)
    return classes


M = _declare(MESSAGES)


def _ids(uids: str, gids: str, first: int) -> dict[str, Any]:
    """Return the fields of these names that map a container's ids to those of the host from `first` on."""
    return {name: [M["IdMapping"](host_id=first, container_id=0, length=IDS)] for name in (uids, gids)}


def network(programs: Path, settings: Path) -> None:
    """Write a network for pods with hostUsers: false, which has nothing in it.

    Args:
        programs: directory for its plugin.
        settings: directory for its configuration; both are made.
    """
    for folder in (programs, settings):
        folder.mkdir(parents=True, exist_ok=True)
    (programs / "loopback").write_text(PLUGIN)
    (programs / "loopback").chmod(0o755)
    (settings / "10-none.conflist").write_text(NETWORK)


class RefusedError(Exception):
    """The engine refused a call; the text is what it tells its user."""


class Client:
    """Calls to one engine's RuntimeService."""

    def __init__(self, socket: Path, logs: Path, cgroup: str = "") -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._logs, self._cgroup = logs, cgroup  # the latter is the parent of the pods' cgroups
        self._pods: dict[str, Any] = {}
        self._first: dict[str, int] = {}  # id on the host of each pod's root

    def close(self) -> None:
        """Remove the pods that are left and hang up."""
        for pod in list(self._pods):
            self.remove_pod(pod)
        self._channel.close()

    def _call(self, method: str, request: Any, reply: str) -> Any:
        call = self._channel.unary_unary(
            f"/{PACKAGE}.RuntimeService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=M[reply].FromString,
        )
        try:
            return call(request, timeout=CALL_SECONDS)
        except grpc.RpcError as problem:
            raise RefusedError(problem.details()) from None

    def version(self) -> str:
        """Ask the engine for its version."""
        return str(self._call("Version", M["Version"](), "Version").runtime_version)

    def pods(self) -> list[str]:
        """Ask for the ids of all pods, whoever has made them."""
        return [str(each.id) for each in self._call("ListPodSandbox", M["Empty"](), "List").items]

    def kill(self, pod: str) -> None:
        """Kill what runs in a pod; CRI-O gives what does not heed SIGTERM all the time that a call may take."""
        of_pod = M["ListContainers"](filter=M["OfPod"](pod=pod))
        for each in self._call("ListContainers", of_pod, "List").items:
            self._call("StopContainer", M["StopContainer"](container_id=each.id, timeout=0), "Empty")

    def run_pod(self, handler: str, annotations: dict[str, str] | None = None, first: int = 0) -> str:
        """Start a pod under a runtime class's handler and return its id.

        Args:
            handler: its name.
            annotations: of the pod.
            first: id on the host of the pod's root, as with hostUsers: false; such a pod has a network of its own.
        """
        uid = f"pod-{time.time_ns()}"
        namespaces = self._namespaces(first)
        security = M["PodSecurity"](namespace_options=namespaces)
        config = M["Pod"](
            metadata=M["PodMetadata"](name=uid, uid=uid, namespace="default"),
            log_directory=str(self._logs),
            annotations=[M["Pair"](key=key, value=value) for key, value in (annotations or {}).items()],
            linux=M["PodLinux"](cgroup_parent=self._cgroup, security_context=security),
        )
        request = M["RunPodSandbox"](config=config, runtime_handler=handler)
        pod = str(self._call("RunPodSandbox", request, "Name").id)
        self._pods[pod] = config
        self._first[pod] = first
        return pod

    @staticmethod
    def _namespaces(first: int) -> Any:
        if not first:
            return M["Namespaces"](network=NODE, pid=CONTAINER)
        users = M["Users"](mode=POD, **_ids("uids", "gids", first))
        return M["Namespaces"](network=POD, pid=CONTAINER, userns_options=users)

    def create(
        self,
        pod: str,
        image: str,
        command: list[str],
        *,
        env: dict[str, str] | None = None,
        mounts: dict[Path, str] | None = None,
        annotations: dict[str, str] | None = None,
        cdi: tuple[str, ...] = (),
        volume: tuple[Path, str, str | None] | None = None,
    ) -> str:
        """Create a container and return its id.

        Args:
            pod: id of a running pod.
            image: reference of an image the engine has.
            command: what to execute.
            env: variables of the container.
            mounts: container path of each host path; read-only.
            annotations: of the container.
            cdi: fully qualified names of devices, in the field that a device plugin's answer fills.
            volume: host path, container path and propagation of one that can be written to.

        Raises:
            RefusedError: the engine or its runtime would not create it.
        """
        name = f"c{time.time_ns()}"
        first = self._first[pod]
        security = M["Security"](namespace_options=self._namespaces(first))
        mapped = _ids("uid_mappings", "gid_mappings", first) if first else {}  # as kubelet has its volumes mounted
        binds = [
            M["Mount"](host_path=str(host), container_path=at, readonly=True, **mapped)
            for host, at in (mounts or {}).items()
        ]
        if volume:
            host, at, option = volume
            binds.append(M["Mount"](host_path=str(host), container_path=at, propagation=PROPAGATIONS[option]))
        config = M["Container"](
            metadata=M["Metadata"](name=name),
            image=M["Image"](image=image, user_specified_image=image),  # CRI-O wants the latter, for its signature
            command=command,
            envs=[M["Pair"](key=key, value=value) for key, value in (env or {}).items()],
            mounts=binds,
            annotations=[M["Pair"](key=key, value=value) for key, value in (annotations or {}).items()],
            cdi_devices=[M["CdiDevice"](name=device) for device in cdi],
            log_path=f"{name}.log",
            linux=M["Linux"](security_context=security),
        )
        request = M["CreateContainer"](pod_sandbox_id=pod, config=config, sandbox_config=self._pods[pod])
        return str(self._call("CreateContainer", request, "Name").id)

    def start(self, container: str) -> None:
        """Start a created container; it is here that the low-level runtime runs."""
        self._call("StartContainer", M["Name"](id=container), "Empty")

    def execute(self, container: str, *command: str) -> str:
        """Run a command in a container and return its stdout; a failure raises RefusedError with its stderr."""
        request = M["ExecSync"](container_id=container, cmd=list(command), timeout=int(CALL_SECONDS))
        output = self._call("ExecSync", request, "Output")
        if output.exit_code != 0:
            raise RefusedError(f"exit {output.exit_code}: {output.stderr.decode()}")
        return str(output.stdout.decode())

    def update(self, container: str, *, cpu_shares: int) -> None:
        """Change a running container's resources, which is `runc update` below."""
        resources = M["Resources"](cpu_shares=cpu_shares)
        request = M["UpdateContainerResources"](container_id=container, linux=resources)
        self._call("UpdateContainerResources", request, "Empty")

    def status(self, container: str) -> Any:
        """Return a container's status message."""
        return self._call("ContainerStatus", M["Name"](id=container), "ContainerStatus").status

    def output(self, container: str) -> str:
        """Wait for a container to exit with 0 and return what it wrote to stdout."""
        deadline = time.monotonic() + CALL_SECONDS
        while (status := self.status(container)).state != EXITED:
            assert time.monotonic() < deadline, "the container does not end"
            time.sleep(0.05)
        # Each line of a CRI log is: time, stream, whether the line goes on, text.
        lines = [line.split(" ", 3) for line in Path(status.log_path).read_text().split("\n") if line]
        assert status.exit_code == 0, lines
        written = (text if whole == "P" else f"{text}\n" for _, stream, whole, text in lines if stream == "stdout")
        return "".join(written)

    def remove_pod(self, pod: str) -> None:
        """Stop and remove a pod with all its containers.

        Again where that is refused, as the kubelet does: the shim of a process that ends just then may not answer
        (ttrpc: closed), and its end may not be noted yet ("container is still running").
        """
        end = time.monotonic() + STOP_SECONDS
        while True:
            try:
                self._call("StopPodSandbox", M["Name"](id=pod), "Empty")
                self._call("RemovePodSandbox", M["Name"](id=pod), "Empty")
                break
            except RefusedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        self._pods.pop(pod, None)
