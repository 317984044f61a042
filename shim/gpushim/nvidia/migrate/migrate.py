"""Translate the settings of NVIDIA's container toolkit into config.toml.

Only what somebody wrote down is taken over. Where NVIDIA's default and gpushim's differ, gpushim's stays, and a
warning says what that changes for containers. Each setting without an equivalent is named.
Out of scope: what each key means here (migrate_keys.py); printing (cli/migrate.py); the engines' settings, which are
only looked at (migrate_engines.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from gpushim.config import policy
from gpushim.engines.settings import files, toml
from gpushim.engines.settings.files import BEFORE, Change
from gpushim.ground import seen
from gpushim.ground.errors import CONFIG, LEFT_OUT, GpushimError, quote
from gpushim.nvidia.migrate.migrate_keys import KEYS

SYSTEM_CONFIG = "/etc/nvidia-container-runtime/config.toml"
NAMED = 10  # keys in one sentence
_KINDS = {bool: "true or false", str: "a string", list: "an array"}
# Modes in which NVIDIA's runtime looks at neither variable (auto becomes jit-cdi since 1.18).
OF_ANY_CAPABILITY = ("auto", "jit-cdi", "cdi")
_CAPABILITIES_COUNT = (
    "NVIDIA's runtime gives all of the driver to every container in its mode {} (toolkit 1.18 and later); here "
    "NVIDIA_DRIVER_CAPABILITIES counts, and without it a container gets compute and utility: no NVENC, EGL or "
    "Vulkan. Set NVIDIA_DRIVER_CAPABILITIES=all for containers that need them, or, for all that do not set it, "
    '[requests] default-capabilities = ["all"] in {}'
)
_REQUIREMENTS_COUNT = (
    "NVIDIA's runtime never looks at NVIDIA_REQUIRE_* in its mode {} (toolkit 1.18 and later); here a container is "
    "refused if this driver does not meet them. Set NVIDIA_DISABLE_REQUIRE=true for one that is to start all the "
    "same, or [requests] disable-require = true in {} for all"
)
NO_EQUIVALENT = "left out"
Setting = tuple[str, str, Any]  # section, key and value of config.toml


@dataclass(frozen=True)
class Row:
    """One setting of NVIDIA's.

    Attributes:
        key: dotted, as it is written there.
        becomes: a setting of ours, or why there is none.
        setting: that setting as data, or None.
    """

    key: str
    value: Any
    becomes: str
    setting: Setting | None = None

    @property
    def left_out(self) -> bool:
        """Return whether the setting is lost, as nothing here does what it does."""
        return self.becomes.startswith(NO_EQUIVALENT)


@dataclass(frozen=True)
class Plan:
    """What a migration would do.

    Attributes:
        source: path of NVIDIA's settings, or "" if there are none.
        changes: of config.toml; none if it says all that already.
        warnings: sentences about what containers meet here that NVIDIA's toolkit does otherwise.
    """

    source: str
    rows: list[Row] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def find_source() -> str:
    """Return the path of the settings that NVIDIA's tools would read, or "" if there are none.

    $NVIDIA_CTK_CONFIG_FILE_PATH names it alone; without that, it is the first below $XDG_CONFIG_HOME and /etc.
    """
    explicit, config_home = os.environ.get("NVIDIA_CTK_CONFIG_FILE_PATH"), os.environ.get("XDG_CONFIG_HOME")
    candidates = [explicit] if explicit else [SYSTEM_CONFIG]
    if config_home and not explicit:
        candidates.insert(0, f"{config_home}/nvidia-container-runtime/config.toml")
    return next((os.path.abspath(path) for path in candidates if not seen.absent(path)), "")


def plan_migration(path: str, config_path: str) -> Plan:
    """Plan a migration from the toolkit's settings, "" if there are none, into config.toml.

    Raises:
        GpushimError: one of the two files cannot be read or understood.
    """
    data = files.read(path) if path else b""
    if data is None:
        raise GpushimError(f"{path} is not there; name the toolkit's config.toml with --from")
    rows = translate(toml.parse(data, path))
    return Plan(path, rows, list_changes(rows, config_path), list_warnings(rows, config_path))


def translate(data: dict[str, Any]) -> list[Row]:
    """Return what each of NVIDIA's settings, as nested tables, becomes."""
    return [_translate_setting(key, value) for key, value in _flatten(data, "")]


def list_warnings(rows: list[Row], config_path: str) -> list[str]:
    """Return a sentence for each change that containers meet and that no setting names.

    Raises:
        GpushimError: config.toml is wrong.
    """
    mode = {row.key: row.value for row in rows}.get("nvidia-container-runtime.mode", "auto")
    if mode not in OF_ANY_CAPABILITY:
        return []
    settings: Any = policy.given(config_path) or {}  # by names that are data
    requests = dict(settings.get("requests", {}))
    requests.update({row.setting[1]: row.setting[2] for row in rows if row.setting and row.setting[0] == "requests"})
    sentences = [] if "all" in requests.get("default-capabilities", ()) else [_CAPABILITIES_COUNT]
    sentences += [] if requests.get("disable-require") else [_REQUIREMENTS_COUNT]
    return [sentence.format(mode, config_path) for sentence in sentences]


def check_complete(rows: list[Row], origin: str, advice: str) -> None:
    """Raise if a setting has no equivalent.

    Args:
        rows: from `translate`; the user has been shown what each becomes.
        origin: of the settings, for the sentence.
        advice: what to do once the equivalents that the user was told of are enough.

    Raises:
        GpushimError: LEFT_OUT; it names each setting without an equivalent.
    """
    lost = [row.key for row in rows if row.left_out]
    if lost:
        names = ", ".join(quote(key) for key in lost[:NAMED]) + (", ..." if len(lost) > NAMED else "")
        raise GpushimError(
            f"{origin} has what config.toml cannot say: {names}; read above what each means here, and {advice} "
            "once that will do",
            LEFT_OUT,
        )


def list_changes(rows: list[Row], config_path: str) -> list[Change]:
    """Return the change that writes settings into config.toml at `config_path`, checked.

    Raises:
        GpushimError: config.toml is wrong already, or cannot be edited.
    """
    policy.given(config_path)  # raises if it is wrong
    old = files.read(config_path)
    text = before = toml.decoded(old or b"", config_path)
    defaults: Any = policy.defaults()  # by names that are data
    for section, key, value in [row.setting for row in rows if row.setting]:
        settings = toml.table(toml.parse(text.encode(), config_path), section)
        if settings.get(key, defaults[section][key]) != value:
            text = toml.with_value(text, section, key, value, config_path)
    problem = _find_problem(text)
    if problem:
        raise GpushimError(f"{config_path} would be wrong: {problem}", CONFIG)
    copy = BEFORE if files.read(files.copy_path(config_path, BEFORE)) is None else ""
    return [Change(config_path, old, text.encode(), copy)] if text != before else []


def _flatten(table: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in table.items():
        pairs += _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return pairs


def _translate_setting(name: str, value: Any) -> Row:
    if name not in KEYS:
        return Row(name, value, f"{NO_EQUIVALENT}: neither gpushim nor NVIDIA's toolkit 1.20 knows this key")
    key = KEYS[name]
    if not isinstance(value, key.kind):
        return Row(name, value, f"{NO_EQUIVALENT}: it is not {_KINDS[key.kind]}")
    translated = key.become(value) if key.setting else None
    if translated is None:
        is_needless = key.harmless is None or not value or value in key.harmless
        return Row(name, value, f"{'not needed' if is_needless else NO_EQUIVALENT}: {key.note}")
    section, entry = key.setting
    becomes = f"[{section}] {format_setting(entry, translated)}"
    if problem := _find_problem(f"[{section}]\n{format_setting(entry, translated)}\n"):
        return Row(name, value, f"{NO_EQUIVALENT}: {becomes} is not allowed ({problem})")
    defaults: Any = policy.defaults()
    note = ", the default" if defaults[section][entry] == translated else ""
    return Row(name, value, becomes + note, (section, entry, translated))


def format_setting(key: str, value: Any) -> str:
    return f"{key} = {toml.value_text(value)}"


def _find_problem(text: str) -> str:
    """Return what is wrong with a config.toml, or ""."""
    try:
        policy.checked(text.encode(), "it")
    except GpushimError as error:
        return str(error).replace("it: ", "", 1)
    return ""
