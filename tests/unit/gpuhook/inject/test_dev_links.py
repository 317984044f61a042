"""Links in a container's /dev, and which GPUs it has: run as the process that an engine starts for a CDI spec."""

from __future__ import annotations

import json
import os
import posix
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook.inject import dev_links, roots
from gpuhook.inject.roots import own_dev, own_mounts
from gpuhook.loader import finish
from gpuhook.loader.options import Options
from gpushim.ground.errors import GpushimError
from gpushim.paths.rootfs import Rootfs
from unit.gpuhook.sandbox import as_root, container, forked, picture
from unit.gpuhook.trees import glibc_image, run

BY_PATH = "/dev/dri/by-path/pci-0000:01:00.0-card"
LINK = ("--node-link", f"../card1::{BY_PATH}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    top = glibc_image(tmp_path)
    for name in ("dev", "proc"):
        (top / name).mkdir()
    return top


def dev(root: Path, *more: str) -> str:
    """The commands that give a container a /dev with some nodes, as runc makes it."""
    lines = [f"mount --bind '{root}' '{root}'", f"mount -t tmpfs -o mode=755 none '{root}/dev'"]
    lines += [f"mkdir '{root}/dev/dri'", f"mknod '{root}/dev/dri/card1' c 226 1", *more]
    return "; ".join(lines)


def hook(root: Path, pid: int, *more: str, code: int = 0) -> str:
    """Run the hook with a bundle instead of a rootfs; return what the log says."""
    log = root.parent / "log"
    as_root(pid, root)
    (root.parent / "config.json").write_text(json.dumps({"root": {"path": root.name}}))
    state = json.dumps({"pid": pid, "bundle": str(root.parent)}).encode()
    done = run("prestart", "--log", log, *more, state=state)
    assert (done.returncode, bool(done.stderr)) == (code, bool(code)), done.stderr
    return log.read_text() if log.exists() else ""


def inside(pid: int, root: Path, path: str) -> Path:
    return Path(f"/proc/{pid}/root{root}{path}")


def test_a_link_beside_its_node(root: Path) -> None:
    with container(dev(root)) as pid:
        for _ in range(2):
            assert hook(root, pid, *LINK) == ""
        assert os.readlink(inside(pid, root, BY_PATH)) == "../card1"
    assert not list((root / "dev").iterdir())


def test_a_carriage_return_in_the_name_of_a_mount_ends_no_line(root: Path) -> None:
    with container(dev(root, f"mkdir '{root}/a\rb'", f"mount -t tmpfs none '{root}/a\rb'")) as pid:
        assert hook(root, pid, *LINK) == ""
        assert os.readlink(inside(pid, root, BY_PATH)) == "../card1"


@pytest.mark.parametrize("text", ["../card2", "../../null", "/dev/dri", "card1", "../../../../dev/kmsg"])
def test_no_link_without_its_node(root: Path, text: str) -> None:
    with container(dev(root)) as pid:
        assert hook(root, pid, "--node-link", f"{text}::{BY_PATH}") == ""
        assert not inside(pid, root, "/dev/dri/by-path").exists()


@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_a_dev_of_the_hosts_is_left_alone(root: Path, kind: str) -> None:
    """`-v /dev:/dev`: a link would be the host's."""
    host = root.parent / "host"
    (host / "dri").mkdir(parents=True)

    def attempt() -> tuple[str, bool]:
        if kind != "bind":
            assert not os.system(f"mount -t tmpfs none '{host}'; mkdir '{host}/dri'")
        os.mknod(host / "dri/card1", 0o600 | posix.makedev(0, 0) | 0o020000, os.makedev(226, 1))
        with container(f"mount --rbind '{root}' '{root}'; mount --bind '{host}' '{root}/dev'") as pid:
            return hook(root, pid, *LINK), (host / "dri/by-path").exists()

    said, written = forked(attempt, namespace=True)
    assert "another mount" in said
    assert not written


def test_the_rootfs_of_another_file_system(root: Path) -> None:
    """A container that has no mount on /dev: the image's own directory is as good."""
    (root / "dev/dri").mkdir()
    os.mknod(root / "dev/dri/card1", 0o600 | 0o020000, os.makedev(226, 1))
    with container() as pid:
        assert hook(root, pid, *LINK) == ""
    assert os.readlink(root / BY_PATH[1:]) == "../card1"


@pytest.mark.parametrize("target", ["CANARY", "../../canary", "/", "dri"])
def test_links_that_lead_out(root: Path, target: str) -> None:
    canary = root.parent / "canary"
    (canary / "dri").mkdir()
    os.mknod(canary / "dri/card1", 0o600 | 0o020000, os.makedev(226, 1))
    before = picture(canary)
    (root / "dev").rmdir()
    (root / "dev").symlink_to(target.replace("CANARY", str(canary)))
    with container() as pid:
        hook(root, pid, *LINK)
    assert picture(canary) == before


def test_the_mounts_of_a_container_are_the_same_from_both_sides(root: Path, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (root / "vol ume").mkdir()
    script = dev(root, f"mount -t tmpfs none '{root}/vol ume'", f"mount --bind '{tmp_path}/volume' '{root}/etc'")
    with container(script) as pid:
        top = Rootfs(f"/proc/{pid}", str(root))
        outside = {one.point for one in own_mounts(top)}, own_dev(top)
        os.close(top.fd)

        def within() -> object:
            os.close(os.open("/", os.O_RDONLY))
            fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
            import ctypes

            assert not ctypes.CDLL(None).setns(fd, 0x20000)
            top = Rootfs("", str(root))
            return {one.point for one in own_mounts(top)}, own_dev(top)

        assert forked(within) == outside
    places = {place.decode() for place in outside[0]}
    assert places == {str(root), f"{root}/dev", f"{root}/vol\\040ume"}


GPUS = ("--gpu", "0=0000:01:00.0", "--gpu", "3=0000:02:00.0", "--gpu", "70=tty", "--empty", "EMPTY")
MASKED = ("--lib", "libEGL_nvidia.so.0=/usr/lib/drv/libEGL_nvidia.so.550")


@pytest.mark.parametrize(
    ("made", "mask"),
    [
        ("nvidia0 c 195 0", "0x1"),
        ("nvidia3 c 195 3", "0x8"),
        ("nvidia3 c 195 0", ""),  # not that device
        ("nvidia0 c 508 0", ""),
        ("nvidia0 b 195 0", ""),
        ("nvidia70 c 195 70", ""),  # the mask has no such bit
        ("nvidiactl c 195 255", ""),
    ],
)
def test_the_gpus_whose_nodes_are_there(root: Path, made: str, mask: str) -> None:
    words = [word.replace("EMPTY", str(root.parent)) for word in GPUS]
    with container(dev(root, f"mknod '{root}/dev/{made.split()[0]}' {made.split(' ', 1)[1]}")) as pid:
        said = hook(root, pid, *words, *MASKED)
        assert ("64 bits" in said) == made.startswith("nvidia70")
    profile = root / "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
    assert (f'"EGLVisibleDGPUDevices",{mask}]' in profile.read_text() if mask else not profile.exists()) is True


def test_without_displays_there_is_no_profile(root: Path) -> None:
    with container(dev(root, f"mknod '{root}/dev/nvidia0' c 195 0")) as pid:
        assert hook(root, pid, "--gpu", "0=x", "--lib", "libcuda.so.1=/usr/lib/drv/libcuda.so.550") == ""
    assert not (root / "etc/nvidia").exists()


@pytest.mark.parametrize(("made", "covered"), [("nvidia70 c 195 70", False), ("nvidia7 c 195 7", True)])
def test_other_gpus_are_covered(root: Path, monkeypatch: pytest.MonkeyPatch, made: str, covered: bool) -> None:
    """/proc/tty stands for /proc/driver/nvidia/gpus, which this machine has not."""
    (root.parent / "empty").mkdir()
    monkeypatch.setattr(finish, "GPUS", "/proc/tty")
    words = ["--gpu", "70=driver", "--empty", str(root.parent / "empty"), "--rootfs", str(root)]
    script = dev(root, f"mknod '{root}/dev/{made.split()[0]}' {made.split(' ', 1)[1]}")
    with container(f"{script}; mount -t proc proc '{root}/proc'") as pid:

        def work() -> None:
            options = Options(words)
            finish.finish(finish.Work(roots.open_root(f"/proc/{pid}", options.rootfs), ""), options)

        forked(work)
        assert (os.listdir(inside(pid, root, "/proc/tty/driver")) == []) == covered


def take_over(path: Path) -> None:
    (path / "0000:02:00.0").unlink()
    (path / "0000:01:00.0").unlink()
    (path / "aside").rename(path / "0000:01:00.0")


BOUND = {
    "as it was": ("nvidia3", lambda path: None, False),
    "bound anew": ("nvidia3", lambda path: (path / "aside").rename(path / "0000:02:00.0"), True),
    "not bound": ("nvidia3", lambda path: (path / "0000:02:00.0").unlink(), False),
    "not bound, and another may have its number": ("nvidia3", take_over, True),
    "another GPU of the host's bound anew": (
        "nvidia0", lambda path: (path / "aside").rename(path / "0000:02:00.0"), False
    ),
}  # fmt: skip


@pytest.mark.parametrize(("node", "change", "refused"), BOUND.values(), ids=BOUND)
def test_a_node_that_may_be_another_gpus_since_the_spec_was_written(
    root: Path, tmp_path: Path, node: str, change: Callable[[Path], object], refused: bool
) -> None:
    folder = tmp_path / "bindings"
    folder.mkdir()
    for name in ("0000:01:00.0", "0000:02:00.0", "aside"):
        (folder / name).symlink_to("../devices")
    numbers = [("0", "0000:01:00.0"), ("3", "0000:02:00.0")]
    words = [word for minor, name in numbers for word in ("--gpu", f"{minor}={name}")]
    words += [word for minor, name in numbers for word in ("--bound", f"{minor}={(folder / name).lstat().st_ino}")]
    change(folder)
    with container(dev(root, f"mknod '{root}/dev/{node}' c 195 {node[6:]}")) as pid:
        said = hook(root, pid, *words, "--bindings", str(folder), code=12 if refused else 0)
    assert ("GPU 0000:02:00.0 is bound to the driver anew" in said) == refused


def test_all_gpus_of_a_dev(root: Path) -> None:
    nodes_ = " ".join(f"mknod '{root}/dev/{name}' c 195 {name[6:]};" for name in ("nvidia5", "nvidia12"))
    with container(
        dev(root, f"{nodes_} touch '{root}/dev/nvidia1' '{root}/dev/nvidia-x' '{root}/dev/nvidia٣'")
    ) as pid:
        top = Rootfs(f"/proc/{pid}", str(root))
        assert dev_links.gpus(top) == [5, 12]
        os.close(top.fd)


@pytest.mark.parametrize(
    ("linux", "minors"),
    [
        ({"devices": [{"type": "c", "major": 195, "minor": 3}, {"major": 1, "minor": 3}]}, {3}),
        ({"devices": [{"major": 195, "minor": 255}]}, set()),
        ({"resources": {"devices": [{"allow": True, "type": "c", "major": 195, "minor": 2, "access": "rw"}]}}, {2}),
        ({"resources": {"devices": [{"allow": True, "major": 195, "access": "rw"}]}}, {None}),
        ({"resources": {"devices": [{"allow": True, "type": "c", "access": "m"}]}}, set()),
        ({"resources": {"devices": [{"allow": False, "access": "rwm"}]}}, set()),
        ({"resources": {"devices": [{"allow": True, "type": "a"}]}}, {None}),
        ({"resources": {"devices": [{"allow": True, "type": "b", "major": 195}]}}, set()),
        ({"devices": "no list", "resources": [1]}, set()),
        (None, set()),
    ],
)
def test_the_gpus_that_the_rules_grant(linux: object, minors: set[int | None]) -> None:
    assert dev_links.granted_gpus({"linux": linux}) == minors


def test_a_binding_counts_whatever_hides_the_node(root: Path, tmp_path: Path) -> None:
    """As a volume of an image in its place: the device can be opened by another name."""
    (tmp_path / "0000:01:00.0").mkdir()
    gpus, bound = [(3, "0000:01:00.0")], [(3, 1)]
    spec = {"linux": {"devices": [{"type": "c", "major": 195, "minor": 3}]}}
    with container() as pid:
        top = Rootfs(f"/proc/{pid}", str(root))
        with pytest.raises(GpushimError, match="bound to the driver anew"):
            dev_links.check_bindings(top, spec, gpus, bound, str(tmp_path))
        dev_links.check_bindings(top, {}, gpus, bound, str(tmp_path))
        os.close(top.fd)


@pytest.mark.parametrize("status", ["created", "stopped"])
def test_a_binding_counts_where_a_container_is_restored_too(root: Path, tmp_path: Path, status: str) -> None:
    """runc says "stopped" then; a boot may be between, after which minor numbers are others'."""
    (tmp_path / "0000:01:00.0").mkdir()
    spec = {"root": {"path": root.name}, "linux": {"devices": [{"type": "c", "major": 195, "minor": 3}]}}
    (tmp_path / "config.json").write_text(json.dumps(spec))
    with container(dev(root)) as pid:
        as_root(pid, root)
        state = json.dumps({"pid": pid, "bundle": str(tmp_path), "status": status}).encode()
        words = ["--gpu", "3=0000:01:00.0", "--bound", "3=1", "--bindings", str(tmp_path)]
        done = run("prestart", *words, state=state)
    assert done.returncode == 12
    assert b"GPU 0000:01:00.0 is bound to the driver anew" in done.stderr
