"""Signals and standard streams that an engine gives a call reach the runtime, whoever passes them on."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e import recorder
from unit.gpushim.calls import SHELLS, Call
from unit.gpushim.calls import call as call
from unit.gpushim.calls import runtime as runtime

SIGNALS = sorted(set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33})  # the C library keeps two to itself
# The shell alone; the shell and grep; the shell, Python and no file to edit.
WAYS = {"pass-through": ("state", "x"), "no request": ("create", "x"), "Python": ("create", "-b", "nowhere", "x")}


@pytest.fixture
def calm(tmp_path: Path, call: Callable[..., Call]) -> Callable[..., Call]:
    """A function that runs the launcher where no bundle asks for anything."""
    (tmp_path / "cwd/config.json").write_text("{}")
    return call


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHELLS)
def test_each_ignored_signal_stays_ignored(calm: Callable[..., Call], name: str, way: str) -> None:
    """But SIGCHLD: dash and busybox handle it before they read a line, and keep no note of what it was."""

    def ignore() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    record = calm(*WAYS[way], before=tuple(SHELLS[name]), preexec_fn=ignore, restore_signals=False).record
    ignored = {number for number in SIGNALS if int(record["SigIgn"], 16) >> (number - 1) & 1}
    assert {*SIGNALS} - ignored == (set() if name == "bash" else {signal.SIGCHLD})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHELLS)
def test_each_signal_that_is_not_ignored_is_not_then(calm: Callable[..., Call], name: str, way: str) -> None:
    record = calm(*WAYS[way], before=tuple(SHELLS[name]), preexec_fn=recorder.ignore_only).record
    assert recorder.ignored(record) == set()


@pytest.mark.parametrize("way", WAYS)
def test_each_blocked_signal_stays_blocked(calm: Callable[..., Call], way: str) -> None:
    numbers = {*SIGNALS} - {signal.SIGSEGV}
    record = calm(*WAYS[way], preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, numbers)).record
    assert {number for number in SIGNALS if int(record["SigBlk"], 16) >> (number - 1) & 1} == numbers


def a_socket() -> int:
    return socket.socket(socket.AF_UNIX).detach()


STREAMS: dict[str, Callable[[], int]] = {
    "directory": lambda: os.open("/usr", os.O_RDONLY),
    "O_PATH of a directory": lambda: os.open("/usr", os.O_PATH),
    "O_PATH of a file": lambda: os.open("/etc/passwd", os.O_PATH),
    "socket": a_socket,
    "memory": lambda: os.memfd_create("x"),
    "process": lambda: os.pidfd_open(os.getpid()),
    "only to write": lambda: os.open("/dev/null", os.O_WRONLY),
    "only to read": lambda: os.open("/dev/null", os.O_RDONLY),
    "gone": lambda: os.open("/tmp", os.O_TMPFILE | os.O_RDWR),
}


def at(numbers: list[int], fd: int) -> Callable[[], object]:
    """Return what puts a file at these numbers in a child."""
    return lambda: [os.dup2(fd, number) for number in numbers]


@pytest.mark.parametrize("way", [*WAYS, "before the first refresh"])
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [*(("directory", [number]) for number in range(3)), *((kind, [0, 1, 2]) for kind in STREAMS)],
    ids=str,
)
def test_a_standard_stream_of_any_kind(
    calm: Callable[..., Call], runtime: Path, tmp_path: Path, kind: str, numbers: list[int], way: str
) -> None:
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    if way == "before the first refresh":
        (tmp_path / "config.toml").write_text(f'[runtime]\nlow-level = ["{runtime}"]\n')
    fd = STREAMS[kind]()
    try:
        options |= {"env": {"RECORD_STREAMS": "1"}, "preexec_fn": at(numbers, fd)}
        record = calm(*WAYS.get(way, ("state", "x")), **options).record
        status, flags = os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GETFL)
    finally:
        os.close(fd)
    assert set(record["fds"]) == {0, 1, 2}
    for number in numbers:
        assert record[f"stream {number}"] == [status.st_dev, status.st_ino, flags]


@pytest.mark.parametrize("way", ["pass-through", "Python"])
@pytest.mark.parametrize("name", SHELLS)
def test_few_files_may_be_open(calm: Callable[..., Call], name: str, way: str) -> None:
    """A shell puts its script and a stream aside: the runtime gets all streams, or is not reached."""
    taken = os.open("/dev/null", os.O_RDONLY)
    ends = set()
    for limit in range(10, 16):

        def lower(limit: int = limit) -> None:
            os.dup2(taken, 10)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        before = tuple(SHELLS[name])
        done = calm(*WAYS[way], before=before, preexec_fn=lower, close_fds=False, stdin=subprocess.DEVNULL)
        assert (done.record is not None) == (done.rc == 0), done
        if done.record:
            assert {0, 1, 2} <= set(done.record["fds"])
        ends.add(done.rc)
    os.close(taken)
    assert 0 in ends


def test_directories_at_every_low_number(calm: Callable[..., Call]) -> None:
    """There is no place left where the shell could keep one for the runtime."""
    fd = os.open("/usr", os.O_RDONLY)
    done = calm("create", "-b", "nowhere", "x", preexec_fn=at([0, *range(3, 10)], fd), close_fds=False)
    os.close(fd)
    assert (done.rc, done.stderr.count("\n"), done.record) == (1, 1, None)
    assert "a standard stream is a directory" in done.stderr
