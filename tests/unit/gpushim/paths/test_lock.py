"""Locks: of who runs this alone, with a deadline, and a holder that is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.paths import lock

HOLD = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


def test_it_is_one_that_nobody_else_can_open(tmp_path: Path) -> None:
    path = tmp_path / "gpushim" / "lock"
    with lock.held(str(path)):
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o022) == (0o600, 0)


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
