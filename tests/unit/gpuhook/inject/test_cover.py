"""A host's file over a file of a container's procfs.

No machine without NVIDIA's driver has /proc/driver/nvidia/params: a file of a real procfs stands for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from gpuhook.inject import cover
from gpushim.ground.errors import GpushimError
from gpushim.paths.mountinfo import OtherMountError
from gpushim.paths.rootfs import Rootfs
from unit.gpuhook.sandbox import container, forked, open_fds

PLACE = "/proc/tty/drivers"
TEXT = "ModifyDeviceFiles: 0\n"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "params").write_text(TEXT)
    (tmp_path / "empty").mkdir()
    return tmp_path / "root"


def proc(top: Path, more: str = "") -> str:
    return f"mount -t proc proc '{top}/proc'; {more}"


def bind(top: Path, pid: int, path: str = PLACE, times: int = 1, source: str = "params") -> str:
    """Bind as the hook does, in a process of its own; returns the trouble, "" if there is none."""

    def work() -> str:
        before = open_fds(), os.readlink("/proc/self/ns/mnt"), os.getcwd()
        root = Rootfs(f"/proc/{pid}", str(top))
        said = ""
        try:
            for _ in range(times):
                cover.cover(root, str(top.parent / source), path)
        except (OSError, GpushimError) as error:
            said = f"{type(error).__name__}: {error.strerror if isinstance(error, OSError) else error}"
        os.close(root.fd)
        assert (open_fds(), os.readlink("/proc/self/ns/mnt"), os.getcwd()) == before
        return said

    return forked(work)


def host_mounts(top: Path) -> list[str]:
    """The host's mounts that a cover could have to do with; others come and go with other tests."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(top) in line or " /proc" in line]


def mounts(pid: int, top: Path) -> list[list[str]]:
    """The mounts below a tree, each as the words of mountinfo (proc(5))."""
    lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return [words for words in lines if words[4].startswith(f"{top}/")]


def test_the_container_sees_the_hosts_file_read_only(top: Path) -> None:
    host = host_mounts(top)
    with container(proc(top)) as pid:
        assert bind(top, pid) == ""
        place = Path(f"/proc/{pid}/root{top}{PLACE}")
        assert place.read_text() == TEXT
        with pytest.raises(OSError, match="Read-only") as caught:
            place.open("a")
        assert caught.value.errno == errno.EROFS
        (mount,) = [words for words in mounts(pid, top) if words[4].endswith(PLACE)]
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(mount[5].split(","))
        assert mount[6] == "-"  # not shared with anybody
    assert host_mounts(top) == host
    assert Path(PLACE).read_text() != TEXT


def test_a_directory_is_emptied(top: Path) -> None:
    with container(proc(top)) as pid:
        place = Path(f"/proc/{pid}/root{top}/proc/tty/driver")
        assert bind(top, pid, "/proc/tty/driver", times=2, source="empty") == ""
        assert os.listdir(place) == []
        assert len(mounts(pid, top)) == 2


@pytest.mark.parametrize(("path", "source"), [("/proc/tty/drivers", "empty"), ("/proc/tty/driver", "params")])
def test_a_place_of_another_kind(top: Path, path: str, source: str) -> None:
    with container(proc(top)) as pid:
        assert "is not a" in bind(top, pid, path, source=source)
        assert len(mounts(pid, top)) == 1


def test_a_second_time_changes_nothing(top: Path) -> None:
    with container(proc(top)) as pid:
        assert bind(top, pid, times=2) == ""
        assert bind(top, pid) == ""
        assert len(mounts(pid, top)) == 2


@pytest.mark.parametrize("path", ["/proc/driver/nvidia/params", "/proc/none", "/none/params"])
def test_what_is_not_there_needs_no_hiding(top: Path, path: str) -> None:
    with container(proc(top)) as pid:
        assert bind(top, pid, path) == ""
        assert len(mounts(pid, top)) == 1


def test_a_container_without_a_procfs(top: Path) -> None:
    (top / "proc/tty").mkdir()
    (top / "proc/tty/drivers").touch()
    with container() as pid:
        assert "not a procfs" in bind(top, pid)
        assert not mounts(pid, top)


FAKES = {
    "tmpfs": "mount -t tmpfs none '{top}/proc'; mkdir '{top}/proc/tty'; touch '{top}/proc/tty/drivers'",
    "directory of the user's": "mount --bind '{top}/mine' '{top}/proc'",
    "part of a procfs": "mount --bind /proc/$$/net '{top}/proc'",
}


@pytest.mark.parametrize("kind", FAKES)
def test_other_file_systems(top: Path, kind: str) -> None:
    (top / "mine/tty").mkdir(parents=True)
    (top / "mine/tty/drivers").touch()
    path = "/proc/dev" if kind == "part of a procfs" else PLACE
    with container(FAKES[kind].replace("{top}", str(top))) as pid:
        assert "not a procfs" in bind(top, pid, path)
        assert len(mounts(pid, top)) == 1


def test_a_mount_of_the_users_over_the_place(top: Path) -> None:
    (top / "mine").touch()
    with container(proc(top, f"mount --bind '{top}/mine' '{top}{PLACE}'")) as pid:
        assert bind(top, pid).startswith(OtherMountError.__name__)
        assert Path(f"/proc/{pid}/root{top}{PLACE}").read_text() == ""


@pytest.mark.parametrize("target", ["/proc", "elsewhere", "/"])
def test_proc_as_a_link(top: Path, target: str) -> None:
    (top / "elsewhere").mkdir()
    (top / "proc").rmdir()
    (top / "proc").symlink_to(target)
    with container(f"mount -t proc proc '{top}/elsewhere'") as pid:
        assert "Not a directory" in bind(top, pid)
        assert len(mounts(pid, top)) == 1


@pytest.mark.parametrize(("path", "text"), [("/proc/self/exe", "Not a dir"), ("/proc/1/exe", "not a regular file")])
def test_links_in_the_procfs(top: Path, path: str, text: str) -> None:
    with container(proc(top)) as pid:
        assert text in bind(top, pid, path)
        assert len(mounts(pid, top)) == 1


def test_a_procfs_that_others_share(top: Path) -> None:
    with container(proc(top, f"mount --make-shared '{top}/proc'")) as pid:
        assert "shared with other mount namespaces" in bind(top, pid)
        assert len(mounts(pid, top)) == 1


def test_a_source_that_is_gone(top: Path) -> None:
    (top.parent / "params").unlink()
    with container(proc(top)) as pid:
        assert bind(top, pid) == "FileNotFoundError: No such file or directory"
        assert len(mounts(pid, top)) == 1


def restrict(top: Path, pid: int, inside: bool = False, times: int = 2) -> str:
    """Let the hook cover a file with a changed copy; "/dev/tty " stands for ModifyDeviceFiles: 1."""

    def work() -> str:
        cover.PARAMS, cover.MODIFIES, cover.MODIFIES_NOT = PLACE, b"/dev/tty ", b"/dev/gpu "
        if inside:
            fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
            assert not ctypes.CDLL(None).setns(fd, 0x20000)
            os.close(fd)
        before = open_fds(), os.readlink("/proc/self/ns/mnt"), os.getcwd()
        root = Rootfs("" if inside else f"/proc/{pid}", str(top))
        said = ""
        try:
            for _ in range(times):
                cover.restrict_params(root)
        except (OSError, GpushimError) as error:
            said = f"{type(error).__name__}: {error.strerror if isinstance(error, OSError) else error}"
        os.close(root.fd)
        assert (open_fds(), os.readlink("/proc/self/ns/mnt"), os.getcwd()) == before
        return said

    return forked(work)


@pytest.mark.parametrize("inside", [False, True])
def test_parameters_without_a_file_of_the_host(top: Path, inside: bool) -> None:
    host, text = host_mounts(top), Path(PLACE).read_text()
    with container(proc(top)) as pid:
        assert restrict(top, pid, inside) == ""
        place = Path(f"/proc/{pid}/root{top}{PLACE}")
        assert place.read_text() == text.replace("/dev/tty ", "/dev/gpu ") != text
        with pytest.raises(OSError, match="Read-only"):
            place.open("a")
        (_, mount) = mounts(pid, top)  # of the tmpfs nothing is left but this
        assert mount[4] == f"{top}{PLACE}"
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(mount[5].split(","))
        assert mount[6] == "-"
    assert host_mounts(top) == host
    assert Path(PLACE).read_text() == text


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("", ""),  # no procfs, no parameters
        ("mount -t proc proc '{top}/proc'; mount --make-shared '{top}/proc'", "shared with other mount namespaces"),
        ("mount -t tmpfs none '{top}/proc'; mkdir '{top}/proc/tty'; {write}", "not a procfs"),
        ("mkdir '{top}/proc/tty'; {write}", "not a procfs"),
        ("mkdir -p '{top}/proc/tty'; mkfifo '{top}/proc/tty/drivers'", "not a regular file"),
        ("mkdir -p '{top}/proc/tty'; ln -s /etc/passwd '{top}/proc/tty/drivers'", "not a regular file"),
        ("mount -t proc proc '{top}/proc'; mount --bind '{top}/../volume' '{top}/proc/tty/drivers'", ""),  # and stays
    ],
    ids=range(7),
)
def test_places_where_no_parameters_are(top: Path, script: str, text: str) -> None:
    (top.parent / "volume").write_text("/dev/tty of the user's\n")
    script = script.replace("{write}", "cp '{top}/../volume' '{top}/proc/tty/drivers'").replace("{top}", str(top))
    with container(script) as pid:
        before = mounts(pid, top)
        assert text in restrict(top, pid)
        assert mounts(pid, top) == before
