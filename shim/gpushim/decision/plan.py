"""Request x inventory x policy -> edits: the one place that decides what a container gets.

On the create path: imports only its siblings. Out of scope: the request (request.py), the host's inventory
(inventory/), the CDI specs of others (cdi/), and applying edits (edits.py).
"""

from __future__ import annotations

from gpushim.decision.hook_entry import DISPLAYING, build_hook, by_hook, mount
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory.ensure import (
    CONTROL_NODE,
    IMEX_CHANNEL,
    MIG_CONFIG_NODE,
    MIG_MONITOR_NODE,
    MODESET_NODE,
    UVM_NODES,
)
from gpushim.oci import authorization, device_names, require, selection
from gpushim.oci.device_list import DEVICES
from gpushim.oci.edits import NODE_OPTIONS, Edit
from gpushim.oci.request import CAPABILITIES, MPS_PIPES
from gpushim.paths import trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional, Sequence

    from gpushim.decision.memory import Limit
    from gpushim.ground.model import Device, File, Gpu, MigInstance, Snapshot
    from gpushim.oci.bundle import Bundle
    from gpushim.oci.request import Request

EVERY = "every GPU container gets it"

# What a capability cannot do without, by SONAME, and what programs find then; others do without what a driver lacks.
NEEDED = {"compute": ("libcuda.so.1", "no CUDA"), "utility": ("libnvidia-ml.so.1", "no driver")}
# Brands of NVML with GPUs that CUDA's forward compatibility supports: the data centre's, and some workstations'.
COMPATIBLE = ("Tesla", "Nvidia", "QuadroRTX", "NvidiaRTX")


def plan(
    request: Request, inventory: Snapshot, bundle: Bundle
) -> tuple[list[Edit], dict[str, list[Device]], list[Limit]]:
    """Decide what a container gets; with a bundle whose rootfs is "", what a CDI spec says of devices.

    Returns:
        edits, each with its reasons; what each item of the request means, by its text; and the limits of GPU memory
        that the hook sets.

    Raises:
        GpushimError: the request cannot be met in full; the sentence says which part and why.
    """
    if not request.foreign:
        return _own(request, inventory, bundle)
    from gpushim.cdi import resolve  # reads specs; most containers name no device of one

    # "void" stops later hooks from injecting anything, as specs of NVIDIA's tools do.
    edits = [Edit("env", (DEVICES, "void"), ["stops later hooks from injecting anything"])]
    devices_by_item: dict[str, list[Device]] = {}
    limits: list[Limit] = []
    if request.own is not None:
        edits, devices_by_item, limits = _own(request, inventory, bundle)
    foreign_edits = resolve.edits(request.foreign, inventory["policy"]["cdi"]["spec-dirs"], bundle)
    # A variable of ours that one of them sets as well is theirs.
    edits = [edit for edit in edits if edit.kind != "env" or edit not in foreign_edits]
    return resolve.last_counts([*edits, *foreign_edits]), devices_by_item, limits


def _own(
    request: Request, inventory: Snapshot, bundle: Bundle
) -> tuple[list[Edit], dict[str, list[Device]], list[Limit]]:
    """Decide what a container gets of this host's own GPUs and their driver."""
    if inventory["error"]:
        noun = "GPUs" if request.own else "the driver without a GPU"  # as "none" does
        sentence = f"{selection.name_asker(request.source)} {noun}: {inventory['error']['sentence']}"
        raise GpushimError(sentence, inventory["error"]["code"])
    devices_by_item: dict[str, list[Device]] = {}
    gpus, migs = selection.select(request.own or [], inventory, request.source, request.ignored, devices_by_item)
    require.check(request.requirements, facts(gpus, migs, inventory))
    limits, limit_words = _limits(request, gpus, migs, inventory, bundle["rootfs"])
    edits: list[Edit] = []
    nodes = node_paths(request, gpus, migs, inventory, devices_by_item)
    for path, reasons_of_node in nodes.items():
        edits += node_edits(path, inventory, bundle["userns"], reasons_of_node)
    if any(edit.kind == "gid" for edit in edits) and (bundle["userns"] or trust.in_user_namespace()):
        from gpushim.decision import groups

        edits = [edit for edit in edits if edit.kind != "gid"]
        edits += groups.inside(list(nodes), inventory, bundle.get("gids"), request.ignored)
    files = driver_files(request, inventory)
    _check_needed(request, inventory, bundle)
    root = inventory["driver"]["root"]
    mounted_files = [(file, reasons_of_node) for file, reasons_of_node in files.values() if file["kind"] != "socket"]
    mounts = [Edit("mount", mount(file, root), reasons_of_node) for file, reasons_of_node in mounted_files]
    edits += mounts if bundle["rootfs"] else []
    if request.source == "env " + DEVICES:
        value, reason = request.text, "as asked for, and only once"
    else:
        value, reason = ",".join(names([*gpus, *migs])) or "none", f"UUIDs of what was asked for by {request.source}"
    edits.append(Edit("env", (DEVICES, value), [reason]))
    if _pipes(inventory) in files and not request.mps:
        edits.append(Edit("env", (MPS_PIPES, _pipes(inventory)), ["[mps] enabled is true"]))
    compat_reason = (
        compat_refusal(request, gpus, migs, inventory, bundle) if "compute" in request.capabilities else ""
    )
    hook = build_hook(request, nodes, [file for file, _ in files.values()], inventory, bundle, compat_reason)
    if not bundle["rootfs"]:
        hook["args"] += by_hook([edit.value for edit in mounts])
    hook["args"] += limit_words
    reasons = ["finishes the container"]
    if compat_reason:
        reasons.append(f"an image's newer libcuda is not used: {compat_reason}")
    edits.append(Edit("hook", hook, [*reasons, *map(str, limits)]))
    return edits, devices_by_item, limits


def _limits(
    request: Request, gpus: list[Gpu], migs: list[MigInstance], inventory: Snapshot, rootfs: str
) -> tuple[list[Limit], list[str]]:
    """Return the limits of GPU memory that a container gets, and the hook's arguments for them."""
    requests = inventory["policy"]["requests"]
    if rootfs and not (request.memory or requests["memory-limit-default"] or requests["memory-limit-most"]):
        return [], []
    from gpushim.decision import memory  # most containers have no limit

    limits = memory.decide(request.memory, gpus, migs, inventory, request.ignored) if rootfs else []
    return limits, memory.words(limits, inventory, rootfs)


def _check_needed(request: Request, inventory: Snapshot, bundle: Bundle) -> None:
    """Refuse a capability without the library that all of it needs, as while a driver is exchanged.

    A CDI spec, and a container that asks for all capabilities, get what there is.
    """
    if inventory["platform"] != "native" or not bundle["rootfs"] or [*request.capabilities] == [*CAPABILITIES]:
        return
    for capability, (soname, lost) in NEEDED.items():
        files = inventory["files"].get(capability, ())
        if capability in request.capabilities and not any(file.get("soname") == soname for file in files):
            raise GpushimError(
                f"the container asks for the capability {capability}, and the driver has no {soname} for it, so its "
                f"programs would find {lost}; install that part of the driver and run gpushim refresh, or leave "
                f"{capability} out of NVIDIA_DRIVER_CAPABILITIES",
                INVENTORY,
            )


def compat_refusal(
    request: Request, gpus: list[Gpu], migs: list[MigInstance], inventory: Snapshot, bundle: Bundle
) -> str:
    """Return why a newer libcuda of the image's is not used in place of the driver's; "" if it may be.

    A CDI spec speaks of each device alone, and engines join them: there all GPUs of the host count.
    """
    if not inventory["policy"]["requests"]["cuda-compat"]:
        return "[requests] cuda-compat is false"
    if not request.cuda_compat:
        return "NVIDIA_DISABLE_CUDA_COMPAT is true"
    parents = [mig["gpu"] for mig in migs]
    for gpu in inventory["gpus"]:
        if bundle["rootfs"] and gpu not in gpus and gpu["index"] not in parents:
            continue
        brand, model = gpu["brand"], gpu["model"]
        unknown = brand in ("", "Unknown") and "GeForce" not in model and "TITAN" not in model
        if brand not in COMPATIBLE and not unknown:
            return f"GPU {gpu['index']} is a {model or brand}, on which CUDA fails with it (error 804)"
    return ""


def facts(gpus: list[Gpu], migs: list[MigInstance], inventory: Snapshot) -> list[dict[str, str]]:
    """Collect what NVIDIA_REQUIRE_* is about: a {"cuda", "driver", "arch", "brand"} per GPU, or one without a GPU."""
    driver = inventory["driver"]
    common = {"cuda": driver["cuda"], "driver": driver["version"]}
    chosen = {gpu["index"]: gpu for gpu in gpus}
    parents = {mig["gpu"] for mig in migs}
    chosen.update((gpu["index"], gpu) for gpu in inventory["gpus"] if gpu["index"] in parents)
    # A GPU that cannot be used comes with "all-usable" alone, and is then no reason to refuse.
    well = [gpu for gpu in chosen.values() if not gpu["problem"]]
    return [{**common, "arch": gpu["arch"], "brand": gpu["brand"]} for gpu in well] or [common]


def names(devices: Iterable[Device]) -> list[str]:
    """List the UUIDs of GPUs and MIG instances; without NVML, a GPU that is unused since the boot has none."""
    return [device["uuid"] or str(device["index"]) for device in devices]


def node_paths(
    request: Request,
    gpus: list[Gpu],
    migs: list[MigInstance],
    inventory: Snapshot,
    devices_by_item: Optional[dict[str, list[Device]]] = None,
) -> dict[str, list[str]]:
    """Return the reasons for each device node that a container gets, by its path there.

    Raises:
        GpushimError: the host lacks one that the container needs.
    """
    nodes = inventory["nodes"]
    channels = channel_paths(request, inventory)
    if inventory["platform"] != "native":  # one node for all of WSL; on Tegra all that the CSV files name
        return {path: [f"with any GPU on {inventory['platform']}"] for path in nodes if gpus}
    reasons: dict[str, list[str]] = {}
    for path, reason_text, reason in _needed(request, gpus, migs, inventory, devices_by_item or {}):
        if path not in nodes:
            raise _absent(path, reason, inventory)
        reasons.setdefault(path, []).append(reason_text)
    optional: list[tuple[str, str]] = []
    if UVM_NODES[0] in reasons:
        optional.append((UVM_NODES[1], reasons[UVM_NODES[0]][0]))
    drawing = [name for name in DISPLAYING if name in request.capabilities]
    if drawing:
        reason_text = capabilities(drawing)
        optional.append((MODESET_NODE, f"graphics need it: {reason_text}"))
        for gpu in [*gpus, *(gpu for gpu in inventory["gpus"] if _draws(gpu, migs))]:
            optional += [(path, f"DRM node of GPU {gpu['index']}: {reason_text}") for path in gpu["drm"]]
    optional += channels
    for name in request.features if request.own else ():
        optional += [(path, feature(name, request)) for path in inventory["features"].get(name, ())]
    for path, reason_text in optional:
        if path in nodes:
            reasons.setdefault(path, []).append(reason_text)
    return reasons


def _needed(
    request: Request,
    gpus: list[Gpu],
    migs: list[MigInstance],
    inventory: Snapshot,
    devices_by_item: dict[str, list[Device]],
) -> list[tuple[str, str, str]]:
    """List the nodes that a container must have: path, reason, and the reason for a refusal."""
    reasons: dict[int, str] = {}
    for text, devices in devices_by_item.items():
        for device in devices:
            reasons.setdefault(id(device), f'{selection.called(device)}, asked for as "{text}"')
    nodes = [(CONTROL_NODE, "every GPU container needs it", "every GPU container needs it")]
    cuda = [name for name in ("compute", "video") if name in request.capabilities]
    if cuda:
        nodes.append((UVM_NODES[0], f"CUDA needs it: {capabilities(cuda)}", "CUDA needs it"))
    nodes += [(gpu["node"], reasons.get(id(gpu), ""), f"it is GPU {gpu['index']}") for gpu in gpus]
    for gpu in inventory["gpus"] if migs else ():
        instance_requests = [reasons.get(id(mig), "") for mig in migs if mig["gpu"] == gpu["index"]]
        nodes += [(gpu["node"], request_text, "its MIG instances need it") for request_text in instance_requests]
    for mig in migs:
        request_text, reason = reasons.get(id(mig), ""), f"MIG instance {mig['uuid']} needs it"
        nodes += [(node, request_text, reason) for node in mig["nodes"]]
    for asks, path, name in (
        (request.mig_config, MIG_CONFIG_NODE, "NVIDIA_MIG_CONFIG_DEVICES"),
        (request.mig_monitor, MIG_MONITOR_NODE, "NVIDIA_MIG_MONITOR_DEVICES"),
    ):
        if asks:
            nodes.append((path, f"{name}=all", f"{name} asks for it"))
    return nodes


def _absent(path: str, reason: str, inventory: Snapshot) -> GpushimError:
    node, reason_text = path, f" ({reason})"
    if path not in (CONTROL_NODE, UVM_NODES[0], MIG_CONFIG_NODE, MIG_MONITOR_NODE):  # these tell no GPU
        node = selection.disclosed(inventory, path, "a node of a GPU")
        reason_text = selection.disclosed(inventory, reason_text)
    return GpushimError(
        f"{node} is not on this host, or is not that device{reason_text}; run gpushim refresh as root, which "
        "makes it or says why it cannot",
        INVENTORY,
    )


def capabilities(words: Sequence[str]) -> str:
    return f"{'capability' if len(words) == 1 else 'capabilities'} {' and '.join(words)}"


def feature(name: str, request: Request) -> str:
    names = [text for kind, value, text in request.devices if (kind, value) == (device_names.FEATURE, name)]
    return f"CDI device {names[0]}" if names else f"feature {name}: NVIDIA_{name.upper()}=enabled"


def channel_paths(request: Request, inventory: Snapshot) -> list[tuple[str, str]]:
    """List the nodes of the IMEX channels that a container asks for, each with its reason.

    Raises:
        GpushimError: one is not on the host.
    """
    paths = [(f"{IMEX_CHANNEL}{number}", f"IMEX channel {number}") for number in request.imex]
    missing = [path for path, _ in paths if path not in inventory["nodes"]]
    if missing:
        numbers = selection.listed([path.rpartition("channel")[2] for path in missing])
        raise GpushimError(
            f"the container asks for the IMEX channel{'s' * (len(missing) > 1)} {numbers}, but there is no "
            f"{missing[0]} on this host; nvidia-modprobe makes it, or ask without it",
            INVENTORY,
        )
    return paths


def _draws(gpu: Gpu, migs: list[MigInstance]) -> bool:
    """Return whether one of these MIG instances may use its GPU's graphics, by its profile."""
    return any(mig["gpu"] == gpu["index"] and mig["profile"].endswith("+gfx") for mig in migs)


def driver_files(request: Request, inventory: Snapshot) -> dict[str, tuple[File, list[str]]]:
    """List the driver's files that a container gets: entries of the snapshot with their reasons, by path."""
    reasons = {"any": EVERY, **{name: f"capability {name}" for name in request.capabilities}}
    if "display" in reasons:
        reasons.setdefault("graphics", "capability display brings graphics")
    if request.own:
        features = [name for name in request.features if inventory["features"].get(name)]
        reasons.update({name: feature(name, request) for name in features})
        if not authorization.unmet_condition("mps", "policy", lambda: request.privileged, inventory["policy"]):
            reasons["mps"] = "MPS: [mps] enabled is true"
            if inventory["mps"] and inventory["mps"] not in request.ignored:
                request.ignored.append(inventory["mps"])
    if "compat32" in reasons:
        reasons.update({name + "32": f"{reason}, with compat32" for name, reason in reasons.items()})
    lists = [(reason, inventory["files"].get(name, [])) for name, reason in reasons.items()]
    if "video" in reasons:  # libnvcuvid and its kin load libcuda
        libraries = [file for file in inventory["files"].get("compute", ()) if "soname" in file]
        lists.append((reasons.get("compute", "capability video loads it"), libraries))
    entries: dict[str, tuple[File, list[str]]] = {}
    for reason, files in lists:
        alone = [reason]
        for file in files:
            path = file["path"]
            entries[path] = (file, [*entries[path][1], reason] if path in entries else alone)
    return entries


def _pipes(inventory: Snapshot) -> str:
    return inventory["policy"]["mps"]["pipe-directory"]


def node_edits(path: str, inventory: Snapshot, userns: bool, reasons: Sequence[str] = ()) -> list[Edit]:
    major, minor, mode, uid, gid = inventory["nodes"][path]
    dev_root = inventory["driver"]["dev-root"]
    if userns and dev_root != "/":
        # In a user namespace nobody can mknod, so runc binds the host's node of the same path, which is not ours.
        bound = {"destination": path, "source": dev_root + path, "type": "bind", "options": NODE_OPTIONS}
        edits = [Edit("mount", bound, reasons)]
    else:
        numbers = {"path": path, "type": "c", "major": major, "minor": minor}
        edits = [Edit("node", {**numbers, "fileMode": mode, "uid": uid, "gid": gid}, reasons)]
    edits.append(Edit("rule", ("c", major, minor, "rw"), [f"lets it open {path}"]))
    if mode & 0o006 != 0o006 and gid:
        edits.append(Edit("gid", gid, [f"group of {path}"]))  # what the group may do, the container's user may too
    return edits
