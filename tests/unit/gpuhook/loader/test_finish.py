"""What the hook does to trees of every odd kind, run as the process that runc starts."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fakehost import smallelf
from gpushim.ground.machines import LOADERS
from unit.gpuhook.sandbox import picture
from unit.gpuhook.trees import DRV, MACHINE, entries, finish, glibc_image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return glibc_image(tmp_path)


def test_links_cache_and_configuration(root: Path, pid: int) -> None:
    assert finish(root, pid) == ""
    found = entries(root)
    assert found["libcuda.so.1"] == f"{DRV}/libcuda.so.1"
    assert found["libnvidia-ml.so.1"] == f"{DRV}/libnvidia-ml.so.1"
    assert found["libz.so.1"].endswith("libz.so.1")
    assert os.readlink(root / DRV[1:] / "libcuda.so.1") == "libcuda.so.550"
    assert os.readlink(root / DRV[1:] / "libcuda.so") == "libcuda.so.1"
    assert (root / "etc/ld.so.conf.d/00-gpushim.conf").read_text() == f"{DRV}\n"
    assert (root / "etc/ld.so.conf").read_text() == "/opt/lib\n"


def test_a_second_run_changes_nothing(root: Path, pid: int) -> None:
    finish(root, pid)
    before = picture(root)
    finish(root, pid)
    assert picture(root) == before


def test_the_umask_of_the_engine_does_not_matter(root: Path, pid: int) -> None:
    old = os.umask(0o077)
    try:
        finish(root, pid)
    finally:
        os.umask(old)
    assert {
        (root / "etc" / name).stat().st_mode & 0o777 for name in ("ld.so.cache", "ld.so.conf.d/00-gpushim.conf")
    } == {0o644}
    assert (root / "etc/ld.so.conf.d").stat().st_mode & 0o777 == 0o755


def test_no_cache_and_no_configuration(root: Path, pid: int) -> None:
    for name in ("ld.so.cache", "ld.so.conf"):
        (root / "etc" / name).unlink()
    assert finish(root, pid) == ""
    assert set(entries(root)) == {"libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"}
    assert (root / "etc/ld.so.conf").read_text() == "include /etc/ld.so.conf.d/*.conf\n"


@pytest.mark.parametrize("mark", ["alpine", "loader"])
def test_musl(root: Path, pid: int, mark: str) -> None:
    (root / "etc/ld.so.cache").unlink()
    if mark == "alpine":  # with gcompat, which brings a file of the name of glibc's loader
        (root / "etc/alpine-release").touch()
    else:
        (root / LOADERS[MACHINE][1:]).unlink()
        (root / "lib").mkdir(exist_ok=True)
        (root / f"lib/ld-musl-{MACHINE}.so.1").touch()
    for _ in range(2):
        finish(root, pid)
    path = root / f"etc/ld-musl-{MACHINE}.path"
    assert path.read_text() == f"/lib\n/usr/local/lib\n/usr/lib\n{DRV}\n"
    assert not (root / "etc/ld.so.cache").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", f"{DRV}\n"),
        ("/lib:/opt", f"/lib\n/opt\n{DRV}\n"),
        (f"/lib:{DRV}", f"/lib:{DRV}"),
        ("root:x:0\n/a b\n/c\x1b[2J\nd\n", f"/a b\n{DRV}\n"),
        ("/" + "x" * 4096 + "\n/y\n", f"/y\n{DRV}\n"),
        ("/x\n" * 3000 + "/last\n", f"/x\n{DRV}\n"),
    ],
)
def test_musl_path_file_of_the_image(root: Path, pid: int, old: str, new: str) -> None:
    (root / "etc/alpine-release").touch()
    path = root / f"etc/ld-musl-{MACHINE}.path"
    path.write_text(old)
    finish(root, pid)
    assert path.read_text() == new


def test_an_image_without_a_loader_gets_links_only(root: Path, pid: int) -> None:
    (root / LOADERS[MACHINE][1:]).unlink()
    (root / "etc/ld.so.cache").unlink()
    assert finish(root, pid) == ""
    assert sorted(os.listdir(root / "etc")) == ["ld.so.conf"]
    assert (root / DRV[1:] / "libcuda.so.1").is_symlink()


def test_an_image_without_etc(root: Path, pid: int) -> None:
    (root / "etc").rename(root / "gone")
    assert "No such file" in finish(root, pid)
    assert not (root / "etc").exists()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


ODD = {
    "fifo": (fifo, "not a regular file"),
    "directory": (directory, "not a regular file"),
    "sparse": (lambda path: os.truncate(path, 10 << 30), "too large"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 4), "damaged"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_caches_are_left_and_logged(root: Path, pid: int, kind: str) -> None:
    make, text = ODD[kind]
    make(root / "etc/ld.so.cache")
    before = (root / "etc/ld.so.cache").stat()
    (line,) = finish(root, pid).splitlines()
    assert text in json.loads(line)["msg"]
    assert (root / "etc/ld.so.cache").stat().st_ino == before.st_ino
    assert (root / "etc/ld.so.conf.d/00-gpushim.conf").exists()


def test_a_link_that_cannot_be_made_leaves_the_cache_right(root: Path, pid: int) -> None:
    (root / DRV[1:] / "libcuda.so.1").mkdir()
    assert "libcuda.so.1: Is a directory" in finish(root, pid)
    assert entries(root)["libcuda.so.1"] == f"{DRV}/libcuda.so.550"


def test_names_of_the_image_in_the_log_are_escaped(root: Path, pid: int) -> None:
    """A SONAME comes from the driver's directory, a place from the image."""
    said = finish(root, pid, "--link", "x::/usr/lib\x1b[2J/a", "--link", "x::/etc/ld.so.conf/\u202ex")
    assert json.loads(said)["msg"] == "gpushim-hook: skipped /etc/ld.so.conf/\\u202ex: Not a directory"
    (root / "usr/lib\x1b[2J/a").unlink()
    (root / "usr/lib\x1b[2J/a").mkdir()
    said = finish(root, pid, "--link", "x::/usr/lib\x1b[2J/a").splitlines()[-1]
    assert json.loads(said)["msg"] == "gpushim-hook: skipped /usr/lib\\x1b[2J/a: Is a directory"


def own_driver(root: Path, version: str, data: bytes) -> Path:
    """Give the image a libcuda of its own, where the driver's is."""
    link = root / DRV[1:] / "libcuda.so.1"
    (root / DRV[1:] / f"libcuda.so.{version}").write_bytes(data)
    link.symlink_to(f"libcuda.so.{version}")
    return link


def test_a_newer_driver_of_the_images_own_stays_aside(root: Path, pid: int) -> None:
    """Both before and after the image's own ldconfig, which links a SONAME to the newest version there."""
    library = smallelf.library(MACHINE, "libcuda.so.1")
    (root / DRV[1:] / "libcuda.so.550").write_bytes(library)
    link = own_driver(root, "560.35.03", library)
    for _ in range(2):  # as when the container is started again
        log = finish(root, pid)
        assert "the image has a newer driver of its own there" in log
        assert os.readlink(link) == "libcuda.so.560.35.03"
        for name, text in {"libcuda.so": "libcuda.so.1", "libcuda.so.1": f"{DRV}/libcuda.so.550"}.items():
            assert entries(root)[name] == f"/usr/lib/gpushim-driver/{name}"
            assert os.readlink(root / f"usr/lib/gpushim-driver/{name}") == text
        (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
        subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)
        assert entries(root)["libcuda.so.1"] == "/usr/lib/gpushim-driver/libcuda.so.1"


@pytest.mark.parametrize(("version", "data"), [("535.1.2", b"an older one"), ("560.35.03", b"")])
def test_an_older_driver_or_what_is_left_of_a_mount_is_no_reason(
    root: Path, pid: int, version: str, data: bytes
) -> None:
    link = own_driver(root, version, data)
    assert "newer driver" not in finish(root, pid)
    assert os.readlink(link) == "libcuda.so.550"


@pytest.mark.parametrize("there", [True, False])
def test_the_log_says_why_a_newer_libcuda_is_not_used(root: Path, pid: int, there: bool) -> None:
    if there:
        (root / "usr/local/cuda/compat").mkdir(parents=True)
    log = finish(root, pid, "--own-libcuda", "GPU 0 is a GeForce, on which CUDA fails with it (error 804)")
    assert ("its newer libcuda is not used: GPU 0 is a GeForce" in log) is there
