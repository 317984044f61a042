"""Request x inventory x policy -> edits: the one place that decides what a container gets.

On the create path: imports only its siblings. Out of scope: finding the request (request.py), finding out what
the host has (inventory/), what the CDI specs of others say (cdi/), and putting edits anywhere (edits.py).
"""

from __future__ import annotations

from gpushim import authorization, bounds, hookargs, require, selection
from gpushim.edits import HOOK_NAME, last_counts
from gpushim.errors import INVENTORY, GpushimError
from gpushim.request import DEVICES, MPS_PIPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.request import Request

# A file of the driver, and a socket or directory of one of its services.
FILE_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
SOCKET_OPTIONS = ["nosuid", "nodev", "noexec", "rbind", "rprivate"]
NODE_OPTIONS = ["nosuid", "noexec", "rbind", "rprivate"]

# Nodes beyond /dev/nvidiactl that some capabilities need.
UVM_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
MODESET_NODE = "/dev/nvidia-modeset"

DISPLAYING = {"graphics", "display"}  # capabilities

# Capabilities `config` and `monitor` of /proc/driver/nvidia-caps/mig-minors, the same on every driver with MIG.
MIG_CONFIG_NODE = "/dev/nvidia-caps/nvidia-cap1"
MIG_MONITOR_NODE = "/dev/nvidia-caps/nvidia-cap2"

# runc and crun replace the hook's environment by this one; without it an image's could get in (CVE-2025-23266).
HOOK_ENV = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
HOOK_TIMEOUT = 60  # seconds
LIBRARY_OPTIONS = {"library": "--lib", "library32": "--lib32"}
# Where containers have the directories that refresh prepares with hard links to libraries.
HARDLINKS = "/usr/lib/gpushim-driver"


def plan(
    request: Request, inventory: dict[str, Any], bundle: dict[str, Any]
) -> tuple[list[tuple[str, Any]], list[str]]:
    """Decide what a container gets.

    Args:
        request: what it asks for.
        inventory: the snapshot of what the host has.
        bundle: {"rootfs": absolute path, "userns": whether the container has a user namespace of its own,
            "hook": absolute path of gpushim-hook}; with an empty rootfs the hook finds out by itself where the
            rootfs is and which of the GPUs it has, as one must that is written down in a CDI spec.

    Returns:
        edits, as the docstring of edits.py describes them; and the UUIDs of the GPUs and MIG instances chosen.

    Raises:
        GpushimError: the request cannot be met in full; the sentence says which part and why.
    """
    own, foreign = parts(request)
    if not foreign:
        return _own(request, inventory, bundle)
    from gpushim.cdi import resolve  # reads specs; most containers name no device of one

    edits: list[tuple[str, Any]]
    # "void" tells whoever comes later to inject nothing, as specs of NVIDIA's tools do.
    edits, chosen = ([("env", (DEVICES, "void"))], []) if own is None else _own(request, inventory, bundle)
    edits += resolve.edits(foreign, inventory["policy"]["cdi"]["spec-dirs"], bundle)
    return last_counts(edits), chosen


def parts(request: Request) -> tuple[list[Any] | None, list[str]]:
    """Part the items of a request that mean this host's own GPUs from those that only CDI specs can explain.

    Returns:
        the former, or None if the request is about no GPU of this host at all; and CDI names.
    """
    foreign = [item[2] for item in request.devices if item[0] == "cdi"]
    if foreign and len(foreign) == len(request.devices):
        return None, foreign
    return [item for item in request.devices if item[0] not in ("cdi", "none")], foreign


def _own(
    request: Request, inventory: dict[str, Any], bundle: dict[str, Any]
) -> tuple[list[tuple[str, Any]], list[str]]:
    """Decide what a container gets of this host's own GPUs and their driver."""
    if inventory["error"]:
        raise GpushimError(
            f"{request.source} asks for GPUs: {inventory['error']['sentence']}", inventory["error"]["code"]
        )
    gpus, migs = selection.select(_devices(request), inventory, request.source, request.ignored)
    require.check(request.requirements, facts(gpus, migs, inventory))
    edits: list[tuple[str, Any]] = []
    nodes = node_paths(request, gpus, migs, inventory)
    for path in nodes:
        edits += node_edits(path, inventory, bundle)
    files = driver_files(request, inventory)
    edits += [("mount", one) for one in mounts(files, inventory)]
    edits.append(("env", (DEVICES, visible_devices(request, gpus, migs))))
    if any(file["path"] == _pipes(inventory) for file in files) and not request.mps:
        edits.append(("env", (MPS_PIPES, _pipes(inventory))))
    edits.append(("hook", _hook(request, nodes, files, inventory, bundle)))
    return edits, _names(gpus, migs)


def facts(gpus: list[Any], migs: list[Any], inventory: dict[str, Any]) -> list[dict[str, Any]]:
    """Collect what NVIDIA_REQUIRE_* is about: a {"cuda", "driver", "arch", "brand"} per GPU, or one without a GPU."""
    driver = inventory["driver"]
    common = {"cuda": driver["cuda"], "driver": driver["version"]}
    chosen = {gpu["index"]: gpu for gpu in gpus}
    parents = {mig["gpu"] for mig in migs}
    chosen.update((gpu["index"], gpu) for gpu in inventory["gpus"] if gpu["index"] in parents)
    return [{**common, "arch": gpu["arch"], "brand": gpu["brand"]} for gpu in chosen.values()] or [common]


def visible_devices(request: Request, gpus: list[Any], migs: list[Any]) -> str:
    """Say what NVIDIA_VISIBLE_DEVICES becomes: its own value, or the UUIDs if the request came by another way."""
    if request.source == "env " + DEVICES:
        return str(request.text)
    return ",".join(_names(gpus, migs)) or "none"


def _devices(request: Request) -> list[Any]:
    return parts(request)[0] or []


def _names(gpus: list[Any], migs: list[Any]) -> list[str]:
    # Without NVML, a GPU that nobody has used since the boot has no UUID yet.
    return [str(device["uuid"] or device["index"]) for device in [*gpus, *migs]]


def node_paths(request: Request, gpus: list[Any], migs: list[Any], inventory: dict[str, Any]) -> list[str]:
    """List the device nodes that a container gets, as paths in the container, without duplicates.

    Raises:
        GpushimError: one that it cannot do without is not on the host.
    """
    nodes = inventory["nodes"]
    channels = channel_paths(request, nodes)
    if inventory["platform"] != "native":
        return list(nodes) if gpus else []  # one node for all of WSL; on Tegra all that the CSV files name
    parents = {mig["gpu"] for mig in migs}
    needed = [("/dev/nvidiactl", "every GPU container needs it")]
    if "compute" in request.capabilities or "video" in request.capabilities:
        needed.append((UVM_NODES[0], "CUDA needs it"))
    needed += [(gpu["node"], f"it is GPU {gpu['index']}") for gpu in gpus]
    needed += [(gpu["node"], "its MIG instances need it") for gpu in inventory["gpus"] if gpu["index"] in parents]
    needed += [(node, f"MIG instance {mig['uuid']} needs it") for mig in migs for node in mig["nodes"]]
    if request.mig_config:
        needed.append((MIG_CONFIG_NODE, "NVIDIA_MIG_CONFIG_DEVICES asks for it"))
    if request.mig_monitor:
        needed.append((MIG_MONITOR_NODE, "NVIDIA_MIG_MONITOR_DEVICES asks for it"))
    common = {"/dev/nvidiactl", UVM_NODES[0], MIG_CONFIG_NODE, MIG_MONITOR_NODE}  # they tell no GPU
    for path, why in needed:
        if path not in nodes:
            node, reason = path, f" ({why})"
            if path not in common:
                node, reason = selection.told(inventory, path, "a node of a GPU"), selection.told(inventory, reason)
            raise GpushimError(
                f"{node} is not on this host, or is not that device{reason}; run gpushim refresh as root, which "
                "makes it or says why it cannot",
                INVENTORY,
            )
    paths = [path for path, _ in needed]
    if UVM_NODES[0] in paths and UVM_NODES[1] in nodes:
        paths.append(UVM_NODES[1])
    if DISPLAYING & set(request.capabilities):
        drawing = [*gpus, *(gpu for gpu in inventory["gpus"] if _draws(gpu, migs))]
        paths += [path for path in (MODESET_NODE, *(path for gpu in drawing for path in gpu["drm"])) if path in nodes]
    paths += channels
    if _devices(request):
        paths += [path for feature in request.features for path in inventory["features"].get(feature, ())]
    return list(dict.fromkeys(paths))


def channel_paths(request: Request, nodes: dict[str, Any]) -> list[str]:
    """List the nodes of the IMEX channels that a container asks for.

    Raises:
        GpushimError: one is not on the host.
    """
    paths = [f"/dev/nvidia-caps-imex-channels/channel{channel}" for channel in request.imex]
    missing = [path for path in paths if path not in nodes]
    if missing:
        names = ", ".join(path.rpartition("channel")[2] for path in missing[: bounds.LISTED])
        more = f" and {len(missing) - bounds.LISTED} more" if len(missing) > bounds.LISTED else ""
        raise GpushimError(
            f"the container asks for the IMEX channel{'s' * (len(missing) > 1)} {names}{more}, but there is no "
            f"{missing[0]} on this host; nvidia-modprobe makes it, or ask without it",
            INVENTORY,
        )
    return paths


def _draws(gpu: dict[str, Any], migs: list[Any]) -> bool:
    """Say whether a MIG instance among these may use the graphics of its GPU: its profile says so."""
    return any(mig["gpu"] == gpu["index"] and mig["profile"].endswith("+gfx") for mig in migs)


def driver_files(request: Request, inventory: dict[str, Any]) -> list[dict[str, Any]]:
    """List the driver's files that a container gets, as entries of the snapshot, each once."""
    names = ["any", *request.capabilities]
    if "display" in names and "graphics" not in names:
        names.append("graphics")
    if _devices(request):
        names += request.features
    lacks = authorization.missing("mps", "policy", lambda: request.privileged, inventory["policy"])
    if _devices(request) and not lacks:
        names.append("mps")
        if inventory["mps"] and inventory["mps"] not in request.ignored:
            request.ignored.append(inventory["mps"])
    if "compat32" in names:
        names += [name + "32" for name in names]
    found = {file["path"]: file for name in names for file in inventory["files"].get(name, ())}
    if "video" in names:  # libnvcuvid and its kin load libcuda
        found.update((file["path"], file) for file in inventory["files"].get("compute", ()) if "soname" in file)
    return list(found.values())


def _pipes(inventory: dict[str, Any]) -> str:
    return str(inventory["policy"]["mps"]["pipe-directory"])


def node_edits(path: str, inventory: dict[str, Any], bundle: dict[str, Any]) -> list[tuple[str, Any]]:
    """List the edits for one device node of the snapshot."""
    major, minor, mode, uid, gid = inventory["nodes"][path]
    dev_root = inventory["driver"]["dev-root"]
    edits: list[tuple[str, Any]] = []
    if bundle["userns"] and dev_root != "/":
        # In a user namespace nobody can mknod, so runc binds the host's node of the same path, which is not ours.
        bound = {"destination": path, "source": dev_root + path, "type": "bind", "options": NODE_OPTIONS}
        edits.append(("mount", bound))
    else:
        node = {
            "path": path,
            "type": "c",
            "major": major,
            "minor": minor,
            "fileMode": mode,
            "uid": uid,
            "gid": gid,
        }
        edits.append(("node", node))
    edits.append(("rule", ("c", major, minor, "rw")))
    if mode & 0o006 != 0o006 and gid:
        edits.append(("gid", gid))  # what the group may do, the container's user may too
    return edits


def mounts(files: list[dict[str, Any]], inventory: dict[str, Any]) -> list[dict[str, Any]]:
    """Write the mounts of some of the snapshot's files; those in one of the directories of hard links have one."""
    found = {}
    for file in files:
        if "in" in file:
            path = f"{HARDLINKS}/{file['in']}"
            source = f"{inventory['hardlinks']}/{file['in']}"
            found[path] = {"destination": path, "source": source, "type": "bind", "options": FILE_OPTIONS}
        else:
            found[file["path"]] = mount(file, inventory["driver"]["root"])
    return list(found.values())


def mount(file: dict[str, Any], root: str) -> dict[str, Any]:
    """Write the mount of one of the snapshot's files, of a driver below this root."""
    return {
        "destination": file["path"],
        "source": file["path"] if root == "/" else root + file["path"],
        "type": "bind",
        "options": SOCKET_OPTIONS if file["kind"] == "socket" else FILE_OPTIONS,
    }


def _hook(
    request: Request, nodes: list[str], files: list[dict[str, Any]], inventory: dict[str, Any], bundle: dict[str, Any]
) -> dict[str, Any]:
    """Write the hook's entry: all that it needs is in its arguments."""
    words, displays = hookargs.words, DISPLAYING & set(request.capabilities)
    args = [HOOK_NAME, "prestart"]
    if bundle["rootfs"]:
        args += words("--rootfs", bundle["rootfs"])
    log, driver = inventory["policy"]["log"]["file"], inventory["driver"]
    if log:
        args += words("--log", log)
    for file in files:
        if file["kind"] in LIBRARY_OPTIONS:
            folder = [f"{HARDLINKS}/{file['in']}"] if "in" in file else []
            args += words(LIBRARY_OPTIONS[file["kind"]], file["soname"], file["path"], *folder)
        for link in file.get("links", ()):
            args += words("--link", link)
    if "compute" in request.capabilities:
        for option, version in (("--driver", driver["version"]), ("--cuda", driver["cuda"])):
            if version:
                args += words(option, version)
    if driver["params"]:
        args += words("--cover", driver["params"], "/proc/driver/nvidia/params")
    if displays:
        for gpu in inventory["gpus"]:
            for link in gpu["links"]:
                args += words("--node-link", link)  # made where the node is
    if not bundle["rootfs"]:
        for gpu in inventory["gpus"]:
            if gpu["pci"]:
                args += words("--gpu", str(gpu["minor"]), _proc_name(gpu))
        args += words("--empty", driver["empty"])
    elif displays:
        # The mask that the driver takes has 64 bits: GPUs with higher minor numbers stay out of it.
        granted = {gpu["minor"] for gpu in inventory["gpus"] if gpu["node"] in nodes and gpu["minor"] < 64}
        if granted:
            args += words("--profile-mask", hex(sum(1 << minor for minor in granted)))
    for gpu in inventory["gpus"] if bundle["rootfs"] else ():
        if gpu["pci"] and gpu["node"] not in nodes:  # the container need not even read its UUID
            args += words("--cover", driver["empty"], f"/proc/driver/nvidia/gpus/{_proc_name(gpu)}")
    return {"path": bundle["hook"], "args": args, "env": HOOK_ENV, "timeout": HOOK_TIMEOUT}


def _proc_name(gpu: dict[str, Any]) -> str:
    """Return a GPU's PCI address as the kernel names it below /proc: four digits of domain, more if need be."""
    domain, _, rest = gpu["pci"].partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}"
