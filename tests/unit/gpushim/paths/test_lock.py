"""Locks: of who runs this alone, with a deadline, and a holder that is named."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.paths import lock

HOLD = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


def test_it_is_one_that_nobody_else_can_open(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock.held(str(path)):
        assert path.stat().st_mode & 0o777 == 0o600


def test_no_directory_is_made_for_it(tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match="cannot be made: No such file"), lock.held(str(tmp_path / "none/lock")):
        pass


def test_of_two_that_take_it_one_has_the_file_that_is_there(tmp_path: Path) -> None:
    """Somebody removes the file, or its directory, while one waits: who comes later makes another."""
    path, later = tmp_path / "gpushim" / "lock", tmp_path / "later"
    path.parent.mkdir()
    with lock.held(str(path)):
        path.parent.rename(later)
        path.parent.mkdir()
        with lock.held(str(path), 0.1), pytest.raises(GpushimError, match="is held"), lock.held(str(path), 0.1):
            pass


def test_who_waits_for_a_file_that_is_removed_takes_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, first = tmp_path / "lock", lock.held(str(tmp_path / "lock"))
    first.__enter__()

    def pause(_: float) -> None:
        path.unlink()
        first.__exit__(None, None, None)
        monkeypatch.undo()

    monkeypatch.setattr("time.sleep", pause)
    with lock.held(str(path), 1), pytest.raises(GpushimError, match="is held"), lock.held(str(path), 0.05):
        pass


def test_the_holder_is_named_after_the_deadline(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch(0o600)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with (
            pytest.raises(GpushimError, match=rf"is held by process {holder.pid} \(.*fcntl"),
            lock.held(str(path), 0.1),
        ):
            pass
        holder.communicate()
    with lock.held(str(path), 0.1):
        pass


@pytest.mark.parametrize("others", ["file", "directory", "owner"])
def test_one_that_others_could_hold(others: str, tmp_path: Path) -> None:
    path = tmp_path / "gpushim" / "lock"
    path.parent.mkdir()
    path.touch(0o600)
    if others == "owner":
        os.chown(path, 1234, 0)
    else:
        (path if others == "file" else path.parent).chmod(0o644 if others == "file" else 0o777)
    with pytest.raises(GpushimError, match="others could hold the lock"), lock.held(str(path)):
        pass


def test_a_file_that_is_replaced_before_it_is_locked_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "lock", fcntl.flock

    def replaced(fd: int, operation: int) -> None:
        monkeypatch.undo()
        path.unlink()
        path.touch(0o600)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with lock.held(str(path), 1), pytest.raises(GpushimError, match="is held"), lock.held(str(path), 0.05):
        pass
