"""The system calls that mount, in real mount namespaces, with new calls and with old ones."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpuhook.inject import mounts, service_sockets
from gpushim.ground.errors import ROOTFS, GpushimError
from gpushim.oci.edits import FILE_OPTIONS, NODE_OPTIONS
from unit.gpuhook.sandbox import container, forked, open_fds
from unit.gpuhook.seccomp import deny

NEW_CALLS = (mounts.OPEN_TREE, mounts.MOUNT_SETATTR, mounts.MOVE_MOUNT)
WAYS = {
    "new": ((), 0),
    "old kernel": (NEW_CALLS, errno.ENOSYS),
    "profile": (NEW_CALLS, errno.EPERM),
    "5.2": ((mounts.MOUNT_SETATTR,), errno.ENOSYS),
    "no open_tree": ((mounts.OPEN_TREE,), errno.EPERM),
    "no move_mount": ((mounts.MOVE_MOUNT,), errno.EPERM),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_text("the host's")
    return tmp_path / "source"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "place").touch()
    return tmp_path / "root" / "place"


@pytest.fixture
def pid(tmp_path: Path) -> Iterator[int]:
    with container() as made:
        yield made
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def make(pid: int, source: Path, place: Path, options: Sequence[str]) -> mounts.Bind:
    flags = os.O_PATH | os.O_NOFOLLOW
    directory = os.open(f"/proc/{pid}/root{place.parent}", flags)
    where = directory, place.name, os.open(place.name, flags, dir_fd=directory)
    return mounts.Bind(str(source), os.open(source, flags), where, options)


def bind(pid: int, source: Path, place: Path, options: Sequence[str], way: str = "new") -> None:
    def attempt() -> None:
        deny(*WAYS[way])
        mounts.bind(f"/proc/{pid}", [make(pid, source, place, options)])

    forked(attempt)


def mounted(pid: int, place: Path) -> list[str]:
    """Options and the optional fields of the mount on a place, in the container's namespace."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    (words,) = [line.split() for line in lines if line.split()[4] == str(place)]
    return words[5:7]


OPTIONS = [
    (FILE_OPTIONS, "ro,nosuid,nodev"),
    (service_sockets.OPTIONS, "ro,nosuid,nodev,noexec"),
    (NODE_OPTIONS, "ro,nosuid,noexec"),
    ([], "rw"),
]


@pytest.mark.parametrize(("options", "shown"), OPTIONS)
def test_options(pid: int, source: Path, place: Path, way: str, options: list[str], shown: str) -> None:
    bind(pid, source, place, options, way)
    assert mounted(pid, place) == [f"{shown},relatime", "-"]
    assert Path(f"/proc/{pid}/root{place}").read_text() == "the host's"
    assert place.read_text() == ""


def test_a_shared_source_becomes_private(source: Path, place: Path, way: str) -> None:
    def attempt() -> list[str]:
        assert not os.system("mount --make-rshared /")
        with container() as pid:
            bind(pid, source, place, [], way)
            return mounted(pid, place)

    assert forked(attempt, namespace=True) == ["rw,relatime", "-"]


def test_a_node_on_a_nodev_mount(tmp_path: Path, place: Path, way: str) -> None:
    """A file system without devices, as /run is, can hold the driver's root."""

    def attempt() -> tuple[str, str]:
        (tmp_path / "run").mkdir()
        assert not os.system(f"mount -t tmpfs -o nodev none '{tmp_path}/run'")
        os.mknod(tmp_path / "run" / "null", 0o20666, os.makedev(1, 3))
        with container() as pid:
            try:
                bind(pid, tmp_path / "run" / "null", place, NODE_OPTIONS, way)
            except AssertionError as error:
                return "", str(error)
            with open(f"/proc/{pid}/root{place}", "wb") as node:
                node.write(b"x")
            return mounted(pid, place)[0], ""

    options, trouble = forked(attempt, namespace=True)
    if way == "new":
        assert options == "ro,nosuid,noexec,relatime"
    else:
        assert "cannot be mounted in the container: it lies on a mount with the option nodev" in trouble


@pytest.mark.parametrize("calls", ["old kernel", "profile"])
def test_another_file_in_the_place_of_the_source(pid: int, source: Path, place: Path, calls: str) -> None:
    """mount(2) takes a name once more: what is there then must be what was looked at."""

    def attempt() -> str:
        deny(*WAYS[calls])
        one = make(pid, source, place, [])
        source.rename(source.with_name("old"))
        source.write_text("another")
        with pytest.raises(GpushimError) as caught:
            mounts.bind(f"/proc/{pid}", [one])
        return str(caught.value)

    assert "another file has come into its place" in forked(attempt)
    assert not Path(f"/proc/{pid}/root{place}").read_text()


@pytest.mark.parametrize("what", ["link", "file"])
def test_the_window_between_look_and_use(pid: int, source: Path, place: Path, way: str, what: str) -> None:
    """The race won with certainty: when the mount is made, something else has the place's name."""
    canary = source.with_name("canary")
    canary.write_text("canary")

    def attempt() -> str:
        deny(*WAYS[way])
        one = make(pid, source, place, FILE_OPTIONS)
        place.rename(place.with_name("moved"))
        place.symlink_to(canary) if what == "link" else place.write_text("mine")
        try:
            mounts.bind(f"/proc/{pid}", [one])
        except GpushimError as error:
            return str(error)
        return ""

    refused = forked(attempt)
    assert bool(refused) == (way != "new")
    assert Path(f"/proc/{pid}/root{canary}").read_text() == "canary"
    assert Path(f"/proc/{pid}/root{place.with_name('moved')}").read_text() == "the host's"


def test_it_comes_back(pid: int) -> None:
    def attempt() -> None:
        before = os.readlink("/proc/self/ns/mnt"), os.getcwd(), os.stat("/"), open_fds()
        inside: list[str] = []

        def fail() -> None:
            inside.append(os.readlink("/proc/self/ns/mnt"))
            raise KeyError

        with pytest.raises(KeyError):
            mounts.inside(f"/proc/{pid}", fail)
        assert inside == [os.readlink(f"/proc/{pid}/ns/mnt")]
        assert (os.readlink("/proc/self/ns/mnt"), os.getcwd(), os.stat("/"), open_fds()) == before

    forked(attempt)


def test_it_comes_back_into_a_chroot(pid: int, tmp_path: Path) -> None:
    def attempt() -> list[str]:
        (tmp_path / "proc").mkdir()
        assert not os.system(f"mount -t proc none '{tmp_path}/proc'")
        os.chroot(tmp_path)
        os.chdir("/proc")
        mounts.inside(f"/proc/{pid}", lambda: None)
        return [os.getcwd(), *os.listdir("/")]

    assert forked(attempt, namespace=True) == ["/proc", "proc"]


@pytest.mark.parametrize("why", ["thread", "dead", "user"])
def test_a_namespace_that_cannot_be_entered(pid: int, why: str) -> None:
    def attempt() -> None:
        stop = threading.Event()
        if why == "thread":
            threading.Thread(target=stop.wait, daemon=True).start()
        elif why == "user":
            os.setresuid(65534, 65534, 65534)
        try:
            with pytest.raises(GpushimError, match="cannot be entered: ") as caught:
                mounts.inside(f"/proc/{2**22 + 1 if why == 'dead' else pid}", lambda: None)
            assert caught.value.exit_code == ROOTFS
        finally:
            stop.set()

    forked(attempt)


def test_no_fd_stays_open(pid: int, source: Path, place: Path, way: str) -> None:
    def attempt() -> int:
        deny(*WAYS[way])
        one = make(pid, source, place, [])
        before = len(open_fds())
        mounts.bind(f"/proc/{pid}", [one])
        return len(open_fds()) - before

    assert forked(attempt) == 0
