"""Which devices of this host a request means.

Create path: parsing (device_names.py) and choosing 8 GPUs takes about 0.1 ms.
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.ground.errors import INVENTORY, REQUEST, GpushimError, quote
from gpushim.oci.device_names import ALL, ALL_USABLE, FEATURE, NOT_GPU_KINDS, UUID_DIGITS, is_short_uuid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Optional, Sequence

    from gpushim.ground.model import Device, Gpu, MigInstance, Snapshot
    from gpushim.oci.device_names import Item

SHOWN = "`gpushim list` on the host says"
CDI_SPEC = "the CDI spec"  # source of a request that is no container's


def select(
    devices: Sequence[Item],
    inventory: Snapshot,
    source: str = "env NVIDIA_VISIBLE_DEVICES",
    notes: Optional[list[str]] = None,
    devices_by_item: Optional[dict[str, list[Device]]] = None,
) -> tuple[list[Gpu], list[MigInstance]]:
    """Return the requested devices of this host.

    Args:
        devices: items from parse, without CDI names.
        source: Request.source, for messages.
        notes: if given, receives a sentence for each GPU in MIG mode that "all" leaves out because it has no
            instance, or that is named by itself; and for each device that "all-usable" does not give in full.
        devices_by_item: if given, receives the devices of each item, by its text.

    Returns:
        GPUs and MIG instances, as entries of the snapshot, each once: in the request's order, or in index
        order for "all" and "all-usable". The GPUs that the MIG instances belong to are not among the GPUs.

    Raises:
        GpushimError: REQUEST, when a device is unknown, ambiguous, or unusable; INVENTORY, when the
            host has no usable GPU at all, or "all" is asked for and one of them cannot be used; "all-usable" is
            never refused.
    """
    if devices and not inventory["gpus"] and (ALL_USABLE, None, ALL_USABLE) not in devices:
        reason = disclosed(inventory, _notes(inventory))
        found_none = f"no GPU was found on this host{reason}; check the driver with nvidia-smi"
        raise GpushimError(f"the container asks for a GPU, but {found_none}", INVENTORY)
    return _select(
        devices,
        inventory,
        name_asker(source),
        [] if notes is None else notes,
        {} if devices_by_item is None else devices_by_item,
    )


def _select(
    devices: Sequence[Item],
    inventory: Snapshot,
    subject: str,
    notes: list[str],
    devices_by_item: dict[str, list[Device]],
) -> tuple[list[Gpu], list[MigInstance]]:
    gpus: list[Gpu] = []
    migs: list[MigInstance] = []
    for item in devices:
        if item[0] in NOT_GPU_KINDS:
            _require_there(subject, item, inventory)
            continue
        if item[0] in (ALL, ALL_USABLE):
            gpus, migs = (_all if item[0] == ALL else _all_usable)(inventory, notes)
            devices_by_item[item[2]] = [*gpus, *migs]
            continue  # what follows is beside the GPUs
        matches = find(item, inventory)
        if len(matches) != 1:
            _refuse(_counted_subject(subject, devices, inventory), item, matches, inventory)
        (device,) = devices_by_item[item[2]] = matches
        _require_healthy(subject, item, device, inventory)
        if "gi" in device:
            if device not in migs:
                migs.append(device)
        elif device not in gpus:
            gpus.append(device)
            if device["mig"]:
                notes.append(_divided(device["index"], inventory))
    return gpus, migs


def called(device: Device) -> str:
    return f"{'MIG instance' if 'gi' in device else 'GPU'} {index_of(device)}"


def index_of(device: Device) -> str:
    """Return what names a GPU, such as 0, or a MIG instance, such as 0:1, in a list of devices."""
    return f"{device['gpu']}:{device['index']}" if "gi" in device else str(device["index"])


def _divided(index: int, inventory: Snapshot) -> str:
    """Return the note on a request for a GPU in MIG mode: it gets its node alone, as with NVIDIA's tools."""
    migs = [index_of(mig) for mig in inventory["mig"] if mig["gpu"] == index]
    fix = f"name an instance: {listed(migs)}" if migs else "make MIG instances (nvidia-smi mig -cgi ... -C), name one"
    return f"GPU {index} comes without its MIG instances, so CUDA finds no device in it: it is in MIG mode; {fix}"


def disclosed(inventory: Snapshot, devices: str, otherwise: str = "") -> str:
    """Return `devices`, a text about the host's devices, where refusals may list them, else `otherwise`."""
    return devices if inventory["policy"]["requests"]["list-devices-in-refusals"] else otherwise


def name_asker(source: str) -> str:
    """Return the beginning of a sentence about what a request asks for, by its source."""
    if source.startswith("env "):
        return source[4:] + " asks for"
    return f"{CDI_SPEC} asks for" if source == CDI_SPEC else f"the container asks in its {source} for"


def _counted_subject(subject: str, devices: Sequence[Item], inventory: Snapshot) -> str:
    """Return the subject as the user may have written it: `docker run --gpus N` makes the indices from 0 on."""
    count, variable = len(devices), "NVIDIA_VISIBLE_DEVICES"
    enough = len(inventory["gpus"]) + len(inventory.get("absent", ())) >= count
    if enough or count < 2 or [item[:2] for item in devices] != [("index", index) for index in range(count)]:
        return subject
    return subject.replace(variable, f"{variable} (as docker run --gpus {count} sets it)", 1)


def _all(inventory: Snapshot, notes: list[str]) -> tuple[list[Gpu], list[MigInstance]]:
    gpus, migs, empty = usable(inventory)
    lost = unusable(inventory)
    names = listed([str(device["uuid"] or device["index"]) for device in [*gpus, *migs]])
    if lost:
        hint = f", or name those that can be used: {names}" if names else ""
        detail = disclosed(inventory, f": {listed(lost)}; fix that{hint}", f"; {SHOWN} which")
        raise GpushimError(f"the container asks for all GPUs, but not all can be used{detail}", INVENTORY)
    if not names:
        raise GpushimError(
            "the container asks for all GPUs, but all of this host are in MIG mode, and there is no MIG instance; "
            "make some (nvidia-smi mig -cgi ... -C), or switch the mode off (nvidia-smi -mig 0)",
            INVENTORY,
        )
    notes.extend(f"GPU {index} is left out of all: it is in MIG mode and has no instance" for index in empty)
    return gpus, migs


def _all_usable(inventory: Snapshot, notes: list[str]) -> tuple[list[Gpu], list[MigInstance]]:
    """Grant every usable device, and the node of each unusable GPU, so that a monitor sees it recover."""
    nodes, native = inventory["nodes"], inventory["platform"] == "native"  # elsewhere nodes are not a GPU's own
    gpus = {gpu["index"]: gpu for gpu in inventory["gpus"] if not native or gpu["node"] in nodes}
    _, usable_migs, empty = usable(inventory)
    migs = [mig for mig in usable_migs if mig["gpu"] in gpus and not (native and {*mig["nodes"]}.difference(nodes))]
    parents = {mig["gpu"] for mig in migs}
    notes += unusable(inventory)
    notes += [f"GPU {index} has no MIG instance, and is in MIG mode" for index in empty]
    notes += [f"MIG instance {index_of(mig)} has no usable device nodes" for mig in usable_migs if mig not in migs]
    return [gpu for index, gpu in sorted(gpus.items()) if index not in parents], migs


def usable(inventory: Snapshot) -> tuple[list[Gpu], list[MigInstance], list[int]]:
    """Return the undivided GPUs and the MIG instances that can be granted, in index order.

    Returns:
        both, and the indices of healthy GPUs that are in MIG mode and have no instance: they have nothing to give.
    """
    sick = {gpu["index"] for gpu in inventory["gpus"] if gpu["problem"]}
    gpus = [gpu for gpu in inventory["gpus"] if not gpu["mig"] and gpu["index"] not in sick]
    migs = [mig for mig in inventory["mig"] if mig["gpu"] not in sick]
    divided = {mig["gpu"] for mig in inventory["mig"]} | sick
    empty = [gpu["index"] for gpu in inventory["gpus"] if gpu["mig"] and gpu["index"] not in divided]
    gpus.sort(key=lambda gpu: gpu["index"])
    return gpus, sorted(migs, key=lambda mig: (mig["gpu"], mig["index"])), sorted(empty)


def unusable(inventory: Snapshot) -> list[str]:
    """List why GPUs and MIG instances of the host cannot be granted, a reason for each."""
    sick = [
        gpu["problem"] if gpu["problem"].startswith("GPU ") else f"GPU {gpu['index']}: {gpu['problem']}"
        for gpu in inventory["gpus"]
        if gpu["problem"]
    ]
    return [*sick, *inventory.get("missing", ())]


def find(item: Item, inventory: Snapshot) -> list[Device]:
    """Return the GPUs or MIG instances that an item of `parse` names; none for one that names no device."""
    kind, value, _ = item
    name = str(value).lower()
    if kind == "mig-index":
        return [mig for mig in inventory["mig"] if (mig["gpu"], mig["index"]) == value]
    if kind == "mig-uuid":
        return [mig for mig in inventory["mig"] if mig["uuid"].lower() == name]
    if kind == "mig-legacy":
        return [mig for mig in inventory["mig"] if mig["legacy"].lower() == name]
    gpus = inventory["gpus"]
    if kind in ("uuid", "uuid-prefix"):
        return [gpu for gpu in gpus if gpu["uuid"].lower().startswith(name)]
    if kind == "index":
        return [gpu for gpu in gpus if gpu["index"] == value]
    return [gpu for gpu in gpus if kind == "pci" and gpu["pci"] == value]


def _require_there(subject: str, item: Item, inventory: Snapshot) -> None:
    """Raise for a feature that the host does not have; plan does so for IMEX channels."""
    if item[0] == FEATURE and not inventory["features"].get(str(item[1])):
        raise GpushimError(
            f'{subject} the CDI device "{quote(item[2])}", but this host has no device node for it; load its kernel '
            "module, or ask without it",
            REQUEST,
        )


def _require_healthy(subject: str, item: Item, device: Device, inventory: Snapshot) -> None:
    index = device["gpu"] if "gi" in device else device["index"]
    for gpu in inventory["gpus"]:
        if gpu["index"] == index and gpu["problem"]:
            detail = disclosed(inventory, f": {gpu['problem']}; name another GPU", f"; name another GPU, {SHOWN} why")
            noun = "MIG instance" if "gi" in device else "GPU"
            raise GpushimError(f'{subject} {noun} "{quote(item[2])}", which cannot be used{detail}', REQUEST)


def _refuse(subject: str, item: Item, matches: list[Device], inventory: Snapshot) -> NoReturn:
    text = quote(item[2])
    if matches:
        candidates = disclosed(inventory, f"{len(matches)} GPUs: {_list_devices(matches)}", "more than one GPU")
        raise GpushimError(f'{subject} GPU "{text}", which fits {candidates}; write more of the UUID', REQUEST)
    if is_short_uuid(item[2]):
        fix = f"write at least {UUID_DIGITS} digits of it"
        raise GpushimError(f'{subject} GPU "{text}", which is too short for a UUID; {fix}', REQUEST)
    noun = "MIG instance" if item[0].startswith("mig-") else "GPU"
    _refuse_absent(subject, noun, item, inventory)
    if not disclosed(inventory, "lists"):
        raise GpushimError(f'{subject} {noun} "{text}", which this host does not have; use one that it has', REQUEST)
    gpus, migs, fix = inventory["gpus"], inventory["mig"], f"use one of them{_or_all(inventory)}"
    if noun == "GPU":
        raise GpushimError(
            f'{subject} GPU "{text}", but this host has {len(gpus)}: {_list_devices(gpus)}; {fix}', REQUEST
        )
    have = "has none; name a GPU, or make MIG instances (nvidia-smi mig -cgi ... -C)"
    if migs:
        have = f"has {len(migs)}: {_list_devices(migs)}; {fix}"
    elif inventory["notes"]:  # as without NVML, which alone lists them
        have = f"has none{_notes(inventory)}; fix that, then run gpushim refresh"
    raise GpushimError(f'{subject} MIG instance "{text}", but this host {have}', REQUEST)


def _refuse_absent(subject: str, noun: str, item: Item, inventory: Snapshot) -> None:
    """Raise for the index of a GPU that has been there since the boot and is not now: it is no other GPU's."""
    number = item[1][0] if isinstance(item[1], tuple) else item[1] if item[0] == "index" else -1
    names = [present["uuid"] or present["pci"] for present in inventory["gpus"]]
    for gpu in (entry for entry in inventory.get("absent", ()) if entry["index"] == number):
        detail = disclosed(inventory, f" ({gpu['uuid'] or gpu['pci']})")
        raise GpushimError(
            f'{subject} {noun} "{quote(item[2])}", but the GPU of that index{detail} is missing, and no other gets '
            f"it; name a GPU by its UUID: {disclosed(inventory, listed(names), SHOWN)}",
            REQUEST,
        )


def _or_all(inventory: Snapshot) -> str:
    gpus, migs, _ = usable(inventory)
    return ", or all" if (gpus or migs) and not unusable(inventory) else ""


def _list_devices(devices: Sequence[Device]) -> str:
    return listed([f"{index_of(device)} ({device['uuid']})" for device in devices])


def _notes(inventory: Snapshot) -> str:
    return "".join(f" ({note})" for note in inventory["notes"][: bounds.LISTED])


def listed(names: Sequence[str]) -> str:
    """Join names in a sentence, those beyond a limit as a number."""
    count = len(names) - bounds.LISTED
    return ", ".join(names[: bounds.LISTED]) + (f" and {count} more" if count > 0 else "")
