"""From NVIDIA's k8s-device-plugin to [device-plugin]: what its file, or its pod's arguments and variables, become.

Out of scope: values (plugin_settings.py); writing config.toml, and printing (migrate.py, cli/migrate.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from gpushim.cdi import spec_text
from gpushim.config import policy
from gpushim.engines.settings import files
from gpushim.ground.errors import CONFIG, GpushimError
from gpushim.nvidia.migrate import plugin_settings
from gpushim.nvidia.migrate.device_plugin_keys import OTHER_KEYS, SECTION, SETTINGS, Setting
from gpushim.nvidia.migrate.migrate import Row, written
from gpushim.nvidia.migrate.migrate_keys import GIVEN_UP
from gpushim.nvidia.migrate.plugin_settings import FILES, Given

PROGRAM, IMAGE = "nvidia-device-plugin", "k8s-device-plugin"
FILE_FLAG, FILE_VARIABLE = "config-file", "CONFIG_FILE"
# Settings of [driver], by their first variable.
_DRIVER = {"NVIDIA_DRIVER_ROOT": "root", "NVIDIA_DEV_ROOT": "dev-root"}
_VARIABLES = {name for setting in SETTINGS for name in setting.variables} | {FILE_VARIABLE}
_FLAGS = {flag for setting in SETTINGS for flag in setting.flags} | {FILE_FLAG}
_SWITCHES = {flag for setting in SETTINGS if setting.rule["type"] == "boolean" for flag in setting.flags}
_UNKNOWN = f"{GIVEN_UP}: neither gpushim nor NVIDIA's device plugin 0.20 knows it"
_IN_FILE = f"{GIVEN_UP}: config.toml has none; let config-file under [device-plugin] name this file"
_OTHER = {
    "version": "not needed: config.toml has no version",
    "resources": "not needed: NVIDIA's device plugin does not follow it either",
    "sharing": _IN_FILE,
    "profiles": _IN_FILE,
    "default": _IN_FILE,
    "flags": "not needed: gpushim's labels are written and posted without it",
}


def rows(path: str) -> list[Row]:
    """Say what the settings of NVIDIA's device plugin become.

    Args:
        path: of its configuration (YAML or JSON), or of a manifest with its pod or DaemonSet.

    Raises:
        GpushimError: the file is neither, or a value is wrong.
    """
    path = os.path.abspath(path)
    data = files.read(path)
    if data is None:
        raise GpushimError(f"{path} is not there; name the device plugin's configuration or its DaemonSet's manifest")
    # A line that begins so parts documents everywhere, even in a text of several lines (YAML 1.2.2, 9.1.2).
    parts = [part for part in re.split(rb"(?m)^---(?=\s|$)", data) if part.strip()]
    documents = [_parsed(part, path) for part in parts]
    if not any("kind" in document for document in documents):
        return [*_of_file(plugin_settings.parse(data, path), path)]
    containers = [one for document in documents for one in _containers(document) if _is_plugin(one)]
    if not containers:
        raise GpushimError(
            f"{path} has no container that runs NVIDIA's device plugin; name its DaemonSet's manifest, or a file "
            "with what a ConfigMap has below data"
        )
    return [row for container in containers for row in _of_container(container)]


def _parsed(data: bytes, path: str) -> dict[str, Any]:
    found, _ = spec_text.parse(data, path)
    return found if isinstance(found, dict) else {}


def _of_file(file: dict[str, Any], path: str) -> Iterator[Row]:
    for setting in SETTINGS:
        given = plugin_settings.by_file(setting, file, path)
        if given:
            yield _row(setting.file, setting, given)
    for name in OTHER_KEYS:
        found: Any = file
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found:
            yield Row(name, found, _OTHER[name.partition(".")[0]])
    for name in plugin_settings.unknown(file):
        yield Row(name, "", _UNKNOWN)


def _of_container(container: dict[str, Any]) -> Iterator[Row]:
    flags, variables = _flags(container), {}
    for entry in _list(container.get("env")):
        name, value = (entry.get("name"), entry.get("value")) if isinstance(entry, dict) else (None, None)
        if name in _VARIABLES and "valueFrom" in entry:
            yield Row(name, "", f"{GIVEN_UP}: the manifest does not contain its value (valueFrom)")
        elif name in _VARIABLES and isinstance(value, str):
            variables[name] = value
    for setting in SETTINGS:
        if setting.key in FILES:  # paths in the container
            continue
        flag, variable = plugin_settings.by_flag(setting, flags), plugin_settings.by_variable(setting, variables)
        if flag:
            yield _row(flag.where, setting, flag)
        if flag and variable:
            yield Row(variable.where, variable.value, f"not needed: {flag.where} counts")
        elif variable:
            yield _row(variable.where, setting, variable)
    named = {f"--{FILE_FLAG}": flags.get(FILE_FLAG, [""])[-1], FILE_VARIABLE: variables.get(FILE_VARIABLE, "")}
    for name, path in named.items():
        if path:
            yield Row(
                name, path, f"{GIVEN_UP}: its settings are in that file; gpushim migrate --device-plugin reads it"
            )
    for name in [name for name in flags if name not in _FLAGS]:
        yield Row(f"--{name}", flags[name][-1], _UNKNOWN)


def _flags(container: dict[str, Any]) -> dict[str, list[str]]:
    """Read a command line as Go's programs do."""
    words = [*_strings(container.get("command"))[1:], *_strings(container.get("args"))]
    found: dict[str, list[str]] = {}
    while words:
        word = words.pop(0)
        name, sign, value = word.lstrip("-").partition("=")
        if name and word.startswith("-"):
            if not sign:
                value = "true" if name in _SWITCHES else words.pop(0) if words else ""
            found.setdefault(name, []).append(value)
    return found


def _row(name: str, setting: Setting, given: Given) -> Row:
    first = setting.variables[0] if setting.variables else ""
    section, key = (SECTION, setting.key) if setting.key else ("driver", _DRIVER.get(first, ""))
    # That NVIDIA's plugin has the default says nothing of this host, whose config.toml may know better.
    if not key or (section == "driver" and given.value == setting.default):
        return Row(name, given.value, f"not needed: {setting.why}")
    if key not in policy.schema()["properties"][section]["properties"]:
        return Row(name, given.value, f"{GIVEN_UP}: {setting.why}")
    for problem in policy.problems(
        given.value, policy.schema()["properties"][section]["properties"][key], given.where
    ):
        raise GpushimError(problem, CONFIG)
    defaults: Any = policy.defaults()  # by names that are data
    default = ", the default" if defaults[section][key] == given.value else ""
    line = f"[{section}] {written(key, given.value)}{default}"
    return Row(name, given.value, line, (section, key, given.value))


def _containers(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """List the containers of a pod, of what makes pods, or of a list of those."""
    for item in _list(document.get("items")):
        if isinstance(item, dict):
            yield from _containers(item)
    spec = document.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    if isinstance(template, dict):
        yield from _containers(template)
    elif isinstance(spec, dict):
        yield from (one for one in _list(spec.get("containers")) if isinstance(one, dict))


def _is_plugin(container: dict[str, Any]) -> bool:
    """Say whether a container runs NVIDIA's device plugin: by its command, or else by its image."""
    command = _strings(container.get("command"))
    if command and os.path.basename(command[0]) not in ("sh", "bash"):
        return os.path.basename(command[0]) == PROGRAM
    image = str(container.get("image", "")).partition("@")[0].rpartition("/")[2].partition(":")[0]
    return image == IMAGE and (not command or PROGRAM in str(container.get("name")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    return [word for word in _list(value) if isinstance(word, str)]
