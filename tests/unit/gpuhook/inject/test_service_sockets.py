"""A service's socket in a created container: what is lent is what was looked at, and of who owns its directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpuhook.inject import service_sockets
from gpushim.ground.errors import GpushimError
from gpushim.paths.mountinfo import OtherMountError
from gpushim.paths.rootfs import Rootfs
from unit.gpuhook.sandbox import as_root, bind, container, forked

PLACE = "/run/service/socket"
USER = 1000


class Case:
    """A service of a user's on the host, and a rootfs."""

    def __init__(self, work: Path) -> None:
        self.socket, self.top, self.secret = work / "run/service/socket", work / "root", work / "run/secret"
        for folder in (self.socket.parent, self.top / "run"):
            folder.mkdir(parents=True)
        os.mknod(self.socket, 0o140666)
        os.mknod(self.secret, 0o140666)
        for path in (self.socket, self.socket.parent):
            os.chown(path, USER, USER)

    def lend(self, pid: int) -> str:
        """Lend it, in a process with one thread; return what was refused, or ""."""

        def attempt() -> str:
            try:
                service_sockets.lend(Rootfs(f"/proc/{pid}", str(self.top)), str(self.socket), PLACE)
            except (OSError, GpushimError) as error:
                return str(error)
            return ""

        as_root(pid, self.top)
        return forked(attempt)

    def inside(self, pid: int) -> Path:
        return Path(f"/proc/{pid}/root{self.top}{PLACE}")

    def mounts(self, pid: int) -> list[str]:
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        return [line for line in lines if f"{self.top}/" in line]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def own_run(case: Case) -> str:
    return f"mount --bind '{case.top}' '{case.top}'; mount -t tmpfs none '{case.top}/run'"


@pytest.mark.parametrize("tmpfs", [True, False])
def test_a_users_service(case: Case, tmpfs: bool) -> None:
    with container(own_run(case) if tmpfs else "") as pid:
        assert case.lend(pid) == ""
        assert os.path.samefile(case.inside(pid), case.socket)
        with pytest.raises(OSError, match="Read-only"):
            case.inside(pid).chmod(0o600)
        before = case.mounts(pid)
        assert case.lend(pid) == ""  # a second time
        assert case.mounts(pid) == before
    assert any("ro,nosuid,nodev,noexec" in line for line in before)


@pytest.mark.parametrize("gone", ["socket", "directory"])
def test_a_service_that_does_not_run(case: Case, gone: str) -> None:
    case.socket.unlink()
    if gone == "directory":
        case.socket.parent.rmdir()
    with container() as pid:
        assert case.lend(pid) == ""
        assert case.mounts(pid) == []
    assert not (case.top / "run/service").exists()


@pytest.mark.parametrize(
    "trouble", ["link", "hard link", "link to the directory", "everybody's", "a group's", "file", "fifo", "directory"]
)
def test_what_is_no_socket_of_who_owns_the_directory(case: Case, trouble: str) -> None:
    """T-LENT."""
    folder = case.socket.parent
    case.socket.unlink()
    if trouble in ("everybody's", "a group's"):
        os.chown(folder, 0, 0)
        folder.chmod(0o1777 if trouble == "everybody's" else 0o775)
    if trouble == "link":
        case.socket.symlink_to(case.secret)
    elif trouble == "link to the directory":
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to("elsewhere")
        os.link(case.secret, case.socket)
    elif trouble in ("hard link", "everybody's", "a group's"):
        os.link(case.secret, case.socket)
    elif trouble == "directory":
        case.socket.mkdir()
    else:
        os.mknod(case.socket, 0o10666 if trouble == "fifo" else 0o100666)
    with container() as pid:
        assert case.lend(pid)
        assert case.mounts(pid) == []


@pytest.mark.parametrize("what", ["socket", "directory"])
def test_a_mount_of_its_own_is_not_looked_at(case: Case, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """T-LENT: a user can mount FUSE there, whose server need not answer."""
    place, source = (case.socket, case.secret) if what == "socket" else (case.socket.parent, case.top)
    monkeypatch.setattr(service_sockets, "_check", lambda *_: pytest.fail("it was asked"))
    with container() as pid:
        as_root(pid, case.top)

        def work() -> str:
            bind(source, place)  # in the directory, nothing of its name is looked for
            with pytest.raises(OtherMountError):
                service_sockets.lend(Rootfs(f"/proc/{pid}", str(case.top)), str(case.socket), PLACE)
            return "refused"

        assert forked(work, namespace=True) == "refused"
        assert case.mounts(pid) == []


def test_a_name_that_means_another_file_when_it_is_mounted(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """T-LENT: what is mounted is what was looked at."""
    find, looked_at = service_sockets._find_target, case.socket.with_name("looked-at")

    def exchanged(*args: Any) -> Any:
        case.socket.rename(looked_at)
        case.socket.symlink_to(case.secret)
        return find(*args)

    monkeypatch.setattr(service_sockets, "_find_target", exchanged)
    with container() as pid:
        assert case.lend(pid) == ""
        assert os.path.samefile(case.inside(pid), looked_at)


def test_what_root_has_put_into_a_directory_of_its_own(case: Case) -> None:
    """As in a container that engines run in: its /run/nvidia-persistenced/socket is the host's, a user's."""
    os.chown(case.socket.parent, 0, 0)
    with container() as pid:
        assert case.lend(pid) == ""
        assert os.path.samefile(case.inside(pid), case.socket)


@pytest.mark.parametrize("where", ["volume", "nothing of its own"])
def test_no_place_to_mount_on(case: Case, tmp_path: Path, where: str) -> None:
    (tmp_path / "volume").mkdir()
    with container(f"mount --bind '{tmp_path}/volume' '{case.top}/run'") as pid:
        number = os.getpid() if where == "nothing of its own" else pid
        as_root(pid, case.top)
        before = case.mounts(pid)
        assert case.lend(number)
        assert case.mounts(pid) == before
    assert not any((tmp_path / "volume").iterdir())
