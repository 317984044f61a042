"""CDI specs of devices beside the GPUs: IMEX channels, the features (GDS and others), and all nodes for management.

Such a spec has device nodes and the files that go with them; the driver comes with the GPU.
Out of scope: GPUs (write.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushim.cdi.generate import write
from gpushim.decision.decide import hook_program, of_items
from gpushim.decision.plan import HOOK_TIMEOUT, by_hook, mount, node_edits
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory.ensure import IMEX_CHANNEL
from gpushim.oci.authorization import FEATURES
from gpushim.oci.edits import HOOK_ENV, HOOK_NAME, Edit

if TYPE_CHECKING:
    from gpushim.ground.model import Snapshot

MANAGEMENT, IMEX = "management", "imex"
PLATFORMS = {"nvml": "native", "wsl": "wsl", "csv": "tegra"}  # modes that write GPUs: the platform they are about
VENDOR, CLASS = "nvidia.com", "gpu"
CLASSES = {IMEX: "imex-channel", **{feature: feature for feature in FEATURES}}
MODES = ("auto", *PLATFORMS, MANAGEMENT, IMEX, *FEATURES)


def kind(mode: str, default: str, vendor: str, category: str) -> str:
    """Return the kind of a mode's devices; `default` is the GPUs', and "" as vendor or class means the mode's own."""
    if mode == MANAGEMENT:
        own = f"management.{VENDOR}", CLASS
    else:
        own = default.partition("/")[0], CLASSES.get(mode, default.partition("/")[2])
    return f"{vendor or own[0]}/{category or own[1]}"


def spec(mode: str, inventory: Snapshot, named: str, merged: bool, hook: str = "") -> dict[str, Any]:
    """Write the spec of a mode that is not about GPUs.

    Args:
        mode: "management", "imex", or one of FEATURES.
        inventory: the snapshot.
        named: kind of the devices.
        merged: whether to add a device "all" for all IMEX channels; the other modes have only that one.
        hook: absolute path of gpushim-hook; "" for the one beside this code.

    Raises:
        GpushimError: there is no such device.
    """
    if mode == MANAGEMENT:
        return _management(inventory, named, hook)
    env = {"env": [write.INJECTED]}
    if mode == IMEX:
        channels = {str(number): [f"{IMEX_CHANNEL}{number}"] for number in inventory["imex"]}
        if merged and channels:
            channels[write.ALL] = [path for paths in channels.values() for path in paths]
        devices = [_device(name, _nodes(paths, inventory)) for name, paths in channels.items()]
    else:
        edits, root = _nodes(inventory["features"].get(mode, []), inventory), inventory["driver"]["root"]
        args = by_hook(mount(file, root) for file in inventory["files"].get(mode, ()))
        if args:
            own = {"path": hook or hook_program(), "args": [HOOK_NAME, "prestart", *args]}
            edits.append(Edit("hook", {**own, "env": HOOK_ENV, "timeout": HOOK_TIMEOUT}))
        devices = [_device(write.ALL, edits)] if inventory["features"].get(mode) else []
    if not devices:
        raise GpushimError(f"this host has no device for the mode {mode}: is its kernel module loaded?", INVENTORY)
    for device in devices:
        device["containerEdits"] = write.container_edits(device["containerEdits"], inventory)
    return write.finished(named, devices, env)


def _management(inventory: Snapshot, named: str, hook: str) -> dict[str, Any]:
    """Give every node of the driver, those that configure MIG too; no graphics."""
    others = {path for feature in FEATURES for path in inventory["features"].get(feature, ())}
    nodes = [path for path in inventory["nodes"] if path not in others]
    if not nodes:
        raise GpushimError("this host has no device node of the driver: is it loaded? See gpushim refresh", INVENTORY)
    open_handed: Snapshot = {**inventory, "driver": {**inventory["driver"], "params": ""}}
    edits = of_items([], open_handed, hook or hook_program(), ["compute", "ngx", "utility", "video"])
    common = [edit for edit in edits if edit.kind not in ("node", "rule", "gid")]
    device = _device(write.ALL, _nodes(nodes, inventory))
    device["containerEdits"] = write.container_edits(device["containerEdits"], inventory)
    return write.finished(named, [device], write.container_edits(common, inventory, [write.INJECTED]))


def _device(name: str, edits: list[Edit]) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits}


def _nodes(paths: list[str], inventory: Snapshot) -> list[Edit]:
    return [edit for path in paths for edit in node_edits(path, inventory, userns=False)]
