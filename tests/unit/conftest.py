"""What unit tests write on this machine is theirs alone, and what it has of gpushim is not there for them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from apart import lay
from gpushim.ground.logs import logger

# A log where no configuration names another is as it should be; these are nobody's to change.
LEFT_ALONE = ("dev", "etc/cdi", "etc/gpushim", "run/cdi", "run/gpushim", "usr/local/bin", "var/lib/gpushim")


@pytest.fixture(autouse=True, scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay a layer of memory over what gpushim writes by default, for this process and its children."""
    layers = tmp_path_factory.mktemp("layers")
    if os.geteuid():
        return layers  # who may write nothing there
    lay(layers)
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


@pytest.fixture(autouse=True, scope="module")
def no_nvml_here() -> Iterator[None]:
    """Let a module fail that loads NVML in this process: it stays, and later tests' children would ask this one."""
    before = _has_nvml()
    yield
    assert _has_nvml() == before, "NVML was loaded in this process; forked() does it in a child"


def _has_nvml() -> bool:
    return "libnvidia-ml.so" in Path("/proc/self/maps").read_text()
