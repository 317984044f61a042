"""What is a container's root, as its mounts say it, from both sides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuhook.inject import roots
from gpushim.ground.errors import GpushimError
from gpushim.paths.rootfs import Rootfs
from unit.gpuhook.sandbox import container, forked


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """An empty root, and a canary beside it."""
    (tmp_path / "canary").mkdir()
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


ROOTS = {
    "mounted onto itself": ("mount --bind '{0}' '{0}'", ""),
    "of an engine, and onto itself": ("mount -t tmpfs none '{0}'; mount --bind '{0}' '{0}'", ""),
    "not mounted": ("", "is not a mount point"),
    "below a mount": ("mount --bind '{0}/..' '{0}/..'", "is not a mount point"),
    "covered": ("mount --bind '{0}' '{0}'; mount --bind '{0}/../canary' '{0}'", "is covered by a volume"),
    "covered twice": (
        "mount --bind '{0}' '{0}'; mount --bind '{0}/../canary' '{0}'; mount --bind '{0}/../canary' '{0}'",
        "is covered by a volume",
    ),
    "covered by a tmpfs": ("mount --bind '{0}' '{0}'; mount -t tmpfs none '{0}'", "is covered by a volume"),
    "a procfs": ("mount -t proc none '{0}'", "is on no file system for containers"),
    "a sysfs": ("mount -t sysfs none '{0}'", "is on no file system for containers"),
}


@pytest.mark.parametrize("side", ["outside", "inside"])
@pytest.mark.parametrize("name", ROOTS)
def test_what_is_a_containers_root(top: Path, name: str, side: str) -> None:
    script, text = ROOTS[name]

    def attempt(process: str) -> str:
        root = Rootfs(process, str(top))
        try:
            roots.check(root)
        except GpushimError as error:
            return str(error).partition(f"{top} ")[2]
        finally:
            os.close(root.fd)
        return ""

    with container(script.replace("{0}", str(top))) as pid:
        said = attempt(f"/proc/{pid}") if side == "outside" else forked(lambda: enter(pid) or attempt(""))
    assert said.startswith(text)
    assert bool(said) == bool(text)


def enter(pid: int) -> str:
    """Go into the mount namespace of a process."""
    import ctypes

    with open(f"/proc/{pid}/ns/mnt") as namespace:
        assert not ctypes.CDLL(None).setns(namespace.fileno(), 0x20000)
    return ""
