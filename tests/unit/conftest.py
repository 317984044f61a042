"""What unit tests write on this machine is theirs alone, and what it has of gpushim is not there for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.gpuhook.sandbox import mount, own_mounts

LAYERED = ("etc", "run", "usr/local", "var/log")
OURS = ("/etc/gpushim", "/run/gpushim", "/var/log/gpushim.log")
# A log where no configuration names another is as it should be; these are nobody's to change.
LEFT_ALONE = ("/etc/cdi", "/etc/gpushim", "/run/cdi", "/run/gpushim", "/usr/local/bin")


@pytest.fixture(autouse=True, scope="session")
def own_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Lay a layer of memory over what gpushim writes by default, for this process and its children."""
    if os.geteuid():
        return  # who may write nothing there
    own_mounts()
    layers = tmp_path_factory.mktemp("layers")
    mount("tmpfs", layers, "mode=755")
    for top in LAYERED:
        upper, work = layers / top / "upper", layers / top / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        mount("overlay", Path("/", top), f"lowerdir=/{top},upperdir={upper},workdir={work}")
    for path in map(Path, OURS):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def left_alone(own_machine: None) -> Iterator[None]:
    """Fail a test that changes what gpushim has on this machine; it gives its own paths instead."""
    before = contents()
    yield
    assert contents() == before, "a test has written where gpushim's files of this machine are"


def contents() -> dict[str, list[tuple[str, int, int]]]:
    """List the files, by directory."""
    found = {}
    for folder in LEFT_ALONE:
        try:
            with os.scandir(folder) as names:
                each = [(one.name, one.stat(follow_symlinks=False)) for one in names]
        except FileNotFoundError:
            continue
        found[folder] = sorted((name, status.st_ino, status.st_mtime_ns) for name, status in each)
    return found
