"""An image for the hook to finish, and the hook as a process beside a canary that it must leave alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.bad_input import Outcome, Scene, ready
from fakehost import Host
from unit.gpuhook.sandbox import as_root, picture
from unit.gpuhook.trees import DRV, LIBS, LINK, glibc_image

MORE = ("--driver", "550.54.14", "--cuda", "12.4", "--profile-mask", "0x3")
CACHE, CONF = "etc/ld.so.cache", "etc/ld.so.conf.d"
SONAME = f"{DRV}/libcuda.so.1"[1:]


@pytest.fixture(scope="module")
def scene(gpu_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The commands, once for a file of tests."""
    return ready(tmp_path_factory.mktemp("shared"), gpu_host)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image of its own for each test."""
    return image(tmp_path)


def image(folder: Path) -> Path:
    """Make a glibc image with the driver's files as if mounted; a canary stands beside it."""
    root = glibc_image(folder)
    for name in ("file", "ld.so.cache"):
        (folder / "canary" / name).write_text("the host's own")
    return root


def finish(scene: Scene, root: Path, pid: int, *more: object) -> Outcome:
    """Run the hook and assert that it leaves no litter and nothing of the canary changed."""
    canary = root.parent / "canary"
    before = picture(canary) if canary.exists() else {}
    as_root(pid, root)
    words = ["prestart", "--rootfs", root, "--log", root.parent / "log", *LIBS, *LINK, *MORE, *more]
    done = scene.hook(*words, state=b'{"pid": %d}' % pid)
    assert (picture(canary) if canary.exists() else {}) == before
    assert not [path for path in root.glob("etc/**/*") if "tmp" in path.name or "gpushim-" in path.name]
    return done


def linked(root: Path) -> bool:
    """Whether the hook's link of a library is there."""
    return (root / SONAME).is_symlink() and os.readlink(root / SONAME) == "libcuda.so.550"
