"""Being the only one at work on a node, and that nobody else can be in the way."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuplugin.node import host
from gpushim.ground.errors import GpushimError


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "LOCK", str(tmp_path / "lock"))
    return tmp_path / "lock"


def test_one_at_a_time_and_nothing_is_left(lock: Path) -> None:
    for _ in range(2):
        with host.lock_node(), pytest.raises(GpushimError, match="another gpushim-node is at work"), host.lock_node():
            pass
        assert not lock.exists()


def test_root_alone_may_open_the_lock_and_no_link_leads_elsewhere(lock: Path) -> None:
    with host.lock_node():
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.symlink_to(other := lock.with_name("other"))
    with pytest.raises(OSError, match=os.strerror(40)), host.lock_node():
        pass
    assert not other.exists()


def test_what_fails_meanwhile_leaves_no_lock(lock: Path) -> None:
    with pytest.raises(BlockingIOError), host.lock_node():
        raise BlockingIOError
    assert not lock.exists()
