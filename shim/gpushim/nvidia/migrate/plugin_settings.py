"""The settings of NVIDIA's k8s-device-plugin, from flags, variables and its file, as [device-plugin] has them.

Out of scope: what they are called (device_plugin_keys.py), which place counts (settings.py), and sharing
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
from gpushim.nvidia.migrate.device_plugin_keys import OTHER_KEYS, PLACES, SETTINGS, Setting
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
FILES = ("config-file", "profile-file")  # which flags and variables may name from the current directory


@dataclass(frozen=True)
class Given:
    """A value that somebody gave a setting.

    Attributes:
        where: such as --mig-strategy, MIG_STRATEGY, or a file and the place in it.
        value: as [device-plugin] would have it.
    """

    where: str
    value: Any


def parse(data: bytes, path: str) -> dict[str, Any]:
    """Parse NVIDIA's file, YAML or JSON.

    Raises:
        GpushimError: it is neither, too large, or of another version.
    """
    if len(data) > bounds.PLUGIN_FILE:
        raise GpushimError(f"{path} has more than {bounds.PLUGIN_FILE >> 10} KiB; make it smaller", CONFIG)
    try:
        found, _ = spec_text.parse(data, path)
        yaml.check_size(found, bounds.PLUGIN_NODES)
    except GpushimError as error:  # whose code is that of a CDI spec
        raise GpushimError(str(error), CONFIG) from None
    except yaml.YamlError as error:
        raise GpushimError(f"{path} {error}", CONFIG) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise GpushimError(f"{path} is not a YAML or JSON mapping; it begins with version: v1", CONFIG)
    check_version(found, path)
    return found


def check_version(file: Mapping[str, Any], path: str) -> None:
    version = file.get("version", "v1")
    if version != "v1":
        raise GpushimError(f'{path} has the version "{quote(str(version))}"; only v1 is known', CONFIG)


def by_flag(setting: Setting, flags: Mapping[str, Sequence[str]]) -> Given | None:
    """Return what the command line says of a setting.

    Args:
        setting: one of SETTINGS.
        flags: values by flag, without dashes, in the order of the command line; of a list they all count.

    Raises:
        GpushimError: the value is wrong.
    """
    for flag in setting.flags:
        if flags.get(flag):
            several = setting.rule["type"] == "array"
            return _read(setting, ",".join(flags[flag]) if several else flags[flag][-1], "--" + flag)
    return None


def by_variable(setting: Setting, environment: Mapping[str, str]) -> Given | None:
    """Return what the environment says of a setting; an empty variable says nothing.

    Raises:
        GpushimError: the value is wrong.
    """
    for name in setting.variables:
        if environment.get(name):
            return _read(setting, environment[name], name)
    return None


def by_file(setting: Setting, file: Mapping[str, Any], path: str) -> Given | None:
    """Return what NVIDIA's file says of a setting; null says nothing. PLACES, which it cannot set, are not checked.

    Raises:
        GpushimError: the value is wrong.
    """
    value: Any = file
    names = setting.file.split(".") if setting.file else []
    for place, name in enumerate(names):
        if not isinstance(value, dict):
            raise GpushimError(
                f"{path}: {'.'.join(names[:place])} is not a YAML or JSON mapping; write keys there", CONFIG
            )
        value = value.get(name)
        if value is None:
            return None
    if not names:
        return None
    if setting.key in PLACES:
        return Given(f"{path}: {setting.file}", value)
    if setting.rule["type"] == "array" and not isinstance(value, list):
        value = value.split(",") if isinstance(value, str) else [value]
    if setting.rule["type"] == "integer" and isinstance(value, str):
        value = _seconds(value, f"{path}: {setting.file}")
    return _checked(setting, value, f"{path}: {setting.file}")


def unknown(file: Mapping[str, Any]) -> list[str]:
    """List the keys of NVIDIA's file that mean nothing."""
    known = {*KEYS, *OTHER_KEYS}
    others = tuple(f"{other}." for other in OTHER_KEYS)
    return [key for key in _keys(file) if key not in known and not key.startswith(others)]


def _keys(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, member in table.items():
        if isinstance(member, dict) and member:
            yield from _keys(member, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def _read(setting: Setting, given: str, where: str) -> Given:
    kind, value = setting.rule["type"], given
    if setting.key in FILES and given:
        value = os.path.abspath(given)
    if kind == "boolean":
        if given not in (*TRUE, *FALSE):
            raise GpushimError(f'{where} is "{quote(given)}"; write true or false', CONFIG)
        return Given(where, given in TRUE)
    if kind == "integer":
        return _checked(setting, _seconds(given, where), where)
    if kind != "array":
        return _checked(setting, value, where)
    words = [word.strip() for word in given.strip("[]").split(",") if word.strip()]
    numbers = setting.rule["items"]["type"] == "integer"
    if numbers and not all(word.isascii() and word.isdecimal() and len(word) < 8 for word in words):
        raise GpushimError(f'{where} is "{quote(given)}"; write numbers, with commas between them', CONFIG)
    return _checked(setting, [int(word) for word in words] if numbers else words, where)


def _seconds(given: str, where: str) -> int:
    """Read a duration, in seconds or as Go writes it, such as 1m30s; no end is 0, and less than a second is one."""
    if given == "infinite":
        return 0
    if not _DURATION.fullmatch(given):
        raise GpushimError(f'{where} is "{quote(given)}"; write seconds, as 90, 90s or 1m30s', CONFIG)
    parts = [(int(number), _UNITS[unit]) for number, unit in _PART.findall(given)]
    return math.ceil(sum(number * unit for number, unit in parts))


def _checked(setting: Setting, value: Any, where: str) -> Given:
    end = next((_KUBELETS[flag] for flag in setting.flags if flag in _KUBELETS), "")
    if end:
        value = _kubelet_dir(value, where, end)
    for problem in policy.problems(value, setting.rule, where):
        raise GpushimError(problem, CONFIG)
    return Given(where, value)


def _kubelet_dir(path: str, where: str, end: str) -> str:
    folder = os.path.dirname(path) if end == "device-plugins" else path.rstrip("/")
    if not path.startswith("/") or os.path.basename(folder) != end:
        what = f"kubelet.sock in a directory {end}" if end == "device-plugins" else f"kubelet's directory {end}"
        raise GpushimError(f'{where} is "{quote(path)}"; write the absolute path of {what}', CONFIG)
    return os.path.dirname(folder)
