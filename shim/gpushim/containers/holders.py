"""Which container holds which GPU: read from the containers that live now, never from a record of ours.

The state directories of runc and crun tell a container's process and bundle, the bundle's config.json its device
nodes, and the process's mountinfo the nodes that the hook alone has bound into it. Directories that this user may not
read are named: they may have any number of containers.
Out of scope: processes on the host that use a GPU without a container, which nvidia-smi lists.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import io
import itertools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushim.containers import names, runtime_state
from gpushim.containers.runtime_state import Reader, objects
from gpushim.engines.processes import table
from gpushim.ground import seen
from gpushim.paths import mountinfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Snapshot

RUNTIMES = ("runc", "crun")
# Where they keep the state of containers, by their caller; moby is Docker's containerd namespace.
STATES = (
    *((pattern, name) for name, row in table.ENGINES.items() for pattern in row.states),
    *((f"/run/{name}", name) for name in RUNTIMES),
)
USERS = "/run/user/*"
USERS_STATES = (
    *((name, name) for name in RUNTIMES),
    *((pattern, name) for name, row in table.ENGINES.items() for pattern in row.users_states),
)
PLACES = 64  # directories of one user's, each with the containers of a runtime
# Annotations by which an engine can be told: first those whose value says it, as a pod's author may add others; then
# containerd's, which nobody else writes; then the last of the table, as Podman writes some of CRI-O's too.
ENGINES = tuple(
    sorted(
        (each for row in reversed(list(table.ENGINES.values())) for each in row.annotations),
        key=lambda each: ("=" not in each[0], not each[0].startswith("io.kubernetes.cri.")),
    )
)


class Container(NamedTuple):
    """What a state tells of a container.

    Attributes:
        id: its name in the directory of states.
        place: the engine that has that directory; "" if several may.
        state: of runtime_state.state.
        process: the directory of its first process in procfs; "" if that has ended.
        reader: of its user's files.
    """

    id: str
    place: str
    state: dict[str, Any]
    process: str
    reader: Reader

    def spec(self) -> dict[str, Any] | None:
        """Read its config.json, or what its state says of that; None if nothing tells."""
        state, spec = self.state, None
        if state["bundle"]:
            spec = self.reader.read(f"{state['bundle']}/config.json")
        if spec is None and state["copy"]:  # crun's
            spec = self.reader.read(state["copy"])
        return state["spec"] if spec is None else spec

    def engine(self, annotations: dict[str, Any]) -> str:
        """Say whose it is; a container's author may add annotations, so an engine's own directory says more."""
        return (
            self.place if self.place == "docker" else _engine(annotations, self.place) or self.place or "runc or crun"
        )


def holders(
    inventory: Snapshot, states: list[str] | None = None, proc: str = "/proc"
) -> tuple[list[dict[str, Any]], list[str]]:
    """List the live containers that have a GPU.

    Args:
        inventory: the snapshot.
        states: state directories to look into, instead of the usual ones and those of the engines that run.
        proc: where procfs is mounted.

    Returns:
        [{"id", "name", "namespace", "pod", "uid", "engine", "pid", "bundle", "devices", "how"}] and sentences about
        what could not be read. "uid" is the pod's; "devices" are texts such as "0" and "2:0"; "how" is "spec",
        "hook" (added behind the runtime) or both, or "mount" where there is no config.json. Outside of pods, those
        of a pod are "".
    """
    notes: list[str] = []
    found = [_holder(each, inventory) for each in containers(notes, states, proc) if each.process]
    return sorted(filter(None, found), key=lambda each: (each["devices"], each["id"])), notes


def containers(notes: list[str], states: list[str] | None = None, proc: str = "/proc") -> Iterator[Container]:
    """List containers; the process of each is held until the next is asked for.

    Args:
        notes: gets sentences about what could not be read.
        states: as `holders` takes it.
        proc: where procfs is mounted.
    """
    unseen: list[str] = []
    named = names.Names()
    places = [(each, _docker(each), "") for each in states] if states is not None else _places(unseen, named)
    left = {user: runtime_state.ALLOWANCE for _, _, user in places if user}
    spent: set[str] = set()
    for folder, engine, user in places:
        reader, cut = Reader(notes, unseen, left, user, named), False
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


def _places(unseen: list[str], named: names.Names) -> list[tuple[str, str, str]]:
    """List the state directories, each once, with their engine, and the user if not root.

    `unseen` gets directories that this user may not look into, and that may have more of them.
    """
    patterns = list(STATES)
    patterns += [(f"{glob.escape(root)}/runtime-*/*", "docker") for root in named.directories("exec-root")]
    asked = [(pattern, engine_name, "") for pattern, engine_name in patterns]
    for user in sorted(glob.glob(USERS)):
        asked += [(f"{glob.escape(user)}/{rest}", engine_name, user) for rest, engine_name in USERS_STATES]
    places: dict[str, tuple[str, str]] = {}
    for pattern, engine_name, user in asked:
        matches = _matches(pattern) if user else glob.glob(pattern)
        unseen += itertools.islice(seen.refused(pattern), PLACES)
        for path in sorted(matches):
            places.setdefault(os.path.realpath(path), (_docker(path) or engine_name, user))
    return [(path, *whose) for path, whose in places.items()]


def _matches(pattern: str) -> list[str]:
    """Expand an absolute `glob` pattern below a user's directory.

    There may be any number of names, and by links a directory may appear any number of times: PLACES are enough.
    """
    found = [""]
    for part in pattern.split("/")[1:]:
        if glob.has_magic(part):
            found = [f"{folder}/{name}" for folder in found for name in fnmatch.filter(_names(folder), part)][:PLACES]
        else:
            found = [f"{folder}/{part}" for folder in found]
    return [path for path in found if os.path.lexists(path)]


def _names(folder: str) -> list[str]:
    try:
        return seen.listed(folder)
    except OSError:
        return []


def _docker(folder: str) -> str:
    """Return "docker" for a state directory of Docker's containerd namespace, else ""."""
    return "docker" if os.path.basename(folder.rstrip("/")) == "moby" else ""


def _holder(container: Container, inventory: Snapshot) -> dict[str, Any] | None:
    """Say what a container has; None if it has no GPU: then nothing more is asked about it."""
    spec, reader = container.spec(), container.reader
    has, how = held(container, spec, inventory)
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
        "how": how,
    }


def held(container: Container, spec: dict[str, Any] | None, inventory: Snapshot) -> tuple[list[str], str]:
    """Say which devices a living container has, and how; both as in `holders`."""
    given = set(_given(spec or {}, inventory))
    behind = "mount" if spec is None else "hook"  # without a config.json, nothing tells who added it
    try:
        bound = set(_bound(container, inventory)) - given
    except PermissionError:
        bound = set()
        container.reader.unseen.append(f"/proc/{container.state['pid']}")
    how = " and ".join(word for word, paths in (("spec", given), (behind, bound)) if paths)
    return devices(given | bound, inventory), how


def annotated(spec: dict[str, Any] | None) -> dict[str, Any]:
    """Return the annotations of a config.json; none if they are no object."""
    annotations = (spec or {}).get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def called(holder: dict[str, Any]) -> str:
    """Write the whole name of what `holders` lists: of a pod's container, NAMESPACE/POD/CONTAINER."""
    return "/".join(filter(None, (holder["namespace"], holder["pod"], holder["name"])))


def _given(spec: dict[str, Any], inventory: Snapshot) -> Iterator[str]:
    """List the inventory's nodes that a config.json gives: as devices, or as mounts, in a user namespace."""
    linux = spec.get("linux")
    numbers = {(str(node[0]), str(node[1])): path for path, node in inventory["nodes"].items()}
    for device in objects(linux.get("devices") if isinstance(linux, dict) else None):
        path = numbers.get((str(device.get("major")), str(device.get("minor"))))
        if path and device.get("type") in ("c", "u"):
            yield path
    for mount in objects(spec.get("mounts")):
        if str(mount.get("destination")) in inventory["nodes"]:
            yield str(mount["destination"])


def _bound(container: Container, inventory: Snapshot) -> Iterator[str]:
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
            place = os.fsdecode(mount.place)
            # A container can mount over any path; the source of a node has the same name.
            if place in inventory["nodes"] and mount.root.endswith(os.fsencode(place.rpartition("/")[2])):
                yield place


def devices(paths: set[str], inventory: Snapshot) -> list[str]:
    """Say which GPUs and MIG instances the device nodes at these paths give.

    Returns:
        texts as in NVIDIA_VISIBLE_DEVICES: indices, and GPU:instance. A GPU in MIG mode is none by itself.
    """
    if inventory["platform"] != "native":
        return [str(gpu["index"]) for gpu in inventory["gpus"]] if paths else []
    whole = [str(gpu["index"]) for gpu in inventory["gpus"] if gpu["node"] in paths and not gpu["mig"]]
    nodes = {gpu["index"]: gpu["node"] for gpu in inventory["gpus"]}
    migs = [mig for mig in inventory["mig"] if paths >= {nodes[mig["gpu"]], *mig["nodes"]}]
    return whole + [f"{mig['gpu']}:{mig['index']}" for mig in migs]


def _engine(annotations: dict[str, Any], place: str) -> str:
    own = table.ENGINES[place].annotations if place in table.ENGINES else ()
    for prefix, engine in own or ENGINES:
        if any(f"{key}={value}".startswith(prefix) for key, value in annotations.items()):
            return engine
    return ""


def _name(identity: str, engine: str, bundle: str, annotations: dict[str, Any], reader: Reader) -> str:
    if engine == "docker":
        return reader.named.of_docker(identity, reader.user, reader.json)
    if names.NERDCTL in annotations:
        return str(annotations[names.NERDCTL])
    return reader.named.of_podman(identity, bundle, reader.user, reader.json)
