"""The plugin's settings: [device-plugin] of config.toml, and flags, variables and file of NVIDIA's plugin.

A flag counts before a variable, that before NVIDIA's file (as in NVIDIA's k8s-device-plugin 0.20), and all of them
before config.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from gpuplugin.settings import forms, profiles, resources, sharing, xids
from gpuplugin.settings.sharing import Group
from gpushim.ground import bounds
from gpushim.ground.errors import quote
from gpushim.nvidia.migrate import plugin_settings
from gpushim.nvidia.migrate.device_plugin_keys import LOCAL_KEYS, SETTINGS, Setting
from gpushim.nvidia.migrate.plugin_settings import FILES, SettingValue

CHECKS = ("disable-healthchecks", "enable-healthchecks")
IN_POD = "KUBERNETES_SERVICE_HOST"  # which kubelet gives to containers alone
_FILE = 2  # rank of what NVIDIA's file says


@dataclass
class Settings:
    """All settings in force.

    Attributes:
        values: by key of [device-plugin].
        checks: what disable-healthchecks and enable-healthchecks leave of the checks of health.
        sharing: groups of devices that are given out several times.
        profile: of NVIDIA's file, which counts; or "".
        notes: a sentence for each thing that was read and has no meaning here.
    """

    values: dict[str, Any]
    checks: xids.Choice = field(default_factory=xids.Choice)
    sharing: tuple[Group, ...] = ()
    profile: str = ""
    notes: list[str] = field(default_factory=list)


def resolve(
    flags: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    section: Mapping[str, Any],
    path: str = "",
    begins: bool = False,
) -> Settings:
    """Return the settings in force.

    Args:
        flags: values by flag, without dashes, in the order of the command line.
        section: [device-plugin] of config.toml; what it leaves out has its default.
        path: of NVIDIA's file, if config-file is not to count.
        begins: none have been in force, as for profiles.read.

    Raises:
        GpushimError: a value is wrong, or a file cannot be read or trusted.
    """
    file, chooser = files(flags, environment, section)
    part = profiles.read(path or file, chooser, begins)
    settings = Settings({**_defaults(), **section}, profile=part.profile, notes=part.notes)
    ranks, sources = dict.fromkeys(settings.values, 3), dict[str, str]()
    for setting in SETTINGS:
        rank, setting_value = _find_value(setting, flags, environment, part.table, part.where)
        if setting_value is None:
            continue
        if rank == _FILE and setting.key in LOCAL_KEYS:
            node = f"{setting.key} in config.toml or --{setting.flags[0]}"
            settings.notes.append(
                f"{setting_value.origin} is accepted without effect: the node says where, by {node}"
            )
        elif not setting.key and setting_value.value != setting.default:
            settings.notes.append(f"{setting_value.origin} is accepted without effect: {setting.note}")
        elif setting.key and rank < ranks[setting.key]:
            settings.values[setting.key], ranks[setting.key], sources[setting.key] = (
                setting_value.value,
                rank,
                setting_value.origin,
            )
    disable, enable = (settings.values[key] for key in CHECKS)
    settings.checks = xids.choose(disable, enable, settings.notes, [sources.get(key, key) for key in CHECKS])
    if environment.get(IN_POD) and settings.values["on-demand"]:
        settings.values["on-demand"] = []
        settings.notes.append("on-demand is accepted without effect: in a pod no MIG instance can be made")
    for key in ("exclude", "on-demand"):
        resources.check_named(key, settings.values[key])
    settings.values["exclude"] = [*settings.values["exclude"], *settings.values["on-demand"]]  # claims take them back
    settings.notes += _list_ignored(part.table, part.where)
    settings.sharing = _sharing(part.table, part.where, settings.notes)
    return settings


def _sharing(table: Mapping[str, Any], source: str, notes: list[str]) -> tuple[Group, ...]:
    sharing_notes: list[str] = []
    groups = sharing.read(table.get("sharing"), source, sharing_notes)
    notes += sharing_notes[: bounds.LISTED]
    if len(sharing_notes) > bounds.LISTED:
        notes.append(f"{source}: {len(sharing_notes) - bounds.LISTED} more entries below sharing have no effect")
    return groups


def files(
    flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], section: Mapping[str, Any]
) -> tuple[str, str]:
    """Return config-file and profile-file, the files that count besides config.toml, or "" for none; as for
    `resolve`.
    """
    values = {**_defaults(), **section}
    for setting in SETTINGS:
        setting_value = _find_value(setting, flags, environment, {}, "")[1] if setting.key in FILES else None
        values[setting.key] = setting_value.value if setting_value else values.get(setting.key)
    return values[FILES[0]], values[FILES[1]]


def _defaults() -> dict[str, Any]:
    return {setting.key: setting.rule["default"] for setting in SETTINGS if setting.key}


def _find_value(
    setting: Setting,
    flags: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
    path: str,
) -> tuple[int, Optional[SettingValue]]:
    """Return the rank and value that counts of a setting. Only that is checked: what is overridden cannot hurt."""
    setting_value = plugin_settings.read_flag(setting, flags)
    if setting_value:
        return 0, setting_value
    setting_value = plugin_settings.read_variable(setting, environment)
    return (1, setting_value) if setting_value else (_FILE, plugin_settings.read_file(setting, file, path))


def _list_ignored(file: Mapping[str, Any], path: str) -> Iterator[str]:
    keys = plugin_settings.list_unknown_keys(file)
    for key in keys[: bounds.LISTED]:
        yield f"{path}: {quote(key)} is ignored{forms.suggest(key, plugin_settings.KEYS)}"
    if len(keys) > bounds.LISTED:
        yield f"{path}: {len(keys) - bounds.LISTED} more keys are ignored"
    if file.get("resources"):
        yield f"{path}: resources is accepted without effect, as in NVIDIA's plugin"
