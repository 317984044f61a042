"""`gpushim configure crio`: the drop-in, the file that somebody names, and the answer of a stand-in for CRI-O."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from click.testing import Result

from gpushim.config import policy
from gpushim.engines import crio, handlers
from gpushim.engines.processes import programs, running
from gpushim.engines.processes.running import Engine
from unit.gpushim.engines import kept
from unit.gpushim.engines.results import ok

Call = Callable[..., Result]
MAIN = """# the cluster's
[crio.runtime]
default_runtime = "crun" # not runc
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
"""


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CRI-O's directory, with a crio.conf."""
    path = tmp_path / "crio"
    (path / "crio.conf.d").mkdir(parents=True)
    (path / "crio.conf").write_text(MAIN)
    monkeypatch.setattr(crio, "CONFIG", f"{path}/crio.conf")
    monkeypatch.setattr(crio, "DIRECTORY", f"{path}/crio.conf.d")
    monkeypatch.setattr(crio, "HOOKS", f"{tmp_path}/hooks.d")
    monkeypatch.setenv("GPUSHIM_CONFIG", f"{tmp_path}/config.toml")
    monkeypatch.setattr(handlers, "ROOT", f"{tmp_path}/storage")
    monkeypatch.setattr(handlers, "STORAGE", ())
    return path


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Where CRI-O keeps its containers."""
    return tmp_path / "storage"


def runtime(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomlkit.parse(path.read_text()).unwrap()["crio"]["runtime"]
    return table


def test_the_drop_in_has_what_the_default_runtime_has(etc: Path, call: Call, program: str) -> None:
    ok(call("crio", None))
    assert runtime(etc / "crio.conf.d" / "99-gpushim.toml") == {
        "runtimes": {
            "nvidia": {
                "runtime_path": program,
                "runtime_type": "oci",
                "runtime_root": "/run/crun",
                "monitor_path": "/usr/libexec/crio/conmon",
            }
        }
    }
    assert (etc / "crio.conf").read_text() == MAIN


@pytest.mark.parametrize("now", ['monitor_cgroup = "pod"\nmonitor_path = "/usr/bin/conmon"\n', ""])
def test_the_drop_in_follows_the_monitor_of_the_default_runtime(etc: Path, call: Call, now: str) -> None:
    """CRI-O does not start with what its packages have no longer, or with what its cgroup manager cannot do."""
    before = MAIN.replace(MAIN.splitlines(keepends=True)[-1], "")
    (etc / "crio.conf").write_text(f'{before}monitor_cgroup = "system.slice"\nmonitor_path = "/usr/old/conmon"\n')
    ok(call("crio", None))
    (etc / "crio.conf").write_text(before + now)
    ok(call("crio", None))
    file = etc / "crio.conf.d" / "99-gpushim.toml"
    (has, like) = (runtime(path)["runtimes"] for path in (file, etc / "crio.conf"))
    for key in ("monitor_cgroup", "monitor_path"):
        assert has["nvidia"].get(key, "") == like["crun"].get(key, "")
    assert "nothing to change" in ok(call("crio", None))
    ok(call("crio", None, "--remove"))
    assert not file.exists()


def test_remove_leaves_nothing(etc: Path, call: Call) -> None:
    ok(call("crio", None, "--set-as-default"))
    ok(call("crio", None))
    ok(call("crio", None, "--remove"))
    assert os.listdir(etc / "crio.conf.d") == []
    assert os.listdir(etc) in (["crio.conf", "crio.conf.d"], ["crio.conf.d", "crio.conf"])


def test_a_handler_stays_as_long_as_containers_need_it(etc: Path, call: Call, storage: Path) -> None:
    """CRI-O asks for it by name, to end them, and to remove those that have ended."""
    for number in range(10):
        kept.pod(storage, f"pod-{number}", "nvidia")
    ok(call("crio", None, "--remove"))  # there is nothing to take back
    ok(call("crio", None))
    for more in ((), ("--files-only",)):
        refusal = str(call("crio", None, "--remove", *more).exception)
        assert "neither end nor remove the containers of default/pod-0, default/pod-1, " in refusal
        assert "and 2 more without the handler nvidia of gpushim's; delete these pods" in refusal
    assert (etc / "crio.conf.d" / "99-gpushim.toml").exists()
    ok(call("crio", None, "--remove", "--force"))
    ok(call("crio", None))
    shutil.rmtree(storage)
    ok(call("crio", None, "--remove"))
    assert not (etc / "crio.conf.d" / "99-gpushim.toml").exists()


def test_its_containers_are_where_the_running_crio_has_them(
    etc: Path, call: Call, storage: Path, tmp_path: Path, engines: list[Engine]
) -> None:
    ok(call("crio", None))
    (tmp_path / "own.conf").write_text(f'[storage]\ngraphroot = "{tmp_path}/own"\n')
    variables = {"CONTAINERS_STORAGE_CONF": f"{tmp_path}/own.conf"}
    engines.append(Engine("crio", 12, config=f"{etc}/crio.conf", uid=os.geteuid(), environ=variables))
    storage.mkdir()
    assert f"{tmp_path}/own cannot be read, so it is unknown" in str(call("crio", None, "--remove").exception)
    kept.pod(tmp_path / "own", "one", "nvidia")
    assert "default/one without the handler nvidia" in str(call("crio", None, "--remove").exception)
    for file in ("", f"{tmp_path}/none"):  # of which it takes the usual place
        variables["CONTAINERS_STORAGE_CONF"] = file
        ok(call("crio", None, "--remove"))
        ok(call("crio", None))


@pytest.mark.parametrize("words", [("--remove",), ("--only-needed", "--runtime-name=gpu")])
def test_with_files_only_no_process_is_looked_at(
    etc: Path, call: Call, storage: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    ok(call("crio", None))
    kept.pod(storage, "one", "nvidia")
    listed, real = list[str](), os.listdir

    def listing(path: str | int = ".") -> list[str]:
        listed.append(str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listing)
    monkeypatch.setattr(running, "look", lambda: os.listdir("/proc"))
    said = call("crio", None, *words, "--files-only")
    assert "without the handler nvidia" in f"{said.exception}{said.output}"
    assert not [path for path in listed if path.startswith("/proc")]


@pytest.mark.parametrize("default", [(), ("--set-as-default",)])
def test_a_new_handler_takes_the_place_of_others_that_nobody_needs(
    etc: Path, call: Call, storage: Path, default: tuple[str, ...]
) -> None:
    drop_in = etc / "crio.conf.d" / "99-gpushim.toml"
    ok(call("crio", None, "--set-as-default"))
    ok(call("crio", None, "--runtime-name=two"))
    kept.pod(storage, "one", "nvidia")
    words = ("--runtime-name=gpu", "--only-needed", *default)
    said = json.loads(ok(call("crio", None, *words, "--format=json")))
    assert [*said["stays"]] == ["nvidia"]
    assert "containers of default/one without the handler nvidia" in said["stays"]["nvidia"]
    assert [*runtime(drop_in)["runtimes"]] == ["nvidia", "gpu"]
    assert runtime(drop_in).get("default_runtime") == ("gpu" if default else None)
    assert "nothing to change" in ok(call("crio", None, *words))
    shutil.rmtree(storage)
    ok(call("crio", None, *words))
    assert [*runtime(drop_in)["runtimes"]] == ["gpu"]
    ok(call("crio", None, "--remove"))
    assert os.listdir(etc / "crio.conf.d") == []
    assert not [*etc.glob("*-gpushim")]


def test_what_is_needed_is_left_by_a_removal_that_is_asked_for_that(etc: Path, call: Call, storage: Path) -> None:
    drop_in = etc / "crio.conf.d" / "99-gpushim.toml"
    ok(call("crio", None, "--set-as-default"))
    ok(call("crio", None, "--runtime-name=gpu"))
    kept.pod(storage, "one", "gpu")
    said = ok(call("crio", None, "--remove", "--only-needed"))
    assert "note: CRI-O could neither end nor remove the containers of default/one without the handler gpu" in said
    assert ([*runtime(drop_in)["runtimes"]], "default_runtime" in runtime(drop_in)) == (["gpu"], False)
    ok(call("crio", None, "--remove", "--only-needed"))
    shutil.rmtree(storage)
    ok(call("crio", None, "--remove", "--only-needed"))
    assert [path.name for path in etc.rglob("*") if path.is_file()] == ["crio.conf"]


def test_a_default_stays_where_its_pods_would_get_another_runtime(
    etc: Path, call: Call, storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin/crun").touch(0o755)
    (tmp_path / "bin/runc").touch(0o755)
    (etc / "crio.conf").write_text(MAIN.replace("/usr/bin/crun", f"{tmp_path}/bin/crun"))
    (tmp_path / "config.toml").write_text(f"[runtime]\nlow-level = ['{tmp_path}/bin/runc']\n")
    kept.pod(storage, "one", "")
    ok(call("crio", None, "--set-as-default"))
    assert "default/one without the default handler" in str(call("crio", None, "--remove").exception)
    said = json.loads(ok(call("crio", None, "--only-needed", "--format=json")))
    assert ([*said["stays"]], said["changes"]) == ([""], [])
    (tmp_path / "config.toml").write_text(f"[runtime]\nlow-level = ['{tmp_path}/bin/crun']\n")
    ok(call("crio", None, "--remove"))


@pytest.mark.parametrize("word", ["--remove", "--runtime-name=gpu"])
def test_what_an_administrator_set_in_our_file_is_kept(etc: Path, call: Call, word: str) -> None:
    """It stays there until something in the file has to change."""
    drop_in = etc / "crio.conf.d" / "99-gpushim.toml"
    ok(call("crio", None, "--set-as-default"))
    edited = drop_in.read_text() + 'monitor_env = ["A=B"] # mine\n'
    drop_in.write_text(edited)
    assert "nothing to change" in ok(call("crio", None))
    copy = etc / "crio.conf.d.99-gpushim.toml.kept-gpushim"
    assert str(copy) in ok(call("crio", None, word))
    assert copy.read_text() == edited
    if drop_in.exists():
        assert (runtime(drop_in)["default_runtime"], [*runtime(drop_in)["runtimes"]]) == ("nvidia", ["nvidia", "gpu"])


def test_a_file_of_others_is_not_edited(etc: Path, call: Call) -> None:
    assert "is not gpushim's; give --config a name" in str(call("crio", etc / "crio.conf").exception)
    ok(call("crio", etc / "crio.conf", "--remove"))
    ok(call("crio", etc / "crio.conf.d" / "50-gpu.conf"))
    assert (etc / "crio.conf").read_text() == MAIN


def test_a_runtime_of_the_same_name_elsewhere(etc: Path, call: Call) -> None:
    other = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
    (etc / "crio.conf.d" / "10-nvidia.conf").write_text(other)
    refused = call("crio", None)
    assert "the runtime nvidia is /usr/bin/nvidia-container-runtime; take another" in str(refused.exception)
    ok(call("crio", None, "--force"))
    assert (etc / "crio.conf.d" / "10-nvidia.conf").read_text() == other


def test_the_directory_of_the_running_crio(etc: Path, call: Call, tmp_path: Path, engines: list[Engine]) -> None:
    argv = ("crio", f"--config-dir={tmp_path}/own.d")
    engines.append(Engine("crio", 12, argv=argv, config=f"{etc}/crio.conf", uid=os.geteuid()))
    ok(call("crio", None))
    assert os.listdir(tmp_path / "own.d") == ["99-gpushim.toml"]


def test_cdi_needs_nothing(etc: Path, call: Call) -> None:
    assert "note: CRI-O always does CDI" in ok(call("crio", None, "--cdi"))


@pytest.mark.parametrize("name", ["crio", "crio-status"])
def test_verify_asks_crio(name: str, etc: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins: CRI-O is not to be had here. They say what their settings say."""
    drop_in = etc / "crio.conf.d" / "99-gpushim.toml"
    where = '[ "$1" = status ] || exit 1; ' if name == "crio" else ""
    for each in ("crio", "crio-status"):
        script = f"#!/bin/sh\n{where}exec cat {drop_in}\n" if each == name else "#!/bin/sh\nexit 1\n"
        (tmp_path / "bin" / each).write_text(script)
        (tmp_path / "bin" / each).chmod(0o755)
    monkeypatch.setattr(programs, "DIRECTORIES", (f"{tmp_path}/bin",))
    ok(call("crio", None))
    assert ok(call("crio", None, "--verify")) == "verified: CRI-O has the runtime nvidia\n"
    missing = call("crio", None, "--verify", "--runtime-name=gpu", "--set-as-default").exception
    assert "CRI-O does not have the runtime gpu; the default runtime is None" in str(missing)


class TestTheHook:
    """`--hooks`, and Podman, which reads the same directory."""

    @pytest.fixture(autouse=True)
    def podman(self, etc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpushim.engines.podman.SYSTEM_DIRECTORIES", (f"{tmp_path}/containers",))
        monkeypatch.setattr("gpushim.engines.podman.HOOKS", crio.HOOKS)

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "hooks.d" / "99-gpushim.json"

    def test_it_is_written_on_demand_and_goes_with_the_rest(self, call: Call, file: Path) -> None:
        ok(call("crio", None))
        assert not file.exists()
        assert "Podman reads" in ok(call("crio", None, "--hooks"))
        written = json.loads(file.read_text())
        assert (written["when"], written["stages"]) == ({"always": True}, ["prestart"])
        assert "nothing to change" in ok(call("crio", None, "--hooks"))
        ok(call("crio", None, "--remove"))
        assert not file.exists()

    def test_dry_run_writes_nothing(self, call: Call, file: Path) -> None:
        assert f"+++ {file}" in ok(call("crio", None, "--hooks", "--dry-run"))
        assert not file.exists()

    @pytest.mark.parametrize("order", [("crio", "podman"), ("podman", "crio")])
    def test_it_stays_for_the_other_engine(self, call: Call, file: Path, order: tuple[str, str]) -> None:
        first, second = order
        ok(call(first, None, "--hooks"))
        alone = file.read_bytes()
        ok(call(second, None, "--hooks"))
        ok(call(second, None, "--remove"))
        assert file.read_bytes() == alone
        ok(call(second, None, "--remove"))
        assert file.read_bytes() == alone
        ok(call(first, None, "--remove"))
        assert not file.exists()

    @pytest.mark.parametrize("text", ['{"hook": {"path": "/usr/bin/other"}}', "", "{"])
    def test_somebody_elses_stays(self, call: Call, file: Path, text: str) -> None:
        file.parent.mkdir()
        file.write_text(text)
        ok(call("crio", None, "--remove"))
        assert file.read_text() == text

    def test_what_somebody_wrote_into_ours_is_kept(self, call: Call, file: Path) -> None:
        ok(call("crio", None, "--hooks"))
        file.write_text(file.read_text().replace('"timeout": 60', '"timeout": 90'))
        ok(call("crio", None, "--remove"))
        (kept,) = file.parent.parent.glob("*.kept-gpushim*")
        assert '"timeout": 90' in kept.read_text()

    @pytest.mark.parametrize("engine", ["crio", "podman"])
    def test_with_config_the_named_file_is_all_that_changes(
        self, call: Call, file: Path, tmp_path: Path, engine: str
    ) -> None:
        ok(call(engine, None, "--hooks"))
        there = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        other = tmp_path / "other.toml"
        ok(call(engine, other))
        assert f"note: {file} stays" in ok(call(engine, other, "--remove"))
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == there
        refused = call(engine, other, "--hooks")
        assert (refused.exit_code, "--config is about one file" in refused.output) == (2, True)

    def test_the_directory_that_its_settings_name(self, etc: Path, call: Call, tmp_path: Path, file: Path) -> None:
        (etc / "crio.conf.d/10.conf").write_text(f'[crio.runtime]\nhooks_dir = ["/etc/x", "{tmp_path}/own"]\n')
        ok(call("crio", None, "--hooks"))
        assert (os.listdir(tmp_path / "own"), file.exists()) == ([file.name], False)


class TestItsDefaultRuntime:
    """Here runc is what gpushim-runtime finds by itself, and crun, in a directory of CRI-O's, the default."""

    @pytest.fixture(autouse=True)
    def others(self, etc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for path in ("system/runc", "libexec/crun", "libexec/runc", "libexec/kata"):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).touch(0o755)
        monkeypatch.setattr(policy, "SYSTEM_PATH", f"{tmp_path}/system")
        monkeypatch.setattr(policy, "ENGINES_PATH", (f"{tmp_path}/libexec",))
        self.default(etc, f"{tmp_path}/libexec/crun")

    def default(self, etc: Path, path: str) -> None:
        (etc / "crio.conf").write_text(MAIN.replace("/usr/bin/crun", path))

    def test_one_note_says_what_differs_and_the_line_that_changes_it(self, call: Call, tmp_path: Path) -> None:
        said = [line for line in ok(call("crio", None)).splitlines() if "default runtime" in line]
        assert said == [
            f"note: CRI-O's default runtime is {tmp_path}/libexec/crun (its containers are in /run/crun), and "
            f"gpushim-runtime hands containers to {tmp_path}/system/runc; to hand them to that: once no container "
            f"of gpushim-runtime runs, set 'low-level = [\"{tmp_path}/libexec/crun\"]' under [runtime] in "
            f"{tmp_path}/config.toml; then gpushim refresh"
        ]

    @pytest.mark.parametrize(
        "text", [None, "# mine\n[log]\nfile = '/x' # why\n", "[runtime]\nlow-level = ['crun']\n"]
    )
    def test_config_toml_is_not_touched(self, call: Call, tmp_path: Path, text: str | None) -> None:
        """Containers of every engine that run meanwhile are gone for their engine where it changes."""
        config = tmp_path / "config.toml"
        if text is not None:
            config.write_text(text)
        ok(call("crio", None))
        assert (config.read_text() if config.exists() else None) == text
        ok(call("crio", None, "--remove"))
        assert [path.read_text() for path in tmp_path.glob("config.toml*")] == [text] * (text is not None)

    def test_once_it_is_set_nothing_is_said(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "config.toml").write_text(f"[runtime]\nlow-level = ['{tmp_path}/libexec/crun']\n")
        assert "low-level" not in ok(call("crio", None))

    @pytest.mark.parametrize(
        "path", ["{}/system/runc", "{}/libexec/kata", "/usr/bin/nvidia-container-runtime", "{}/gone/crun"]
    )
    def test_the_same_program_and_what_is_no_runc_and_no_crun_need_no_word(
        self, etc: Path, call: Call, tmp_path: Path, path: str
    ) -> None:
        self.default(etc, path.format(tmp_path))
        assert "low-level" not in ok(call("crio", None))

    def test_a_configuration_that_is_wrong_is_no_obstacle(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "config.toml").write_text("[runtime\n")
        assert "config.toml" in ok(call("crio", None))


def test_a_default_of_others_keeps_our_entry_until_it_is_taken_out(etc: Path, call: Call) -> None:
    """CRI-O does not start without its default runtime."""
    ok(call("crio", None))
    others = etc / "crio.conf.d" / "10-mine.conf"
    others.write_text('[crio.runtime]\ndefault_runtime = "nvidia"\n')
    result = call("crio", None, "--remove")
    assert f"{others}: default_runtime is nvidia, which goes with gpushim's entry" in str(result.exception)
    for words in (["--dry-run"], ["--by-hand"]):  # by which packages' scripts know that it is named
        assert "which goes with gpushim's entry" in ok(call("crio", None, "--remove", *words))
    assert (etc / "crio.conf.d" / "99-gpushim.toml").exists()
    others.write_text("[crio.runtime]\n")  # as it says
    ok(call("crio", None, "--remove"))
    assert os.listdir(etc / "crio.conf.d") == ["10-mine.conf"]


def test_a_default_of_others_whose_entry_is_elsewhere_stays(etc: Path, call: Call) -> None:
    (etc / "crio.conf").write_text(MAIN.replace('"crun" #', '"nvidia" #'))
    (etc / "crio.conf.d" / "10-nvidia.conf").write_text('[crio.runtime.runtimes.nvidia]\nruntime_path = "/nv"\n')
    ok(call("crio", None, "--force", "--set-as-default"))
    ok(call("crio", None, "--remove"))
    assert os.listdir(etc / "crio.conf.d") == ["10-nvidia.conf"]


def test_the_drop_in_of_the_usual_directory_goes_too(
    etc: Path, call: Call, tmp_path: Path, engines: list[Engine]
) -> None:
    """CRI-O has been told to read another one since."""
    ok(call("crio", None))
    argv = ("crio", f"--config-dir={tmp_path}/own.d")
    engines.append(Engine("crio", 12, argv=argv, config=f"{etc}/crio.conf", uid=os.geteuid()))
    (tmp_path / "storage").mkdir()
    ok(call("crio", None, "--remove"))
    assert os.listdir(etc / "crio.conf.d") == []
