"""The file of nvidia-mig-parted, version v1, read strictly: what is not known is refused with its place.

Out of scope: whether GPUs have these profiles, and room for them (fit.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushim.cdi import spec_text, yaml
from gpushim.ground import bounds
from gpushim.ground.errors import GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpushim.ground.model import Gpu

ALL = "all"
KEYS = ("device-filter", "devices", "mig-enabled", "mig-devices")
PROFILE = re.compile(r"(?:([1-8])c\.)?([1-8]g\.[1-9][0-9]{0,3}gb(?:[+-][a-z0-9.,+-]{1,32})?)")
_FILTER = re.compile(r"0x[0-9A-Fa-f]{8}")
MOST = 64  # instances of one profile; GPUs have eight


class Entry(NamedTuple):
    """What some of a host's GPUs are to be.

    Attributes:
        devices: the GPUs' indices; None: all.
        filters: PCI device and vendor ids, as 0x20b010de, that count; none: all.
        enabled: whether they are in MIG mode.
        counts: how many instances of each profile.
    """

    devices: tuple[int, ...] | None
    filters: tuple[str, ...]
    enabled: bool
    counts: dict[str, int]


def read(path: str, name: str | None) -> list[Entry]:
    """Read a file, all of it, and return the entries of the layout with this name, which a file with one may omit.

    Raises:
        GpushimError: the file cannot be read, is wrong anywhere, or has no such layout.
    """
    document, _ = spec_text.read(path)
    try:
        yaml.check_size(document, bounds.PLUGIN_NODES)
    except yaml.YamlError as error:
        raise GpushimError(f"{path} {error}") from None
    _check_keys(document, ("version", "mig-configs"), path, "")
    if document.get("version") != "v1":
        raise GpushimError(f"{path}: version must be v1")
    layouts = document.get("mig-configs")
    if not isinstance(layouts, dict) or not layouts:
        raise GpushimError(f"{path}: mig-configs must have a layout: a name, and a list of entries")
    entries = {layout: _read_layout(layouts[layout], path, f"mig-configs.{quote(layout)}") for layout in layouts}
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    if name not in entries:
        problem = f"none of them is {quote(name)}" if name else "name one with --config"
        raise GpushimError(f"{path} has the layouts {', '.join(map(quote, entries))}; {problem}")
    return entries[name]


def choose(entries: list[Entry], gpus: list[Gpu], ids: Mapping[int, str]) -> dict[int, Entry]:
    """Return the entry for each GPU that has one, the last where several match, by index.

    Args:
        entries: of a layout.
        gpus: of the snapshot.
        ids: PCI device and vendor id of each GPU, as of Entry, by its index.

    Raises:
        GpushimError: an entry names a GPU that is not there or is sick, or that has no MIG mode and is to be in it.
    """
    by_index = {gpu["index"]: gpu for gpu in gpus}
    entry_of: dict[int, Entry] = {}
    for entry in entries:
        absent = [index for index in entry.devices or () if index not in by_index]
        if absent:
            raise GpushimError(f"the layout names GPU {absent[0]}, and gpushim list shows no such GPU")
        for index in by_index if entry.devices is None else entry.devices:
            gpu = by_index[index]
            if entry.filters and ids.get(index) not in entry.filters:
                continue
            if gpu["mig_capable"] and not gpu["problem"]:
                entry_of[index] = entry
            elif entry.devices is not None and (gpu["problem"] or entry.enabled):
                lack = "this GPU has none; leave it out"
                raise GpushimError(gpu["problem"] or f"the layout wants MIG mode for GPU {index}: {lack}")
    return entry_of


def _read_layout(value: Any, path: str, key: str) -> list[Entry]:
    if not isinstance(value, list) or not value:
        raise GpushimError(f"{path}: {key} must be a list with at least one entry")
    return [_read_entry(entry, path, f"{key}[{index}]") for index, entry in enumerate(value)]


def _read_entry(entry: Any, path: str, key: str) -> Entry:
    _check_keys(entry, KEYS, path, key)
    if "devices" not in entry or not isinstance(entry.get("mig-enabled"), bool):
        raise GpushimError(f"{path}: {key} must have devices, and mig-enabled as true or false")
    enabled, devices = entry["mig-enabled"], entry["devices"]
    if devices != ALL and not _is_list(devices, lambda index: type(index) is int and index >= 0):
        raise GpushimError(f"{path}: {key}.devices must be all, or a list of GPUs' indices, as [0, 1]")
    filters = entry.get("device-filter") or []
    filters = [filters] if isinstance(filters, str) else filters
    if not _is_list(filters, lambda text: isinstance(text, str) and _FILTER.fullmatch(text) is not None):
        raise GpushimError(f"{path}: {key}.device-filter must have PCI ids of device and vendor, as 0x20B010DE")
    counts = entry.get("mig-devices")
    if enabled and counts is None:
        raise GpushimError(f"{path}: {key} must have mig-devices, as mig-enabled is true; {{}} stands for none")
    if counts and not enabled:
        raise GpushimError(f"{path}: {key} has mig-devices, and mig-enabled is false; omit them, or make it true")
    return Entry(
        None if devices == ALL else tuple(devices),
        tuple(text.lower() for text in filters),
        enabled,
        _read_counts(counts or {}, path, f"{key}.mig-devices"),
    )


def _read_counts(counts: Any, path: str, key: str) -> dict[str, int]:
    if not isinstance(counts, dict):
        raise GpushimError(f"{path}: {key} must be a mapping of profiles to numbers")
    for name, count in counts.items():
        if not PROFILE.fullmatch(name):
            raise GpushimError(f"{path}: {key} has {quote(name)}, which is no profile; one is 1g.10gb")
        if type(count) is not int or not 0 <= count <= MOST:
            raise GpushimError(f"{path}: {key}.{name} must be a number from 0 to {MOST}")
    return {name: count for name, count in counts.items() if count}


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _check_keys(value: Any, keys: tuple[str, ...], path: str, key: str) -> None:
    if not isinstance(value, dict):
        raise GpushimError(f"{path}: {key or 'it'} must be a mapping with {' and '.join(keys)}")
    for name in value:
        if name not in keys:
            raise GpushimError(f"{path}: {key or 'it'} has {quote(name)}, which is none of {', '.join(keys)}")
