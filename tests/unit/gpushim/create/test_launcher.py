"""The launcher as a process, in front of a runtime that records how it was called."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Callable

import pytest

from e2e import recorder
from unit.gpushim.calls import LAUNCHER, Call
from unit.gpushim.calls import call as call
from unit.gpushim.calls import runtime as runtime
from unit.gpushim.create.launcher_words import WORDS

PASS = None
VERBS = [
    # arguments, the config.json that Python is shown (PASS: the runtime is executed at once)
    (["state", "x"], PASS),
    (["start", "create"], PASS),
    (["state", "create"], PASS),
    (["exec", "x", "create"], PASS),
    (["delete", "--force", "run"], PASS),
    (["features"], PASS),
    ([], PASS),
    (["--version"], PASS),
    (["-v", "create", "-b", "A", "x"], PASS),
    (["--help", "create"], PASS),
    (["create", "-h"], PASS),
    (["create", "-b", "A", "x", "--help"], PASS),
    (["create", "x", "--", "-h"], "./config.json"),
    (["restore", "-b", "A", "x"], "A/config.json"),
    (["restore", "--image-path", "-b", "--bundle", "A", "x"], "A/config.json"),
    (["checkpoint", "-b", "A", "x"], PASS),
    (["create", "x"], "./config.json"),
    (["run", "x"], "./config.json"),
    (["create", "--bundle", "A", "x"], "A/config.json"),
    (["create", "--bundle=A", "x"], "A/config.json"),
    (["create", "-bundle", "A", "x"], "A/config.json"),
    (["create", "-b", "A", "x"], "A/config.json"),
    (["create", "-b=A", "x"], "A/config.json"),
    (["create", "--b=A", "x"], "A/config.json"),
    (["create", "x", "--bundle", "A"], "A/config.json"),
    (["create", "-b", "create", "create"], "create/config.json"),
    (["create", "create"], "./config.json"),
    (["create", "-b", "B", "-b", "A", "x"], "A/config.json"),
    (["create", "-b", "-b", "x"], "-b/config.json"),
    (["create", "--bundle", "a \"b'\nc", "x"], "a \"b'\nc/config.json"),
    (["create", "--bundle=", "x"], "./config.json"),
    (["create", "--bundle", "", "x"], "./config.json"),
    (["create", "x", "--", "-b", "A"], "./config.json"),
    (["create", "x", "-b"], PASS),  # runc takes x for the bundle, and there is none
    (["create", "A", "x", "-b"], "A/config.json"),
    (["create", "--no-pivot", "--bundle", "A", "--pid-file", "-b", "x"], "A/config.json"),
    (["create", "--pid-file", "p", "--console-socket", "s", "--preserve-fds", "3", "-b", "A", "x"], "A/config.json"),
    (["create", "--pid-file=-b", "-b", "A", "x"], "A/config.json"),
    (["--root", "create", "state", "x"], PASS),
    (["--root", "/r", "--log", "create", "state", "x"], PASS),
    (["--root=/r", "create", "-b", "A", "x"], "A/config.json"),
    (["--root", "/r", "--log", "/dev/null", "--log-format", "json", "create", "-b", "A", "x"], "A/config.json"),
    (["--systemd-cgroup", "--rootless", "auto", "run", "--detach", "-b", "A", "x"], "A/config.json"),
    (["-root", "state", "create", "-b", "A", "x"], "A/config.json"),
    (["--criu", "run", "--bundle", "start"], PASS),
    (["--", "create", "-b", "A", "x"], "A/config.json"),
    (["--debug=true", "--", "state", "create"], PASS),
    (["--unknown", "create", "-b", "A", "x"], "A/config.json"),
    (["-", "create"], PASS),
    # A container's config.json in the state of crun, whose root is `.` here
    (["--root", ".", "update", "--resources", "-", "A"], "./A/config.json"),
    (["--root=.", "--log", "/dev/null", "update", "--resources=-", "A"], "./A/config.json"),
    (["--root", ".", "update", "-r", "-", "--", "A"], "./A/config.json"),
    (["--root", ".", "update", "A", "-r", "-"], "./A/config.json"),
    (["--root", ".", "update", "-r", "-", "x"], PASS),
    (["--root", ".", "update", "--memory", "1", "A"], PASS),

    (["--root", ".", "--debug", "update", "--r=-", "A"], "./A/config.json"),
    (["--root", ".", "state", "A"], PASS),
    (["update", "-r", "-", "A"], PASS),
    (["", "create"], PASS),
]  # fmt: skip


@pytest.mark.parametrize(("args", "config"), VERBS)
def test_finds_the_verb_and_the_bundle(call: Callable[..., Call], args: list[str], config: str | None) -> None:
    done = call(*args)
    if config is PASS:
        assert (done.rc, done.stderr) == (0, "")
        assert done.record["argv"][1:] == args
    else:
        assert done.record is None
        assert f"gpushim: {config} is not valid JSON" in done.stderr


@pytest.mark.parametrize(("content", "python"), WORDS.items(), ids=range(len(WORDS)))
def test_only_certain_words_start_python(
    call: Callable[..., Call], tmp_path: Path, content: str, python: bool
) -> None:
    (tmp_path / "cwd" / "config.json").write_text(content)
    assert (call("create", "x").record is None) is python


def test_words_of_the_configuration_start_python_too(call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "cwd" / "config.json").write_text('{"env":["DOCKER_RESOURCE_NVIDIA-GPU=0"]')
    assert call("create", "x").record is not None
    (tmp_path / "st ate" / "triggers").write_text("cdi.example.com\nDOCKER_RESOURCE_NVIDIA-GPU\n")
    assert call("create", "x").record is None


CONFIGS: dict[str, tuple[Callable[[Path], object], bool]] = {
    "absent": (lambda config: None, True),
    "dangling": (lambda config: config.symlink_to("x"), True),
    "no bundle": (lambda config: config.parent.rename(config.parent.with_name("away")), True),
    "directory": (Path.mkdir, False),
    "fifo": (os.mkfifo, False),
    "loop": (lambda config: config.symlink_to("config.json"), False),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_only_a_config_that_is_missing_is_runcs_matter(call: Callable[..., Call], tmp_path: Path, kind: str) -> None:
    make, passes = CONFIGS[kind]
    config = tmp_path / "cwd/A/config.json"
    config.unlink()
    make(config)
    done = call("create", "-b", "A", "x")
    assert (done.record is not None) == passes
    assert done.rc == (0 if passes else 14)


def test_arguments_arrive_as_they_came(call: Callable[..., Call]) -> None:
    args = ["state", "", "a b", "*", "$(x)", "`x`", "new\nline", "'\"\\", "-n", "\udcff\udc80"]
    assert call(*args).record["argv"][1:] == args


def test_environment_cwd_umask_and_signals_arrive_as_they_came(call: Callable[..., Call], tmp_path: Path) -> None:
    def ignore() -> None:
        os.umask(0o027)
        recorder.ignore_only(signal.SIGUSR1)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    record = call("state", "x", env={"A": "1", "EMPTY": ""}, preexec_fn=ignore).record
    assert {"A=1", "EMPTY="} <= set(record["env"])
    names = {entry.partition("=")[0] for entry in record["env"]}
    assert names == {"GPUSHIM_STATE", "GPUSHIM_CONFIG", "RECORD", "A", "EMPTY", "PWD"}
    assert record["cwd"] == str(tmp_path / "cwd")
    assert record["Umask"].strip() == "0027"
    assert recorder.ignored(record) == {signal.SIGUSR1}
    assert int(record["SigBlk"], 16) == 1 << (signal.SIGUSR2 - 1)


def test_the_signal_mask_survives_the_search_for_words(call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "cwd" / "config.json").write_text("{}")
    record = call(
        "create", "x", preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR2])
    ).record
    assert int(record["SigBlk"], 16) == 1 << (signal.SIGUSR2 - 1)


def test_it_is_the_same_process_and_its_exit_status(call: Callable[..., Call], tmp_path: Path) -> None:
    assert call("state", "x", env={"RECORD_EXIT": "42"}).rc == 42


def test_open_file_descriptors_arrive(call: Callable[..., Call], tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as file:
        record = call("create", "-b", "nowhere", "x", pass_fds=[file.fileno()]).record
        assert set(record["fds"]) == {0, 1, 2, file.fileno()}


def test_a_runtime_that_is_gpushim_itself_is_refused(call: Callable[..., Call], tmp_path: Path) -> None:
    link = tmp_path / "runc"
    link.symlink_to(LAUNCHER)
    (tmp_path / "st ate" / "runtime").write_text(f"{link}\n")
    done = call("--log", str(tmp_path / "log.json"), "--log-format", "json", "state", "x")
    assert done.rc == 126
    assert "is gpushim-runtime itself" in done.stderr
    assert '"level":"error","msg":"gpushim: the low-level runtime is' in (tmp_path / "log.json").read_text()


def test_without_a_recorded_runtime_the_host_runc_is_taken(call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "st ate" / "runtime").unlink()
    done = call("--version", env={"GPUSHIM_CONFIG": str(tmp_path / "absent.toml"), "PATH": "/nonexistent"})
    assert done.rc == 0
    assert done.record is None  # the real runc answered


def test_nothing_is_taken_from_the_working_directory_or_path(call: Callable[..., Call], tmp_path: Path) -> None:
    for name in ("grep", "python3", "runc", "posix.py", "gpushim"):
        (tmp_path / "cwd" / name).write_text("#!/bin/sh\necho hijacked >&2; exit 7\n")
        (tmp_path / "cwd" / name).chmod(0o755)
    done = call("create", "x", env={"PATH": str(tmp_path / "cwd"), "PYTHONPATH": str(tmp_path / "cwd")})
    assert "hijacked" not in done.stderr
    assert "not valid JSON" in done.stderr
