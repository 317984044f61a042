"""What is said of mounts that have reached the host; tests/e2e/test_shared_volumes.py has them taken away."""

from __future__ import annotations

import pytest

from gpuhook.inject import leaks
from gpushim.ground.errors import GpushimError
from gpushim.paths import mountinfo

COPY = b"41 29 8:1 /driver/lib.so /vol/a/lib.so rw - ext4 /dev/sda1 rw"


@pytest.mark.parametrize(("host", "said"), [(b"", "was taken away again"), (COPY + b"\n", "where another covers it")])
def test_what_is_covered_is_still_there(monkeypatch: pytest.MonkeyPatch, host: bytes, said: str) -> None:
    monkeypatch.setattr(mountinfo, "read", lambda process: host)
    assert said in leaks._sentence([mountinfo.Mount(COPY)])


def test_a_file_that_is_mounted_over_meanwhile_is_said() -> None:
    with pytest.raises(GpushimError, match="/etc/passwd was mounted over just now"):
        leaks._kind("/etc/passwd", {})
