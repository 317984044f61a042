"""The settings of NVIDIA's k8s-device-plugin, from flags, variables and its file, as [device-plugin] has them.

Out of scope: their names (device_plugin_keys.py), which source counts (settings.py), and sharing
(gpuplugin.settings.sharing).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushim.cdi import spec_text, yaml
from gpushim.config import policy
from gpushim.ground import bounds
from gpushim.ground.errors import CONFIG, GpushimError, quote
from gpushim.nvidia.migrate.device_plugin_keys import LOCAL_KEYS, OTHER_KEYS, SETTINGS, Setting
from gpushim.nvidia.migrate.migrate_keys import FALSE, TRUE

_UNITS = {"": 1, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
_PART = re.compile(r"([0-9]{1,9})(h|ms|m|s|)")
_DURATION = re.compile(r"[0-9]{1,9}|([0-9]{1,9}(h|ms|m|s))+")
KEYS = tuple(setting.file for setting in SETTINGS if setting.file)
# Flags that name a part of kubelet's directory.
_KUBELETS = {
    "kubelet-socket": "device-plugins",
    "kubelet-plugins-directory-path": "plugins",
    "kubelet-registrar-directory-path": "plugins_registry",
}
FILES = ("config-file", "profile-file")  # flags and variables may give relative paths


@dataclass(frozen=True)
class SettingValue:
    """A value of a setting, with its origin.

    Attributes:
        origin: such as --mig-strategy, MIG_STRATEGY, or a file and the key in it.
        value: as [device-plugin] would have it.
    """

    origin: str
    value: Any


def parse(data: bytes, path: str) -> dict[str, Any]:
    """Parse NVIDIA's file, YAML or JSON.

    Raises:
        GpushimError: it is neither, too large, or of another version.
    """
    if len(data) > bounds.PLUGIN_FILE:
        raise GpushimError(f"{path} has more than {bounds.PLUGIN_FILE >> 10} KiB; make it smaller", CONFIG)
    try:
        document, _ = spec_text.parse(data, path)
        yaml.check_size(document, bounds.PLUGIN_NODES)
    except GpushimError as error:  # whose code is that of a CDI spec
        raise GpushimError(str(error), CONFIG) from None
    except yaml.YamlError as error:
        raise GpushimError(f"{path} {error}", CONFIG) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise GpushimError(f"{path} is not a YAML or JSON mapping; it begins with version: v1", CONFIG)
    check_version(document, path)
    return document


def check_version(file: Mapping[str, Any], path: str) -> None:
    version = file.get("version", "v1")
    if version != "v1":
        raise GpushimError(f'{path} has the version "{quote(str(version))}"; only v1 is known', CONFIG)


def read_flag(setting: Setting, flags: Mapping[str, Sequence[str]]) -> SettingValue | None:
    """Return a setting's value on the command line, or None.

    Args:
        setting: one of SETTINGS.
        flags: values by flag, without dashes, in the order of the command line; all of them count for a list.

    Raises:
        GpushimError: the value is wrong.
    """
    for flag in setting.flags:
        if flags.get(flag):
            several = setting.rule["type"] == "array"
            return _parse_value(setting, ",".join(flags[flag]) if several else flags[flag][-1], "--" + flag)
    return None


def read_variable(setting: Setting, environment: Mapping[str, str]) -> SettingValue | None:
    """Return a setting's value in the environment, or None; an empty variable counts as unset.

    Raises:
        GpushimError: the value is wrong.
    """
    for name in setting.variables:
        if environment.get(name):
            return _parse_value(setting, environment[name], name)
    return None


def read_file(setting: Setting, file: Mapping[str, Any], path: str) -> SettingValue | None:
    """Return a setting's value in NVIDIA's file, or None; null counts as unset. Values of LOCAL_KEYS are not checked.

    Raises:
        GpushimError: the value is wrong.
    """
    value: Any = file
    names = setting.file.split(".") if setting.file else []
    for depth, name in enumerate(names):
        if not isinstance(value, dict):
            raise GpushimError(
                f"{path}: {'.'.join(names[:depth])} is not a YAML or JSON mapping; write keys there", CONFIG
            )
        value = value.get(name)
        if value is None:
            return None
    if not names:
        return None
    if setting.key in LOCAL_KEYS:
        return SettingValue(f"{path}: {setting.file}", value)
    if setting.rule["type"] == "array" and not isinstance(value, list):
        value = value.split(",") if isinstance(value, str) else [value]
    if setting.rule["type"] == "integer" and isinstance(value, str):
        value = _parse_seconds(value, f"{path}: {setting.file}")
    return _check_value(setting, value, f"{path}: {setting.file}")


def list_unknown_keys(file: Mapping[str, Any]) -> list[str]:
    """Return the keys of NVIDIA's file that nobody reads."""
    known_keys = {*KEYS, *OTHER_KEYS}
    prefixes = tuple(f"{name}." for name in OTHER_KEYS)
    return [key for key in _list_keys(file) if key not in known_keys and not key.startswith(prefixes)]


def _list_keys(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, member in table.items():
        if isinstance(member, dict) and member:
            yield from _list_keys(member, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def _parse_value(setting: Setting, text: str, origin: str) -> SettingValue:
    kind, value = setting.rule["type"], text
    if setting.key in FILES and text:
        value = os.path.abspath(text)
    if kind == "boolean":
        if text not in (*TRUE, *FALSE):
            raise GpushimError(f'{origin} is "{quote(text)}"; write true or false', CONFIG)
        return SettingValue(origin, text in TRUE)
    if kind == "integer":
        return _check_value(setting, _parse_seconds(text, origin), origin)
    if kind != "array":
        return _check_value(setting, value, origin)
    words = [word.strip() for word in text.strip("[]").split(",") if word.strip()]
    numbers = setting.rule["items"]["type"] == "integer"
    if numbers and not all(word.isascii() and word.isdecimal() and len(word) < 8 for word in words):
        raise GpushimError(f'{origin} is "{quote(text)}"; write numbers, with commas between them', CONFIG)
    return _check_value(setting, [int(word) for word in words] if numbers else words, origin)


def _parse_seconds(text: str, origin: str) -> int:
    """Parse a duration in seconds or as Go writes it, such as 1m30s; infinite is 0, and a fraction is rounded up."""
    if text == "infinite":
        return 0
    if not _DURATION.fullmatch(text):
        raise GpushimError(f'{origin} is "{quote(text)}"; write seconds, as 90, 90s or 1m30s', CONFIG)
    parts = [(int(number), _UNITS[unit]) for number, unit in _PART.findall(text)]
    return math.ceil(sum(number * unit for number, unit in parts))


def _check_value(setting: Setting, value: Any, origin: str) -> SettingValue:
    end = next((_KUBELETS[flag] for flag in setting.flags if flag in _KUBELETS), "")
    if end:
        value = _parse_kubelet_dir(value, origin, end)
    for problem in policy.problems(value, setting.rule, origin):
        raise GpushimError(problem, CONFIG)
    return SettingValue(origin, value)


def _parse_kubelet_dir(path: str, origin: str, end: str) -> str:
    folder = os.path.dirname(path) if end == "device-plugins" else path.rstrip("/")
    if not path.startswith("/") or os.path.basename(folder) != end:
        expected = f"kubelet.sock in a directory {end}" if end == "device-plugins" else f"kubelet's directory {end}"
        raise GpushimError(f'{origin} is "{quote(path)}"; write the absolute path of {expected}', CONFIG)
    return os.path.dirname(folder)
