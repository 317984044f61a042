"""Whether somebody keeps the snapshot true, as the lock tells, whatever becomes of who holds it and where."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpushim.inventory import ensure
from gpushim.refresh import keep
from gpushim.refresh.keep import Keep

HOLD = """
import sys
from gpushim.refresh import keep
lock = keep.Lock(sys.argv[1])
lock.take()
print(flush=True)
input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_one_of_another_pid_namespace_is_seen_until_it_is_killed(tmp_path: Path) -> None:
    command = ["/usr/bin/unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", HOLD, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={"PYTHONPATH": os.pathsep.join(sys.path)}) as other:
        assert other.stdout
        assert other.stdout.readline() == b"\n"
        assert keep.runs(str(tmp_path))
        other.kill()
    with open(tmp_path / keep.LOCK, "rb") as file:  # the child of the one that was killed ends a moment later
        fcntl.flock(file, fcntl.LOCK_EX)
    assert not keep.runs(str(tmp_path))


def test_a_directory_that_is_made_anew_gets_the_lock_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    lock = keep.Lock(str(state))
    lock.take()
    assert not keep.runs(str(state))
    for _ in range(2):
        state.mkdir()
        lock.take()
        assert keep.runs(str(state))
        shutil.rmtree(state)
    lock.leave()


def test_the_next_one_has_it_when_the_first_has_ended(tmp_path: Path) -> None:
    one, other = (keep.Lock(str(tmp_path)) for _ in range(2))
    for each in (one, other):
        each.take()
    one.leave()
    assert not keep.runs(str(tmp_path))
    other.take()
    assert keep.runs(str(tmp_path))
    other.leave()


def test_who_may_not_know_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        keep.runs(str(tmp_path))


def test_in_a_directory_of_others_nothing_is_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    keep.Lock(str(tmp_path)).take()
    assert not os.listdir(tmp_path)


def test_who_keeps_holds_it_until_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = {"life": 300, "looked": 1e12}
    monkeypatch.setattr(ensure, "read", lambda config, state: true)
    kept = Keep(str(tmp_path / "config.toml"), str(tmp_path))
    kept.look()
    assert keep.runs(str(tmp_path))
    kept.stop()
    assert not keep.runs(str(tmp_path))


def test_a_file_that_others_hold_is_made_again(tmp_path: Path) -> None:
    path, lock = tmp_path / keep.LOCK, keep.Lock(str(tmp_path))
    path.touch(0o644)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not keep.runs(str(tmp_path))
        lock.take()
        lock.take()
        assert keep.runs(str(tmp_path))
        assert path.stat().st_mode & 0o777 == 0o600
