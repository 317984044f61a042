"""The real loader of a real glibc, in a chroot, reads the cache that the hook left there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.gpuhook.caches import HWCAPS, ldconfig, library
from unit.gpuhook.sandbox import HOOK, container

PROBE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *handle = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        struct link_map *map = 0;
        if (handle)
            dlinfo(handle, RTLD_DI_LINKMAP, &map);
        printf("%s %s\n", argv[i], map ? map->l_name : "-");
    }
}
"""
IMAGES = ("libfoo.so.9", "libfoo.so.10", "libhw.so.1", "libz9.so.1", "liba.so.1")
OURS = ("libcuda.so.1", "libnvidia-ml.so.1", "libfoo.so.9-drv")
FORMS = ("new", "compat", "old")


def copy_in(top: Path, path: str) -> None:
    place = top / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """glibc, a program that calls dlopen, libraries in /opt/lib, and an old libcuda of the image's own."""
    top = tmp_path_factory.mktemp("image")
    (top / "etc").mkdir()
    (top / "etc/ld.so.conf").write_text("/opt/lib\n")
    argv = ["/usr/bin/gcc", "-x", "c", "-", "-o", str(top / "probe"), "-ldl"]
    subprocess.run(argv, input=PROBE.encode(), check=True)
    needed = subprocess.run(["/usr/bin/ldd", str(top / "probe")], capture_output=True, check=True, text=True)
    for path in re.findall(r"(/\S+)", needed.stdout):
        if path != f"{top}/probe":
            copy_in(top, path)
    for name in (*IMAGES, "libcuda.so.1"):
        library(top / "opt/lib" / name, name)
    for hwcap in HWCAPS:
        for name in ("libhw.so.1", "libcuda.so.1"):
            library(top / "opt/lib/glibc-hwcaps" / hwcap / name, name)
    for name in OURS:
        library(top / "drv" / (name + "-550"), name)
    return top


@pytest.fixture(params=FORMS)
def root(tree: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    top = tmp_path / "root"
    shutil.copytree(tree, top, symlinks=True)
    ldconfig(top, request.param)
    return top


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    with container() as made:
        yield made


def loaded(top: Path, *names: str) -> dict[str, str]:
    argv = ["/usr/sbin/chroot", str(top), "/probe", *names]
    done = subprocess.run(argv, capture_output=True, check=True, text=True, env={})
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return {name: path for name, _, path in lines}


def finish(top: Path, pid: int) -> None:
    argv = [str(HOOK), "prestart", "--rootfs", str(top), "--log", str(top.parent / "log")]
    for name in OURS:
        argv += ["--lib", f"{name}=/drv/{name}-550"]
    subprocess.run(argv, input=b'{"pid": %d}' % pid, check=True, env={})
    assert not (top.parent / "log").exists()


def test_ours_load_by_name_and_the_images_own_as_before(root: Path, pid: int) -> None:
    before = loaded(root, *IMAGES)
    assert loaded(root, "libnvidia-ml.so.1") == {"libnvidia-ml.so.1": "-"}
    finish(root, pid)
    assert loaded(root, *IMAGES) == before
    assert loaded(root, *OURS) == {name: f"/drv/{name}" for name in OURS}


def test_the_users_own_ldconfig_keeps_ours(root: Path, pid: int) -> None:
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n/opt/lib\n")
    finish(root, pid)
    ldconfig(root)
    found = loaded(root, "libnvidia-ml.so.1", "libfoo.so.10")
    assert found == {"libnvidia-ml.so.1": "/drv/libnvidia-ml.so.1", "libfoo.so.10": "/opt/lib/libfoo.so.10"}


def test_an_image_that_never_had_a_cache(root: Path, pid: int) -> None:
    (root / "etc/ld.so.cache").unlink()
    (root / "usr/lib").mkdir(parents=True, exist_ok=True)
    (root / "opt/lib/libz9.so.1").rename(root / "usr/lib/libz9.so.1")
    finish(root, pid)
    assert loaded(root, "libz9.so.1", "libcuda.so.1") == {
        "libz9.so.1": "/usr/lib/libz9.so.1",
        "libcuda.so.1": "/drv/libcuda.so.1",
    }
