"""Device names: how they are written, and which devices of this host they mean.

Out of scope: where a list of names comes from (request) and what a container gets with a device (plan).
Hot path: imports nothing but gpushim's bounds, errors and table of authorization; parsing and choosing 8 GPUs takes
about 0.1 ms.
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.ground.errors import INVENTORY, REQUEST, GpushimError, quote
from gpushim.oci.authorization import FEATURES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Optional, Sequence

    from gpushim.ground.model import Device, Gpu, MigInstance, Snapshot

    # (kind, value, text for messages). Kinds and values: those of WORDS None; "index" int;
    # "uuid" and "uuid-prefix" str with an upper-case GPU- and lower-case digits; "pci" str such as
    # 00000000:3b:00.0; "mig-index" (int, int); "mig-uuid" and "mig-legacy" str; "cdi" and "unknown" str; what is
    # given beside GPUs: "imex-channel" int, "feature" str.
    Item = tuple[str, object, str]

_DIGITS = "0123456789"
_HEX = "0123456789abcdef"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALNUM = _LETTERS + _DIGITS
CHANNEL, FEATURE = "imex-channel", "feature"
ALL, ALL_USABLE = "all", "all-usable"
WORDS = (ALL, ALL_USABLE, "none")  # of which the first decides about the GPUs
BESIDE = ("cdi", CHANNEL, FEATURE)  # kinds of items that do not decide about the GPUs
_TYPED = {"gpu": "index", "mig": "mig-index"}  # CDI names with the strategy type-index: gpu0, mig0:1
SHOWN = "`gpushim list` on the host says"
_UUID_GROUPS = [8, 4, 4, 4, 12]  # RFC 9562, section 4


def parse(texts: Sequence[str], kinds: Sequence[str]) -> Optional[list[Item]]:
    """Read a list of device names.

    Read from left to right, the first of WORDS decides about the GPUs alone; "void" anywhere decides over
    everything. CDI names of other things than this host's GPUs stay beside both.

    Args:
        texts: trimmed, non-empty names.
        kinds: the CDI kinds that mean this host's own GPUs, such as nvidia.com/gpu.

    Returns:
        Items in order without duplicates, None for "void". "none" alone is [], with CDI names it is an item.

    Raises:
        GpushimError: REQUEST, for a bad range, a replica suffix or too many names.
    """
    if "void" in texts:
        return None
    items: list[Item] = []
    seen = set()
    decided = ""
    for text in texts:
        if decided and not is_qualified(text):
            continue
        for item in _read(text, kinds):
            if item[0] not in BESIDE and decided:
                continue
            if item[0] in WORDS:
                decided = item[0]
                items = [other for other in items if other[0] in BESIDE]
            if item[:2] not in seen:
                seen.add(item[:2])
                items.append(item)
        if len(items) > bounds.DEVICES:
            raise GpushimError(f"the request names more than {bounds.DEVICES} devices; name fewer", REQUEST)
    return [] if decided == "none" and len(items) == 1 else items


def is_qualified(text: str) -> bool:
    """Tell whether text is a CDI-qualified name, vendor/class=device.

    The rule is that of the CDI specification, section "CDI JSON Specification": vendor and class begin with
    a letter, the device with a letter or digit, all end with a letter or digit, one character is enough.
    """
    kind, _, device = text.partition("=")
    vendor, _, category = kind.partition("/")
    words = ((vendor, _LETTERS, "_.-"), (category, _LETTERS, "_.-"), (device, _ALNUM, "_.-:"))
    for word, first, middle in words:
        # str.strip returns "" exactly when every character is in the given set.
        if not word or word[0] not in first or word[-1] not in _ALNUM or word.strip(_ALNUM + middle):
            return False
    return True


def cdi_name(name: str) -> str:
    """Return a device's name as a CDI device can have it: MIG-GPU-UUID/1/0 of old drivers is MIG-GPU-UUID:1:0.

    A CDI name has no slash; of what it may have, ":" already stands between a GPU and its instance.
    """
    return name.replace("/", ":")


def number(text: str) -> int:
    """Read a number as an index is written: ASCII digits, no sign, no leading zero, at most nine of them.

    Returns:
        The number, or -1 when text is not one.
    """
    if not text or len(text) > 9 or text.strip(_DIGITS) or (text[0] == "0" and text != "0"):
        return -1
    return int(text)


def _read(text: str, kinds: Sequence[str]) -> list[Item]:
    name = text
    if is_qualified(text):
        kind, _, name = text.partition("=")
        if kind not in kinds:
            return [("cdi", text, text)]
    if name in WORDS:
        return [(name, None, name)]
    if "::" in name:
        raise GpushimError(
            f'the request names the replica "{quote(text)}", but replicas exist only between a Kubernetes '
            f'device plugin and the kubelet; name the device without "::" and what follows',
            REQUEST,
        )
    first, dash, last = name.partition("-")
    if dash and number(first) >= 0 and number(last) >= 0:
        return _range(text, number(first), number(last))
    form, value = _single(name)
    if form == "unknown" and name != text:
        if name in FEATURES:
            return [(FEATURE, name, text)]
        if name.startswith(CHANNEL + "-") and number(name[len(CHANNEL) + 1 :]) >= 0:
            return [(CHANNEL, number(name[len(CHANNEL) + 1 :]), text)]
        form, value = _single(name[3:])
        if form != _TYPED.get(name[:3]):
            return [("cdi", text, text)]
    return [(form, value, text if form == "unknown" else name)]


def _range(text: str, first: int, last: int) -> list[Item]:
    if first > last or last - first >= bounds.DEVICE_RANGE:
        raise GpushimError(
            f'the request names the range "{quote(text)}", but a range goes upwards and has at most '
            f"{bounds.DEVICE_RANGE} indices; write it as first-last, for example 0-3",
            REQUEST,
        )
    return [("index", index, str(index)) for index in range(first, last + 1)]


def _single(name: str) -> tuple[str, object]:
    if number(name) >= 0:
        return ("index", number(name))
    head, rest = name[:4].upper(), name[4:].lower()
    form = _uuid(rest)
    if head == "GPU-" and form:
        return (form, head + rest)
    if head == "MIG-" and form == "uuid":
        return ("mig-uuid", head + rest)
    if head == "MIG-" and rest.startswith("gpu-"):
        uuid, _, place = rest[4:].replace(":", "/").partition("/")  # as cdi_name writes it
        gi, _, ci = place.partition("/")
        if _uuid(uuid) == "uuid" and number(gi) >= 0 and number(ci) >= 0:
            return ("mig-legacy", f"MIG-GPU-{uuid}/{gi}/{ci}")
    gpu, _, mig = name.partition(":")
    if number(gpu) >= 0 and number(mig) >= 0:
        return ("mig-index", (number(gpu), number(mig)))
    address = _pci(name.lower())
    return ("pci", address) if address else ("unknown", name)


def _uuid(text: str) -> str:
    """Tell "uuid", "uuid-prefix" (at least 8 digits) or "" for lower-case text after GPU- or MIG-."""
    lengths = [len(group) for group in text.split("-")]
    if text.replace("-", "").strip(_HEX):
        return ""
    if lengths == _UUID_GROUPS:
        return "uuid"
    last = len(lengths) - 1
    if last >= len(_UUID_GROUPS) or lengths[:last] != _UUID_GROUPS[:last] or lengths[0] != 8:
        return ""
    return "uuid-prefix" if lengths[last] <= _UUID_GROUPS[last] else ""


def _pci(text: str) -> str:
    """Bring a lower-case [dddd|dddddddd:]bb:dd.f to NVML's form with 8 domain digits, else return ""."""
    domain, _, address = ("0000:" + text if text.count(":") == 1 else text).partition(":")
    if len(domain) not in (4, 8) or len(address) != 7 or address[2] + address[5] != ":.":
        return ""
    if (domain + address[:2] + address[3:5] + address[6]).strip(_HEX):
        return ""
    return domain.rjust(8, "0") + ":" + address


def select(
    devices: Sequence[Item],
    inventory: Snapshot,
    source: str = "env NVIDIA_VISIBLE_DEVICES",
    notes: Optional[list[str]] = None,
    meant: Optional[dict[str, list[Device]]] = None,
) -> tuple[list[Gpu], list[MigInstance]]:
    """Find the requested devices on this host.

    Args:
        devices: items from parse, without CDI names.
        inventory: the inventory snapshot.
        source: Request.source, for messages.
        notes: if given, receives a sentence for each GPU in MIG mode that "all" leaves out because it has no
            instance, or that is named by itself; and for what "all-usable" does not give in full.
        meant: if given, receives what each item means, by its text.

    Returns:
        GPUs and MIG instances, as entries of the snapshot, each once: in the request's order, or in index
        order for "all" and "all-usable". The GPUs that the MIG instances belong to are not among the GPUs.

    Raises:
        GpushimError: REQUEST, when a device is unknown, ambiguous, or unusable; INVENTORY, when the
            host has no usable GPU at all, or "all" is asked for and one of them cannot be used; "all-usable" is
            never refused.
    """
    if devices and not inventory["gpus"] and (ALL_USABLE, None, ALL_USABLE) not in devices:
        why = disclosed(inventory, _notes(inventory))
        found_none = f"no GPU was found on this host{why}; check the driver with nvidia-smi"
        raise GpushimError(f"the container asks for a GPU, but {found_none}", INVENTORY)
    return _selected(devices, inventory, _who(source), [] if notes is None else notes, {} if meant is None else meant)


def _selected(
    devices: Sequence[Item], inventory: Snapshot, who: str, notes: list[str], meant: dict[str, list[Device]]
) -> tuple[list[Gpu], list[MigInstance]]:
    gpus: list[Gpu] = []
    migs: list[MigInstance] = []
    for item in devices:
        if item[0] in BESIDE:
            _require_there(who, item, inventory)
            continue
        if item[0] in (ALL, ALL_USABLE):
            gpus, migs = (_all if item[0] == ALL else _all_usable)(inventory, notes)
            meant[item[2]] = [*gpus, *migs]
            continue  # what follows is beside the GPUs
        found = find(item, inventory)
        if len(found) != 1:
            _refuse(_as_counted(who, devices, inventory), item, found, inventory)
        (device,) = meant[item[2]] = found
        _require_healthy(who, item, device, inventory)
        if "gi" in device:
            if device not in migs:
                migs.append(device)
        elif device not in gpus:
            gpus.append(device)
            if device["mig"]:
                notes.append(_divided(device["index"], inventory))
    return gpus, migs


def called(device: Device) -> str:
    """Name a GPU or MIG instance for people."""
    return f"{'MIG instance' if 'gi' in device else 'GPU'} {_index(device)}"


def _index(device: Device) -> str:
    return f"{device['gpu']}:{device['index']}" if "gi" in device else str(device["index"])


def _divided(index: int, inventory: Snapshot) -> str:
    """Say what a request for a GPU in MIG mode gives: its node alone, as with NVIDIA's tools."""
    migs = [_index(mig) for mig in inventory["mig"] if mig["gpu"] == index]
    fix = f"name an instance: {listed(migs)}" if migs else "make MIG instances (nvidia-smi mig -cgi ... -C), name one"
    return f"GPU {index} comes without its MIG instances, so CUDA finds no device in it: it is in MIG mode; {fix}"


def disclosed(inventory: Snapshot, devices: str, otherwise: str = "") -> str:
    """Choose what a refusal says where it must not tell devices that the container has not named itself.

    Args:
        inventory: the snapshot.
        devices: tells which devices there are, or what is wrong with them.
        otherwise: said instead where [requests] list-devices-in-refusals is false.
    """
    return devices if inventory["policy"]["requests"]["list-devices-in-refusals"] else otherwise


def _who(source: str) -> str:
    return source[4:] + " asks for" if source.startswith("env ") else f"the container asks in its {source} for"


def _as_counted(who: str, devices: Sequence[Item], inventory: Snapshot) -> str:
    """Name what the user may have written: of `docker run --gpus N`, dockerd makes the indices from 0 on."""
    count, variable = len(devices), "NVIDIA_VISIBLE_DEVICES"
    enough = len(inventory["gpus"]) + len(inventory.get("absent", ())) >= count
    if enough or count < 2 or [item[:2] for item in devices] != [("index", index) for index in range(count)]:
        return who
    return who.replace(variable, f"{variable} (as docker run --gpus {count} sets it)", 1)


def _all(inventory: Snapshot, notes: list[str]) -> tuple[list[Gpu], list[MigInstance]]:
    whole, migs, empty = usable(inventory)
    lost = unusable(inventory)
    names = listed([str(device["uuid"] or device["index"]) for device in [*whole, *migs]])
    if lost:
        others = f", or name those that can be used: {names}" if names else ""
        which = disclosed(inventory, f": {listed(lost)}; fix that{others}", f"; {SHOWN} which")
        raise GpushimError(f"the container asks for all GPUs, but not all can be used{which}", INVENTORY)
    if not names:
        raise GpushimError(
            "the container asks for all GPUs, but all of this host are in MIG mode, and there is no MIG instance; "
            "make some (nvidia-smi mig -cgi ... -C), or switch the mode off (nvidia-smi -mig 0)",
            INVENTORY,
        )
    notes.extend(f"GPU {index} is left out of all: it is in MIG mode and has no instance" for index in empty)
    return whole, migs


def _all_usable(inventory: Snapshot, notes: list[str]) -> tuple[list[Gpu], list[MigInstance]]:
    """Give what can be used, and of each other GPU its node, by which who watches sees it when it is well again."""
    nodes, native = inventory["nodes"], inventory["platform"] == "native"  # elsewhere nodes are not a GPU's own
    there = {gpu["index"]: gpu for gpu in inventory["gpus"] if not native or gpu["node"] in nodes}
    _, found, empty = usable(inventory)
    migs = [mig for mig in found if mig["gpu"] in there and not (native and {*mig["nodes"]}.difference(nodes))]
    parents = {mig["gpu"] for mig in migs}
    notes += unusable(inventory)
    notes += [f"GPU {index} has no MIG instance, and is in MIG mode" for index in empty]
    notes += [f"MIG instance {_index(mig)} has no usable device nodes" for mig in found if mig not in migs]
    return [gpu for index, gpu in sorted(there.items()) if index not in parents], migs


def usable(inventory: Snapshot) -> tuple[list[Gpu], list[MigInstance], list[int]]:
    """List the GPUs that are not divided and the MIG instances that can be handed out, in index order.

    Returns:
        both, and the indices of healthy GPUs that are in MIG mode and have no instance: they have nothing to give.
    """
    sick = {gpu["index"] for gpu in inventory["gpus"] if gpu["problem"]}
    whole = [gpu for gpu in inventory["gpus"] if not gpu["mig"] and gpu["index"] not in sick]
    migs = [mig for mig in inventory["mig"] if mig["gpu"] not in sick]
    divided = {mig["gpu"] for mig in inventory["mig"]} | sick
    empty = [gpu["index"] for gpu in inventory["gpus"] if gpu["mig"] and gpu["index"] not in divided]
    whole.sort(key=lambda gpu: gpu["index"])
    return whole, sorted(migs, key=lambda mig: (mig["gpu"], mig["index"])), sorted(empty)


def unusable(inventory: Snapshot) -> list[str]:
    """List why GPUs and MIG instances that the host has cannot be handed out, a reason for each."""
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


def _require_there(who: str, item: Item, inventory: Snapshot) -> None:
    """Refuse a feature that the host does not have; plan does so with IMEX channels, however they are named."""
    if item[0] == FEATURE and not inventory["features"].get(str(item[1])):
        raise GpushimError(
            f'{who} the CDI device "{quote(item[2])}", but this host has no device node for it; load its kernel '
            "module, or ask without it",
            REQUEST,
        )


def _require_healthy(who: str, item: Item, device: Device, inventory: Snapshot) -> None:
    index = device["gpu"] if "gi" in device else device["index"]
    for gpu in inventory["gpus"]:
        if gpu["index"] == index and gpu["problem"]:
            why = disclosed(inventory, f": {gpu['problem']}; name another GPU", f"; name another GPU, {SHOWN} why")
            raise GpushimError(f'{who} GPU "{quote(item[2])}", which cannot be used{why}', REQUEST)


def _refuse(who: str, item: Item, found: list[Device], inventory: Snapshot) -> NoReturn:
    asked = quote(item[2])
    if found:
        these = disclosed(inventory, f"{len(found)} GPUs: {_shown(found)}", "more than one GPU")
        raise GpushimError(f'{who} GPU "{asked}", which fits {these}; write more of the UUID', REQUEST)
    digits = item[2][4:].lower() if item[2][:4].upper() == "GPU-" else "-"
    if len(digits) < _UUID_GROUPS[0] and not digits.strip(_HEX):
        fix = f"write at least {_UUID_GROUPS[0]} digits of it"
        raise GpushimError(f'{who} GPU "{asked}", which is too short for a UUID; {fix}', REQUEST)
    what = "MIG instance" if item[0].startswith("mig-") else "GPU"
    _refuse_absent(who, what, item, inventory)
    if not disclosed(inventory, "lists"):
        raise GpushimError(f'{who} {what} "{asked}", which this host does not have; use one that it has', REQUEST)
    gpus, migs, fix = inventory["gpus"], inventory["mig"], f"use one of them{_or_all(inventory)}"
    if what == "GPU":
        raise GpushimError(f'{who} GPU "{asked}", but this host has {len(gpus)}: {_shown(gpus)}; {fix}', REQUEST)
    have = "has none; name a GPU, or make MIG instances (nvidia-smi mig -cgi ... -C)"
    if migs:
        have = f"has {len(migs)}: {_shown(migs)}; {fix}"
    elif inventory["notes"]:  # as without NVML, which alone lists them
        have = f"has none{_notes(inventory)}; fix that, then run gpushim refresh"
    raise GpushimError(f'{who} MIG instance "{asked}", but this host {have}', REQUEST)


def _refuse_absent(who: str, what: str, item: Item, inventory: Snapshot) -> None:
    """Refuse the index of a GPU that has been there since the boot and is not now: it is no other GPU's."""
    number = item[1][0] if isinstance(item[1], tuple) else item[1] if item[0] == "index" else -1
    there = [gpu["uuid"] or gpu["pci"] for gpu in inventory["gpus"]]
    for gone in (one for one in inventory.get("absent", ()) if one["index"] == number):
        which = disclosed(inventory, f" ({gone['uuid'] or gone['pci']})")
        raise GpushimError(
            f'{who} {what} "{quote(item[2])}", but the GPU of that index{which} is missing, and no other gets it; '
            f"name a GPU by its UUID: {disclosed(inventory, listed(there), SHOWN)}",
            REQUEST,
        )


def _or_all(inventory: Snapshot) -> str:
    whole, migs, _ = usable(inventory)
    return ", or all" if (whole or migs) and not unusable(inventory) else ""


def _shown(devices: Sequence[Device]) -> str:
    return listed([f"{_index(device)} ({device['uuid']})" for device in devices])


def _notes(inventory: Snapshot) -> str:
    return "".join(f" ({note})" for note in inventory["notes"][: bounds.LISTED])


def listed(names: Sequence[str]) -> str:
    """Write names in a sentence, those that are too many as a number."""
    more = len(names) - bounds.LISTED
    return ", ".join(names[: bounds.LISTED]) + (f" and {more} more" if more > 0 else "")
