"""What a log may be: lines go to a file of root's or ours, and nowhere that others can make its name lead to."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from gpushim.paths import logfile

STRANGER = 12345


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log that is not there yet, and a canary."""
    (tmp_path / "canary").write_text("canary\n")
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "log"


def link(log: Path) -> None:
    log.symlink_to("../canary")


def dangling(log: Path) -> None:
    log.symlink_to("../new")


def second_name(log: Path) -> None:
    os.link(log.parent.parent / "canary", log)


def impostors(log: Path) -> None:
    log.touch()
    os.chown(log, STRANGER, STRANGER)


def device(log: Path) -> None:
    os.mknod(log, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def directory(log: Path) -> None:
    log.mkdir()


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_a_new_log(log: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        for text in ("one", "two \u0660"):
            logfile.append(str(log), text)
    finally:
        os.umask(old)
    assert log.read_text() == "one\ntwo \\u0660\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o640 & ~umask


@pytest.mark.parametrize("relative", ["log", "./log", "../logs/log"])
def test_a_path_from_the_working_directory(log: Path, monkeypatch: pytest.MonkeyPatch, relative: str) -> None:
    monkeypatch.chdir(log.parent)
    logfile.append(relative, "x")
    assert log.read_text() == "x\n"


@pytest.mark.parametrize(
    "lay",
    [
        link,
        dangling,
        second_name,
        impostors,
        device,
        directory,
    ],
)
def test_what_is_no_log(log: Path, lay: object) -> None:
    assert callable(lay)
    lay(log)
    logfile.append(str(log), "x")
    assert logfile.refused(str(log))
    assert (log.parent.parent / "canary").read_text() == "canary\n"
    assert not (log.parent.parent / "new").exists()
    assert not log.is_file() or log.stat().st_size == len("canary\n") * (lay in (link, second_name))


def test_a_fifo_that_somebody_reads(log: Path) -> None:
    os.mkfifo(log)
    logfile.append(str(log), "nobody reads; it does not wait")
    heard: list[str] = []
    reader = threading.Thread(target=lambda: heard.append(log.read_text()))
    reader.start()
    while not heard:
        logfile.append(str(log), "x")
        reader.join(0.01)
    assert set(heard[0].split()) == {"x"}


@pytest.mark.parametrize("path", ["", "/", "/nowhere/log", "a\0b", "/dev/full"])
def test_paths_that_are_nothing(path: str) -> None:
    logfile.append(path, "x")
