"""`gpushim configure docker`: files of every kind, changed and put back."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpushim.cli.configure import configure
from gpushim.engines import docker
from gpushim.engines.docker import dockerd
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings.files import BEFORE, EDITED
from gpushim.engines.settings.setup import Options, Plan
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpushim.engines.results import ok

DATA = Path(__file__).parents[4] / "data" / "engines" / "docker"
Call = Callable[..., Result]

REFUSED = {
    "duplicate.json": "line 4: the name debug occurs twice",
    "cut-off.json": "line 4: it is not JSON",
    "latin-1.json": "line 2: it is not UTF-8",
    "runtimes-array.json": "runtimes is not an object",
    "nvidias.json": "the runtime nvidia is nvidia-container-runtime; take another",
}
EVERYTHING = ("--set-as-default", "--cdi")


def meaning(content: bytes) -> dict[str, Any]:
    """Parse with numbers as their text."""
    text = content.decode("utf-8-sig").strip()
    parsed: dict[str, Any] = json.loads(text or "{}", parse_int=str, parse_float=str)
    return parsed


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "daemon.json"


@pytest.mark.parametrize("name", ["compact.json", "crlf.json", "comma-first.json", "braces.json", "unicode.json"])
def test_a_file_gains_our_settings_keeps_all_others_and_comes_back(
    name: str, config: Path, call: Call, program: str
) -> None:
    old = (DATA / name).read_bytes()
    config.write_bytes(old)
    ok(call("docker", config))
    new = config.read_bytes()
    runtimes = {**meaning(old).get("runtimes", {}), "nvidia": {"path": program}}
    assert meaning(new) == {**meaning(old), "runtimes": runtimes}
    assert [key for key in meaning(new) if key in meaning(old)] == list(meaning(old))
    assert Path(f"{config}{BEFORE}").read_bytes() == old
    ok(call("docker", config, "--remove"))
    assert config.read_bytes() == old
    assert os.listdir(config.parent) == ["daemon.json"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_file_is_refused_with_line_and_reason_and_left_alone(name: str, config: Path, call: Call) -> None:
    old = (DATA / name).read_bytes()
    config.write_bytes(old)
    result = call("docker", config)
    assert isinstance(result.exception, GpushimError)
    assert str(result.exception).startswith(str(config))
    assert REFUSED[name] in str(result.exception)
    assert config.read_bytes() == old
    assert os.listdir(config.parent) == ["daemon.json"]


@pytest.mark.parametrize("name", [None, "tabs.json", "one-line.json"])
def test_a_second_run_changes_nothing(name: str | None, config: Path, call: Call) -> None:
    if name:
        config.write_bytes((DATA / name).read_bytes())
    ok(call("docker", config, *EVERYTHING))
    before = (config.read_bytes(), config.stat().st_mtime_ns, config.stat().st_ino)
    assert "nothing to change" in ok(call("docker", config, *EVERYTHING))
    assert (config.read_bytes(), config.stat().st_mtime_ns, config.stat().st_ino) == before


def test_a_file_that_did_not_exist_is_made_and_deleted_again(config: Path, call: Call, program: str) -> None:
    ok(call("docker", config))
    assert (
        config.read_text() == f'{{\n  "runtimes": {{\n    "nvidia": {{\n      "path": "{program}"\n    }}\n  }}\n}}\n'
    )
    assert f"removed {config}\n" in ok(call("docker", config, "--remove"))
    assert os.listdir(config.parent) == []


def test_a_file_with_gpushims_entry_is_not_kept_as_one_without(config: Path, call: Call) -> None:
    ok(call("docker", config))
    ok(call("docker", config, "--cdi"))
    assert os.listdir(config.parent) == [config.name]
    ok(call("docker", config, "--remove"))
    assert os.listdir(config.parent) == [config.name]
    assert meaning(config.read_bytes()) == {"features": {"cdi": True}}


def test_defect_the_program_is_a_bare_name(config: Path, call: Call) -> None:
    result = call("docker", config, "--runtime-path=gpushim-runtime")
    assert "is a relative path" in str(result.exception)
    ok(call("docker", config))
    assert meaning(config.read_bytes())["runtimes"]["nvidia"]["path"].startswith("/")


def test_defect_a_run_without_an_option_loses_what_an_earlier_one_set(config: Path, call: Call) -> None:
    ok(call("docker", config, *EVERYTHING))
    ok(call("docker", config))
    assert meaning(config.read_bytes())["default-runtime"] == "nvidia"
    assert meaning(config.read_bytes())["features"] == {"cdi": True}


THEIRS = (DATA / "nvidias.json").read_text()
ARGS = ('"path"', '"runtimeArgs": ["--debug"], "path"')
CRUN = '{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}'
JOURNAL = '{"log-driver": "journald"}'
CDI = ', "features": {"cdi": true}'


# What the file has at first; a call's options, a whole file or an edit of somebody's, in order; what then is left,
# and the copies.
@pytest.mark.parametrize(
    ("old", "steps", "left", "copies"),
    [
        ("{}", [(), ("--runtime-name=gpu",)], "{}", {}),
        ('{"mtu": 1}', [(), ["1", "1" + CDI]], '{"mtu": 1' + CDI + "}", {}),
        ('{"mtu": 1}', [("--cdi",)], '{"mtu": 1' + CDI + "}", {}),
        (CRUN, [("--set-as-default",)], '{"runtimes": {"crun": {"path": "/usr/bin/crun"}}}', {EDITED: CRUN}),
        (THEIRS, [("--force",)], None, {EDITED: THEIRS}),
        (THEIRS, [("--force",), THEIRS, ("--force",)], None, {EDITED: THEIRS}),
        (THEIRS, [("--force",), ["{", '{"mtu": 1400,']], '{"mtu": 1400}', {EDITED: THEIRS}),
        ("", [(), JOURNAL, ()], JOURNAL, {}),
        (JOURNAL, [(), JOURNAL], JOURNAL, {}),
        ('{"debug": true}', [(), '{"debug": false}', ()], '{"debug": false}', {}),
    ],
)
def test_remove_leaves_what_others_wrote(
    old: str, steps: list[Any], left: str | None, copies: dict[str, str], config: Path, call: Call
) -> None:
    config.write_text(old)
    for step in steps:
        if isinstance(step, tuple):
            ok(call("docker", config, *step))
        else:
            config.write_text(step if isinstance(step, str) else config.read_text().replace(step[0], step[1], 1))
    ok(call("docker", config, "--remove"))
    assert (json.loads(config.read_text()) if config.exists() else None) == (json.loads(left) if left else None)
    found = {path.name[len("daemon.json") :]: path.read_text() for path in config.parent.glob("daemon.json.*")}
    assert found == copies


def test_a_copy_is_of_the_file_as_it_was_before_the_present_entry(config: Path, call: Call) -> None:
    """Not as it was before an entry that somebody has taken out since, whose bytes would be put back."""
    for text in ('{"mtu": 1}', '{"mtu":  1, "debug": true}'):
        config.write_text(text)
        ok(call("docker", config))
        assert Path(f"{config}{BEFORE}").read_text() == text
    ok(call("docker", config, "--remove"))
    assert config.read_text() == '{"mtu":  1, "debug": true}'
    assert os.listdir(config.parent) == ["daemon.json"]


def test_what_somebody_wrote_into_our_entry_is_kept_in_a_copy(config: Path, call: Call) -> None:
    ok(call("docker", config))
    config.write_text(config.read_text().replace(*ARGS))
    theirs = config.read_text()
    copy = Path(f"{config}{EDITED}")
    assert f"note: {config} as it was is kept as {copy}" in ok(call("docker", config, "--remove"))
    assert copy.read_text() == theirs
    assert not config.exists()


def test_a_copy_that_somebody_else_has_made_stays(config: Path, call: Call) -> None:
    """By the name that gpushim would choose."""
    config.write_text("{}")
    for suffix in (BEFORE, EDITED):
        Path(f"{config}{suffix}").write_text("mine")
    ok(call("docker", config))
    config.write_text(config.read_text().replace(*ARGS))
    ok(call("docker", config, "--remove"))
    assert [Path(f"{config}{suffix}").read_text() for suffix in (BEFORE, EDITED)] == ["mine", "mine"]
    assert "--debug" in Path(f"{config}{EDITED}.2").read_text()


@pytest.mark.parametrize("folder", ["", "{}/"])
def test_nvidias_entry_goes_where_its_program_is_gpushims(
    folder: str, config: Path, call: Call, local: Path, program: str
) -> None:
    """As with gpushim-nvidia-compat: without gpushim no container would start by it."""
    (local / "nvidia-container-runtime").symlink_to(program)
    entry = {"path": f"{folder.format(local)}nvidia-container-runtime"}
    config.write_text(json.dumps({"default-runtime": "nvidia", "runtimes": {"nvidia": entry}}))
    old = config.read_text()
    ok(call("docker", config, "--remove"))
    assert not config.exists()
    assert Path(f"{config}{EDITED}").read_text() == old


def test_remove_leaves_a_file_alone_that_never_was_ours(config: Path, call: Call) -> None:
    for content in ("{}", "", '{"runtimes": {}}'):
        config.write_text(content)
        assert "nothing to take back" in ok(call("docker", config, "--remove"))
        assert config.read_text() == content


def test_a_dry_run_shows_a_diff_and_changes_nothing(config: Path, call: Call, program: str) -> None:
    config.write_text('{\n  "debug": true\n}\n')
    shown = ok(call("docker", config, "--dry-run"))
    assert shown.startswith(f"--- {config}\n+++ {config}\n@@ ")
    assert '\n-  "debug": true\n+  "debug": true,\n+  "runtimes": {\n' in shown
    assert f'+      "path": "{program}"\n' in shown
    assert os.listdir(config.parent) == ["daemon.json"]


@pytest.mark.parametrize("name", ["runc", "", "a b", "../x", "-x", "é"])
def test_names_that_docker_does_not_take(config: Path, call: Call, name: str) -> None:
    assert "cannot be the name of a runtime" in str(call("docker", config, f"--runtime-name={name}").exception)
    assert not config.exists()


@pytest.mark.parametrize(
    ("flag", "options"),
    [("--add-runtime=x=/x", []), ("--default-runtime=x", ["--set-as-default"]), ("--feature=cdi", ["--cdi"])],
)
def test_an_option_of_dockerd_that_excludes_ours(
    flag: str, options: list[str], config: Path, call: Call, engines: list[Engine]
) -> None:
    """dockerd does not start when both its command line and its file have a setting."""
    engines.append(Engine("dockerd", 12, config=str(config), argv=("dockerd", flag), uid=os.geteuid()))
    refused = call("docker", config, *options)
    assert f"was started with {flag.partition('=')[0]} and would not start" in str(refused.exception)
    assert not config.exists()


def test_the_file_of_the_running_dockerd_is_changed(config: Path, call: Call, engines: list[Engine]) -> None:
    engines.append(Engine("dockerd", 12, config=str(config), argv=("dockerd",), uid=os.geteuid()))
    assert f"changed {config}" in ok(call("docker", None))


def test_several_dockerds_are_asked_about(config: Path, call: Call, engines: list[Engine]) -> None:
    engines += [
        Engine("dockerd", pid, config=f"/x/{pid}.json", argv=("dockerd",), uid=os.geteuid()) for pid in (1, 2)
    ]
    assert "process 1 reads /x/1.json, process 2 reads /x/2.json" in str(call("docker", None).exception)
    ok(call("docker", config))


def test_a_dockerd_with_another_root_is_warned_about(
    config: Path, call: Call, engines: list[Engine], tmp_path: Path
) -> None:
    """It has its settings there, and not our program."""
    root = f"{tmp_path}/root"
    os.makedirs(f"{root}{config.parent}")
    engines.append(Engine("dockerd", 12, root=root, argv=("dockerd",), config=str(config), uid=os.geteuid()))
    result = call("docker", None)
    assert "note: dockerd (process 12) has a root of its own, where " in result.output
    assert f"changed {root}{config}\n" in result.stdout


def test_an_ordinary_user_has_a_file_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/u/.config")
    assert dockerd.default_config() == "/home/u/.config/docker/daemon.json"


def test_the_snaps_file_counts_where_only_the_snap_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(dockerd, "SNAP", str(tmp_path))
    monkeypatch.setattr(dockerd, "SYSTEM_CONFIG", str(tmp_path / "none" / "daemon.json"))
    assert dockerd.default_config() == dockerd.SNAP_CONFIG


def test_json_reports_what_was_done(config: Path, call: Call) -> None:
    report = json.loads(call("docker", config, "--format=json").stdout)
    assert (report["changed"], report["missing"], report["config"]) == (True, None, str(config))
    assert report["changes"][0]["diff"].startswith(f"--- /dev/null\n+++ {config}\n")


def test_by_hand_says_what_takes_it_out(config: Path, call: Call) -> None:
    """Without gpushim, and with all that somebody writes until then."""
    config.write_text('{"debug": true}')
    ok(call("docker", config, "--set-as-default"))
    configured = config.read_bytes()
    *commands, restart = ok(call("docker", config, "--remove", "--by-hand")).splitlines()
    assert (config.read_bytes(), restart) == (configured, "# restart dockerd")
    config.write_text(config.read_text().replace("true", 'true, "mtu": 1400'))
    subprocess.run(["/bin/sh", "-euc", "\n".join(commands)], check=True)
    assert json.loads(config.read_text()) == {"debug": True, "mtu": 1400, "runtimes": {}}
    assert os.listdir(config.parent) == ["daemon.json"]


def test_by_hand_with_nothing_to_take_back_says_so(config: Path, call: Call) -> None:
    assert ok(call("docker", config, "--remove", "--by-hand")) == f"# {config}: nothing to take back\n"


def test_by_hand_restarts_the_engine(config: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "SYSTEMD", "/")
    monkeypatch.setattr(dockerd, "SYSTEM_CONFIG", str(config))
    monkeypatch.setattr(dockerd, "SNAP", "/nonexistent")
    config.write_text("{}")
    ok(call("docker", config))
    said = ok(call("docker", None, "--remove", "--by-hand", "--files-only"))
    assert said.splitlines()[-1] == "systemctl restart docker.service"


def test_by_hand_goes_with_remove(config: Path, call: Call) -> None:
    assert "--by-hand goes with --remove" in call("docker", config, "--by-hand").output


def test_a_file_without_an_entry_of_ours_is_not_ours_whatever_else_it_says(config: Path, call: Call) -> None:
    """Somebody has written, into a file of their own, what --cdi and --set-as-default had set in the one before."""
    ok(call("docker", config, *EVERYTHING))
    theirs = '{"features": {"cdi": true}, "default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/theirs"}}}'
    config.write_text(theirs)
    assert "nothing to take back" in ok(call("docker", config, "--remove"))
    assert config.read_text() == theirs


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio", "podman"])
@pytest.mark.parametrize("option", ["--config=", "--runtime-path="])
def test_an_empty_name_of_a_file_is_none(engine: str, option: str) -> None:
    """As of a variable that is not set; left out, it is the file that the engine reads."""
    refused = CliRunner().invoke(configure, [engine, option, "--remove"])
    assert (refused.exit_code, "it is empty; name a file" in refused.output) == (2, True)


def answering(monkeypatch: pytest.MonkeyPatch, engines: list[Engine], config: Path, **info: Any) -> None:
    engines.append(Engine("dockerd", 12, config=str(config), argv=("dockerd",), uid=os.geteuid()))
    monkeypatch.setattr(dockerd, "info", lambda *_, **__: {"ServerVersion": "28.5.2", **info})


@pytest.mark.parametrize(("version", "refused"), [("20.10.24+dfsg1", True), ("24.0.9", True), ("25.0.0", False)])
def test_cdi_before_docker_25(
    config: Path, call: Call, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, version: str, refused: bool
) -> None:
    answering(monkeypatch, engines, config, ServerVersion=version)
    setting = call("docker", config, "--cdi")
    assert ("give containers their GPUs with docker run --runtime=nvidia" in str(setting.exception)) is refused
    assert config.exists() is not refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"log-drver": "x"}', "dockerd says: no log-drver"),
        ('{"default-runtime": "nvida"}', "there is no runtime nvida"),
    ],
)
def test_a_file_with_which_dockerd_would_not_start_is_left_alone(
    config: Path, call: Call, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    answering(monkeypatch, engines, config)
    program = config.parent / "dockerd"
    failed = "echo unable to configure the Docker daemon with file /dev/stdin: no log-drver >&2; exit 1"
    program.write_text(f"#!/bin/sh\nif grep -q log-drver; then {failed}; fi\n")
    program.chmod(0o755)
    monkeypatch.setattr("gpushim.engines.processes.programs.find", lambda *_: str(program))
    config.write_text(text)
    setting = str(call("docker", config).exception)
    assert says in setting
    assert "dockerd would not start with that, so correct it first" in setting
    assert config.read_text() == text


def test_a_default_whose_runtime_is_missing_is_what_configure_corrects(config: Path, call: Call) -> None:
    config.write_text('{"default-runtime": "nvidia"}')
    ok(call("docker", config))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "does not have the runtime nvidia, which dockerd loses when it starts again"),
        ('{"runtimes": []}', "runtimes is not an object; dockerd would not start again with that"),
        ('{"runtimes": {"nvidia": {"path": "/usr/bin/gpushim-runtime"}}}', ""),
    ],
)
def test_verify_looks_at_the_file_too(
    config: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    answering(monkeypatch, engines, config, Runtimes={"nvidia": {"path": "/usr/bin/gpushim-runtime"}})
    config.write_text(text)
    missing = docker.verify(Options(), Plan(str(config), engine=engines[0]))
    assert says in "".join(missing) if says else missing == []


@pytest.mark.parametrize("line", [[], ["--add-runtime=nvidia=/usr/bin/gpushim-runtime"]])
def test_a_default_goes_with_its_runtime(config: Path, call: Call, engines: list[Engine], line: list[str]) -> None:
    """Unless dockerd has one of that name by its command line."""
    engines.append(Engine("dockerd", 12, config=str(config), argv=("dockerd", *line), uid=os.geteuid()))
    config.write_text('{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/usr/bin/gpushim-runtime"}}}')
    ok(call("docker", config, "--remove"))
    assert (config.exists() and json.loads(config.read_text())) == (bool(line) and {"default-runtime": "nvidia"})


def test_what_dockerd_would_not_start_with_is_not_left(
    call: Call, config: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the sentence says corrects it."""
    config.write_text('{"debug": true}')
    ok(call("docker", config))
    answering(monkeypatch, engines, config)
    monkeypatch.setattr("gpushim.engines.processes.programs.find", lambda *_: "/usr/sbin/dockerd")
    monkeypatch.setattr(dockerd, "refusal", lambda text, _: "" if b"runtimes" in text else "debug is gone")
    configured = config.read_text()
    result = call("docker", config, "--remove")
    said = f"{config}: debug is gone; dockerd would not start with what is left without gpushim"
    assert said in str(result.exception)
    assert (result.exit_code, config.read_text()) == (1, configured)
    monkeypatch.setattr(dockerd, "refusal", lambda *_: "")
    ok(call("docker", config, "--remove"))
    assert config.read_text() == '{"debug": true}'
