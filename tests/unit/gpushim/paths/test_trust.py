"""Whom a process trusts, in a user namespace and where it cannot know that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim.ground import system
from gpushim.paths import trust


@pytest.mark.parametrize(
    ("mapping", "there"),
    [("0 0 4294967295\n", False), ("0 1000 1\n", True), ("", True), (None, False)],  # None: it cannot be read
)
def test_the_overflow_user_is_root_in_a_user_namespace_alone(
    monkeypatch: pytest.MonkeyPatch, mapping: str | None, there: bool
) -> None:
    monkeypatch.setattr(system, "text", lambda *_: mapping)
    assert trust.trusted(65534) is there


STRANGER = 1000


def _link(top: Path, target: str, owner: int = 0) -> Path:
    link = top / "state"
    link.symlink_to(target)
    os.lchown(link, owner, owner)
    return link


def _twice(top: Path) -> Path:
    link = _link(top, "old/state")
    os.link(link, top / "again", follow_symlinks=False)
    return top / "again"


def _through(top: Path, mode: int, owner: int) -> Path:
    (top / "others/state").mkdir(parents=True)
    (top / "others").chmod(mode)
    os.chown(top / "others", owner, owner)
    return _link(top, "others/state")


LINKS: dict[str, tuple[Callable[[Path], Path], bool]] = {
    "as rootlesskit makes it": (lambda top: _link(top, "old/state"), True),
    "by an absolute path": (lambda top: _link(top, f"{top}/old/state"), True),
    "up and down again": (lambda top: _link(top, "old/../old/state"), True),
    "a stranger's": (lambda top: _link(top, "old/state", STRANGER), False),
    "the overflow user's": (lambda top: _link(top, "old/state", 65534), False),
    "with two names": (_twice, False),
    "to a link": (lambda top: _link(top, "old/link"), False),
    "to a file": (lambda top: _link(top, "old/file"), False),
    "to nothing": (lambda top: _link(top, "gone"), False),
    "through a stranger's directory": (lambda top: _through(top, 0o755, STRANGER), False),
    "through a directory that all may write to": (lambda top: _through(top, 0o1777, 0), False),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what is another user's")
@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_followed_once_if_root_made_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / "old/state").mkdir(parents=True)
    (tmp_path / "old/file").touch()
    (tmp_path / "old/link").symlink_to("state")
    make, followed = LINKS[name]
    monkeypatch.setattr(trust, "in_user_namespace", lambda: True)  # where the overflow user counts as root
    assert trust.ours(str(make(tmp_path))) is followed
