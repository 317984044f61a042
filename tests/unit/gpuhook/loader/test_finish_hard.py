"""Containers that are hard: what the user mounted, unusual trees, user namespaces."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from gpuhook.loader import ldcache
from gpushim.ground.machines import LOADERS
from unit.gpuhook.caches import listing
from unit.gpuhook.notes import libcuda
from unit.gpuhook.sandbox import container, picture
from unit.gpuhook.trees import DRV, MACHINE, OWNER, entries, finish, glibc_image, user_container


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return glibc_image(tmp_path)


def inside(pid: int, root: Path, path: str) -> Path:
    return Path(f"/proc/{pid}/root{root}/{path}")


@pytest.mark.parametrize("place", ["etc", "usr", "usr/lib", "usr/lib/drv", "etc/ld.so.conf.d", "usr/local/cuda"])
def test_a_volume_of_the_hosts_is_never_written(root: Path, place: str) -> None:
    canary = root.parent / "canary"
    (canary / "lib/drv").mkdir(parents=True)
    (canary / "compat").mkdir()
    (canary / "compat/libcuda.so.590.44.01").write_bytes(libcuda())
    (root / place).mkdir(parents=True, exist_ok=True)
    before = picture(canary)
    with container(f"mount --bind '{canary}' '{root}/{place}'") as other:
        said = finish(root, other, "--driver", "550.1", "--profile-mask", "0x1")
        assert "another mount" in said  # nor is a libcuda there read
    assert picture(canary) == before


@pytest.mark.parametrize(("target", "said"), [("/usr/lib/fw", ""), ("/usr/lib/other", "skipped /lib/fw")])
def test_link_in_whose_place_its_target_is_mounted(root: Path, target: str, said: str) -> None:
    """Where the image's /lib is a link to usr/lib, a file that the host has in both is there by one mount."""
    (root / "lib").symlink_to("usr/lib")
    (root / "usr/lib/fw").mkdir()
    with container(f"mount --bind '{root.parent}/canary' '{root}/usr/lib/fw'") as other:
        log = finish(root, other, "--link", f"{target}::/lib/fw")
    assert said in log if said else not log


@pytest.mark.parametrize("place", ["etc", "usr", "usr/lib", "usr/lib/drv"])
def test_a_tmpfs_of_the_users(root: Path, place: str) -> None:
    with container(f"mount -t tmpfs none '{root}/{place}'") as other:
        lines = [json.loads(line)["msg"] for line in finish(root, other).splitlines()]
        assert lines
        assert all("another mount" in line or "No such file" in line for line in lines)
        assert not os.listdir(inside(other, root, place))
    below = "etc/ld.so.conf.d" if place == "etc" else "usr/lib/drv/libcuda.so.1"
    assert not os.path.lexists(root / below)


@pytest.mark.parametrize("directory", ["/usr/lib64", "/lib64", f"/usr/lib/{MACHINE}-linux-gnu"])
@pytest.mark.parametrize("target", ["/usr/lib64", "usr/lib64", "../../../usr/lib64"])
def test_merged_usr(root: Path, pid: int, directory: str, target: str) -> None:
    """lib64 is a link, absolute, relative, or with more .. than there are directories."""
    (root / "usr/lib64").mkdir()
    for file in (root / LOADERS[MACHINE][1:]).parent.iterdir():
        shutil.move(file, root / "usr/lib64" / file.name)
    (root / LOADERS[MACHINE][1:]).parent.rmdir()
    (root / LOADERS[MACHINE][1:]).parent.symlink_to(target)
    (root / f"usr/lib/{MACHINE}-linux-gnu").mkdir()
    assert finish(root, pid, "--lib", f"libx.so.1={directory}/libx.so.550") == ""
    assert os.readlink(root / ("usr" + directory.replace("/usr", "")) / "libx.so.1") == "libx.so.550"
    assert entries(root)["libx.so.1"] == f"{directory}/libx.so.1"


def test_split_usr(root: Path, pid: int) -> None:
    (root / "usr/lib64").mkdir()
    finish(root, pid, "--lib", "libx.so.1=/usr/lib64/libx.so.550", "--lib", "liby.so.1=/lib64/liby.so.550")
    assert (root / "usr/lib64/libx.so.1").is_symlink()
    assert (root / "lib64/liby.so.1").is_symlink()
    assert not (root / "lib64/libx.so.1").is_symlink()


def test_the_32_bit_libraries_of_a_multilib_image_stay(root: Path, pid: int) -> None:
    cache = root / "etc/ld.so.cache"
    old = ldcache.merge(cache.read_bytes(), [(b"libcuda.so.1", b"/usr/lib32/libcuda.so.1")], 0x0003)  # i386
    assert old
    cache.write_bytes(old)
    finish(root, pid)
    paths = [line.split(" => ")[1] for line in listing(cache.read_bytes()) if line.startswith("libcuda.so.1 ")]
    assert sorted(paths) == [f"{DRV}/libcuda.so.1", "/usr/lib32/libcuda.so.1"]


def test_a_user_namespace_whose_root_owns_the_tree(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        os.lchown(path, OWNER, OWNER)
    with user_container("") as other:
        assert finish(root, other) == ""
    assert entries(root)["libcuda.so.1"] == f"{DRV}/libcuda.so.1"
    assert (root / "etc/ld.so.cache").stat().st_mode & 0o004  # root is nobody there, and everybody may read


def test_a_user_namespace_with_a_file_system_of_its_own() -> None:
    """Who has no id there may make nothing, not even the host's root."""
    with tempfile.TemporaryDirectory() as directory:  # pytest's own lets nobody in but root
        os.chmod(directory, 0o755)
        root = Path(directory, "root")
        root.mkdir()
        script = (
            f"cd '{root}'; mount -t tmpfs none .; cd '{root}'; mkdir -p etc lib64 .{DRV}; : > .{LOADERS[MACHINE]}"
        )
        with user_container(script) as other:
            assert finish(root, other) == ""
            status = inside(other, root, "etc/ld.so.cache").stat()
            assert (status.st_uid, status.st_gid) == (OWNER, OWNER)
            assert os.readlink(inside(other, root, f"{DRV}/libcuda.so.1")) == "libcuda.so.550"
