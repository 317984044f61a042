"""From NVIDIA's container toolkit to gpushim: what each of its settings becomes in config.toml.

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
GIVEN_UP = "left out"
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
        """Say whether it is lost: nothing here does what it says."""
        return self.becomes.startswith(GIVEN_UP)


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


def source() -> str:
    """Return where NVIDIA's tools would read their settings, or "" if there are none.

    The first of $NVIDIA_CTK_CONFIG_FILE_PATH, $XDG_CONFIG_HOME and /etc that is there.
    """
    named, home = os.environ.get("NVIDIA_CTK_CONFIG_FILE_PATH"), os.environ.get("XDG_CONFIG_HOME")
    candidates = [named] if named else [f"{home}/nvidia-container-runtime/config.toml"] if home else []
    candidates += [] if named else [SYSTEM_CONFIG]
    return next((os.path.abspath(path) for path in candidates if not seen.absent(path)), "")


def plan(path: str, ours: str) -> Plan:
    """Work out a migration from NVIDIA's settings into config.toml.

    Args:
        path: of the toolkit's settings; "" if there are none.
        ours: path of config.toml.

    Raises:
        GpushimError: one of the two files cannot be read or understood.
    """
    data = files.read(path) if path else b""
    if data is None:
        raise GpushimError(f"{path} is not there; name the toolkit's config.toml with --from")
    found = rows(toml.parse(data, path))
    return Plan(path, found, changes(found, ours), warnings(found, ours))


def rows(data: dict[str, Any]) -> list[Row]:
    """Say what settings, NVIDIA's as nested tables, become."""
    return [_row(key, value) for key, value in _flat(data, "")]


def warnings(found: list[Row], ours: str) -> list[str]:
    """Return what changes for containers though no setting says it, a sentence each.

    Raises:
        GpushimError: config.toml is wrong.
    """
    mode = {row.key: row.value for row in found}.get("nvidia-container-runtime.mode", "auto")
    if mode not in OF_ANY_CAPABILITY:
        return []
    given: Any = policy.given(ours) or {}  # by names that are data
    requests = dict(given.get("requests", {}))
    requests.update({row.setting[1]: row.setting[2] for row in found if row.setting and row.setting[0] == "requests"})
    notes = [] if "all" in requests.get("default-capabilities", ()) else [_CAPABILITIES_COUNT.format(mode, ours)]
    return notes + ([] if requests.get("disable-require") else [_REQUIREMENTS_COUNT.format(mode, ours)])


def check(found: list[Row], place: str, advice: str) -> None:
    """Refuse to call it done while something is left out.

    Args:
        found: from `rows`; the user has been told what each becomes.
        place: where the settings come from, for the sentence.
        advice: what to do once the equivalents that the user was told of are enough.

    Raises:
        GpushimError: something is left out; it names each.
    """
    lost = [row.key for row in found if row.left_out]
    if lost:
        names = ", ".join(quote(key) for key in lost[:NAMED]) + (", ..." if len(lost) > NAMED else "")
        raise GpushimError(
            f"{place} has what config.toml cannot say: {names}; read above what each means here, and {advice} "
            "once that will do",
            LEFT_OUT,
        )


def changes(found: list[Row], ours: str) -> list[Change]:
    """Write settings into config.toml at `ours`, and check the result.

    Raises:
        GpushimError: it is wrong already, or cannot be edited.
    """
    policy.given(ours)  # says what is wrong with it
    old = files.read(ours)
    text = before = toml.decoded(old or b"", ours)
    defaults: Any = policy.defaults()  # by names that are data
    for section, key, value in [row.setting for row in found if row.setting]:
        settings = toml.table(toml.parse(text.encode(), ours), section)
        if settings.get(key, defaults[section][key]) != value:
            text = toml.put(text, section, key, value, ours)
    problem = _problem(text)
    if problem:
        raise GpushimError(f"{ours} would be wrong: {problem}", CONFIG)
    copy = BEFORE if files.read(files.copy_path(ours, BEFORE)) is None else ""
    return [Change(ours, old, text.encode(), copy)] if text != before else []


def _flat(table: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


def _row(name: str, value: Any) -> Row:
    if name not in KEYS:
        return Row(name, value, f"{GIVEN_UP}: neither gpushim nor NVIDIA's toolkit 1.20 knows this key")
    key = KEYS[name]
    if not isinstance(value, key.kind):
        return Row(name, value, f"{GIVEN_UP}: it is not {_KINDS[key.kind]}")
    ours = key.become(value) if key.setting else None
    if ours is None:
        is_needless = key.harmless is None or not value or value in key.harmless
        return Row(name, value, f"{'not needed' if is_needless else GIVEN_UP}: {key.why}")
    section, entry = key.setting
    becomes = f"[{section}] {written(entry, ours)}"
    if problem := _problem(f"[{section}]\n{written(entry, ours)}\n"):
        return Row(name, value, f"{GIVEN_UP}: {becomes} is not allowed ({problem})")
    defaults: Any = policy.defaults()
    note = ", the default" if defaults[section][entry] == ours else ""
    return Row(name, value, becomes + note, (section, entry, ours))


def written(key: str, value: Any) -> str:
    return f"{key} = {toml.value_text(value)}"


def _problem(text: str) -> str:
    """Check a config.toml; returns what is wrong with it, or ""."""
    try:
        policy.checked(text.encode(), "it")
    except GpushimError as error:
        return str(error).replace("it: ", "", 1)
    return ""
