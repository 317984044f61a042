"""Which container holds which GPU: read from the containers that live now, never from a record of ours.

The state directories of runc and crun tell a container's process and bundle; the bundle's config.json its device
nodes; the process's mount table those that the hook alone has bound into it. Users keep such states too, and may
write into them what they like: of each user no more is read than ALLOWANCE, and of what is read any member may be
anything. What this user may not look at is said, for it may hold any number of containers.
Out of scope: processes on the host that use a GPU without a container, which nvidia-smi lists.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import itertools
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from gpuhook import mountinfo
from gpuhook.walk import held, read_proc
from gpushim import names, seen
from gpushim.engines import files
from gpushim.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where runc and crun keep the state of containers, by who calls them; moby is Docker's containerd namespace.
STATES = (
    ("/run/docker/runtime-*/*", "docker"),
    ("/run/containerd/runc/*", "containerd"),
    ("/run/runc", "runc"),
    ("/run/crun", "crun"),
)
USERS = "/run/user/*"
USERS_STATES = (("runc", "runc"), ("crun", "crun"), ("docker/runtime-*/*", "docker"))
FILES = ("state.json", "status")  # of runc, of crun
SIZE_LIMIT = 16 << 20  # bytes
ALLOWANCE = 64 << 20  # bytes that are read of one user's states; a container's are some 50 KiB
LOOK = 4096  # bytes of it that any look at a file costs
PLACES = 64  # directories of one user's, each with the containers of a runtime
STAT_LIMIT = 4096  # bytes of a process's stat
# Annotations by which an engine can be told, KEY=VALUE; Podman writes some of CRI-O's beside its own.
ENGINES = (
    ("io.container.manager=libpod", "podman"),
    ("io.podman.", "podman"),
    ("io.kubernetes.cri-o.", "cri-o"),
    ("io.kubernetes.cri.", "containerd (CRI)"),
    ("nerdctl/", "nerdctl"),
)


def holders(
    inventory: dict[str, Any], states: list[str] | None = None, proc: str = "/proc"
) -> tuple[list[dict[str, Any]], list[str]]:
    """List the live containers that have a GPU.

    Args:
        inventory: the snapshot.
        states: state directories to look into, instead of the usual ones and those of the engines that run.
        proc: where procfs is mounted.

    Returns:
        [{"id", "name", "engine", "pid", "bundle", "devices", "how"}]: devices are texts such as "0" and "2:0", how
        is "spec", "hook" (put there behind the runtime) or both, "mount" where no config.json is to be had; and
        sentences about what could not be read.
    """
    notes: list[str] = []
    unseen: list[str] = []
    found = []
    named = names.Names(_settings)
    places = [(each, _docker(each), "") for each in states] if states is not None else _places(unseen, named)
    left = {user: ALLOWANCE for _, _, user in places if user}
    for folder, engine, user in places:
        reader = _Reader(notes, unseen, left, user, named)
        for name in _listing(folder, notes, unseen):
            if reader.spent:
                notes.append(f"{folder} has more than is read of one user's states, so not all there is listed")
                break
            state = _state(f"{folder}/{name}", reader)
            with _process(state, proc) as process:
                holder = _holder(name, engine, state, inventory, process, reader) if state and process else None
            found += [holder] if holder else []
    notes += [f"{seen.sentence(unseen)}, so containers there are not listed; {seen.AS_ROOT}"] if unseen else []
    return sorted(found, key=lambda each: (each["devices"], each["id"])), notes


class _Reader:
    """Reads the JSON files of states and bundles, of each user's within an allowance.

    Args:
        notes: get sentences about what could not be read.
        unseen: gets what this user may not look at.
        left: bytes that are left of each user's allowance.
        user: whose states these are; "" for root's, or for whatever somebody named.
        named: tells what containers are called.
    """

    def __init__(
        self, notes: list[str], unseen: list[str], left: dict[str, int], user: str, named: names.Names
    ) -> None:
        self.notes, self.unseen, self.left, self.user, self.named = notes, unseen, left, user, named

    @property
    def whose(self) -> str:
        """Whose word it is that such a container runs, as words behind the engine; "" for root's."""
        return f" of user {os.path.basename(self.user)}" if self.user else ""

    @property
    def spent(self) -> bool:
        return bool(self.user) and self.left[self.user] <= 0

    def read(self, path: str) -> dict[str, Any] | None:
        """Read a file; None if it is not there (any more) or is no object."""
        found = self.json(path)
        return found if isinstance(found, dict) else None

    def json(self, path: str) -> Any:
        """Read a JSON file; None if it is not there (any more) or is none."""
        data = b""
        try:
            with open(path, "rb", opener=_regular) as file:
                data = file.read(SIZE_LIMIT)
            found = json.loads(data)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            self.unseen.append(seen.barrier(path))
            return None
        except OSError as error:
            self.notes.append(f"{path} cannot be read: {error.strerror}")
            return None
        except (ValueError, RecursionError):
            return None  # being written, or made to harm us
        finally:
            if self.user:
                self.left[self.user] -= max(len(data), LOOK)
        return found


def _places(unseen: list[str], named: names.Names) -> list[tuple[str, str, str]]:
    """List state directories that exist, each once, with the engine that they belong to, and the user if not root.

    Args:
        unseen: gets directories that may have more, but that this user may not look into.
        named: knows the dockerds that run.
    """
    patterns = list(STATES)
    patterns += [(f"{glob.escape(root)}/runtime-*/*", "docker") for root in named.directories("exec-root")]
    asked = [(pattern, engine_name, "") for pattern, engine_name in patterns]
    for user in sorted(glob.glob(USERS)):
        asked += [(f"{glob.escape(user)}/{rest}", engine_name, user) for rest, engine_name in USERS_STATES]
    places: dict[str, tuple[str, str]] = {}
    for pattern, engine_name, user in asked:
        # Links of a user's can make a directory appear any number of times.
        matches = itertools.islice(glob.iglob(pattern), PLACES if user else None)
        unseen += itertools.islice(seen.refused(pattern), PLACES)
        for path in sorted(matches):
            places.setdefault(os.path.realpath(path), (_docker(path) or engine_name, user))
    return [(path, *whose) for path, whose in places.items()]


def _docker(folder: str) -> str:
    """Return "docker" for a state directory of Docker's containerd namespace, else ""."""
    return "docker" if os.path.basename(folder.rstrip("/")) == "moby" else ""


def _settings(path: str) -> dict[str, Any]:
    """Read daemon.json, if nobody else could have written it."""
    try:
        found = json.loads(files.read(path) or b"{}")
    except (GpushimError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _listing(folder: str, notes: list[str], unseen: list[str]) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except PermissionError:
        unseen.append(seen.barrier(folder))
        return []
    except OSError as error:
        notes.append(f"{folder} cannot be read ({error.strerror}), so containers there are not listed")
        return []


def _state(folder: str, reader: _Reader) -> dict[str, Any] | None:
    """Read the state of one container: {"pid", "start" (clock ticks since boot), "bundle", "spec", "copy"}.

    A rootless engine has its bundles where nobody else sees them: "spec" is what the state itself says of
    config.json, "copy" the path of a copy.
    """
    for name in FILES:
        state = reader.read(f"{folder}/{name}")
        if state is None:
            continue
        if name == "status":
            found = {"pid": state.get("pid"), "start": state.get("process-start-time"), "bundle": state.get("bundle")}
            return {**found, "spec": None, "copy": f"{folder}/config.json"}
        config = state.get("config")
        config = config if isinstance(config, dict) else {}
        labels = config.get("labels")
        listed = [str(label) for label in labels] if isinstance(labels, list) else []
        bundles = [label[len("bundle=") :] for label in listed if label.startswith("bundle=")]
        start = state.get("init_process_start")
        found = {"pid": state.get("init_process_pid"), "start": start, "bundle": bundles[-1] if bundles else None}
        return {**found, "spec": _spec(config, listed), "copy": ""}
    return None


def _spec(config: dict[str, Any], labels: list[str]) -> dict[str, Any] | None:
    """Write what runc's state says of a container as config.json does."""
    if "devices" not in config:
        return None
    devices = [{**each, "type": "c"} for each in _objects(config["devices"]) if each.get("type") == ord("c")]
    annotations = dict(label.partition("=")[::2] for label in labels)
    return {"annotations": annotations, "mounts": config.get("mounts"), "linux": {"devices": devices}}


@contextlib.contextmanager
def _process(state: dict[str, Any] | None, proc: str) -> Iterator[str]:
    """Hold the directory in procfs of a container's first process; "" if that is over, or another has its number."""
    pid = state["pid"] if state else None
    if not isinstance(pid, int) or pid <= 0:
        yield ""
        return
    try:
        process = held(pid, proc)
    except OSError:
        yield ""
        return
    try:
        yield process if state and _lives(state, process) else ""
    finally:
        os.close(int(os.path.basename(process)))


def _lives(state: dict[str, Any], process: str) -> bool:
    try:
        fields = read_proc(f"{process}/stat", STAT_LIMIT).rpartition(b")")[2].split()
    except OSError:
        return False
    # Fields 3 and 22 of proc_pid_stat(5).
    return len(fields) > 19 and fields[0] not in b"ZX" and (not state["start"] or int(fields[19]) == state["start"])


def _holder(
    name: str, engine: str, state: dict[str, Any], inventory: dict[str, Any], process: str, reader: _Reader
) -> dict[str, Any] | None:
    """Say what a container has; None if it has no GPU: then nothing more is asked about it."""
    bundle = str(state["bundle"] or "")
    spec = reader.read(f"{bundle}/config.json") if bundle else None
    if spec is None and state["copy"]:  # crun's
        spec = reader.read(state["copy"])
    spec = state["spec"] if spec is None else spec
    given = set(_given(spec or {}, inventory))
    behind = "mount" if spec is None else "hook"  # without a config.json, nobody says whose it is
    try:
        bound = set(_bound(process, inventory)) - given
    except PermissionError:
        bound = set()
        reader.unseen.append(f"/proc/{state['pid']}")
    has = devices(given | bound, inventory)
    if not has:
        return None
    annotations = (spec or {}).get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    if engine != "docker":  # whose containers anybody may give any annotation
        engine = _engine(annotations) or engine or "runc or crun"
    return {
        "id": name,
        "name": _name(name, engine, bundle, annotations, reader),
        "engine": engine + reader.whose,
        "pid": state["pid"],
        "bundle": bundle,
        "devices": has,
        "how": " and ".join(word for word, paths in (("spec", given), (behind, bound)) if paths),
    }


def _given(spec: dict[str, Any], inventory: dict[str, Any]) -> Iterator[str]:
    """List the inventory's nodes that a config.json gives: as devices, or as mounts, in a user namespace."""
    linux = spec.get("linux")
    numbers = {(str(node[0]), str(node[1])): path for path, node in inventory["nodes"].items()}
    for device in _objects(linux.get("devices") if isinstance(linux, dict) else None):
        path = numbers.get((str(device.get("major")), str(device.get("minor"))))
        if path and device.get("type") in ("c", "u"):
            yield path
    for mount in _objects(spec.get("mounts")):
        if str(mount.get("destination")) in inventory["nodes"]:
            yield str(mount["destination"])


def _bound(process: str, inventory: dict[str, Any]) -> Iterator[str]:
    """List the inventory's nodes that a process has as mounts; raises PermissionError if this user may not look."""
    try:
        mounts = mountinfo.parse(mountinfo.read(process))
    except PermissionError:
        raise
    except (OSError, ValueError, IndexError):
        return
    for mount in mounts:
        place = os.fsdecode(mount.place)
        # A container can mount over any path; of a node, the source bears the same name.
        if place in inventory["nodes"] and mount.root.endswith(os.fsencode(place.rpartition("/")[2])):
            yield place


def devices(paths: set[str], inventory: dict[str, Any]) -> list[str]:
    """Say which GPUs and MIG instances one has who has these nodes.

    Args:
        paths: of nodes, as the inventory has them.
        inventory: the snapshot.

    Returns:
        texts as in NVIDIA_VISIBLE_DEVICES: indices, and GPU:instance. A GPU that is divided by MIG is nobody's.
    """
    if inventory["platform"] != "native":
        return [str(gpu["index"]) for gpu in inventory["gpus"]] if paths else []
    whole = [str(gpu["index"]) for gpu in inventory["gpus"] if gpu["node"] in paths and not gpu["mig"]]
    nodes = {gpu["index"]: gpu["node"] for gpu in inventory["gpus"]}
    migs = [mig for mig in inventory["mig"] if paths >= {nodes[mig["gpu"]], *mig["nodes"]}]
    return whole + [f"{mig['gpu']}:{mig['index']}" for mig in migs]


def _engine(annotations: dict[str, Any]) -> str:
    for prefix, engine in ENGINES:
        if any(f"{key}={value}".startswith(prefix) for key, value in annotations.items()):
            return engine
    return ""


def _name(identity: str, engine: str, bundle: str, annotations: dict[str, Any], reader: _Reader) -> str:
    if engine == "docker":
        return reader.named.of_docker(identity, reader.user, reader.json)
    return names.annotated(annotations) or reader.named.of_podman(identity, bundle, reader.user, reader.json)


def _objects(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _regular(path: str, flags: int) -> int:
    """Open a regular file: users keep states too, and a FIFO or a device of theirs must not hang us."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return fd
