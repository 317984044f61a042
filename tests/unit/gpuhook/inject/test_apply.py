"""Edits landing in a created container: a process that waits in a mount namespace of its own."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scratch
from gpuhook.inject import apply, devices, mounts
from gpushim.ground.errors import ROOTFS, GpushimError
from gpushim.oci.edits import FILE_OPTIONS, Edit
from gpushim.paths.rootfs import Rootfs
from unit.gpuhook.sandbox import as_root, container, forked, picture

LIBRARY = "/usr/lib/drv/libcuda.so.5"
NODE = "/dev/nvidia0"
NUMBER = (1, 3)  # what /dev/null is, so that opening it works
MAPPED = 100000


class Case:
    """A host with one node and one library, a rootfs, and a volume beside it.

    Args:
        work: an empty directory.
    """

    def __init__(self, work: Path) -> None:
        self.host, self.top, self.volume = work / "host", work / "root", work / "volume"
        self.within = "/".join(self.host.parts[-3:])  # a mount's source is named from its file system's top
        for directory in (self.host / "dev", self.top / "usr/lib", self.top / "dev", self.top / "etc", self.volume):
            directory.mkdir(parents=True)
        os.mknod(self.host / NODE[1:], 0o20666, os.makedev(*NUMBER))
        (self.host / "lib").write_text("the driver's")
        (self.volume / "secret").write_text("secret")
        (self.volume / "nvidia1").touch()
        self.warned: list[str] = []
        self.edits: list[Edit] = [Edit("node", {"path": NODE, "major": NUMBER[0], "minor": NUMBER[1]})]
        self.edits += [
            Edit("mount", self.mount(LIBRARY)),
            Edit("env", ("NVIDIA_VISIBLE_DEVICES", "0")),
            Edit("hook", {}),
        ]

    def mount(self, destination: str) -> dict[str, Any]:
        return {"destination": destination, "source": str(self.host / "lib"), "options": FILE_OPTIONS}

    def apply(self, pid: int) -> str:
        """Apply the edits in a process with one thread; return the refusal, or ""."""

        def attempt() -> str:
            root = Rootfs(f"/proc/{pid}", str(self.top))
            try:
                apply.apply_edits(self.edits, root, str(self.host), lambda what, _error: self.warned.append(what))
            except GpushimError as error:
                return str(error)
            return " ".join(self.warned)

        as_root(pid, self.top)
        return forked(attempt)

    def inside(self, pid: int, path: str) -> Path:
        return Path(f"/proc/{pid}/root{self.top}{path}")

    def mountinfo(self, pid: int | str = "self") -> list[str]:
        """The mounts that have to do with this case; others come and go with other tests."""
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        return [line for line in lines if str(self.top.parent) in line]

    def has_everything(self, pid: int) -> bool:
        facts = self.inside(pid, NODE).stat()
        library = self.inside(pid, LIBRARY).read_text()
        return facts.st_rdev == os.makedev(*NUMBER) and library == "the driver's"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def dev(case: Case) -> str:
    """The commands that give a container a /dev of its own, as runc makes it."""
    return f"mount --bind '{case.top}' '{case.top}'; mount -t tmpfs -o mode=755,nosuid none '{case.top}/dev'"


@pytest.mark.parametrize("own_dev", [True, False])
def test_a_node_and_a_file(case: Case, own_dev: bool) -> None:
    before = case.mountinfo()
    with container(dev(case) if own_dev else "") as pid:
        assert case.apply(pid) == ""
        assert case.has_everything(pid)
        with case.inside(pid, NODE).open("wb") as node:
            node.write(b"x")
        with pytest.raises(OSError, match="Read-only"):
            case.inside(pid, NODE).chmod(0o600)  # it is the host's, and other containers'
        lines = [line.split() for line in case.mountinfo(pid) if case.within in line]
    assert sorted(words[5] for words in lines) == ["ro,nosuid,nodev,relatime", "ro,nosuid,noexec,relatime"]
    assert case.mountinfo() == before
    assert (case.top / LIBRARY[1:]).read_bytes() == b""
    assert os.path.exists(case.top / NODE[1:]) != own_dev


def test_a_second_time_changes_nothing(case: Case) -> None:
    with container(dev(case)) as pid:
        case.apply(pid)
        before = case.mountinfo(pid)
        assert case.apply(pid) == ""
        assert case.mountinfo(pid) == before


def test_rules_come_first_and_groups_are_named(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.edits += [Edit("rule", ("c", 195, 0, "rw")), Edit("gid", 44), Edit("rule", ("c", 195, 255, "rw"))]

    def allow(_process: str, numbers: object, _warn: object) -> None:
        raise GpushimError(f"told {numbers}", ROOTFS)

    monkeypatch.setattr(devices, "allow", allow)
    with container(dev(case)) as pid:
        before = case.mountinfo(pid)
        assert case.apply(pid) == "told [(195, 0), (195, 255)]"
        assert case.mountinfo(pid) == before
        monkeypatch.setattr(devices, "allow", lambda *_: None)
        assert case.apply(pid) == "group 44 of the GPUs' nodes"


@pytest.mark.parametrize("text", ["/usr/real", "../real", "../../usr/real", "../../../../usr/real", "/../usr/real"])
def test_links_are_followed_inside(case: Case, text: str) -> None:
    (case.top / "usr/real").mkdir()
    (case.top / "usr/lib/drv").symlink_to(text)
    with container(dev(case)) as pid:
        assert case.apply(pid) == ""
        assert case.inside(pid, "/usr/real/libcuda.so.5").read_text() == "the driver's"


@pytest.mark.parametrize("name", ["usr", "usr/lib", "usr/lib/drv", LIBRARY[1:], "dev", NODE[1:]])
@pytest.mark.parametrize("text", ["VOLUME", "VOLUME/secret", "VOLUME/new", "/", "../../../../..", "loop"])
def test_links_that_lead_out(case: Case, name: str, text: str) -> None:
    """CVE-2024-0132 and -0133, CVE-2021-30465: whatever happens inside, nothing happens beside the root."""
    place = case.top / name
    if place.exists():
        place.rename(case.top / "moved")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(place.name if text == "loop" else text.replace("VOLUME", str(case.volume)))
    before = picture(case.volume), case.mountinfo()
    with container() as pid:
        case.apply(pid)
        ours = [line.split()[4] for line in case.mountinfo(pid) if case.within in line]
    assert [path for path in ours if not path.startswith(f"{case.top}/")] == []
    assert (picture(case.volume), case.mountinfo()) == before


@pytest.mark.parametrize(
    ("path", "text"),
    [(NODE, "a directory there"), (LIBRARY, "a directory there"), ("/usr/lib/drv", "Not a directory")],
)
def test_what_cannot_be_a_place(case: Case, path: str, text: str) -> None:
    place = case.top / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch() if text == "Not a directory" else place.mkdir()
    with container() as pid:
        assert text in case.apply(pid)


@pytest.mark.parametrize("kind", ["empty", "full", "fifo", "other device"])
def test_what_is_mounted_over(case: Case, kind: str) -> None:
    for path in (NODE, LIBRARY):
        place = case.top / path[1:]
        place.parent.mkdir(exist_ok=True)
        if kind == "fifo":
            os.mkfifo(place)
        elif kind == "other device":
            os.mknod(place, 0o20666, os.makedev(1, 5))
        else:
            place.write_text("" if kind == "empty" else "the image's")
    before = picture(case.top)
    with container() as pid:
        assert case.apply(pid) == ""
        assert case.has_everything(pid)
    assert picture(case.top) == before


@pytest.mark.parametrize("path", ["/dev", "/usr/lib"])
def test_a_volume_is_not_written(case: Case, path: str) -> None:
    before = picture(case.volume)
    with container(f"mount --bind '{case.volume}' '{case.top}{path}'") as pid:
        as_root(pid, case.top)
        seen = case.mountinfo(pid)
        assert "on a volume" in case.apply(pid)
        assert case.mountinfo(pid) == seen
    assert picture(case.volume) == before


@pytest.mark.parametrize("where", ["/proc/sys/kernel/core_pattern", "/proc/1/attr/current", "/sys/kernel/mm/ksm/run"])
def test_a_file_system_of_the_kernels_is_not_mounted_on(case: Case, where: str) -> None:
    """T-KERNEL: the container's own procfs and sysfs say what the kernel says, or programs in it are deceived."""
    for name in ("proc", "sys"):
        (case.top / name).mkdir()
    (case.top / "usr/lib/drv").mkdir()
    (case.top / LIBRARY[1:]).symlink_to(where)
    script = f"{dev(case)}; mount -t proc proc '{case.top}/proc'; mount -t sysfs sysfs '{case.top}/sys'"
    with container(script) as pid:
        before = case.mountinfo(pid)
        said = case.apply(pid)
        assert "a file system of the kernel's" in said or (
            "volume" in said and "/sys/" in where
        )  # that is the host's
        assert case.mountinfo(pid) == before


def test_another_file_in_a_volume_is_not_mounted_over(case: Case) -> None:
    (case.volume / "nvidia0").touch()
    with container(f"mount --bind '{case.volume}' '{case.top}/dev'") as pid:
        assert f"mount {case.host}{NODE} there too" in case.apply(pid)


def test_a_volume_that_has_the_very_things_is_enough(case: Case) -> None:
    """`-v /dev:/dev -v /usr/lib:/usr/lib`, of the host itself."""
    os.mknod(case.volume / "nvidia0", 0o20600, os.makedev(*NUMBER))
    (case.host / "drv").mkdir()
    os.link(case.host / "lib", case.host / "drv/libcuda.so.5")
    script = f"mount --bind '{case.volume}' '{case.top}/dev'; mount --bind '{case.host}' '{case.top}/usr/lib'"
    with container(script) as pid:
        as_root(pid, case.top)
        before = case.mountinfo(pid)
        assert case.apply(pid) == ""
        assert case.has_everything(pid)
        assert case.mountinfo(pid) == before


def test_the_right_node_on_a_nodev_mount_is_not_enough(case: Case) -> None:
    os.mknod(case.volume / "nvidia0", 0o20600, os.makedev(*NUMBER))
    script = f"mount --bind '{case.volume}' '{case.top}/dev'; mount -o remount,bind,nodev '{case.top}/dev'"
    with container(script) as pid:
        assert "on a volume" in case.apply(pid)


def elsewhere(case: Case, work: Callable[[], str], script: str) -> str:
    """Do something as the host of another mount namespace; return what it says if no mount stays behind."""

    def attempt() -> tuple[str, list[str], list[str]]:
        subprocess.run(["/bin/sh", "-ec", script], check=True)
        before = case.mountinfo()
        return work(), before, case.mountinfo()

    said, before, after = forked(attempt, namespace=True)
    assert before == after
    return said


def test_a_tmpfs_of_the_host_is_a_volume_too(case: Case) -> None:
    def attempt() -> str:
        with container(f"mount --bind '{case.volume}' '{case.top}/dev'") as pid:
            return case.apply(pid) + str(os.listdir(case.volume))

    assert "on a volume" in elsewhere(case, attempt, f"mount -t tmpfs none '{case.volume}'")


@pytest.mark.parametrize("propagation", ["slave", "unchanged"])
def test_nothing_propagates_to_the_host(case: Case, propagation: str) -> None:
    """The host's mounts are shared, as systemd makes them; a namespace that still shares them is refused."""

    def attempt() -> str:
        command = ["/usr/bin/unshare", "--mount", f"--propagation={propagation}", "/bin/sh", "-c"]
        command += [("true" if propagation == "unchanged" else dev(case)) + "; echo ready; exec sleep 600"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            said = case.apply(process.pid)
            assert said or case.has_everything(process.pid)
            process.kill()
            return said

    said = elsewhere(case, attempt, f"mount --bind '{case.top}' '{case.top}'; mount --make-rshared /")
    assert ("shared with the host" in said) == (propagation == "unchanged")


def test_a_container_without_a_mount_namespace(case: Case) -> None:
    before = case.mountinfo()
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        assert "no mount namespace of its own" in case.apply(process.pid)
        process.kill()
    assert case.mountinfo() == before


@pytest.mark.parametrize("kind", ["gone", "file", "other number", "block"])
def test_a_node_of_the_host_that_is_another(case: Case, kind: str) -> None:
    node = case.host / NODE[1:]
    node.unlink()
    if kind == "file":
        node.touch()
    elif kind != "gone":
        os.mknod(node, (0o60666 if kind == "block" else 0o20666), os.makedev(1, 5 if kind == "other number" else 3))
    with container(dev(case)) as pid:
        before = case.mountinfo(pid)
        assert "run gpushim refresh" in case.apply(pid)
        assert case.mountinfo(pid) == before


@pytest.mark.parametrize("kind", ["gone", "fifo", "device"])
def test_a_file_of_the_host_that_is_another(case: Case, kind: str) -> None:
    (case.host / "lib").unlink()
    if kind != "gone":
        os.mknod(case.host / "lib", 0o10666 if kind == "fifo" else 0o20666, os.makedev(1, 5))
    with container(dev(case)) as pid:
        assert "run gpushim refresh" in case.apply(pid)
    assert not (case.top / "usr/lib/drv").exists()


def test_a_directory(case: Case) -> None:
    """The pipes of MPS, and what GPUDirect Storage reads."""
    (case.host / "lib").unlink()
    (case.host / "lib").mkdir()
    (case.host / "lib/control").write_text("theirs")
    with container(dev(case)) as pid:
        assert case.apply(pid) == ""
        assert (case.inside(pid, LIBRARY) / "control").read_text() == "theirs"
        before = case.mountinfo(pid)
        assert case.apply(pid) == ""
        assert case.mountinfo(pid) == before
    assert not list((case.top / LIBRARY[1:]).iterdir())


def test_a_directory_where_the_image_has_a_file(case: Case) -> None:
    (case.host / "lib").unlink()
    (case.host / "lib").mkdir()
    place = case.top / LIBRARY[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    with container(dev(case)) as pid:
        assert "the image has no directory there" in case.apply(pid)


@pytest.mark.parametrize("text", ["VOLUME", "/", "../../../.."])
def test_the_window_between_look_and_use(case: Case, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """CVE-2024-0132 and -2025-23359: directories become links when the places are known and the mounts not made."""
    bind = mounts.bind

    def late(process: str, binds: list[mounts.Bind]) -> None:
        for name in ("dev", "usr/lib/drv"):
            (case.top / name).rename(case.top / f"moved-{name[:3]}")
            (case.top / name).symlink_to(text.replace("VOLUME", str(case.volume)))
        bind(process, binds)

    monkeypatch.setattr(mounts, "bind", late)
    before = picture(case.volume)
    with container() as pid:
        assert case.apply(pid) == ""
        assert Path(f"/proc/{pid}/root{case.top}/moved-usr/libcuda.so.5").read_text() == "the driver's"
        targets = [line.split()[4] for line in case.mountinfo(pid) if case.within in line]
    assert sorted(targets) == [f"{case.top}/moved-dev/nvidia0", f"{case.top}/moved-usr/libcuda.so.5"]
    assert picture(case.volume) == before


@contextmanager
def user_namespace(script: str) -> Iterator[int]:
    """Start a process that waits in user and mount namespaces of its own, where it is root, after the commands."""
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            ctypes.CDLL(None).unshare(0x10000000 | 0x20000)  # CLONE_NEWUSER, CLONE_NEWNS
            os.write(to_parent[1], b"1")
            os.read(to_child[0], 1)
            os.setgid(0)
            os.setuid(0)
            subprocess.run(["/bin/sh", "-ec", f"mount --make-rprivate /; {script}"], check=True)
            os.write(to_parent[1], b"2")
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(to_parent[1])
    try:
        assert os.read(to_parent[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {MAPPED} 65536")
        os.write(to_child[1], b"1")
        assert os.read(to_parent[0], 1)
        yield child
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        for fd in (*to_child, to_parent[0]):
            os.close(fd)


@pytest.fixture
def open_case() -> Iterator[Case]:
    """A case in a directory that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir=scratch.top()) as name:
        Path(name).chmod(0o755)
        yield Case(Path(name))


def test_a_user_namespace(open_case: Case) -> None:
    """Its /dev is a file system in which the host's root has no id: places are made as its own root."""
    before = open_case.mountinfo()
    with user_namespace(f"mount -t tmpfs none '{open_case.top}/dev'") as pid:
        with pytest.raises(OSError, match=os.strerror(errno.EOVERFLOW)):
            open_case.inside(pid, "/dev/file").touch()
        assert open_case.apply(pid) == ""
        assert open_case.has_everything(pid)
    assert open_case.mountinfo() == before


def test_what_is_written_in_a_user_namespace_belongs_to_its_root(open_case: Case) -> None:
    """A file system with mapped ids, as the finishing work meets it."""

    def write() -> None:
        directory = Rootfs(f"/proc/{pid}", f"{open_case.top}/dev").directory("/etc", create=True)
        for text in ("old", "new"):
            directory.write("file", text.encode())
            directory.symlink(text, "link")
        assert (os.geteuid(), os.getegid()) == (0, 0)

    with user_namespace(f"mount -t tmpfs none '{open_case.top}/dev'") as pid:
        forked(write)
        etc = open_case.inside(pid, "/dev/etc")
        assert sorted(os.listdir(etc)) == ["file", "link"]
        assert {path.lstat().st_uid for path in (etc, etc / "file", etc / "link")} == {MAPPED}
        assert ((etc / "file").read_text(), os.readlink(etc / "link")) == ("new", "new")


@pytest.mark.parametrize("own_dev", [True, False])
def test_an_unprivileged_user(open_case: Case, own_dev: bool) -> None:
    """An engine of an ordinary user, in the user namespace that it made for itself."""
    subprocess.run(["/bin/chown", "-R", "1000:1000", str(open_case.top.parent)], check=True)

    def attempt() -> tuple[str, bool]:
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
        assert not ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is the user's again
        assert not ctypes.CDLL(None).unshare(0x10000000 | 0x20000)  # CLONE_NEWUSER, CLONE_NEWNS
        for name, text in (("setgroups", "deny"), ("uid_map", "0 1000 1"), ("gid_map", "0 1000 1")):
            Path(f"/proc/self/{name}").write_text(text)
        with container(dev(open_case) if own_dev else "") as pid:
            return open_case.apply(pid), open_case.has_everything(pid)

    assert forked(attempt) == ("", True)


def test_no_right_to_enter_the_container(open_case: Case) -> None:
    subprocess.run(["/bin/chown", "-R", "1000:1000", str(open_case.top.parent)], check=True)

    def attempt() -> str:
        root = Rootfs(f"/proc/{pid}", str(open_case.top))
        os.setresuid(1000, 1000, 1000)
        with pytest.raises(GpushimError) as caught:
            apply.apply_edits(open_case.edits, root, str(open_case.host), lambda _what, _error: None)
        return str(caught.value)

    with container() as pid:
        assert "cannot be looked at: Permission denied" in forked(attempt)
