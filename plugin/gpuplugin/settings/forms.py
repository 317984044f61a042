"""The form of each key in the section sharing of NVIDIA's file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Optional

from gpuplugin.settings.resources import LONGEST_NAME, NAME, PREFIX
from gpushim.ground.bounds import LISTED, MEANT, PLUGIN_ENTRIES, PLUGIN_PATTERN, PLUGIN_REPLICAS
from gpushim.ground.errors import CONFIG, GpushimError, quote
from gpushim.oci import device_names

LABEL = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123
SWITCHES = ("renameByDefault", "failRequestsGreaterThanOne")
A_NAME = "small letters, digits, - and ., with or without nvidia.com/"
ALIKE = 0.8  # of 1: a name is another one misspelled; gpu.nvidia.co is gpu.nvidia.com, gpu.amd.com is not
_SEXAGESIMAL = 60
_BARE = ("replicas", "count", "threads", "distinct", "multiUser", *SWITCHES)  # no strings
_MIB = {"Mi": 1, "Gi": 1 << 10}


def _number(limit: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 1 <= value <= limit


def is_name(value: Any) -> bool:
    """Return whether this can be a resource's name, with or without nvidia.com/."""
    if not isinstance(value, str):
        return False
    name = value[len(PREFIX) :] if value.startswith(PREFIX) else value
    return bool(NAME.fullmatch(name)) and len(PREFIX + name) <= LONGEST_NAME


def full_name(name: Optional[str]) -> str:
    """Return a resource's whole name, "" for none."""
    return PREFIX + name.rpartition("/")[2] if name else ""


def _is_memory(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch("[1-9][0-9]{0,7}(Mi|Gi)", value))


def mib(value: Optional[str]) -> Optional[int]:
    return int(value[:-2]) * _MIB[value[-2:]] if value else None


def _is_devices(value: Any) -> bool:
    if not isinstance(value, list):
        return value == "all" or _number(PLUGIN_REPLICAS)(value)
    return 0 < len(value) <= PLUGIN_ENTRIES and all(_is_selector(entry) for entry in value)


def _is_selector(value: Any) -> bool:
    """Return whether this names devices, or may do so as a model's pattern or a MIG instance's profile.

    YAML reads 1:0 without quotes as 60, so that no number from there on is an index.
    """
    text = str(value).strip()
    if not (
        (isinstance(value, str) and 0 < len(text) <= PLUGIN_PATTERN)
        or (type(value) is int and 0 <= value < _SEXAGESIMAL)
    ):
        return False
    fnmatchcase("", text.lower())  # compiles it, and that is kept: here no call of kubelet's waits for it
    try:
        items = device_names.parse([text], ())
    except GpushimError:  # it speaks of a request
        return False
    return bool(items) and items is not None and items[0][0] not in (*device_names.WORDS, *device_names.NOT_GPU_KINDS)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "replicas": (_number(PLUGIN_REPLICAS), f"a number between 1 and {PLUGIN_REPLICAS}"),
    "rename": (is_name, A_NAME),
    "devices": (
        _is_devices,
        f"how many, all, or a list of at most {PLUGIN_ENTRIES} indices, MIG indices in quotes, UUIDs, PCI addresses, "
        "patterns of models such as *A100*, and profiles of MIG instances",
    ),
    "distinct": (_is_switch, "true or false"),
    "policy": (lambda value: value in ("packed", "distributed"), "packed or distributed"),
    "multiUser": (_is_switch, "true or false"),
    "memory": (_is_memory, "a whole number with Mi or Gi, as in 8Gi"),
    "threads": (_number(100), "percent, a number between 1 and 100"),
    "slices": (
        lambda value: isinstance(value, list) and 0 < len(value) <= PLUGIN_ENTRIES,
        f"a list of at most {PLUGIN_ENTRIES}, as in [{{name: gpu.10gb, memory: 10Gi, count: 2}}]",
    ),
    "resources": (
        lambda value: isinstance(value, list) and len(value) <= PLUGIN_ENTRIES,
        f"a list of at most {PLUGIN_ENTRIES}, as in [{{name: gpu, replicas: 2}}]",
    ),
    "count": (_number(PLUGIN_REPLICAS), f"a number between 1 and {PLUGIN_REPLICAS}"),
    **dict.fromkeys(SWITCHES, (_is_switch, "true or false")),
}


def value(row: Mapping[str, Any], key: str, source: str) -> Any:
    """Return the value of a key, None for none; refuse one without the form that _FORMS has."""
    value = row.get(key)
    is_valid, form = _FORMS[key]
    if value is None or is_valid(value):
        return value
    text = quote(str(value))
    if isinstance(value, str):
        text, form = f'"{text}"', form + ", without quotes" * (key in _BARE)
    raise GpushimError(f"{source}: {key} is {text}; write {form}", CONFIG)


def show(value: Any) -> str:
    """Return a value of JSON for a sentence; an object or a list, which may be deep, by its kind alone."""
    kinds: tuple[tuple[type, str], ...] = ((dict, "an object"), (list, "a list"))
    if value is None:
        return "missing"
    if isinstance(value, str):
        return f'"{quote(value)}"'
    return next((word for kind, word in kinds if isinstance(value, kind)), quote(json.dumps(value)))


def list_unknown(row: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return a note for each ignored key, the first ones with the known key that may be meant."""
    notes, keys = [], [key for key in row if key not in known]
    for number, key in enumerate(keys):
        notes.append(f"{quote(key)} is ignored" + (suggest(key, [*known]) if number < LISTED else ""))
    return notes


def suggest(key: str, known: Sequence[str], alike: float = 0.6) -> str:
    """Return the end of a sentence about an unknown key: the one that may be meant; "" as `meant` does."""
    near = find_meant(key, known, alike)
    return f"; is {near} meant?" if near else ""


def find_meant(key: str, known: Sequence[str], alike: float = 0.6) -> str:
    """Return the known key that an unknown one may mean; "" if none is at least so much like it, of 1."""
    from difflib import get_close_matches  # only for a file with a wrong key

    return next(iter(get_close_matches(key, known, 1, alike)), "") if len(key) <= MEANT else ""


def table(value: Any, path: str, name: str) -> dict[str, Any]:
    """Return a mapping, an empty one for None; refuse anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise GpushimError(f"{path}: {name} is not a YAML or JSON mapping; write keys there", CONFIG)
    return value
