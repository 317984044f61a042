"""A create that finds no true snapshot: it waits for the refresh that runs, or starts one, and shares how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpushim.ground.errors import CONFIG, INVENTORY, GpushimError
from gpushim.inventory import ensure, failure, renew
from unit.gpushim.inventory.machine import Machine, refusal, running, snapshot
from waiting import until

pytestmark = pytest.mark.slow
IMPATIENT = "[refresh]\ndeadline-seconds = 1\n"


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Start this instead of a refresh; `"$@"` is the refresh."""
    real = renew.command()
    monkeypatch.setattr(renew, "command", lambda: ["/bin/sh", "-c", text, "sh", *real])


@pytest.fixture
def log(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each refresh that a create has started."""
    path = Path(machine.config).with_name("refreshes")
    script(monkeypatch, f'echo refresh >>{path}; exec "$@"')
    return path


def test_many_first_creates_make_one_snapshot(machine: Machine, log: Path) -> None:
    machine.build(1)
    with ThreadPoolExecutor(8) as creates:
        found = list(creates.map(lambda _: snapshot(machine), range(8)))
    assert found == [machine.saved()] * 8
    assert log.read_text() == "refresh\n"


def test_a_refresh_that_runs_is_waited_for(machine: Machine, log: Path) -> None:
    machine.build(1).behave(delay_ms=700)
    process = machine.start()
    until(lambda: Path(machine.state, "lock").exists() and "NVML" in Path(machine.state, "lock").read_text())
    assert snapshot(machine) == machine.saved()
    assert "GPUs and" in process.communicate(timeout=60)[1]
    assert log.read_text() == "refresh\n"  # machine.start's


def test_a_host_that_takes_longer_than_a_create_waits(machine: Machine, log: Path) -> None:
    """It converges: the first creates refuse, and nobody does anything until a later one finds the snapshot."""
    machine.build(1, IMPATIENT).behave(delay_ms=6000)
    with ThreadPoolExecutor(3) as creates:
        first = list(creates.map(lambda _: refusal(machine), range(3)))
    assert {error.exit_code for error in first} == {INVENTORY}
    sentence = "waited 1 s for {}, and goes on without this container"
    # Which step it is depends on how fast the child's Python starts.
    steps = ("NVML to initialise", "the driver's modules and nodes", "its process")
    assert all(any(sentence.format(step) in str(error) for step in steps) for error in first)
    until(lambda: "NVML" in Path(machine.state, "lock").read_text())
    error = str(refusal(machine))
    assert sentence.format(steps[0]) in error
    assert "persistence mode" in error
    until(lambda: ensure.read(machine.config, machine.state))
    assert snapshot(machine) == machine.saved()
    assert log.read_text() == "refresh\n"


def test_the_configured_deadline_counts_for_those_who_wait_too(machine: Machine) -> None:
    machine.build(1, IMPATIENT)
    Path(machine.state).mkdir()
    with open(f"{machine.state}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        assert "has waited 1 s for its process" in str(refusal(machine))
    assert time.monotonic() - began < 10


def test_a_refresh_of_a_create_is_apart_from_it(machine: Machine) -> None:
    """Of the engine's session, directory and descriptors it has none."""
    machine.build(1, IMPATIENT).behave(hang=True)
    with open(machine.folder / "engine's", "w") as theirs:
        os.set_inheritable(theirs.fileno(), True)
        refusal(machine)
    (pid,) = running(machine.state)
    until(lambda: "NVML" in Path(machine.state, "lock").read_text())  # it has started, and put the lock away
    assert (os.getsid(pid), os.readlink(f"/proc/{pid}/cwd")) == (pid, "/")
    opened = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert not [path for path in opened if "engine" in path or path.startswith(("pipe:", "socket:"))]
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"


def test_a_lock_that_was_handed_over_goes_with_the_process(machine: Machine) -> None:
    """And no child of it has it: what a modprobe starts may stay."""
    machine.build(1, IMPATIENT).behave(hang=True)
    refusal(machine)
    (pid,) = running(machine.state)
    os.kill(pid, 9)
    machine.build(1)
    assert snapshot(machine) == machine.saved()


def test_a_lock_that_was_handed_over_is_let_go_beside_a_create_that_was_stopped(machine: Machine) -> None:
    machine.build(1)
    os.mkdir(machine.state)
    with open(f"{machine.state}/lock", "w+") as lock:  # the stopped create's
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {"PATH": "/usr/bin", "GPUSHIM_CONFIG": machine.config, "GPUSHIM_STATE": machine.state}
        subprocess.run([*renew.command(), "--locked"], check=True, stdin=lock, env=environment)
        with open(f"{machine.state}/lock", "r+") as another:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_one_failure_is_passed_on_to_all_that_waited(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    log = machine.folder / "refreshes"
    machine.configure("[drivers]\n")
    script(monkeypatch, f'echo refresh >>{log}; sleep 0.5; exec "$@"')
    with ThreadPoolExecutor(8) as creates:
        errors = list(creates.map(lambda _: refusal(machine), range(8)))
    assert {str(error) for error in errors} == {str(errors[0])}
    assert "drivers is not a known key" in str(errors[0])
    assert log.read_text() == "refresh\n"


# What becomes of a refresh under the limits that a tenant may have.
LACKS = {
    "killed": "sleep 0.5; kill -KILL $$",
    "crashed": "sleep 0.5; kill -SEGV $$",
    "memory": 'ulimit -v 45000; exec "$@"',
    "files": 'ulimit -n 4; exec "$@"',
    "files of any size": 'ulimit -f 8; exec "$@"',
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_one_create_lacks_is_nobody_elses(machine: Machine, monkeypatch: pytest.MonkeyPatch, lack: str) -> None:
    machine.build(1)
    once = machine.folder / "once"
    script(monkeypatch, f'if mkdir {once} 2>/dev/null; then {LACKS[lack]}; fi; exec "$@"')
    with ThreadPoolExecutor(4) as creates:
        ended = list(creates.map(lambda _: outcome(machine), range(4)))
    assert ended.count("") == 3
    assert not Path(machine.state, "failure").exists()


def outcome(machine: Machine) -> str:
    try:
        snapshot(machine)
    except GpushimError as error:
        return str(error)
    return ""


def test_a_later_create_looks_for_itself(machine: Machine, log: Path) -> None:
    machine.configure("[drivers]\n")
    assert "drivers is not a known key" in str(refusal(machine))
    assert "drivers is not a known key" in str(refusal(machine))
    assert log.read_text() == "refresh\n" * 2


def failing(machine: Machine, **changes: Any) -> None:
    """Record a failure of the time when the next create begins."""
    Path(machine.state).mkdir(exist_ok=True)
    failure.record(machine.state, failure.facts(machine.config), GpushimError("sorry", 12))
    path = Path(machine.state, "failure")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_failure_of_before_a_change_does_not_count(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build(1)
    monkeypatch.setattr(
        renew._Wait, "began", property(lambda self: failure.now() - 2 * 10**9, lambda *to: None), False
    )
    failing(machine)
    assert str(refusal(machine)) == "sorry"
    machine.build(2)
    assert len(snapshot(machine)["gpus"]) == 2


@pytest.mark.parametrize(
    "changes",
    [{"at": 0}, {"at": 1 << 62}, {"at": "now"}, {"at": None}, {"inputs": {"config": "/other"}}, {"stamp": []}],
)
def test_a_failure_that_is_not_of_this_wait_does_not_count(machine: Machine, changes: dict[str, Any]) -> None:
    machine.build(1)
    failing(machine, **changes)
    failure.pass_on(machine.state, machine.config, 1)


@pytest.mark.parametrize("mode", [0o757, 0o775])
def test_a_failure_is_not_recorded_where_others_write(machine: Machine, mode: int) -> None:
    Path(machine.state).mkdir()
    os.chmod(machine.state, mode)
    failure.record(machine.state, failure.facts(machine.config), GpushimError("sorry", 12))
    assert os.listdir(machine.state) == []


def test_a_failure_that_others_may_have_written_does_not_count(machine: Machine) -> None:
    machine.build(1)
    failing(machine)
    os.chmod(f"{machine.state}/failure", 0o666)
    failure.pass_on(machine.state, machine.config, 1)


def test_refusal_of_the_child_is_passed_on(machine: Machine) -> None:
    machine.configure("[drivers]\n")
    error = refusal(machine)
    assert error.exit_code == CONFIG
    assert str(error) == f"{machine.config}: drivers is not a known key; did you mean driver?"


@pytest.mark.parametrize("close_stderr", ["", "exec 2>&-;"])
def test_child_that_does_not_end(machine: Machine, monkeypatch: pytest.MonkeyPatch, close_stderr: str) -> None:
    machine.configure(IMPATIENT)
    monkeypatch.setattr(renew, "command", lambda: ["/bin/sh", "-c", f"{close_stderr} sleep 60; : --locked"])
    began = time.monotonic()
    assert "has waited 1 s for its process" in str(refusal(machine))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit 3", "failed with code 3 without giving a reason"),
        ("echo noise >&2; echo gpushim: sorry >&2; exit 3", "sorry"),
        ("head -c 1000000 /dev/zero >&2; echo >&2; echo last >&2; exit 3", "last"),
        ("kill -SEGV $$", "was ended by signal 11"),
        ("exit 0", "keep changing"),
    ],
)
def test_child_that_fails(machine: Machine, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    script(monkeypatch, text)
    error = refusal(machine)
    assert words in str(error)
    assert "\n" not in str(error)


def test_child_that_cannot_be_started(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renew, "command", lambda: ["/nowhere/python3"])
    assert "cannot be started: " in str(refusal(machine))


def test_child_gets_a_minimal_environment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    script(monkeypatch, "env | cut -d= -f1 | sort | tr '\\n' ' ' >&2; exit 1")
    assert str(refusal(machine)) == "GPUSHIM_CONFIG GPUSHIM_STATE LC_ALL PATH PWD"


def test_no_descriptors_are_left_open(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, "exit 1")
    before = os.listdir("/proc/self/fd")
    refusal(machine)
    assert os.listdir("/proc/self/fd") == before


def test_a_user_who_may_not_renew_it_starts_a_refresh_that_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renew, "_open_lock", lambda state: None)
    script(monkeypatch, 'echo "$@" >&2; exit 1')
    assert str(refusal(machine)).endswith("stub.py refresh")
