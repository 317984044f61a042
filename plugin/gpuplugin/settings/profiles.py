"""The part of NVIDIA's file that counts on this node: all of it, or one of the profiles in it.

    profiles: {small: {sharing: ...}, big: {sharing: ...}}      # each a whole file of that form
    default: small                                              # where the profile file is missing or empty

A profile counts instead of what is beside `profiles`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpushim.config import policy
from gpushim.ground import bounds
from gpushim.ground.errors import CONFIG, GpushimError, quote
from gpushim.nvidia.migrate import plugin_settings

KEYS = ("profiles", "default")


@dataclass
class Part:
    """The part of a file that counts.

    Attributes:
        where: its name in messages.
        profile: its name, or "".
        notes: a sentence for each thing that does not count.
    """

    table: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    profile: str = ""
    notes: list[str] = field(default_factory=list)


def read(path: str, chooser: str, begins: bool = False) -> Part:
    """Read the part that counts on this node.

    Args:
        path: of NVIDIA's file, or "".
        chooser: path of the file whose one word names a profile, which need not exist; or "".
        begins: there is nothing yet that could stay as it is. Then a profile that does not exist counts as none that
            is named: a mistake in a node's label must not take its GPUs away.

    Raises:
        GpushimError: a file cannot be read or trusted, or no profile of NVIDIA's file is meant.
    """
    chosen = read_choice(chooser)
    file = plugin_settings.parse(_read_trusted(path, "configuration of a device plugin"), path) if path else {}
    profiles, notes = _profiles(file, path), []
    default = _check_name(file.get("default"), f"{path}: default", profiles, path)
    try:
        name = _find_chosen(chosen, chooser, profiles, path) or default
    except GpushimError as error:
        if not begins:
            raise
        name = default
        effect = f"the default {default} applies" if default else "no profile applies"
        notes.append(f"{error}; until that is so, {effect}")
    if not profiles:
        return Part(file, path, notes=notes)
    if not name:
        names = " or ".join(map(quote, [*profiles][:16]))
        notes += [f"{path} has profiles, but none applies; write default there, or into the profile file {names}"]
        return Part({key: value for key, value in file.items() if key not in KEYS}, path, notes=notes)
    ignored = [key for key in file if key not in ("version", *KEYS)]
    notes += [f"{path}: {quote(key)} does nothing beside the profile {name}, which counts" for key in ignored]
    return Part(profiles[name], f"{path}, profile {name}", name, notes)


def read_choice(path: str, noun: str = "profile of config-file") -> str:
    """Return the name that a file has, as the profile file; "" if there is none.

    Raises:
        GpushimError: it cannot be read or trusted, or has more.
    """
    if not path:
        return ""
    try:
        words = policy.trusted(path, f"name of a {noun}", mounted=True).decode(errors="replace").split()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}", CONFIG) from None
    if len(words) > 1 or len("".join(words)) > bounds.PLUGIN_PROFILE:
        raise GpushimError(f"{path} is not one word; write the name of a {noun}, or nothing", CONFIG)
    return "".join(words)


def _read_trusted(path: str, kind: str) -> bytes:
    """Read a file; root acts on its content, so root alone may write it, as config.toml."""
    try:
        return policy.trusted(path, kind)
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}", CONFIG) from None


def _profiles(file: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the profiles of a file, checked as far as all of them must be right."""
    profiles = file.get("profiles")
    if profiles is None:
        return {}
    if not isinstance(profiles, dict):
        raise GpushimError(f"{path}: profiles is not a YAML or JSON mapping; write names of profiles there", CONFIG)
    for name, profile in profiles.items():
        label = f'{path}: the profile "{quote(str(name))}"'
        if (
            not (isinstance(name, str) and name.split() == [name] and name.isprintable())
            or len(name) > bounds.PLUGIN_PROFILE
        ):
            raise GpushimError(
                f"{label} has a name that is not one word of at most {bounds.PLUGIN_PROFILE} characters", CONFIG
            )
        if not isinstance(profile, dict):
            raise GpushimError(f"{label} is not a YAML or JSON mapping; write what a file has there", CONFIG)
        nested = [key for key in KEYS if key in profile]
        if nested:
            raise GpushimError(f"{label} has {nested[0]} in it; profiles are in the file, not in a profile", CONFIG)
        plugin_settings.check_version(profile, f"{path}, profile {quote(name)}")
    return profiles


def _find_chosen(chosen: str, chooser: str, profiles: dict[str, Any], path: str) -> str:
    if chosen and not profiles:
        reason = f"{path} has no profiles" if path else "no config-file is named"
        raise GpushimError(
            f'{chooser} names the profile "{quote(chosen)}", but {reason}; write them there, or remove {chooser}',
            CONFIG,
        )
    return _check_name(chosen, chooser, profiles, path)


def _check_name(name: Any, source: str, profiles: dict[str, Any], path: str) -> str:
    if name in (None, ""):
        return ""
    if not isinstance(name, str) or name not in profiles:
        known = ", ".join(map(quote, [*profiles][:16])) or "none"
        raise GpushimError(
            f'{source} names the profile "{quote(str(name))}", which {path} does not have; it has {known}; name one '
            "of them",
            CONFIG,
        )
    return name
