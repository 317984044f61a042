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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushim.cli.configure import configure
from gpushim.engines import docker
from gpushim.engines.docker import dockerd
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings import files, records
from gpushim.engines.settings.setup import Options, Plan
from gpushim.engines.settings.text import Json
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.paths import exchange

DATA = Path(__file__).parents[4] / "data" / "engines" / "docker"
Call = Callable[..., Result]

REFUSED = {
    "comments.json": "line 2: has a comment, which JSON does not know",
    "block-comment.json": "line 2: has a comment",
    "hash-comment.json": "line 1: has a comment",
    "duplicate.json": "line 4: the name debug occurs twice",
    "nested-duplicate.json": "line 4: the name a occurs twice",
    "escaped-duplicate.json": "line 2: the name debug occurs twice",
    "trailing-comma.json": "line 3: has a comma before }",
    "missing-comma.json": 'line 3: has " where , should be',
    "cut-off.json": "line 4: the file ends where : should be",
    "single-quotes.json": "line 1: has ' where a name in quotation marks should be",
    "array.json": "line 1: is [], not an object",
    "word.json": "line 1: is true, not an object",
    "two-values.json": "line 2: has { where the end should be",
    "nan.json": "line 2: has N where a value should be",
    "python.json": "line 1: has T where a value should be",
    "newline-in-string.json": "line 2: invalid control character at",
    "bad-escape.json": "line 1: invalid \\escape",
    "latin-1.json": "line 2: is not UTF-8",
    "utf-16.json": "line 1: is not UTF-8",
    "nul.json": "line 2: has \\x00 where the end should be",
    "deep.json": "line 1: is nested too deeply",
    "deep-object.json": "line 1: is nested too deeply",
    "runtimes-array.json": "runtimes is not an object",
    "runtime-string.json": "runtimes.nvidia is not an object",
    "features-list.json": "features is not an object",
    "nvidias.json": "the runtime nvidia is nvidia-container-runtime; take another",
}
TAKEN = sorted(path.name for path in DATA.glob("*.json") if path.name not in REFUSED)
EVERYTHING = ("--set-as-default", "--cdi")


def meaning(content: bytes) -> dict[str, Any]:
    """Parse with numbers as their text."""
    text = content.decode("utf-8-sig").strip()
    parsed: dict[str, Any] = json.loads(text or "{}", parse_int=str, parse_float=str)
    return parsed


def expected(old: dict[str, Any], program: str) -> dict[str, Any]:
    return {
        **old,
        "runtimes": {**(old.get("runtimes") or {}), "nvidia": {"path": program}},
        "default-runtime": "nvidia",
        "features": {**(old.get("features") or {}), "cdi": True},
    }


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "daemon.json"


def ok(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize("name", TAKEN)
def test_the_corpus_gains_our_settings_keeps_all_others_and_comes_back(
    name: str, config: Path, call: Call, program: str
) -> None:
    old = (DATA / name).read_bytes()
    config.write_bytes(old)
    ok(call("docker", config, *EVERYTHING))
    new = config.read_bytes()
    assert meaning(new) == expected(meaning(old), program)
    assert [key for key in meaning(new) if key in meaning(old)] == list(meaning(old))
    assert ("\r\n" in new.decode()) == ("\r\n" in old.decode())
    ok(call("docker", config, "--remove"))
    assert config.read_bytes() == old
    assert os.listdir(config.parent) == ["daemon.json"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_corpus_is_refused_with_line_and_reason_and_left_alone(name: str, config: Path, call: Call) -> None:
    old = (DATA / name).read_bytes()
    config.write_bytes(old)
    result = call("docker", config)
    assert isinstance(result.exception, GpushimError)
    assert str(result.exception).startswith(str(config))
    assert REFUSED[name] in str(result.exception)
    assert config.read_bytes() == old
    assert os.listdir(config.parent) == ["daemon.json"]


@pytest.mark.parametrize("name", TAKEN)
def test_what_somebody_wrote_since_stays_and_only_ours_goes(name: str, config: Path, call: Call) -> None:
    config.write_bytes((DATA / name).read_bytes())
    old = meaning(config.read_bytes())
    ok(call("docker", config, *EVERYTHING))
    config.write_bytes(config.read_bytes().replace(b"{", b'{"mtu": 1400, ', 1))
    ok(call("docker", config, "--remove"))
    assert meaning(config.read_bytes()) == {"mtu": "1400", **old}


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


CRUN, THEIRS = ((DATA / name).read_text() for name in ("default-crun.json", "nvidias.json"))
MTU = ("{", '{"mtu": 1400,')
WITHIN = ('"path"', '"shim": {}, "path"')


# What the file has at first; a call's options, a whole file or an edit of somebody's, in order; what then is left.
@pytest.mark.parametrize(
    ("old", "steps", "left"),
    [
        ("{}", [("--cdi",), ("--runtime-name=gpu",)], "{}"),
        ('{"mtu": 1}', [(), ["1", '1, "features": {"cdi": true}']], '{"mtu": 1, "features": {"cdi": true}}'),
        (CRUN, [("--set-as-default",), ['": "nvidia"', '": "runc"']], CRUN.replace('": "crun"', '": "runc"')),
        (THEIRS, [("--force",), [*MTU]], THEIRS.replace(*MTU, 1)),
        (THEIRS, [("--force",), [*MTU], ("--force", "--cdi")], THEIRS.replace(*MTU, 1)),
        (THEIRS, [("--force",), [*WITHIN]], THEIRS.replace(*WITHIN, 1)),
        ("", [(), '{"log-driver": "journald"}', ()], '{"log-driver": "journald"}'),
        ('{"debug": true}', [(), '{"mtu": 1400, "debug": false}', ("--cdi",)], '{"mtu": 1400, "debug": false}'),
    ],
)
def test_remove_leaves_what_others_wrote(old: str, steps: list[Any], left: str, config: Path, call: Call) -> None:
    config.write_text(old)
    for step in steps:
        if isinstance(step, tuple):
            ok(call("docker", config, *step))
        else:
            config.write_text(step if isinstance(step, str) else config.read_text().replace(step[0], step[1], 1))
    ok(call("docker", config, "--remove"))
    assert meaning(config.read_bytes()) == meaning(left.encode())
    assert os.listdir(config.parent) == ["daemon.json"]


def test_remove_works_without_the_backup(config: Path, call: Call) -> None:
    config.write_text('{\n  "debug": true\n}\n')
    ok(call("docker", config, "--set-as-default"))
    for suffix in (records.BEFORE, records.AFTER):
        Path(f"{config}{suffix}").unlink()
    ok(call("docker", config, "--remove"))
    assert config.read_text() == '{\n  "debug": true\n}\n'


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


words = st.sampled_from(["runtimes", "features", "default-runtime", "nvidia", "path", "cdi", "a", "é", "\\", "\n"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
styles = st.sampled_from([None, 0, 1, 2, 4, "\t", "\r"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.dictionaries(words | st.text(max_size=4), values, max_size=5), style=styles, ascii_only=st.booleans())
def test_any_object_survives_byte_for_byte(
    data: dict[str, Any], style: Any, ascii_only: bool, config: Path, program: str
) -> None:
    text = json.dumps(data, indent="  " if style == "\r" else style, ensure_ascii=ascii_only)
    text = text.replace("\n", "\r\n") if style == "\r" else text
    old = text.encode("utf-8", "surrogatepass")
    config.write_bytes(old)
    options = Options(program=program, config=str(config), default=True, cdi=True, force=True)
    try:
        files.apply(docker.plan(options).changes)
    except GpushimError:
        assert config.read_bytes() == old
        return
    new = meaning(config.read_bytes())
    assert new == expected(meaning(old), program)
    assert docker.plan(options).changed == []
    files.apply(docker.plan(Options(config=str(config), remove=True)).changes, undo=True)
    assert config.read_bytes() == old


@pytest.mark.parametrize("before", [None, b"{}", b'{"debug": true, "mtu": 1}', b"not JSON", b'{"runtimes": 5}'])
def test_records_of_the_first_version_or_damaged_ones_lose_nothing(
    before: bytes | None, config: Path, call: Call, program: str
) -> None:
    """That version kept what was there before the first run of several, whatever has been written since."""
    config.write_text('{"log-driver": "journald"}')
    ok(call("docker", config))
    record = Path(f"{config}{records.BEFORE}")
    record.unlink()
    if before is not None:
        record.write_bytes(before)
    ok(call("docker", config, "--remove"))
    assert config.read_text() == '{"log-driver": "journald"}'


def test_what_somebody_wrote_into_our_entry_is_kept_in_a_copy(config: Path, call: Call) -> None:
    ok(call("docker", config))
    config.write_text(config.read_text().replace('"path"', '"runtimeArgs": ["--debug"], "path"'))
    theirs = config.read_text()
    said = ok(call("docker", config, "--remove"))
    copy = Path(f"{config}{exchange.COPY}")
    assert f"note: {copy} is a copy of {config} as it was: it has runtimes.nvidia.runtimeArgs, of which" in said
    assert copy.read_text() == theirs
    assert not config.exists()


def test_by_hand_says_what_takes_it_out_and_keeps_what_that_needs(config: Path, call: Call) -> None:
    config.write_text('{"debug": true}')
    ok(call("docker", config))
    config.write_text(config.read_text().replace("true", 'true, "mtu": 1400'))
    theirs = config.read_bytes()
    commands = ok(call("docker", config, "--remove", "--by-hand")).splitlines()
    assert config.read_bytes() == theirs
    assert f"; then cp {config}{records.BEFORE} {config}; else " in commands[0]
    assert commands[1:] == ["# restart dockerd"]
    subprocess.run(["/bin/sh", "-euc", commands[0]], check=True)
    assert config.read_text() == '{"debug": true, "mtu": 1400}'


def test_by_hand_removes_a_file_with_nothing_else_in_it(config: Path, call: Call) -> None:
    ok(call("docker", config))
    command = ok(call("docker", config, "--remove", "--by-hand")).splitlines()[0]
    subprocess.run(["/bin/sh", "-euc", command], check=True)
    assert not config.exists()


@pytest.mark.parametrize("theirs", ["", '{"debug": true}'], ids=["rm", "cp"])
def test_what_by_hand_says_loses_no_later_edit(config: Path, call: Call, theirs: str) -> None:
    if theirs:
        config.write_text(theirs)
    ok(call("docker", config))
    command = ok(call("docker", config, "--remove", "--by-hand")).splitlines()[0]
    edited = config.read_text().replace("{", '{"mtu": 1400, ', 1)
    config.write_text(edited)
    done = subprocess.run(["/bin/sh", "-euc", command], check=True, capture_output=True, text=True)
    assert config.read_text() == edited
    setting, diff = done.stdout.split(" what diff ")
    assert setting.startswith(f"{config} has been edited since: ")
    shown = subprocess.run(["diff", *diff.split(" shows")[0].split()], check=False, capture_output=True, text=True)
    assert ("gpushim-runtime" if theirs else "mtu") in shown.stdout


def test_by_hand_with_nothing_to_take_back_says_so(config: Path, call: Call) -> None:
    assert ok(call("docker", config, "--remove", "--by-hand")) == f"# {config}: nothing to take back\n"


@pytest.mark.parametrize("words", [["--remove"], ["--remove", "--by-hand"]])
def test_a_copy_from_before_is_named(config: Path, call: Call, words: list[str]) -> None:
    ok(call("docker", config))
    copy = Path(f"{config}{exchange.COPY}")
    copy.write_text("{}")
    assert f"note: the change made to gpushim's entry is saved in {copy}\n" in ok(call("docker", config, *words))


def test_by_hand_restarts_the_engine(config: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "SYSTEMD", "/")
    monkeypatch.setattr(dockerd, "SYSTEM_CONFIG", str(config))
    monkeypatch.setattr(dockerd, "SNAP", "/nonexistent")
    config.write_text("{}")
    ok(call("docker", config))
    said = ok(call("docker", None, "--remove", "--by-hand", "--files-only"))
    assert said.splitlines()[1:] == ["systemctl restart docker.service"]


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


def test_a_record_of_a_file_that_is_gone_is_not_believed(config: Path, call: Call, program: str) -> None:
    ok(call("docker", config, "--cdi"))
    config.write_text('{"log-driver": "journald"}')
    assert "nothing to take back" in ok(call("docker", config, "--remove"))
    assert os.listdir(config.parent) == [config.name]
    config.write_text(json.dumps({"runtimes": {"nvidia": {"path": program}}, "features": {"cdi": True}}))
    assert "nothing to change" in ok(call("docker", config))
    ok(call("docker", config, "--remove"))
    assert meaning(config.read_bytes()) == {"features": {"cdi": True}}


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


def test_a_default_never_outlives_its_entry(call: Call, config: Path) -> None:
    """As where it was there before, with a runtime that somebody has taken out; dockerd would not start."""
    config.write_text('{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/usr/bin/gpushim-runtime"}}}')
    Path(f"{config}{records.BEFORE}").write_text('{"default-runtime": "nvidia"}')
    ok(call("docker", config, "--remove"))
    assert json.loads(config.read_text() if config.exists() else "{}") == {}


def test_a_default_from_before_goes_with_the_entry_that_somebody_took_out_since(call: Call, config: Path) -> None:
    config.write_text('{"runtimes": {"kata": {"path": "/kata"}}, "default-runtime": "kata"}')
    ok(call("docker", config, "--set-as-default"))
    config.write_text(Json(config.read_text()).drop(("runtimes", "kata")).text)
    ok(call("docker", config, "--remove"))
    assert "default-runtime" not in config.read_text()


def test_what_dockerd_would_not_start_with_is_not_left(
    call: Call, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the sentence says corrects it."""
    config.write_text('{"runtimes": {"nvidia": {"path": "/theirs"}}}')
    ok(call("docker", config, "--force"))
    config.write_text(Json(config.read_text()).put(("debug",), True).text)
    monkeypatch.setattr(docker, "_refused", lambda text, *_: "theirs is gone" if b"theirs" in text else "")
    configured = config.read_text()
    result = call("docker", config, "--remove")
    said = f"{config}: theirs is gone; dockerd would not start with what is left without gpushim"
    assert said in str(result.exception)
    assert (result.exit_code, config.read_text()) == (1, configured)
    monkeypatch.setattr(docker, "_refused", lambda *_: "")
    ok(call("docker", config, "--remove"))
    assert "theirs" in config.read_text()
