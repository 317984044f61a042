"""The real loaders of three Debians, in chroots, read the cache that the hook left there.

The yardstick is an image in which the driver is installed like any package, and its own ldconfig has run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fakehost
from e2e import recorder, trees
from e2e.bundles import Bundle
from e2e.witness import settings
from gpushim.oci.edits import hook_args
from unit.gpuhook.caches import HWCAPS, library, quick_library
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
        if (handle)
            dlclose(handle);
    }
}
"""
LDCONFIG = "/sbin/ldconfig"
SUITES = ("bookworm", "trixie", "sid")  # glibc 2.36, 2.41, and what is newest
# Names around the driver's own, in the order that counts digits as numbers.
IMAGES = ("libcuda.so.2", "libfoo.so.9", "libfoo.so.10", "libhw.so.1", "libnvidia-ml.so.0", "libz9.so.1", "liba.so.1")
TWICE = "libtwice.so.1"  # in /usr/local/lib and, shadowed by that, where Debian has its libraries
ALL = (*IMAGES, TWICE)
ELDERS = ("libcuda.so.1", "libnvidia-ml.so.1")
CROWD, STEMS = 5000, ("liba", "libcuda.so.", "libnvidia-gpucomp.so.535.", "libx")
FORMS = ("new", "compat", "old")  # of caches, as in ldconfig's -c
LIBDIRS = ("usr/lib/x86_64-linux-gnu", "usr/lib/nvidia")  # ldconfig must be told about the second


class Driver(NamedTuple):
    """A driver, and what the shim would do about it."""

    folder: str
    mounted: Path  # a layer with the files that config.json's mounts bring
    installed: Path  # a layer with all the links as well, and its directory in ldconfig's configuration
    args: list[str]  # the hook's, without those that differ between containers
    names: list[str]  # of files and links that a program could load


@pytest.fixture(scope="module", params=SUITES)
def tree(request: pytest.FixtureRequest) -> Path:
    if request.param == trees.SUITE:
        return request.getfixturevalue("debian_tree")  # type: ignore[no-any-return]
    return trees.glibc(request.param)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with a program that calls dlopen, and libraries in /opt/lib."""
    top = tmp_path_factory.mktemp("image")
    argv = ["/usr/bin/gcc", "-x", "c", "-", "-o", str(top / "probe"), "-ldl"]
    subprocess.run(argv, input=PROBE.encode(), check=True)
    (top / "etc/ld.so.conf.d").mkdir(parents=True)
    (top / "etc/ld.so.conf.d/image.conf").write_text("/opt/lib\n")
    for name in IMAGES:
        library(top / "opt/lib" / name, name)
    for hwcap in HWCAPS:
        library(top / "opt/lib/glibc-hwcaps" / hwcap / "libhw.so.1", "libhw.so.1")
    for folder in ("usr/local/lib", LIBDIRS[0]):
        library(top / folder / TWICE, TWICE)
    return top


@pytest.fixture(scope="module")
def elders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with an older driver of the image's own, for some processors as well."""
    top = tmp_path_factory.mktemp("elders")
    for folder in ("opt/lib", *(f"opt/lib/glibc-hwcaps/{hwcap}" for hwcap in HWCAPS)):
        for name in ELDERS:
            library(top / folder / name, name)
    return top


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with thousands of libraries; the driver's names stand in the midst of some that differ in a number."""
    top = tmp_path_factory.mktemp("crowd")
    for number in range(CROWD):
        name = f"{STEMS[number % 4]}{number * 7919 % 10007}.so.{number % 12}"
        quick_library(top / "opt/lib" / name, name)
    return top


@pytest.fixture(scope="module", params=LIBDIRS)
def driver(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Driver:
    work, libdir = tmp_path_factory.mktemp("driver"), request.param
    host = fakehost.build(str(work / "host"), 1, libdir=libdir, compile_cache=str(trees.TOP / ".cache/fakehost"))
    source, (mounts, args) = Path(host.root, libdir), planned(work, host.root)
    libs = [value.partition("=")[2] for word, value in zip(args, args[1:], strict=False) if word == "--lib"]
    files = [path.rpartition("/")[2] for path in libs]
    links = [path.name for path in source.iterdir() if path.is_symlink() and path.resolve().name in files]
    for layer in ("mounted", "installed"):
        (work / layer / libdir).mkdir(parents=True)
    for name in (*files, *links):
        shutil.copy(source / name, work / "installed" / libdir / name, follow_symlinks=False)
    for mount in mounts:
        if mount["destination"].startswith(f"/{libdir}/lib"):
            shutil.copy(mount["source"], work / "mounted" / mount["destination"][1:])
    if libdir != LIBDIRS[0]:
        (work / "installed/etc/ld.so.conf.d").mkdir(parents=True)
        (work / "installed/etc/ld.so.conf.d/00-driver.conf").write_text(f"/{libdir}\n")
    return Driver(f"/{libdir}", work / "mounted", work / "installed", args, [*files, *links])


def planned(work: Path, root: str) -> tuple[list[Any], list[str]]:
    """What the shim mounts for a container on this host, and the hook's arguments that any container would have."""
    bundle = Bundle(work / "bundle", work, settings(work, root, str(recorder.build(work))))
    bundle.ask("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", args=["true"])
    bundle.call("create", "--bundle", str(bundle.directory), bundle.id)
    words = iter(hook_args(bundle.spec["hooks"]["prestart"][-1])[1:])
    args = [word for pair in zip(words, words) if pair[0] not in ("--rootfs", "--log") for word in pair]
    return bundle.spec["mounts"], args


@contextmanager
def container_of(tmp_path: Path, *layers: Path) -> Iterator[Path]:
    """A container's root filesystem: a tree and what stands over it."""
    scratch = tmp_path / f"container{len(list(tmp_path.iterdir()))}"
    scratch.mkdir()
    with trees.overlay(layers[0], scratch, *layers[1:]) as root:
        yield root


def inside(root: Path, *argv: str) -> str:
    """What a command says in the container; of a directory that has two names, the longer one."""
    command = ["/usr/sbin/chroot", str(root), *argv]
    output = subprocess.run(command, capture_output=True, check=True, text=True, env={}).stdout
    return output.replace(" /lib/", " /usr/lib/")


def listing(root: Path) -> list[str]:
    """What the container's own ldconfig reads in its cache."""
    return inside(root, LDCONFIG, "-p").splitlines()


def loaded(root: Path, names: Sequence[str]) -> dict[str, str]:
    lines = [line.partition(" ") for line in inside(root, "/probe", *names).splitlines()]
    return {name: path for name, _, path in lines}


def finish(root: Path, args: list[str]) -> None:
    log = root.parent / "log"
    argv = [str(HOOK), "prestart", "--rootfs", str(root), "--log", str(log), *args]
    with container() as pid:
        subprocess.run(argv, input=json.dumps({"pid": pid}).encode(), check=True, env={})
    assert not log.exists(), log.read_text()


@pytest.fixture
def theirs(tree: Path, image: Path, driver: Driver, tmp_path: Path) -> Iterator[Path]:
    """The yardstick."""
    with container_of(tmp_path, tree, image, driver.installed) as root:
        inside(root, LDCONFIG)
        yield root


@pytest.mark.parametrize("form", FORMS)
def test_the_cache_is_the_one_that_ldconfig_would_write(
    tree: Path, image: Path, driver: Driver, theirs: Path, form: str, tmp_path: Path
) -> None:
    with container_of(tmp_path, tree, image, driver.mounted) as ours:
        inside(ours, LDCONFIG, "-c", form)
        before = loaded(ours, ALL)
        finish(ours, driver.args)
        inside(theirs, LDCONFIG, "-c", form)
        found = loaded(ours, driver.names)
        assert found["libcuda.so.1"] == f"{driver.folder}/libcuda.so.1"
        assert found == loaded(theirs, driver.names)
        assert loaded(ours, ALL) == before == loaded(theirs, ALL)
        # In combined caches glibc points hwcaps' names at other text; new ones say what it meant.
        inside(theirs, LDCONFIG, "-c", "new" if form == "compat" else form)
        assert plain(listing(ours), form) == plain(listing(theirs), form)


def plain(lines: list[str], form: str) -> list[str]:
    return [line for line in lines if form != "compat" or "hwcap" not in line]


@pytest.mark.parametrize("driver", LIBDIRS[:1], indirect=True)
def test_a_cache_of_thousands(tree: Path, image: Path, crowd: Path, driver: Driver, tmp_path: Path) -> None:
    with ExitStack() as stack:
        layers = (tree, image, crowd)
        one, other = (
            stack.enter_context(container_of(tmp_path, *layers, last)) for last in (driver.mounted, driver.installed)
        )
        inside(one, LDCONFIG)
        finish(one, driver.args)
        inside(other, LDCONFIG)
        lines = listing(one)
        assert len(lines) > CROWD
        assert lines == listing(other)
        assert loaded(one, driver.names) == loaded(other, driver.names)


@pytest.mark.parametrize("driver", LIBDIRS[1:], indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_ours_come_before_older_ones_of_the_image(
    tree: Path, image: Path, elders: Path, driver: Driver, form: str, tmp_path: Path
) -> None:
    with container_of(tmp_path, tree, image, elders, driver.mounted) as root:
        inside(root, LDCONFIG, "-c", form)
        before = loaded(root, (*ALL, *ELDERS))
        assert all(before[name].startswith("/opt/lib/") for name in ELDERS)
        finish(root, driver.args)
        assert loaded(root, (*ALL, *ELDERS)) == {**before, **{name: f"{driver.folder}/{name}" for name in ELDERS}}


def test_the_users_own_ldconfig_keeps_ours(
    tree: Path, image: Path, elders: Path, driver: Driver, theirs: Path, tmp_path: Path
) -> None:
    with container_of(tmp_path, tree, image, elders, driver.mounted) as ours:
        inside(ours, LDCONFIG)
        finish(ours, driver.args)
        shutil.rmtree(ours / "opt/lib/glibc-hwcaps")  # ldconfig prefers these, whatever the order of directories
        inside(ours, LDCONFIG)
        expected = loaded(theirs, driver.names)
        if driver.folder == f"/{LIBDIRS[0]}":  # what the image has put before the system's directory stays before it
            expected |= {name: f"/opt/lib/{name}" for name in ELDERS}
        assert loaded(ours, driver.names) == expected


def test_the_users_own_ldconfig_finds_the_images_as_before(
    tree: Path, image: Path, driver: Driver, theirs: Path, tmp_path: Path
) -> None:
    with container_of(tmp_path, tree, image, driver.mounted) as ours:
        inside(ours, LDCONFIG)
        finish(ours, driver.args)
        inside(ours, LDCONFIG)
        assert listing(ours) == listing(theirs)


def test_an_image_that_never_had_a_cache(
    tree: Path, image: Path, driver: Driver, theirs: Path, tmp_path: Path
) -> None:
    with container_of(tmp_path, tree, image, driver.mounted) as ours:
        (ours / "etc/ld.so.cache").unlink(missing_ok=True)
        before = loaded(ours, ALL)
        assert before[TWICE] == f"/{LIBDIRS[0]}/{TWICE}"
        finish(ours, driver.args)
        assert loaded(ours, ALL) == before
        assert loaded(ours, driver.names) == loaded(theirs, driver.names)
