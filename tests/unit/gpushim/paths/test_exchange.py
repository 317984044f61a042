"""Another program writes a file, or gpushim is killed, at each system call of ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushim.paths import exchange
from unit.gpushim.paths.meanwhile import (
    THEIRS,
    Act,
    change,
    contents,
    in_place,
    kills,
    lay,
    link,
    remove,
    rename,
    states,
)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system of the network, say, which knows no exchange."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(exchange, "_renameat2", refuse)


@pytest.fixture
def place(near: Path) -> Path:
    (near / "etc").mkdir()
    return near / "etc" / "daemon.json"


KINDS = pytest.mark.parametrize(
    ("old", "new"), [(b"old", b"new"), (None, b"new"), (b"old", None)], ids=["change", "make", "remove"]
)


@KINDS
@pytest.mark.parametrize("act", [rename, in_place])
def test_what_another_writes_at_any_call_is_not_lost(
    act: Act, old: bytes | None, new: bytes | None, place: Path
) -> None:
    for refusal in states(place, old, new, act):
        assert THEIRS in contents(place)
        assert place.read_bytes() == THEIRS, refusal
        assert not [name for name in os.listdir(place.parent) if name.startswith(".")]


def test_a_link_that_another_puts_there_at_any_call_stays(place: Path) -> None:
    for refusal in states(place, b"old", b"new", link):
        assert place.read_bytes() == THEIRS, refusal


@pytest.mark.parametrize("new", [b"new", None], ids=["change", "remove"])
def test_a_file_that_another_removes_stays_removed(new: bytes | None, place: Path) -> None:
    for _ in states(place, b"old", new, remove):
        assert not place.exists()


@pytest.mark.usefixtures("without")
@KINDS
@pytest.mark.parametrize("act", [rename, in_place])
def test_without_an_exchange_only_the_call_between_look_and_rename_is_open(
    act: Act, old: bytes | None, new: bytes | None, place: Path
) -> None:
    lost = [number for number, _ in enumerate(states(place, old, new, act)) if THEIRS not in contents(place)]
    assert len(lost) <= 4  # of more than a hundred: at the last look, and at the rename


def test_a_file_that_somebody_has_open_to_write_is_left_to_him(place: Path) -> None:
    fds: list[int] = []

    def before(path: Path) -> None:
        fds.append(os.open(path, os.O_RDWR))

    for refusal in states(place, b"old", b"new", lambda _: os.write(fds[-1], THEIRS), before):
        os.close(fds.pop())
        assert place.read_bytes() == THEIRS
        assert "open for writing" in refusal or "changed by somebody else" in refusal


@pytest.mark.parametrize("new", [b"new", None], ids=["change", "remove"])
def test_what_is_written_between_the_first_look_and_the_last_is_not_lost(
    new: bytes | None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one who had it open only to read, and opens what came out to write while the disk is waited for."""
    lay(place, b"old")
    fd, fsync = os.open(place, os.O_RDONLY), os.fsync

    def written(folder: int) -> None:
        if not place.exists() or place.read_bytes() == new:
            Path(f"/proc/self/fd/{fd}").write_bytes(THEIRS)
        fsync(folder)

    monkeypatch.setattr(os, "fsync", written)
    with pytest.raises(exchange.Changed, match="changed by somebody else meanwhile"):
        change(place, b"old", new)
    os.close(fd)
    assert place.read_bytes() == THEIRS


@KINDS
@pytest.mark.parametrize("way", ["exchange", "without"])
def test_killed_at_any_call(
    way: str, old: bytes | None, new: bytes | None, place: Path, request: pytest.FixtureRequest
) -> None:
    """The file is the old or the new one, and nothing is left that the next run does not take away."""
    if way == "without":
        request.getfixturevalue("without")
    for _ in kills(place, old, new):
        assert (place.read_bytes() if place.exists() else None) in (old, new)
        change(place, None, None)
        assert not [name for name in os.listdir(place.parent) if name.startswith(".")]


@KINDS
def test_another_writes_and_then_gpushim_is_killed(old: bytes | None, new: bytes | None, place: Path) -> None:
    """The next run brings back what came out, or keeps it."""
    for gap in (0, 4):
        for _ in kills(place, old, new, rename, gap):
            change(place, None, None)
            assert THEIRS in contents(place)


def test_a_failure_behind_the_exchange_is_no_refusal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an fsync of a worn disk: either all is as before, or it is said that it is not."""
    place.write_bytes(b"old")
    fsync, calls = os.fsync, iter(range(100))
    monkeypatch.setattr(os, "fsync", lambda fd: fsync(fd))
    for number in range(12):
        calls = iter(range(100))

        def fail(fd: int, number: int = number, calls: Iterator[int] = calls) -> None:
            if next(calls) == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(fd)

        lay(place, b"old")
        monkeypatch.setattr(os, "fsync", fail)
        try:
            change(place, b"old", b"new")
            assert place.read_bytes() == b"new"
        except OSError:
            assert place.read_bytes() == b"old"


def huge(path: Path) -> None:
    rename(path)
    os.truncate(path, 3 * exchange.LIMIT)


def huge_in_place(path: Path) -> None:
    in_place(path)
    os.truncate(path, 3 * exchange.LIMIT)


@pytest.mark.parametrize("act", [huge, huge_in_place])
@pytest.mark.parametrize("way", ["exchange", "without"])
def test_however_much_another_writes_it_is_kept_and_not_read(
    act: Act, way: str, place: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "without":
        request.getfixturevalue("without")
    pread, most = os.pread, [0]

    def counted(fd: int, size: int, offset: int) -> bytes:
        most[0] = max(most[0], size)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    sizes = [[each.stat().st_size for each in place.parent.iterdir()] for _ in states(place, b"old", b"new", act)]
    open_to_loss = 3 if way == "without" and act is huge else 0  # a rename between the last look and ours
    assert len([each for each in sizes if 3 * exchange.LIMIT not in each]) <= open_to_loss
    assert most[0] == exchange.LIMIT + 1


@pytest.mark.usefixtures("without")
def test_without_an_exchange_a_writer_that_has_the_old_file_open_is_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_bytes(b"old")
    renamed, fds = os.rename, []

    def rename(*names: object, **folders: object) -> None:
        if names[1] == place.name:
            fds.append(os.open(place, os.O_RDWR))
        renamed(*names, **folders)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename)
    (note,) = change(place, b"old", b"new")
    assert "another program has the file that it was open for writing" in note
    os.close(fds[0])
