"""Reading and writing below hostile roots, with a canary tree outside that must stay as it is."""

from __future__ import annotations

import errno
import os
import posix
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushim.paths.mountinfo import OtherMountError
from gpushim.paths.rootfs import Rootfs
from unit.gpuhook.sandbox import bind, exchange, forked, open_fds, picture, running, until


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """An empty root; afterwards the canary beside it is as before, no fd is open, no temporary is left."""
    canary = tmp_path / "canary"
    (canary / "etc").mkdir(parents=True)
    (canary / "secret").write_text("secret")
    (canary / "etc" / "ld.so.cache").write_text("the host's")
    (tmp_path / "root").mkdir()
    before, fds = picture(canary), open_fds()
    yield tmp_path / "root"
    assert picture(canary) == before
    assert open_fds() == fds
    assert not list((tmp_path / "root").rglob(".gpushim-*"))


@pytest.fixture
def root(top: Path) -> Iterator[Rootfs]:
    made = Rootfs("", str(top))
    yield made
    os.close(made.fd)


def write(root: Rootfs, path: str, data: bytes, create: bool = False) -> None:
    directory, _, name = path.rpartition("/")
    opened = root.directory(directory or "/", create)
    try:
        opened.write(name, data)
    finally:
        opened.close()


def link(root: Rootfs, text: str, path: str, create: bool = False) -> None:
    directory, _, name = path.rpartition("/")
    opened = root.directory(directory or "/", create)
    try:
        opened.symlink(text, name)
    finally:
        opened.close()


def test_write_and_read(root: Rootfs, top: Path) -> None:
    write(root, "/etc/ld.so.conf.d/x.conf", b"a" * 100_000, create=True)
    assert root.read("/etc/ld.so.conf.d/x.conf", 100_000) == (b"a" * 100_000, 0o644)
    assert stat.S_IMODE((top / "etc/ld.so.conf.d/x.conf").stat().st_mode) == 0o644
    assert stat.S_IMODE((top / "etc").stat().st_mode) == 0o755


def test_a_missing_directory_is_only_made_on_request(root: Rootfs, top: Path) -> None:
    with pytest.raises(FileNotFoundError):
        root.directory("/etc")
    assert not (top / "etc").exists()


@pytest.mark.parametrize("text", ["/run", "run", "../run", "../../../run", "/../x/../run"])
def test_an_ordinary_link_is_followed_inside(root: Rootfs, top: Path, text: str) -> None:
    (top / "run").mkdir()
    (top / "x").mkdir()
    (top / "var").symlink_to(text)
    write(root, "/var/file", b"1")
    assert (top / "run" / "file").read_bytes() == b"1"


@pytest.mark.parametrize("text", ["CANARY", "/", "../../..", "../canary", "/../../../CANARY"])
def test_a_parent_that_points_out_stays_inside(root: Rootfs, top: Path, tmp_path: Path, text: str) -> None:
    """CVE-2024-0133 and -0134: the fixture looks at the canary afterwards."""
    (top / "etc").symlink_to(text.replace("CANARY", str(tmp_path / "canary")))
    write(root, "/etc/ld.so.cache", b"ours", create=True)
    link(root, "text", "/etc/libcuda.so", create=True)
    files = [path.name for path in top.rglob("*[eo]") if not path.is_dir()]  # beside directories of any name
    assert sorted(files) == ["ld.so.cache", "libcuda.so"]


@pytest.mark.parametrize(
    ("kind", "number"),
    [("loop", errno.ELOOP), ("file", errno.ENOTDIR), ("to-file", errno.ENOTDIR), ("fifo", errno.ENOTDIR)],
)
def test_a_parent_that_is_no_directory(root: Rootfs, top: Path, kind: str, number: int) -> None:
    if kind == "loop":
        (top / "foo").symlink_to("foo")
    elif kind == "fifo":
        os.mkfifo(top / "foo")
    else:
        (top / "target").touch()
        (top / "foo").touch() if kind == "file" else (top / "foo").symlink_to("target")
    with pytest.raises(OSError, match=os.strerror(number)):
        link(root, "x", "/foo/libcuda.so", create=True)


@pytest.mark.parametrize("kind", ["file", "link-out", "dangling", "fifo", "socket", "device"])
@pytest.mark.parametrize("what", ["write", "symlink"])
def test_what_stands_in_the_place_is_replaced_not_followed(root: Rootfs, top: Path, kind: str, what: str) -> None:
    place = top / "place"
    if kind == "file":
        place.write_text("old")
    elif kind in ("link-out", "dangling"):
        place.symlink_to("../canary/secret" if kind == "link-out" else "/nowhere")
    else:
        mode = {"fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK, "device": stat.S_IFCHR}[kind]
        os.mknod(place, mode | 0o644, os.makedev(1, 5))
    write(root, "/place", b"new") if what == "write" else link(root, "new", "/place")
    assert (os.readlink(place) if what == "symlink" else place.read_text()) == "new"
    assert place.is_symlink() == (what == "symlink")


@pytest.mark.parametrize("step", [lambda r: write(r, "/place", b""), lambda r: link(r, "x", "/place")])
def test_a_directory_in_the_place_is_an_error(root: Rootfs, top: Path, step: object) -> None:
    (top / "place").mkdir()
    with pytest.raises(IsADirectoryError):
        step(root)  # type: ignore[operator]


def test_the_same_link_again_changes_nothing(root: Rootfs, top: Path) -> None:
    link(root, "libcuda.so.550", "/libcuda.so.1")
    before = picture(top)
    link(root, "libcuda.so.550", "/libcuda.so.1")
    assert picture(top) == before
    link(root, "libcuda.so.560", "/libcuda.so.1")
    assert os.readlink(top / "libcuda.so.1") == "libcuda.so.560"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "socket"])
def test_only_regular_files_are_read(root: Rootfs, top: Path, kind: str) -> None:
    if kind == "directory":
        (top / "x").mkdir()
    else:
        mode = {"fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK, "device": stat.S_IFCHR}[kind]
        os.mknod(top / "x", mode | 0o644, os.makedev(1, 5))  # 1:5 is /dev/zero
    with pytest.raises(OSError, match="not a regular file"):
        root.read("/x", 100)


@pytest.mark.parametrize(
    ("size", "limit", "fits"), [(0, 0, True), (10, 10, True), (11, 10, False), (1 << 40, 10, False)]
)
def test_a_file_has_a_limit(root: Rootfs, top: Path, size: int, limit: int, fits: bool) -> None:
    with open(top / "x", "wb") as file:
        file.truncate(size)
    if fits:
        assert root.read("/x", limit)[0] == bytes(size)
        return
    with pytest.raises(OSError, match="File too large"):
        root.read("/x", limit)


def test_a_file_without_a_size_has_a_limit_too() -> None:
    proc = Rootfs("", "/proc")
    with pytest.raises(OSError, match="File too large"):
        proc.read("/self/mountinfo", 10)
    os.close(proc.fd)


@pytest.mark.parametrize(
    ("path", "number"),
    [("/root/missing", errno.ENOENT), ("/canary/secret", errno.ENOTDIR), ("/root/loop", errno.ELOOP)],
)
def test_a_rootfs_that_is_no_directory(tmp_path: Path, top: Path, path: str, number: int) -> None:
    (top / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=os.strerror(number)):
        Rootfs("", str(tmp_path) + path)


def other_mount(top: Path, source: Path, path: str) -> Rootfs:
    bind(source, top / path)
    return Rootfs("", str(top))


@pytest.mark.parametrize("path", ["/etc/ld.so.cache", "/etc/new/file"])
def test_a_directory_on_another_mount_is_left_alone(top: Path, tmp_path: Path, path: str) -> None:
    """`-v /etc:/etc`: the container's /etc is the host's."""
    (top / "etc").mkdir()

    def attempt() -> str:
        root = other_mount(top, tmp_path / "canary" / "etc", "etc")
        with pytest.raises(OtherMountError) as caught:
            write(root, path, b"ours", create=True)
        return str(caught.value.strerror)

    assert "another mount" in forked(attempt, namespace=True)


@pytest.mark.parametrize("what", ["write", "symlink"])
def test_a_file_on_another_mount_is_left_alone(top: Path, tmp_path: Path, what: str) -> None:
    (top / "place").touch()

    def attempt() -> None:
        root = other_mount(top, tmp_path / "canary" / "secret", "place")
        with pytest.raises(OtherMountError):
            write(root, "/place", b"ours") if what == "write" else link(root, "x", "/place")

    forked(attempt, namespace=True)


def test_the_rootfs_bound_again_inside_itself_is_another_mount(top: Path) -> None:
    (top / "again").mkdir()

    def attempt() -> None:
        root = other_mount(top, top, "again")
        with pytest.raises(OtherMountError):
            write(root, "/again/file", b"")

    forked(attempt, namespace=True)


def test_a_full_file_system_leaves_nothing_behind(root: Rootfs, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "/file", b"old")

    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(posix, "write", full)
    with pytest.raises(OSError, match="full"):
        write(root, "/file", b"new")
    monkeypatch.undo()
    assert (top / "file").read_bytes() == b"old"


@pytest.mark.parametrize("what", ["write", "symlink"])
def test_a_rename_that_fails_leaves_nothing_behind(root: Rootfs, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    write(root, "/file", b"old")

    def refuse(*_args: object, **_keys: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(posix, "rename", refuse)
    with pytest.raises(OSError, match="read-only"):
        write(root, "/file", b"") if what == "write" else link(root, "x", "/file")


def test_short_writes_are_continued(root: Rootfs, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(posix, "write", lambda fd, data: real(fd, data[:3]))
    write(root, "/file", b"0123456789")
    assert (top / "file").read_bytes() == b"0123456789"


@pytest.mark.parametrize("text", ["CANARY/etc", "../canary/etc", "/"])
def test_writing_while_another_process_swaps_the_directory(
    root: Rootfs, top: Path, tmp_path: Path, text: str
) -> None:
    """CVE-2026-24260: directory and link change places between the look and the use."""
    (top / "etc").mkdir()
    (top / "link").symlink_to(text.replace("CANARY", str(tmp_path / "canary")))
    done = 0
    with running(lambda: exchange(top / "etc", top / "link")):
        for number in until(0.5):
            try:
                write(root, "/etc/ld.so.cache", b"%d" % number, create=True)
                link(root, str(number), "/etc/conf/libcuda.so", create=True)
                done += 1
            except OSError:
                pass
    assert done


def test_the_window_between_look_and_use(root: Rootfs, top: Path, tmp_path: Path) -> None:
    """The race won with certainty: the directory is replaced by a link to the canary once it is open."""
    (top / "etc").mkdir()
    directory = root.directory("/etc")
    (top / "etc").rename(top / "moved")
    (top / "etc").symlink_to(tmp_path / "canary" / "etc")
    directory.write("ld.so.cache", b"ours")
    directory.symlink("x", "libcuda.so")
    directory.close()
    assert sorted(os.listdir(top / "moved")) == ["ld.so.cache", "libcuda.so"]


def test_what_a_killed_hook_has_left_is_removed(root: Rootfs, top: Path) -> None:
    (top / "etc").mkdir()
    left = [top / "etc" / f".gpushim-{digit * 16}" for digit in "0f"]
    left[0].write_bytes(b"half a cac")
    left[1].symlink_to("/nowhere")
    (top / "etc" / ".gpushim.conf").write_text("the image's own")
    write(root, "/etc/ld.so.cache", b"whole")
    assert sorted(os.listdir(top / "etc")) == [".gpushim.conf", "ld.so.cache"]


def test_a_file_that_another_hook_takes_for_a_killed_ones_is_made_again(
    root: Rootfs, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = posix.rename
    taken: list[str] = []

    def take(old: str, new: str, **dirs: int) -> None:
        if not taken:
            taken.append(old)
            os.unlink(top / old)
        rename(old, new, **dirs)

    monkeypatch.setattr(posix, "rename", take)
    write(root, "/x", b"whole")
    assert (top / "x").read_bytes() == b"whole"
    assert taken


READS: dict[str, Callable[[Rootfs, str], object]] = {
    "open": lambda root, path: os.close(root.open(path)[0]),
    "read": lambda root, path: root.read(path, 100),
    "names": lambda root, path: root.names(path.rpartition("/")[0], 100),
}


@pytest.mark.parametrize("what", READS)
def test_nothing_on_another_mount_is_read(top: Path, tmp_path: Path, what: str) -> None:
    (top / "link").symlink_to("/volume")
    (top / "volume").mkdir()

    def attempt() -> None:
        root = other_mount(top, tmp_path / "canary", "volume")
        for path in ("/volume/secret", "/link/secret"):
            with pytest.raises(OtherMountError):
                READS[what](root, path)

    forked(attempt, namespace=True)


@pytest.mark.parametrize(("mode", "readable"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_libraries_on_another_mount(top: Path, tmp_path: Path, mode: int, readable: bool) -> None:
    (top / "volume").mkdir()
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/lib").touch()
    (tmp_path / "driver/lib").chmod(mode)

    def attempt() -> bool:
        root = other_mount(top, tmp_path / "driver", "volume")
        assert root.names("/volume", 100, volumes=True) == {"lib": True}
        try:
            os.close(root.open("/volume/lib", volumes=True)[0])
        except OtherMountError:
            return False
        return True

    assert forked(attempt, namespace=True) == readable


@pytest.mark.parametrize("mode", [0o711, 0o700])
def test_a_directory_of_a_volume_that_not_everybody_may_search_leads_nowhere(
    top: Path, tmp_path: Path, mode: int
) -> None:
    """Whether a name is in it is its owner's to know."""
    (top / "volume").mkdir()
    (top / "link").symlink_to("/volume/closed/..")
    (tmp_path / "driver/closed").mkdir(mode=mode, parents=True)
    (tmp_path / "driver/closed/lib").touch()

    def work() -> None:
        root = other_mount(top, tmp_path / "driver", "volume")
        for path in ("/volume/closed/lib", "/volume/closed", "/link", "/volume/closed/../closed"):
            assert root.exists(path) == (mode == 0o711)
        os.close(root.fd)

    forked(work, namespace=True)


@pytest.mark.parametrize("kind", ["proc", "sysfs", "cgroup2", "mqueue", "devpts"])
def test_libraries_are_on_no_file_system_of_the_kernels_own(top: Path, kind: str) -> None:
    (top / "volume").mkdir()
    (top / "lib").symlink_to("/volume/filesystems")

    def attempt() -> None:
        subprocess.run(["/bin/mount", "-t", kind, "none", f"{top}/volume"], check=True)
        root = Rootfs("", str(top))
        with pytest.raises(OtherMountError):
            root.names("/volume", 100, volumes=True)
        if kind == "proc":
            with pytest.raises(OtherMountError):
                root.open("/lib", volumes=True)

    forked(attempt, namespace=True)


@pytest.mark.parametrize(
    ("mode", "kept"), [(0o644, 0o644), (0o777, 0o644), (0o600, 0o600), (0o640, 0o640), (0, 0o600)]
)
def test_the_mode_for_a_copy(root: Rootfs, top: Path, mode: int, kept: int) -> None:
    (top / "x").touch()
    (top / "x").chmod(mode)
    assert root.read("/x", 1) == (b"", kept)
