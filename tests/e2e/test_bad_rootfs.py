"""Bad root file systems, for a create and for the hook as a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.bad_images import CACHE, SONAME, finish, linked
from e2e.bad_images import root as root
from e2e.bad_images import scene as scene
from e2e.bad_input import ALL, BIN, Scene, mounted
from e2e.silentfs import silent
from unit.gpuhook.sandbox import as_root, container
from unit.gpuhook.trees import LIBS, entries

KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "file": Path.touch,
    "FIFO": os.mkfifo,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: os.mknod(path, 0o020666, os.makedev(1, 5)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_directory(scene: Scene, tmp_path: Path, pid: int, kind: str) -> None:
    root = tmp_path / "root"
    KINDS[kind](root)
    scene.ask(ALL, root={"path": str(root)})
    scene.answers(0)
    assert "cannot be opened" in scene.hook("prestart", "--rootfs", root, *LIBS, state=b'{"pid": %d}' % pid).stderr


@pytest.mark.parametrize("way", ["absolute", "relative", "chain"])
def test_a_link_to_the_rootfs(scene: Scene, root: Path, pid: int, way: str) -> None:
    link = root.parent / "link"
    link.symlink_to(root if way == "absolute" else "root" if way == "relative" else "link2")
    (root.parent / "link2").symlink_to("root")
    as_root(pid, root)
    done = scene.hook("prestart", "--rootfs", link, *LIBS, state=b'{"pid": %d}' % pid)
    assert (done.code, linked(root)) == (0, True)


@pytest.mark.parametrize("way", ["itself", "link", "bind"])
def test_the_hosts_own_root_is_not_written(scene: Scene, tmp_path: Path, way: str) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    root.symlink_to("/") if way == "link" else root.mkdir()
    script = f"mount --bind / {root}" if way == "bind" else ""
    before = {path: Path(path).lstat().st_mtime_ns for path in ("/etc", "/etc/ld.so.cache", "/etc/ld.so.conf.d", "/")}
    with container(script) as pid:
        words = ["--rootfs", "/" if way == "itself" else root, "--log", log, "--link", "x::/gpushim-was-here", *LIBS]
        done = scene.hook("prestart", *words, state=b'{"pid": %d}' % pid)
    assert (done.code, "host's own root" in log.read_text()) == (0, True)
    assert not os.path.lexists("/gpushim-was-here")
    assert {path: Path(path).lstat().st_mtime_ns for path in before if path != "/"} == {
        path: time for path, time in before.items() if path != "/"
    }


def test_an_overlay_of_users(scene: Scene, root: Path, pid: int) -> None:
    merged = root.parent / "merged"
    for name in ("upper", "work", "merged"):
        (root.parent / name).mkdir()
    options = f"userxattr,lowerdir={root},upperdir={root.parent}/upper,workdir={root.parent}/work"
    with mounted("overlay", merged, options), container() as inside:
        assert finish(scene, merged, inside).code == 0
        assert linked(merged)
    assert not linked(root)


def test_a_file_system_that_does_not_answer(scene: Scene, tmp_path: Path) -> None:
    """A create does not wait; the hook does, until the runtime's time limit for hooks ends it."""
    root = tmp_path / "root"
    root.mkdir()
    with silent(root), container() as pid:
        scene.ask(ALL, root={"path": str(root)})
        started = time.monotonic()
        scene.answers(0)
        assert time.monotonic() - started < 5
        assert scene.spec["hooks"]["prestart"][-1]["timeout"] == 60
        words = [str(BIN / "gpushim-hook"), "prestart", "--rootfs", str(root), *LIBS]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as hook:
            with pytest.raises(subprocess.TimeoutExpired):
                hook.communicate(b'{"pid": %d}' % pid, timeout=1)
            hook.kill()
            assert hook.wait(10) == -9


# Group 13.
def filled(write: Callable[[int], object]) -> None:
    """Write until no space is left."""

    def write_all() -> None:
        for number in range(10_000):
            write(number)

    with pytest.raises(OSError, match="No space left"):
        write_all()


TMPFS: dict[str, tuple[str, bool]] = {
    "nosuid, nodev, noexec": ("nosuid,nodev,noexec", True),
    "read-only": ("ro", False),
    "full": ("size=1m", False),
    "without inodes": ("nr_inodes=100", False),
}


@pytest.mark.parametrize("case", TMPFS)
def test_file_systems(scene: Scene, root: Path, case: str) -> None:
    """The container starts in any case: without the cache a program finds less, and the log says so."""
    options, works = TMPFS[case]
    place = root.parent / "place"
    place.mkdir()
    with mounted("tmpfs", place, "mode=755" if options == "ro" else options):
        shutil.copytree(root, place, symlinks=True, dirs_exist_ok=True)
        if case == "full":
            filled(lambda number: (place / f"filler{number}").write_bytes(b"x" * 4096))
        if case == "without inodes":
            filled(lambda number: (place / f"filler{number}").touch())
        if options == "ro":
            subprocess.run(["/usr/bin/mount", "-o", "remount,ro", str(place)], check=True)
        before = (place / CACHE).read_bytes()
        with container() as pid:
            assert finish(scene, place, pid).code == 0
        assert (entries(place)["libcuda.so.1"] == f"/{SONAME}") == works
        assert works or ((place / CACHE).read_bytes() == before and (root.parent / "log").read_text())
