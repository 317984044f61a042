"""CDI specs of a snapshot: of its GPUs and MIG instances, or of devices beside them, from a plan for each device.

Beside them are IMEX channels, features (GDS and others), and all nodes for management. Such a spec has device nodes
and the files that go with them; the driver comes with the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from gpushim.cdi import versions
from gpushim.decision.decide import hook_program, of_items
from gpushim.decision.hook_entry import HOOK_TIMEOUT, by_hook, mount
from gpushim.decision.plan import node_edits
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory.ensure import IMEX_CHANNEL
from gpushim.oci import device_list, device_names, request, selection
from gpushim.oci.authorization import FEATURES
from gpushim.oci.edits import HOOK_ENV, HOOK_NAME, Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Device, DeviceNode, Snapshot
    from gpushim.oci.device_names import Item

    Planned = dict[str, Edit]  # by repr: equal edits have the same

# Tells gpushim-runtime and NVIDIA's that the devices have been injected already.
INJECTED = f"{device_list.DEVICES}=void"
ALL = "all"
MANAGEMENT, IMEX = "management", "imex"
PLATFORMS = {"nvml": "native", "wsl": "wsl", "csv": "tegra"}  # modes that write GPUs: the platform they are about
VENDOR, CLASS = "nvidia.com", "gpu"
CLASSES = {IMEX: "imex-channel", **{feature: feature for feature in FEATURES}}
MODES = ("auto", *PLATFORMS, MANAGEMENT, IMEX, *FEATURES)


def gpu_spec(
    inventory: Snapshot,
    kind: str,
    names: list[str],
    notes: list[str],
    hook: str = "",
    selected: Optional[list[str]] = None,
    merged: bool = True,
) -> dict[str, Any]:
    """Return a spec of the GPUs and MIG instances, and of the devices beside them.

    Args:
        kind: vendor/class of the devices.
        names: out of "index" (0, 0:1), "type-index" (gpu0, mig0:1) and "uuid".
        notes: gets a sentence for each device that is left out.
        hook: absolute path of gpushim-hook; "" for the one beside this code.
        selected: names of the devices to describe, as in NVIDIA_VISIBLE_DEVICES; None for all that can be used.
        merged: whether to add a device "all" for what a request for all gives, or for those described.

    Raises:
        GpushimError: there is no device that can be used.
    """
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])
    chosen = _choose(inventory, kind, selected, notes)
    described = [device for device in chosen if _name_device(device, names, kind)]
    nameless = [selection.called(device) for device in chosen if device not in described]
    notes += [f"{label} is left out of the CDI spec: it has no UUID" for label in nameless]
    hook = hook or hook_program()
    plans = _plan_each(described, inventory, hook, notes)
    shared = _shared_edits(plans, inventory, hook)
    devices = []
    for device, edits in plans:
        device_edits = container_edits(_without(shared, edits), inventory)
        devices += [{"name": name, "containerEdits": device_edits} for name in _name_device(device, names, kind)]
    lost = [] if selected is not None else selection.unusable(inventory)
    # An edit that several devices have comes once.
    of_all = [edits for device, edits in plans if selected is not None or not _is_divided(device)]
    union = {key: edit for edits in of_all for key, edit in edits.items()}
    if merged and (lost or len(plans) < len(described)):  # a request for all never gets fewer
        notes.append(f"the device {ALL} is left out of the CDI spec: not all GPUs can be used")
    elif merged and union:
        devices.append({"name": ALL, "containerEdits": container_edits(_without(shared, union), inventory)})
    for name, edits in _plan_others(inventory, hook) if selected is None else ():
        devices.append({"name": name, "containerEdits": container_edits(_without(shared, edits), inventory)})
    common = [edit for key, edit in plans[0][1].items() if key in shared]
    return finished(kind, devices, container_edits(common, inventory, [INJECTED]))


def finished(kind: str, devices: list[dict[str, Any]], common: dict[str, Any]) -> dict[str, Any]:
    """Return a spec in the lowest version that allows it."""
    spec = {"cdiVersion": "", "kind": kind, "devices": devices, "containerEdits": common}
    spec["cdiVersion"], _ = versions.required(spec)
    return spec


def container_edits(edits: list[Edit], inventory: Snapshot, env: Optional[list[str]] = None) -> dict[str, Any]:
    """Return a plan's edits, and more variables, as CDI's containerEdits; keys without a value are left out.

    There are no mounts among them: the hook makes those (hook_entry.by_hook).
    """
    root = inventory["driver"]["dev-root"]
    values: dict[str, list[Any]] = {}
    for edit in edits:
        values.setdefault(edit.kind, []).append(edit.value)
    access = {rule[:3]: rule[3] for rule in values.get("rule", ())}
    nodes = [_node(node, root, access) for node in values.get("node", ())]
    variables = [f"{name}={value}" for name, value in values.get("env", ()) if name != device_list.DEVICES]
    members = {
        "env": [*(env or []), *variables],
        "deviceNodes": sorted(nodes, key=lambda node: (node["path"].count("/"), node["path"])),
        "hooks": [{"hookName": "prestart", **hook} for hook in values.get("hook", ())],
        "additionalGids": sorted({*values.get("gid", ())}),
    }
    return {key: value for key, value in members.items() if value}


def _node(node: DeviceNode, root: str, access: dict[Any, str]) -> dict[str, Any]:
    permissions = access.get((node["type"], node["major"], node["minor"]), "rw")
    host = {} if root == "/" else {"hostPath": root + node["path"]}
    return {"path": node["path"], **host, **node, "permissions": permissions}


def _choose(inventory: Snapshot, kind: str, selected: Optional[list[str]], notes: list[str]) -> list[Device]:
    """List the devices to describe: the GPUs, those in MIG mode among them, then the MIG instances."""
    if selected is not None:
        items = device_names.parse(selected, (kind,)) or []
        gpus, migs = selection.select(items, inventory, "env --device-id", notes)
        return [*gpus, *migs]
    undivided, migs, empty = selection.usable(inventory)
    for gpu in inventory["gpus"]:
        if gpu["problem"]:
            notes.append(f"GPU {gpu['index']} is left out of the CDI spec: {gpu['problem']}")
        elif gpu["index"] in empty:
            notes.append(f"GPU {gpu['index']} is left out of the CDI device {ALL}: it is in MIG mode and not divided")
    divided = [gpu for gpu in inventory["gpus"] if gpu["mig"] and not gpu["problem"]]
    return [*sorted([*undivided, *divided], key=lambda gpu: gpu["index"]), *migs]


def _is_divided(device: Device) -> bool:
    """Return whether this is a whole GPU in MIG mode, which a request for all does not give."""
    return "gi" not in device and device["mig"]


def _plan_others(inventory: Snapshot, hook: str) -> Iterator[tuple[str, Planned]]:
    items: list[Item] = [(device_names.FEATURE, name, name) for name in FEATURES if inventory["features"].get(name)]
    items += [(device_names.CHANNEL, number, f"{device_names.CHANNEL}-{number}") for number in inventory["imex"]]
    for item in items:
        edits = of_items([item], inventory, hook, request.CAPABILITIES)
        yield item[2], {repr(edit): edit for edit in edits}


def _plan_each(
    devices: list[Device], inventory: Snapshot, hook: str, notes: list[str]
) -> list[tuple[Device, Planned]]:
    """Plan for each device alone; leave out one that cannot be given, unless none remains."""
    plans = []
    problem: Optional[GpushimError] = None
    for device in devices:
        item = ("mig-index", (device["gpu"], device["index"])) if "gi" in device else ("index", device["index"])
        try:
            edits = of_items([(*item, selection.index_of(device))], inventory, hook, request.CAPABILITIES)
            plans.append((device, {repr(edit): edit for edit in edits}))
        except GpushimError as error:
            problem = error
            notes.append(f"{selection.called(device)} is left out of the CDI spec: {error}")
    if not plans:
        raise problem or GpushimError(
            "there is no GPU or MIG instance to describe; gpushim list says what the host has", INVENTORY
        )
    return plans


def _shared_edits(plans: list[tuple[Device, Planned]], inventory: Snapshot, hook: str) -> set[str]:
    """Return the edits that all devices share; of nodes, only those that a container without a GPU gets too.

    On WSL and Tegra all nodes stay with the devices: a device must edit something (CDI specification).
    """
    common = set.intersection(*(set(edits) for _, edits in plans))
    control = set()
    if inventory["platform"] == "native":
        control = {repr(edit) for edit in of_items([], inventory, hook, request.CAPABILITIES)}
    about_nodes = {key for key, edit in plans[0][1].items() if edit.kind in ("node", "rule", "gid")}
    return (common - about_nodes) | (common & control)


def _without(shared: set[str], edits: Planned) -> list[Edit]:
    return [edit for key, edit in edits.items() if key not in shared]


def _name_device(device: Device, strategies: list[str], kind: str) -> list[str]:
    """List a device's names; MIG instances have the UUIDs of old drivers too, which name an instance of a GPU."""
    part = f"{device['gpu']}:{device['index']}" if "gi" in device else str(device["index"])
    uuids = [device["uuid"], *([device["legacy"]] if "gi" in device else [])]
    forms = {"index": [part], "type-index": [("mig" if "gi" in device else "gpu") + part], "uuid": uuids}
    cdi_names = dict.fromkeys(device_names.cdi_name(form) for name in strategies for form in forms[name])
    return [name for name in cdi_names if device_names.is_qualified(f"{kind}={name}")]


def kind(mode: str, default: str, vendor: str, category: str) -> str:
    """Return the kind of a mode's devices; `default` is the GPUs', and "" as vendor or class means the mode's own."""
    if mode == MANAGEMENT:
        defaults = f"management.{VENDOR}", CLASS
    else:
        defaults = default.partition("/")[0], CLASSES.get(mode, default.partition("/")[2])
    return f"{vendor or defaults[0]}/{category or defaults[1]}"


def mode_spec(mode: str, inventory: Snapshot, device_kind: str, merged: bool, hook: str = "") -> dict[str, Any]:
    """Return the spec of a mode that is not about GPUs: "management", "imex", or one of FEATURES.

    `merged` adds a device "all" for all IMEX channels; the other modes have only that one. `hook` is the absolute
    path of gpushim-hook, "" for the one beside this code.

    Raises:
        GpushimError: there is no such device.
    """
    if mode == MANAGEMENT:
        return _management(inventory, device_kind, hook)
    env = {"env": [INJECTED]}
    if mode == IMEX:
        channels = {str(number): [f"{IMEX_CHANNEL}{number}"] for number in inventory["imex"]}
        if merged and channels:
            channels[ALL] = [path for paths in channels.values() for path in paths]
        devices = [_device(name, _nodes(paths, inventory)) for name, paths in channels.items()]
    else:
        edits, root = _nodes(inventory["features"].get(mode, []), inventory), inventory["driver"]["root"]
        args = by_hook(mount(file, root) for file in inventory["files"].get(mode, ()))
        if args:
            hook_entry = {"path": hook or hook_program(), "args": [HOOK_NAME, "prestart", *args]}
            edits.append(Edit("hook", {**hook_entry, "env": HOOK_ENV, "timeout": HOOK_TIMEOUT}))
        devices = [_device(ALL, edits)] if inventory["features"].get(mode) else []
    if not devices:
        raise GpushimError(f"this host has no device for the mode {mode}: is its kernel module loaded?", INVENTORY)
    for device in devices:
        device["containerEdits"] = container_edits(device["containerEdits"], inventory)
    return finished(device_kind, devices, env)


def _management(inventory: Snapshot, device_kind: str, hook: str) -> dict[str, Any]:
    """Return the spec of every node of the driver, those that configure MIG too; no graphics."""
    feature_paths = {path for feature in FEATURES for path in inventory["features"].get(feature, ())}
    nodes = [path for path in inventory["nodes"] if path not in feature_paths]
    if not nodes:
        raise GpushimError("this host has no device node of the driver: is it loaded? See gpushim refresh", INVENTORY)
    open_handed: Snapshot = {**inventory, "driver": {**inventory["driver"], "params": ""}}
    edits = of_items([], open_handed, hook or hook_program(), ["compute", "ngx", "utility", "video"])
    common = [edit for edit in edits if edit.kind not in ("node", "rule", "gid")]
    device = _device(ALL, _nodes(nodes, inventory))
    device["containerEdits"] = container_edits(device["containerEdits"], inventory)
    return finished(device_kind, [device], container_edits(common, inventory, [INJECTED]))


def _device(name: str, edits: list[Edit]) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits}


def _nodes(paths: list[str], inventory: Snapshot) -> list[Edit]:
    return [edit for path in paths for edit in node_edits(path, inventory, userns=False)]
