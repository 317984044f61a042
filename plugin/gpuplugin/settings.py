"""What the plugin is told: [device-plugin] of config.toml, and flags, variables and file of NVIDIA's plugin.

One table says how each setting is called in each of them. A flag counts before a variable, that before NVIDIA's file,
and that before config.toml (the first three as in NVIDIA's k8s-device-plugin 0.20). Out of scope: what they do.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import yaml

from gpuplugin.allocation import WAYS
from gpuplugin.resources import PREFIX, STRATEGIES
from gpushim.errors import CONFIG, GpushimError, quote

KUBELET_DIR = "/var/lib/kubelet"
FILE_LIMIT = 1 << 20  # bytes
_TRUE, _FALSE = (
    ("1", "t", "T", "TRUE", "true", "True"),
    ("0", "f", "F", "FALSE", "false", "False"),
)  # strconv.ParseBool


@dataclass(frozen=True)
class Setting:
    """A setting.

    Attributes:
        key: in [device-plugin]; "" if it is NVIDIA's alone.
        flags: on the command line, without dashes, the first as it is shown.
        file: its place in NVIDIA's file, a dotted path; "" if it is not there.
        kind: "bool", "word", "words" or "numbers".
        default: its value.
        choices: its values, or those of its words; () if any will do.
        help: a line for people; of one that means nothing here, why.
    """

    key: str
    flags: tuple[str, ...]
    file: str
    kind: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()

    @property
    def variables(self) -> list[str]:
        """Its names in the environment."""
        return [flag.upper().replace("-", "_") for flag in self.flags]


SETTINGS = (
    Setting(
        "mig-strategy",
        ("mig-strategy",),
        "flags.migStrategy",
        "word",
        "none",
        "what MIG instances are called",
        STRATEGIES,
    ),
    Setting(
        "fail-on-init-error",
        ("fail-on-init-error",),
        "flags.failOnInitError",
        "bool",
        True,
        "exit where the host cannot serve GPUs, instead of waiting until it can",
    ),
    Setting(
        "device-list-strategy",
        ("device-list-strategy",),
        "flags.plugin.deviceListStrategy",
        "words",
        ["envvar"],
        "how containers are told their devices",
        WAYS,
    ),
    Setting(
        "device-id-strategy",
        ("device-id-strategy",),
        "flags.plugin.deviceIDStrategy",
        "word",
        "uuid",
        "how devices are named there",
        ("uuid", "index"),
    ),
    Setting(
        "pass-device-specs",
        ("pass-device-specs",),
        "flags.plugin.passDeviceSpecs",
        "bool",
        False,
        "let kubelet pass device nodes too (for the CPU manager with an engine that loses them)",
    ),
    Setting("gds", ("gds-enabled",), "flags.gdsEnabled", "bool", False, "give every container GPUDirect Storage"),
    Setting(
        "mofed",
        ("mofed-enabled",),
        "flags.mofedEnabled",
        "bool",
        False,
        "give every container the nodes of Mellanox' OFED",
    ),
    Setting("gdrcopy", ("gdrcopy-enabled",), "flags.gdrcopyEnabled", "bool", False, "give every container GDRCopy"),
    Setting(
        "imex-channels", ("imex-channel-ids",), "imex.channelIDs", "numbers", [], "IMEX channels of every container"
    ),
    Setting(
        "imex-required",
        ("imex-required",),
        "imex.required",
        "bool",
        False,
        "refuse to start where they are not there",
    ),
    Setting(
        "allocation-policy",
        ("shared-devices-allocation-policy",),
        "flags.plugin.sharedDevicesAllocationPolicy",
        "word",
        "distributed",
        "which replicas are given out first",
        ("distributed", "packed"),
    ),
    Setting(
        "cdi-annotation-prefix",
        ("cdi-annotation-prefix",),
        "flags.plugin.cdiAnnotationPrefix",
        "word",
        "cdi.k8s.io/",
        "of annotations that name CDI devices",
    ),
    Setting(
        "exclude", ("exclude",), "", "words", [], "devices that are not given out: indices, UUIDs, PCI addresses"
    ),
    Setting(
        "kubelet-dir", ("kubelet-dir",), "", "word", KUBELET_DIR, "kubelet's directory, with device-plugins in it"
    ),
    Setting("", ("kubelet-socket",), "", "word", "", "kubelet's socket; its directory has the plugin's sockets"),
    Setting(
        "",
        ("nvidia-driver-root", "driver-root"),
        "flags.nvidiaDriverRoot",
        "word",
        "",
        "root under [driver] of config.toml counts",
    ),
    Setting(
        "",
        ("nvidia-dev-root", "dev-root"),
        "flags.nvidiaDevRoot",
        "word",
        "",
        "dev-root under [driver] of config.toml counts",
    ),
    Setting(
        "",
        ("container-driver-root", "driver-root-ctr-path"),
        "flags.plugin.containerDriverRoot",
        "word",
        "",
        "the plugin reads what gpushim refresh has found, not the driver",
    ),
    Setting(
        "", ("device-discovery-strategy",), "flags.deviceDiscoveryStrategy", "word", "", "gpushim refresh finds out"
    ),
    Setting(
        "",
        ("nvidia-cdi-hook-path", "nvidia-ctk-path"),
        "flags.plugin.nvidiaCTKPath",
        "word",
        "",
        "the CDI spec is gpushim's, with its own hook",
    ),
    Setting("", ("cdi-feature-flags",), "", "words", [], "the CDI spec is gpushim's"),
    Setting("", ("cdi-disable-hooks",), "", "words", [], "the CDI spec is gpushim's"),
    Setting("", ("mps-root",), "flags.mpsRoot", "word", "", "MPS is not offered"),
    Setting(
        "", ("use-node-feature-api",), "flags.useNodeFeatureAPI", "bool", False, "it belongs to GPU feature discovery"
    ),
)
# Of NVIDIA's file, what is read elsewhere, or belongs to its other programs.
OTHER_KEYS = ("version", "sharing", "resources", "flags.gfd")


@dataclass
class Settings:
    """All settings in force.

    Attributes:
        values: by key of [device-plugin].
        replicas: how many times devices are given out, by name of the resource.
        renamed: resources with replicas are called NAME.shared.
        single: a container may ask for one replica only.
        notes: a sentence for each thing that was read and has no meaning here.
    """

    values: dict[str, Any]
    replicas: dict[str, int] = field(default_factory=dict)
    renamed: bool = False
    single: bool = False
    notes: list[str] = field(default_factory=list)


def resolve(
    flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], section: Mapping[str, Any], path: str
) -> Settings:
    """Find out what is in force.

    Args:
        flags: values by flag, without dashes, in the order of the command line.
        environment: variables.
        section: [device-plugin] of config.toml, checked.
        path: of NVIDIA's file, or "".

    Raises:
        GpushimError: a value is wrong, or the file cannot be read.
    """
    file = _read(path) if path else {}
    found = Settings({})
    found.notes += _unknown(file, path)
    for setting in SETTINGS:
        value = _given(setting, flags, environment, file, path)
        if setting.key:
            found.values[setting.key] = section.get(setting.key, setting.default) if value is None else value
        elif setting.flags[0] == "kubelet-socket":
            if value:
                found.values["kubelet-dir"] = os.path.dirname(os.path.dirname(os.path.abspath(value)))
        elif value:
            found.notes.append(f"--{setting.flags[0]} is read and does nothing: {setting.help}")
    _share(found, file.get("sharing") or {}, path)
    return found


def _given(
    setting: Setting,
    flags: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    file: dict[str, Any],
    path: str,
) -> Any:
    """Find a setting's value outside config.toml; None if it has none."""
    for flag in setting.flags:
        if flag in flags:
            texts = flags[flag]
            return _parsed(
                setting, ",".join(texts) if setting.kind in ("words", "numbers") else texts[-1], "--" + flag
            )
    for variable in setting.variables:
        if environment.get(variable):
            return _parsed(setting, environment[variable], variable)
    value: Any = file
    for name in setting.file.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        return None
    texts = value if isinstance(value, list) else [value]
    words = ["true" if one is True else "false" if one is False else str(one) for one in texts]
    return _parsed(setting, ",".join(words), f"{path}: {setting.file}")


def _parsed(setting: Setting, text: str, where: str) -> Any:
    words = [word.strip() for word in text.strip("[]").split(",") if word.strip()]
    if setting.kind == "bool":
        if text not in (*_TRUE, *_FALSE):
            raise GpushimError(f'{where} is "{quote(text)}"; write true or false', CONFIG)
        return text in _TRUE
    if setting.kind == "numbers":
        if not all(word.isascii() and word.isdecimal() and len(word) < 8 for word in words):
            raise GpushimError(f'{where} is "{quote(text)}"; write numbers, with commas between them', CONFIG)
        return [int(word) for word in words]
    for word in words if setting.kind == "words" else [text]:
        if setting.choices and word not in setting.choices:
            raise GpushimError(f'{where} is "{quote(word)}"; it may be {", ".join(setting.choices)}', CONFIG)
    return words if setting.kind == "words" else text


def _read(path: str) -> dict[str, Any]:
    """Read NVIDIA's file, YAML or JSON, which YAML has in it."""
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise GpushimError(f"{path} has more than {FILE_LIMIT} bytes", CONFIG)
        found = yaml.safe_load(data)
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}", CONFIG) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise GpushimError(f"{path} is neither YAML nor JSON: {str(error).splitlines()[0]}", CONFIG) from None
    if not isinstance(found, dict):
        raise GpushimError(f"{path} is not a mapping; it begins with version: v1", CONFIG)
    if found.get("version", "v1") != "v1":
        raise GpushimError(f'{path} has version "{quote(str(found["version"]))}"; only v1 is known', CONFIG)
    return found


def _unknown(file: Mapping[str, Any], path: str) -> list[str]:
    """Say which keys of NVIDIA's file mean nothing, and which ones may be meant."""
    known = {setting.file for setting in SETTINGS if setting.file}
    notes = []
    for key in _keys(file):
        if key in known or any(key == other or key.startswith(other + ".") for other in OTHER_KEYS):
            continue
        close = difflib.get_close_matches(key, known, 1)
        notes.append(f"{path}: {quote(key)} means nothing" + (f"; is {close[0]} meant?" if close else ""))
    if file.get("resources"):
        notes.append(f"{path}: resources is read and does nothing, as in NVIDIA's plugin")
    return notes


def _keys(value: Mapping[Any, Any], before: str = "") -> list[str]:
    found = []
    for key, member in value.items():
        name = f"{before}{key}"
        found += _keys(member, name + ".") if isinstance(member, dict) and member else [name]
    return found


def _share(found: Settings, sharing: Any, path: str) -> None:
    """Read the section sharing of NVIDIA's file."""
    if not isinstance(sharing, dict):
        raise GpushimError(f"{path}: sharing is not a mapping", CONFIG)
    if sharing.get("mps"):
        found.notes.append(f"{path}: sharing.mps is read and does nothing: MPS is not offered")
    slicing: Optional[Any] = sharing.get("timeSlicing") or {}
    rows = slicing.get("resources") or [] if isinstance(slicing, dict) else None
    if not isinstance(rows, list) or not isinstance(slicing, dict):
        raise GpushimError(f"{path}: sharing.timeSlicing is not as NVIDIA's plugin has it", CONFIG)
    found.renamed, found.single = (
        slicing.get("renameByDefault") is True,
        slicing.get("failRequestsGreaterThanOne") is True,
    )
    for row in rows:
        name, replicas = (row.get("name"), row.get("replicas")) if isinstance(row, dict) else (None, None)
        if not isinstance(name, str) or type(replicas) is not int or replicas < 1:
            raise GpushimError(
                f"{path}: an entry of sharing.timeSlicing.resources has no name, or no replicas above 0", CONFIG
            )
        found.replicas[name if "/" in name else PREFIX + name] = replicas
