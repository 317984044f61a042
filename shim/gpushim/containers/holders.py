"""The containers that hold GPUs: read from those that live now, never from a record of ours.

The state directories of runc and crun tell a container's process and bundle, the bundle's config.json its device
nodes, and the process's mountinfo the nodes that the hook alone has bound into it. Directories that this user may not
read are named: they may have any number of containers.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import io
import itertools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushim.containers import memory_use, names, runtime_state
from gpushim.containers.runtime_state import Reader, objects
from gpushim.engines.processes import table
from gpushim.ground import seen
from gpushim.paths import mountinfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Snapshot

RUNTIMES = ("runc", "crun")
# Directories of containers' states, with the engine; moby is Docker's containerd namespace.
STATES = (
    *((pattern, name) for name, row in table.ENGINES.items() for pattern in row.states),
    *((f"/run/{name}", name) for name in RUNTIMES),
)
USERS = "/run/user/*"
USERS_STATES = (
    *((name, name) for name in RUNTIMES),
    *((pattern, name) for name, row in table.ENGINES.items() for pattern in row.users_states),
)
DIRECTORIES = 64  # directories of one user's, each with the containers of a runtime
# Annotations that show an engine: first those with a value, as a pod's author may add others; then containerd's,
# which no other engine writes; then the last of the table, as Podman writes some of CRI-O's too.
ENGINES = tuple(
    sorted(
        (pair for row in reversed(list(table.ENGINES.values())) for pair in row.annotations),
        key=lambda pair: ("=" not in pair[0], not pair[0].startswith("io.kubernetes.cri.")),
    )
)


class Container(NamedTuple):
    """A container by its state.

    Attributes:
        id: its name in the directory of states.
        owner: the engine that has that directory; "" if several may.
        process: the directory of its first process in procfs; "" if that has ended.
        reader: of its user's files.
    """

    id: str
    owner: str
    state: dict[str, Any]
    process: str
    reader: Reader

    def spec(self) -> dict[str, Any] | None:
        """Return its config.json, or as much of it as its state has; None if neither can be read."""
        state, spec = self.state, None
        if state["bundle"]:
            spec = self.reader.read(f"{state['bundle']}/config.json")
        if spec is None and state["copy"]:  # crun's
            spec = self.reader.read(state["copy"])
        return state["spec"] if spec is None else spec

    def engine(self, annotations: dict[str, Any]) -> str:
        """Return its engine; an engine's own directory counts more than annotations, which authors may add."""
        return (
            self.owner if self.owner == "docker" else _engine(annotations, self.owner) or self.owner or "runc or crun"
        )


def holders(
    inventory: Snapshot, states: list[str] | None = None, proc: str = "/proc"
) -> tuple[list[dict[str, Any]], list[str]]:
    """List the live containers that have a GPU.

    Args:
        states: state directories to look into, instead of the usual ones and those of the engines that run.

    Returns:
        [{"id", "name", "namespace", "pod", "uid", "engine", "pid", "bundle", "devices", "how",
        "cgroup"}] and sentences about
        unreadable paths. "uid" is the pod's; "devices" are texts such as "0" and "2:0"; "how" is "spec", "hook"
        (added behind the runtime) or both, or "mount" where there is no config.json. Outside of pods, those of a pod
        are "".
    """
    notes: list[str] = []
    rows = [_holder(container, inventory) for container in containers(notes, states, proc) if container.process]
    return sorted(filter(None, rows), key=lambda row: (row["devices"], row["id"])), notes


def containers(notes: list[str], states: list[str] | None = None, proc: str = "/proc") -> Iterator[Container]:
    """List containers, with arguments as of `holders`; a container's process is held until the next one."""
    unseen: list[str] = []
    lookup = names.Names()
    folders = (
        [(state_folder, _docker(state_folder), "") for state_folder in states]
        if states is not None
        else _state_folders(unseen, lookup)
    )
    allowances = {user: runtime_state.ALLOWANCE for _, _, user in folders if user}
    spent: set[str] = set()
    for folder, engine, user in folders:
        reader, cut = Reader(notes, unseen, allowances, user, lookup), False
        for name in runtime_state.listing(folder, notes, unseen):
            if reader.spent:
                cut = True
                break
            state = runtime_state.state(f"{folder}/{name}", reader)
            with runtime_state.process(state, proc) as process:
                if state:
                    yield Container(name, engine, state, process, reader)
        if cut and user not in spent:
            spent.add(user)
            notes.append(f"{folder} has more than is read of one user's states, so not all there is listed")
    if unseen:
        notes.append(f"{seen.sentence(unseen)}, so containers there are not listed; {seen.AS_ROOT}")


def _state_folders(unseen: list[str], lookup: names.Names) -> list[tuple[str, str, str]]:
    """List the state directories, each once, with their engine, and the user if not root.

    `unseen` gets directories that this user may not look into, and that may have more of them.
    """
    patterns = list(STATES)
    patterns += [(f"{glob.escape(root)}/runtime-*/*", "docker") for root in lookup.directories("exec-root")]
    queries = [(pattern, engine_name, "") for pattern, engine_name in patterns]
    for user in sorted(glob.glob(USERS)):
        queries += [(f"{glob.escape(user)}/{below}", engine_name, user) for below, engine_name in USERS_STATES]
    owners: dict[str, tuple[str, str]] = {}
    for pattern, engine_name, user in queries:
        matches = _expand(pattern) if user else glob.glob(pattern)
        unseen += itertools.islice(seen.refused(pattern), DIRECTORIES)
        for path in sorted(matches):
            owners.setdefault(os.path.realpath(path), (_docker(path) or engine_name, user))
    return [(path, *owner) for path, owner in owners.items()]


def _expand(pattern: str) -> list[str]:
    """List the existing paths of an absolute `glob` pattern below a user's directory, DIRECTORIES at most.

    There may be any number of names, and by links a directory may appear any number of times.
    """
    paths = [""]
    for part in pattern.split("/")[1:]:
        if glob.has_magic(part):
            paths = [f"{folder}/{name}" for folder in paths for name in fnmatch.filter(_names(folder), part)][
                :DIRECTORIES
            ]
        else:
            paths = [f"{folder}/{part}" for folder in paths]
    return [path for path in paths if os.path.lexists(path)]


def _names(folder: str) -> list[str]:
    try:
        return seen.listed(folder)
    except OSError:
        return []


def _docker(folder: str) -> str:
    """Return "docker" for a state directory of Docker's containerd namespace, else ""."""
    return "docker" if os.path.basename(folder.rstrip("/")) == "moby" else ""


def _holder(container: Container, inventory: Snapshot) -> dict[str, Any] | None:
    """Return a container's row; None, without further reads, if it has no GPU."""
    spec, reader = container.spec(), container.reader
    has, source = held(container, spec, inventory)
    if not has:
        return None
    annotations = annotated(spec)
    engine = container.engine(annotations)
    bundle = str(container.state["bundle"] or "")
    pod = names.pod(annotations, engine)
    return {
        "id": container.id,
        "name": pod.container if pod.name else _name(container.id, engine, bundle, annotations, reader),
        "namespace": pod.namespace,
        "pod": pod.name,
        "uid": pod.uid,
        "engine": engine + reader.whose,
        "pid": container.state["pid"],
        "bundle": bundle,
        "devices": has,
        "how": source,
        "cgroup": memory_use.cgroup(container.process),
    }


def held(container: Container, spec: dict[str, Any] | None, inventory: Snapshot) -> tuple[list[str], str]:
    """Return the devices of a living container, and their source; both as in `holders`."""
    spec_paths = set(_spec_nodes(spec or {}, inventory))
    outer = "mount" if spec is None else "hook"  # without a config.json, nothing tells who added it
    try:
        bound = set(_mounted_nodes(container, inventory)) - spec_paths
    except PermissionError:
        bound = set()
        container.reader.unseen.append(f"/proc/{container.state['pid']}")
    source = " and ".join(word for word, paths in (("spec", spec_paths), (outer, bound)) if paths)
    return devices(spec_paths | bound, inventory), source


def annotated(spec: dict[str, Any] | None) -> dict[str, Any]:
    """Return the annotations of a config.json; {} if they are no object."""
    annotations = (spec or {}).get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def called(holder: dict[str, Any]) -> str:
    """Return the whole name of a row of `holders`: of a pod's container, NAMESPACE/POD/CONTAINER."""
    return "/".join(filter(None, (holder["namespace"], holder["pod"], holder["name"])))


def _spec_nodes(spec: dict[str, Any], inventory: Snapshot) -> Iterator[str]:
    """List the inventory's nodes in a config.json: as devices or, in a user namespace, as mounts."""
    linux = spec.get("linux")
    numbers = {(str(node[0]), str(node[1])): path for path, node in inventory["nodes"].items()}
    for device in objects(linux.get("devices") if isinstance(linux, dict) else None):
        path = numbers.get((str(device.get("major")), str(device.get("minor"))))
        if path and device.get("type") in ("c", "u"):
            yield path
    for mount in objects(spec.get("mounts")):
        if str(mount.get("destination")) in inventory["nodes"]:
            yield str(mount["destination"])


def _mounted_nodes(container: Container, inventory: Snapshot) -> Iterator[str]:
    """List the inventory's nodes that a container has as mounts; raises PermissionError if this user may not look."""
    try:
        data = container.reader.mounts(container.process)
    except PermissionError:
        raise
    except OSError:
        return
    with contextlib.suppress(ValueError, IndexError):
        for line in io.BytesIO(data):  # one by one, for a container may have a hundred thousand
            if b" /dev/" not in line:
                continue
            mount = mountinfo.Mount(line.rstrip(b"\n"))
            path = os.fsdecode(mount.point)
            # A container can mount over any path; the source of a node has the same name.
            if path in inventory["nodes"] and mount.root.endswith(os.fsencode(path.rpartition("/")[2])):
                yield path


def devices(paths: set[str], inventory: Snapshot) -> list[str]:
    """Return the GPUs and MIG instances of device nodes at these paths, as texts of NVIDIA_VISIBLE_DEVICES.

    These are indices, and GPU:instance. A GPU in MIG mode is none by itself.
    """
    if inventory["platform"] != "native":
        return [str(gpu["index"]) for gpu in inventory["gpus"]] if paths else []
    gpus = [str(gpu["index"]) for gpu in inventory["gpus"] if gpu["node"] in paths and not gpu["mig"]]
    nodes = {gpu["index"]: gpu["node"] for gpu in inventory["gpus"]}
    migs = [mig for mig in inventory["mig"] if paths >= {nodes[mig["gpu"]], *mig["nodes"]}]
    return gpus + [f"{mig['gpu']}:{mig['index']}" for mig in migs]


def _engine(annotations: dict[str, Any], owner: str) -> str:
    pairs = table.ENGINES[owner].annotations if owner in table.ENGINES else ()
    for prefix, engine in pairs or ENGINES:
        if any(f"{key}={value}".startswith(prefix) for key, value in annotations.items()):
            return engine
    return ""


def _name(identity: str, engine: str, bundle: str, annotations: dict[str, Any], reader: Reader) -> str:
    if engine == "docker":
        return reader.names.of_docker(identity, reader.user, reader.json)
    if names.NERDCTL in annotations:
        return str(annotations[names.NERDCTL])
    return reader.names.of_podman(identity, bundle, reader.user, reader.json)
