"""Docker, Podman and containerd: nothing of the driver's or of MPS's reaches the host through a shared volume."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import chroots, leftovers, trees
from e2e.engines import containerd, dockerd
from e2e.podman import Podman, podman
from e2e.shared_engines import Case, Sea, some
from e2e.views import CRUN, low_level, view
from e2e.witness import RUNC
from fakehost import Host

CASES = int(os.environ.get("GPUSHIM_SHARED_CASES") or 0)
SEED = int(os.environ.get("GPUSHIM_SHARED_SEED") or (random.randrange(1 << 20) if CASES else 0))
SUITES = chroots.SUITES if CASES else ("sid",)
SHARED = "mount -t tmpfs none /run; mount --make-rshared /"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """One with a GPU and MPS."""
    root = tmp_path_factory.mktemp("mps") / "root"
    return fakehost.build(str(root), 1, mps=True, compile_cache=str(trees.TOP / ".cache" / "fakehost"))


@pytest.fixture
def sea(host: Host, tmp_path: Path) -> Sea:
    """Settings for the runtimes of a Debian."""
    return Sea.made(tmp_path, host, {"runc": Path(RUNC), "crun": Path(CRUN)})


@pytest.mark.parametrize("suite", SUITES)
def test_docker(sea: Sea, suite: str) -> None:
    runtimes = {"nvidia": sea.shims["runc"], "nvidia-crun": sea.shims["crun"], "crun": Path(CRUN)}
    with chroots.entered(suite, Path(sea.host.root), view="v1") as place:
        chroots.publish(place.prefix, sea.specs)
        with dockerd(runtimes, env=sea.env, path_dirs=(sea.hooks,), prefix=place.prefix, cdi=True) as engine:
            for case in some("Docker", SEED, CASES):
                sea.run(case, place.prefix, engine.state, lambda case: sea.docker(engine, case))


@pytest.mark.parametrize("suite", SUITES)
def test_containerd(sea: Sea, suite: str, busybox_tree: Path) -> None:
    handlers = {"nvidia": sea.shims["runc"], "nvidia-crun": sea.shims["crun"], "crun": Path(CRUN)}
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    with chroots.entered(suite, Path(sea.host.root), view="v1") as place:
        chroots.publish(place.prefix, sea.specs)
        named = "docker.io/library/pause:local"
        with containerd(handlers, pause=named, env=sea.env, prefix=place.prefix, cdi=True) as engine:
            engine.load(pause, ("k8s.io",))
            with engine.cri() as client:
                pods: dict[str, str] = {}
                for case in some("containerd", SEED, CASES):
                    sea.run(case, place.prefix, engine.state, lambda case: sea.cri(engine, client, pods, case))


@pytest.fixture
def machines(host: Host, tmp_path: Path) -> Iterator[tuple[Sea, Podman]]:
    """The machine's own Podman, over its own runtimes."""
    (tmp_path / "low").mkdir()
    crun = low_level(("v2", CRUN), tmp_path / "low")
    sea = Sea.made(tmp_path, host, {"runc": Path(RUNC), "crun": crun})
    with (
        leftovers.state() as state,
        view("v2", SHARED) as prefix,
        podman(state, None, Path(RUNC), prefix) as engine,
    ):
        chroots.publish(prefix, sea.specs)
        yield sea, engine


def test_podman(machines: tuple[Sea, Podman]) -> None:
    sea, engine = machines
    for case in some("Podman", SEED, CASES):
        sea.run(case, engine.prefix, engine.state, lambda case: sea.podman(engine, case))


def test_podman_with_a_rootfs_and_overlays(machines: tuple[Sea, Podman], busybox_tree: Path) -> None:
    """A directory of the host's as the root, a volume that is an overlay of Podman's own, and one for FUSE."""
    sea, engine = machines
    (sea.work / "over").mkdir()
    for way in ("shim", "CDI"):
        case = Case("Podman", way, "runc", "rshared", "nothing")
        root = sea.work / f"root-{way}"
        shutil.copytree(busybox_tree, root, symlinks=True)
        words = [sea.bound(case), f"--volume={sea.work}/over:/over:O", "--rootfs", str(root)]
        sea.run(case, engine.prefix, engine.state, lambda case: sea.podman(engine, case, words))  # noqa: B023
