"""From NVIDIA's container toolkit to gpushim: what each of its settings becomes in config.toml.

Only what somebody wrote down is taken over; where their default and ours differ, ours stays.
Out of scope: printing (cli/migrate.py); the engines' settings, which are only looked at (migrate_engines.py).
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Callable, Union

from gpushim import policy, seen
from gpushim.engines import files, tomltext
from gpushim.engines.files import Change
from gpushim.errors import CONFIG, GpushimError

SYSTEM_CONFIG = "/etc/nvidia-container-runtime/config.toml"
CAPABILITIES = {"compute", "compat32", "graphics", "utility", "video", "display", "ngx"}
MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY="
# Names of logrus, which their tools log with.
LEVELS = {
    **dict.fromkeys(("trace", "debug"), "debug"),
    "info": "info",
    **dict.fromkeys(("warn", "warning"), "warning"),
    **dict.fromkeys(("error", "fatal", "panic"), "error"),
}

Setting = tuple[str, str, Any]  # section, key and value of config.toml
Answer = Union[Setting, str]  # or why it becomes none
Meaning = Union[str, tuple[str, str], Callable[[Any], Answer]]


@dataclass(frozen=True)
class Row:
    """One setting of NVIDIA's.

    Attributes:
        key: dotted, as it is written there.
        value: what it is set to.
        becomes: a setting of ours, or why there is none.
        setting: that setting as data, or None.
    """

    key: str
    value: Any
    becomes: str
    setting: Setting | None = None


@dataclass(frozen=True)
class Plan:
    """What a migration would do.

    Attributes:
        source: path of NVIDIA's settings, or "" if there are none.
        rows: what each of them becomes.
        changes: of config.toml; none if it says all that already.
    """

    source: str
    rows: list[Row] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)


def source() -> str:
    """Return where NVIDIA's tools would read their settings, or "" if there is nothing.

    The first of $NVIDIA_CTK_CONFIG_FILE_PATH, $XDG_CONFIG_HOME and /etc that is there.
    """
    named, home = os.environ.get("NVIDIA_CTK_CONFIG_FILE_PATH"), os.environ.get("XDG_CONFIG_HOME")
    candidates = [named] if named else [f"{home}/nvidia-container-runtime/config.toml"] if home else []
    candidates += [] if named else [SYSTEM_CONFIG]
    return next((os.path.abspath(path) for path in candidates if not seen.absent(path)), "")


def plan(path: str, ours: str) -> Plan:
    """Work out a migration.

    Args:
        path: of NVIDIA's settings; "" if there are none.
        ours: path of config.toml, which need not exist.

    Raises:
        GpushimError: one of the two files cannot be read or understood.
    """
    if not path:
        return Plan("")
    data = files.read(path)
    if data is None:
        raise GpushimError(f"{path} is not there; name the toolkit's config.toml with --from")
    found = rows(tomltext.get(tomltext.parse(data, path), ()))
    return Plan(path, found, changes(found, ours))


def rows(data: dict[str, Any]) -> list[Row]:
    """Say what settings become.

    Args:
        data: NVIDIA's settings as nested tables.
    """
    return [_row(key, value) for key, value in _flat(data, "")]


def changes(found: list[Row], ours: str) -> list[Change]:
    """Write settings into config.toml, and see that the result is one.

    Args:
        found: from `rows`.
        ours: path of config.toml.

    Raises:
        GpushimError: it is wrong already, or cannot be edited.
    """
    policy.given(ours)  # says what is wrong with it
    old = files.read(ours)
    text = before = tomltext.parse(old or b"", ours)
    defaults = policy.defaults()
    for section, key, value in [row.setting for row in found if row.setting]:
        if tomltext.get(text, (section, key), defaults[section][key]) != value:
            text = tomltext.put(text, (section, key), value)
    trouble = _trouble(text)
    if trouble:
        raise GpushimError(f"{ours} would be wrong: {trouble}", CONFIG)
    first = old if files.after(ours) != old else files.before(ours)
    return [Change(ours, old, text.encode(), before=first)] if text != before else []


def _flat(table: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


def _row(key: str, value: Any) -> Row:
    if key not in KEYS:
        return Row(key, value, "no counterpart: neither gpushim nor NVIDIA's toolkit 1.20 knows this key")
    kind, meaning = KEYS[key]
    fits = isinstance(value, kind) and (kind is not list or all(isinstance(item, str) for item in value))
    if not fits:
        return Row(key, value, f"left out: it is not {_KINDS[kind]}")
    if isinstance(meaning, str):
        return Row(key, value, meaning)
    answer = meaning(value) if callable(meaning) else (meaning[0], meaning[1], value)
    if isinstance(answer, str):
        return Row(key, value, answer)
    section, name, ours = answer
    becomes = written(name, ours)
    trouble = _trouble(tomltext.put("", (section, name), ours))
    if trouble:
        return Row(key, value, f"left out: [{section}] {becomes} is not allowed ({trouble})")
    if policy.defaults()[section][name] == ours:
        becomes += ", the default"
    return Row(key, value, f"[{section}] {becomes}", answer)


def written(key: str, value: Any) -> str:
    """Write a setting as a line of TOML."""
    return tomltext.put("", (key,), value).strip()


def _trouble(text: str) -> str:
    """Check a config.toml; returns what is wrong with it, or ""."""
    with tempfile.NamedTemporaryFile(prefix="gpushim-", suffix=".toml") as scratch:
        scratch.write(text.encode())
        scratch.flush()
        try:
            policy.given(scratch.name)
        except GpushimError as error:
            return str(error).replace(f"{scratch.name}: ", "").replace(scratch.name, "it")
    return ""


def _swarm(value: str) -> Answer:
    return "requests", "swarm-variables", [name.strip() for name in value.split(",") if name.strip()]


def _capabilities(value: str) -> Answer:
    named = {name.strip() for name in value.split(",")}
    if "all" in named or named >= CAPABILITIES:
        return "not needed: a container may ask for any capability"
    return "no counterpart: a container may ask for any capability, NVIDIA_DRIVER_CAPABILITIES decides"


def _root(value: str) -> Answer:
    return "driver", "root", value or "/"


def _environment(value: list[str]) -> Answer:
    pipes = [text[len(MPS_VARIABLE) :] for text in value if text.startswith(MPS_VARIABLE)]
    if pipes:
        return "mps", "pipe-directory", pipes[-1].rstrip("/")
    return "not needed: no nvidia-container-cli runs that could read these variables"


def _no_cgroups(value: bool) -> Answer:
    return "hook", "device-rules", not value


def _level(value: str) -> Answer:
    if value.lower() not in LEVELS:
        return "left out: no such level; NVIDIA's tools take info instead"
    return "log", "level", LEVELS[value.lower()]


def _mode(value: str) -> Answer:
    known = {
        "auto": "not needed: there is one mode, which takes variables, mounts, annotations and CDI names",
        "jit-cdi": "not needed: gpushim-runtime works like this always",
        "cdi": "not needed: CDI names are looked up in specs always; what specs do not name is this host's",
        "csv": "not needed: on Tegra the CSV files are read always",
        "legacy": "not needed: gpushim-runtime edits config.json instead of leaving all to a hook",
    }
    return known.get(value, "left out: no such mode")


def _compat(value: str) -> Answer:
    if value == "ldconfig":
        return "not needed: the image's newer libcuda comes first where it runs on this driver"
    if value in ("hook", "mount"):
        return "not needed: the image's newer libcuda comes first where it runs on this driver, without a mount"
    return "no counterpart: the image's newer libcuda comes first where it runs on this driver"


def _feature(sentence: str) -> tuple[type[Any], Meaning]:
    return bool, lambda value: sentence if value else "not needed: it is off"


_LOG = "not needed: [log] file gets a line per GPU container"
_NO_CLI = "not needed: gpushim calls no nvidia-container-cli"
_FOUND = "not needed: gpushim finds its own programs"
_KINDS = {bool: "true or false", str: "a string", list: "an array of strings"}
_CLI, _RUNTIME = "nvidia-container-cli.", "nvidia-container-runtime."
_MODES, _HOOK = _RUNTIME + "modes.", "nvidia-container-runtime-hook."
KEYS: dict[str, tuple[type[Any], Meaning]] = {
    "disable-require": (bool, ("requests", "disable-require")),
    "swarm-resource": (str, _swarm),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": (bool, ("requests", "accept-env-when-unprivileged")),
    "accept-nvidia-visible-devices-as-volume-mounts": (bool, ("requests", "accept-volume-mounts")),
    "supported-driver-capabilities": (str, _capabilities),
    _CLI + "root": (str, _root),
    _CLI + "path": (str, _NO_CLI),
    _CLI + "environment": (list, _environment),
    _CLI + "debug": (str, _LOG),
    _CLI + "ldcache": (str, "no counterpart: the cache is /etc/ld.so.cache below [driver] root"),
    _CLI + "load-kmods": (bool, ("driver", "load-kernel-modules")),
    _CLI + "no-cgroups": (bool, _no_cgroups),
    _CLI + "no-pivot": (bool, "not needed: no program runs in the container's root directory"),
    _CLI + "user": (str, "not needed: NVML is never called while a container is created"),
    _CLI + "ldconfig": (str, "not needed: gpushim writes the container's ld.so.cache itself; no ldconfig runs"),
    _RUNTIME + "debug": (str, _LOG),
    _RUNTIME + "log-level": (str, _level),
    _RUNTIME + "runtimes": (list, ("runtime", "low-level")),
    _RUNTIME + "mode": (str, _mode),
    _MODES + "cdi.spec-dirs": (list, ("cdi", "spec-dirs")),
    _MODES + "cdi.default-kind": (str, ("cdi", "kind")),
    _MODES + "cdi.annotation-prefixes": (list, ("cdi", "annotation-prefixes")),
    _MODES + "jit-cdi.nvcdi-feature-flags": (list, "no counterpart: they are about how NVIDIA's toolkit finds files"),
    _MODES + "jit-cdi.nvcdi-disable-hooks": (list, "no counterpart: gpushim has one hook, which is always needed"),
    _MODES + "csv.mount-spec-path": (str, ("driver", "csv-directory")),
    _MODES + "csv.compat-container-root": (
        str,
        "no counterpart: newer libcuda are looked for in /usr/local/cuda/compat",
    ),
    _MODES + "legacy.cuda-compat-mode": (str, _compat),
    _HOOK + "path": (str, _FOUND),
    _HOOK + "skip-mode-detection": (bool, "not needed: the hook has no modes"),
    "nvidia-ctk.path": (str, _FOUND),
    "features.allow-cuda-compat-libs-from-container": _feature(
        "not needed: the image's newer libcuda comes first where it runs on this driver"
    ),
    "features.allow-ldconfig-from-container": _feature("no counterpart: nothing of an image is ever executed"),
    "features.allow-unknown-oci-spec-fields": _feature("not needed: fields of config.json that are unknown stay"),
    "features.disable-cuda-compat-lib-hook": _feature(
        "no counterpart: the image's newer libcuda comes first where it runs on this driver"
    ),
    "features.disable-imex-channel-creation": _feature("not needed: gpushim makes no IMEX channels"),
    "features.ignore-imex-channel-requests": (bool, ("requests", "ignore-imex-channel-requests")),
    "features.no-additional-gids-for-device-nodes": _feature(
        "no counterpart: a container gets the group of a node that only this group may use"
    ),
}
