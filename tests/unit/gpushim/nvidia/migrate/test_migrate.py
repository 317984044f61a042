"""Each setting of NVIDIA's toolkit becomes one of ours, or says why not; config.toml keeps what else is in it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from gpushim.config import policy
from gpushim.engines.settings import files
from gpushim.ground.errors import GpushimError
from gpushim.nvidia.migrate import migrate
from gpushim.nvidia.migrate.migrate_keys import KEYS

OURS = """\
# the hall's second row
[requests]
swarm-variables = ["A"]  # by Kim

[log]
level = "debug"
"""
EVERY_KEY = """\
disable-require = false
swarm-resource = ""
accept-nvidia-visible-devices-envvar-when-unprivileged = true
accept-nvidia-visible-devices-as-volume-mounts = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
debug = ""
environment = []
ldcache = ""
ldconfig = "@/sbin/ldconfig"
load-kmods = true
no-cgroups = false
no-pivot = false
path = ""
root = ""
user = ""

[nvidia-container-runtime]
debug = "/dev/null"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]
[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
[nvidia-container-runtime.modes.csv]
compat-container-root = ""
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"
[nvidia-container-runtime.modes.jit-cdi]
nvcdi-disable-hooks = []
nvcdi-feature-flags = []
[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"

[features]
allow-cuda-compat-libs-from-container = false
allow-ldconfig-from-container = false
allow-unknown-oci-spec-fields = false
disable-cuda-compat-lib-hook = false
disable-imex-channel-creation = false
ignore-imex-channel-requests = false
no-additional-gids-for-device-nodes = false
"""


def theirs(tmp_path: Path, text: str) -> str:
    (tmp_path / "nvidia.toml").write_text(text)
    return str(tmp_path / "nvidia.toml")


def row(key: str, value: Any) -> migrate.Row:
    nested: Any = value
    for name in reversed(key.split(".")):
        nested = {name: nested}
    (found,) = migrate.translate(nested)
    assert (found.key, found.value) == (key, value)
    return found


def test_their_defaults_are_ours(tmp_path: Path) -> None:
    """A file as the package installs it changes nothing, and every key of it is known."""
    plan = migrate.plan_migration(theirs(tmp_path, EVERY_KEY), str(tmp_path / "config.toml"))
    assert plan.changes == []
    assert {found.key for found in plan.rows} == set(KEYS)
    assert not [found for found in plan.rows if found.left_out]
    migrate.check_complete(plan.rows, "/theirs", "")


# What a value of theirs becomes: a setting of ours, or the beginning of a sentence.
CASES: list[tuple[str, Any, Any]] = [
    ("disable-require", True, ("requests", "disable-require", True)),
    ("swarm-resource", "A, B", ("requests", "swarm-variables", ["A", "B"])),
    (
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
        False,
        ("requests", "accept-env-when-unprivileged", False),
    ),
    ("accept-nvidia-visible-devices-as-volume-mounts", True, ("requests", "accept-volume-mounts", True)),
    ("nvidia-container-cli.root", "/run/nvidia/driver", ("driver", "root", "/run/nvidia/driver")),
    ("nvidia-container-cli.load-kmods", False, ("driver", "load-kernel-modules", False)),
    ("nvidia-container-cli.no-cgroups", True, ("hook", "device-rules", False)),
    ("nvidia-container-runtime.log-level", "Trace", ("log", "level", "debug")),
    ("nvidia-container-runtime.log-level", "panic", ("log", "level", "error")),
    ("nvidia-container-runtime.log-level", "loud", ("log", "level", "info")),
    ("nvidia-container-runtime.runtimes", ["/opt/crun"], ("runtime", "low-level", ["/opt/crun"])),
    ("nvidia-container-runtime.modes.cdi.spec-dirs", ["/x"], ("cdi", "spec-dirs", ["/x"])),
    ("nvidia-container-runtime.modes.cdi.default-kind", "a.com/b", ("cdi", "kind", "a.com/b")),
    ("nvidia-container-runtime.modes.cdi.annotation-prefixes", ["a/"], ("cdi", "annotation-prefixes", ["a/"])),
    ("nvidia-container-runtime.modes.csv.mount-spec-path", "/csv", ("driver", "csv-directory", "/csv")),
    ("features.ignore-imex-channel-requests", True, ("requests", "ignore-imex-channel-requests", True)),
    ("supported-driver-capabilities", "utility", "left out: a container may ask"),
    ("supported-driver-capabilities", "all", "not needed"),
    ("nvidia-container-cli.environment", ["A=b"], "not needed"),
    ("nvidia-container-cli.ldconfig", "/sbin/ldconfig", "not needed"),
    ("nvidia-container-runtime.debug", "/var/log/x", "not needed: gpushim does this itself"),
    ("nvidia-container-runtime.mode", "legacy", "not needed"),
    ("nvidia-container-runtime.mode", "foo", "left out"),
    ("nvidia-container-runtime.modes.legacy.cuda-compat-mode", "disabled", ("requests", "cuda-compat", False)),
    ("nvidia-container-runtime.modes.legacy.cuda-compat-mode", "other", "not needed"),
    ("nvidia-container-runtime.modes.legacy.cuda-compat-mode", "mount", "not needed"),
    ("features.allow-ldconfig-from-container", True, "not needed: nothing of an image"),
    ("nvidia-container-runtime.modes.cdi.default-kind", "x", "left out: [cdi] kind = "),
    ("nvidia-container-runtime.runtimes", [], "left out: [runtime] low-level = []"),
    ("nvidia-container-cli.root", "relative", "left out: [driver] root"),
    ("disable-require", "yes", "left out: it is not true or false"),
    ("nvidia-container-runtime.runtimes", ["runc", 5], "left out: [runtime] low-level"),
    ("nvidia-container-runtime.runtimes", "runc", "left out: it is not an array"),
    ("features.no-additional-gids-for-device-nodes", True, "left out: a container gets the group"),
    ("features.no-additional-gids-for-device-nodes", False, "not needed"),
    ("nvidia-container-runtime.mode", "cdi", "left out: there is one mode"),
    ("nvidia-container-runtime.mode", "auto", "not needed: there is one mode"),
    ("nvidia-container-cli.ldcache", "", "not needed: the cache is"),
    ("nvidia-container-cli.ldcache", "/x", "left out: the cache is"),
    ("nvidia-container-cli.ldcache", "/etc/ld.so.cache", "not needed: the cache is"),
    ("nvidia-container-runtime.modes.csv.compat-container-root", "/usr/local/cuda/compat", "not needed"),
    ("nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks", ["all"], "left out: gpushim has one hook"),
    ("nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks", [], "not needed"),
    ("made-up", 5, "left out: neither"),
    ("nvidia-container-cli.made-up", "x", "left out: neither"),
    ("features", 5, "left out: neither"),
    ("nvidia-container-cli.debug", "/var/log/x", "not needed: gpushim does this itself"),
    ("nvidia-container-cli.no-pivot", True, "not needed"),
    ("nvidia-container-cli.path", "/x", "not needed"),
    ("nvidia-container-cli.user", "root:video", "not needed"),
    ("nvidia-container-runtime.modes.csv.compat-container-root", "/x", "left out: a newer libcuda"),
    ("nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags", ["x"], "left out: gpushim has its own way"),
    ("nvidia-container-runtime-hook.path", "/x", "not needed"),
    ("nvidia-container-runtime-hook.skip-mode-detection", True, "not needed"),
    ("nvidia-ctk.path", "/x", "not needed"),
    ("features.allow-cuda-compat-libs-from-container", True, "not needed: the image's newer libcuda"),
    ("features.allow-unknown-oci-spec-fields", True, "not needed: fields of config.json"),
    ("features.disable-cuda-compat-lib-hook", True, ("requests", "cuda-compat", False)),
    ("features.disable-cuda-compat-lib-hook", False, "not needed"),
    ("features.disable-imex-channel-creation", True, "not needed: gpushim makes no"),
]


@pytest.mark.parametrize(("key", "value", "outcome"), CASES)
def test_what_a_setting_becomes(tmp_path: Path, key: str, value: Any, outcome: Any) -> None:
    """It is in config.toml afterwards, or asks for what happens here anyway, or is left out, which ends in 17."""
    found, ours = row(key, value), tmp_path / "config.toml"
    files.apply(migrate.list_changes([found], str(ours)))
    if isinstance(outcome, tuple):
        section, name, wanted = outcome
        new = wanted != cast(Any, policy.defaults())[section][name]
        assert (policy.given(str(ours)) or {}) == ({section: {name: wanted}} if new else {})
        outcome = f"[{section}] {name} = "
    else:
        assert (found.setting, ours.exists()) == (None, False)
    assert found.becomes.startswith(outcome)
    with pytest.raises(GpushimError, match=key) if outcome.startswith("left out") else nullcontext() as raised:
        migrate.check_complete([found], "/theirs", "take it out there")
    assert raised is None or raised.value.exit_code == 17


def test_every_key_has_a_case_beside_its_default(tmp_path: Path) -> None:
    plan = migrate.plan_migration(theirs(tmp_path, EVERY_KEY), "/none")
    defaults = {found.key: found.value for found in plan.rows}
    assert {key for key, value, _ in CASES if key in defaults and value != defaults[key]} == set(KEYS)


COUNTS = ["gives all of the driver to every container", "never looks at NVIDIA_REQUIRE_*"]


@pytest.mark.parametrize(
    ("theirs_text", "ours_text", "texts"),
    [
        (None, "", COUNTS),
        ("", "", COUNTS),
        ('mode = "auto"', "", COUNTS),
        ('mode = "jit-cdi"', "", COUNTS),
        ('mode = "cdi"', "", COUNTS),
        ('mode = "legacy"', "", []),
        ('mode = "csv"', "", []),
        ('mode = "auto"', 'default-capabilities = ["utility"]', COUNTS),
        ('mode = "auto"', 'default-capabilities = ["all"]', COUNTS[1:]),
        ('mode = "auto"', "disable-require = true", COUNTS[:1]),
        ('mode = "auto"', 'default-capabilities = ["all"]\ndisable-require = true', []),
    ],
)
def test_warnings(tmp_path: Path, theirs_text: str | None, ours_text: str, texts: list[str]) -> None:
    """Their default is auto: it counts where the file says nothing, and where there is none."""
    (tmp_path / "config.toml").write_text(f"[requests]\n{ours_text}\n")
    path = "" if theirs_text is None else theirs(tmp_path, f"[nvidia-container-runtime]\n{theirs_text}\n")
    found = migrate.plan_migration(path, str(tmp_path / "config.toml")).warnings
    assert len(found) == len(texts)
    for sentence, text in zip(found, texts):
        assert text in sentence
        assert f"{tmp_path}/config.toml" in sentence


def test_a_migrated_switch_needs_no_warning(tmp_path: Path) -> None:
    plan = migrate.plan_migration(theirs(tmp_path, "disable-require = true\n"), str(tmp_path / "config.toml"))
    assert [text for text in plan.warnings if "REQUIRE" in text] == []


def test_ours_keeps_its_comments(tmp_path: Path) -> None:
    ours = tmp_path / "config.toml"
    ours.write_text(OURS)
    text = 'swarm-resource = "B"\n[nvidia-container-cli]\nno-cgroups = true\n'
    files.apply(migrate.plan_migration(theirs(tmp_path, text), str(ours)).changes)
    assert ours.read_text() == OURS.replace('"A"', '"B"') + "\n[hook]\ndevice-rules = false\n"
    assert policy.load(str(ours))["requests"]["swarm-variables"] == ["B"]
    assert (tmp_path / "config.toml.before-gpushim").read_text() == OURS


def test_what_ours_says_already_is_left(tmp_path: Path) -> None:
    ours = tmp_path / "config.toml"
    ours.write_text(OURS)
    text = 'swarm-resource = "A"\n[nvidia-container-runtime]\nlog-level = "debug"\n'
    assert migrate.plan_migration(theirs(tmp_path, text), str(ours)).changes == []


def test_a_default_of_theirs_counts_against_ours(tmp_path: Path) -> None:
    ours = tmp_path / "config.toml"
    ours.write_text(OURS)
    (change,) = migrate.plan_migration(theirs(tmp_path, EVERY_KEY), str(ours)).changes
    assert b'level = "info"' in (change.new or b"")


def test_without_ours_one_is_made(tmp_path: Path) -> None:
    ours = tmp_path / "new" / "config.toml"
    files.apply(migrate.plan_migration(theirs(tmp_path, "disable-require = true\n"), str(ours)).changes)
    assert ours.read_text() == "[requests]\ndisable-require = true\n"
    assert policy.load(str(ours))["requests"]["disable-require"] is True


@pytest.mark.parametrize("text", ["x = ", "\ufeffa = 1", "a = 1\na = 2", "[x]\n[x]\n", "a" * (1 << 21)])
def test_a_file_of_theirs_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    with pytest.raises(GpushimError, match=r"nvidia\.toml"):
        migrate.plan_migration(theirs(tmp_path, text), str(tmp_path / "config.toml"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match="is not there"):
        migrate.plan_migration(str(tmp_path / "none"), str(tmp_path / "config.toml"))
    plan = migrate.plan_migration("", "/none")
    assert (plan.source, plan.rows, plan.changes) == ("", [], [])


@pytest.mark.parametrize("text", ["x = ", "[requests]\nnope = 1\n"])
def test_ours_that_is_wrong_already(tmp_path: Path, text: str) -> None:
    ours = tmp_path / "config.toml"
    ours.write_text(text)
    with pytest.raises(GpushimError, match=r"config\.toml"):
        migrate.plan_migration(theirs(tmp_path, "disable-require = true"), str(ours))
    assert ours.read_text() == text


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_line_ends_stay(tmp_path: Path, line_end: str) -> None:
    ours = tmp_path / "config.toml"
    ours.write_bytes(OURS.replace("\n", line_end).encode())
    (change,) = migrate.plan_migration(theirs(tmp_path, "disable-require = true"), str(ours)).changes
    lines = (change.new or b"").decode().split(line_end)
    assert not [line for line in lines if "\n" in line]
    assert "disable-require = true" in lines


def test_where_their_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "SYSTEM_CONFIG", str(tmp_path / "etc.toml"))
    for name in ("NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert migrate.find_source() == ""
    (tmp_path / "etc.toml").touch()
    assert migrate.find_source() == f"{tmp_path}/etc.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert migrate.find_source() == f"{tmp_path}/etc.toml"
    (tmp_path / "nvidia-container-runtime").mkdir()
    (tmp_path / "nvidia-container-runtime/config.toml").touch()
    assert migrate.find_source() == f"{tmp_path}/nvidia-container-runtime/config.toml"
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(tmp_path / "none"))
    assert migrate.find_source() == ""
