"""What unit tests write on this machine is theirs alone, and what it has of gpushim is not there for them."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushim.logs import logger
from unit.gpuhook.sandbox import mount, own_mounts

LAYERED = ("etc", "run", "usr/local", "var/log")
OURS = ("/etc/gpushim", "/run/gpushim", "/var/log/gpushim.log")
# A log where no configuration names another is as it should be; these are nobody's to change.
LEFT_ALONE = ("etc/cdi", "etc/gpushim", "run/cdi", "run/gpushim", "usr/local/bin")


@pytest.fixture(autouse=True, scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay a layer of memory over what gpushim writes by default, for this process and its children."""
    layers = tmp_path_factory.mktemp("layers")
    if os.geteuid():
        return layers  # who may write nothing there
    own_mounts()
    mount("tmpfs", layers, "mode=755")
    for top in LAYERED:
        upper, work = layers / top, layers / f"{top}-work"
        upper.mkdir(parents=True)
        work.mkdir()
        mount("overlay", Path("/", top), f"lowerdir=/{top},upperdir={upper},workdir={work}")
    for path in map(Path, OURS):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return layers


@pytest.fixture(autouse=True)
def same_log() -> Iterator[None]:
    """Take back what a command does to the log, which would hide the next tests' from pytest."""
    before = logger.handlers[:], logger.level, logger.propagate, logging.raiseExceptions
    yield
    logger.handlers[:], level, logger.propagate, logging.raiseExceptions = before
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def left_alone(layers: Path) -> Iterator[None]:
    """Fail a test that changes what gpushim has on this machine; it gives its own paths instead."""
    before = written(layers)
    yield
    assert written(layers) == before, "a test has written where gpushim's files of this machine are"


def written(layers: Path) -> list[tuple[str, int, int]]:
    """List what tests have changed there: what others do on this machine meanwhile is not in the layers."""
    found = []
    for folder in map(layers.joinpath, LEFT_ALONE):
        for path in [folder, *folder.glob("*")] if folder.is_dir() else []:
            status = path.lstat()
            found.append((str(path.relative_to(layers)), status.st_ino, status.st_mtime_ns))
    return sorted(found)
