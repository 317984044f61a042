"""Bad hosts: a broken driver, odd nodes, both changing.

In each of them a container that asks for no GPU starts with its config.json untouched, and one that asks gets all of
it or is refused in a sentence.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fakehost
from e2e.bad_input import ALL, Scene
from e2e.trees import TOP
from fakehost import Host, tree
from gpushim.ground.errors import INVENTORY
from unit.gpuhook.sandbox import exchange, running
from unit.gpushim.inventory import machine


@pytest.fixture
def scene(low: Path, tmp_path: Path) -> Iterator[Scene]:
    """A scene on a host of its own with two GPUs, about to be looked at for the first time."""
    host = fakehost.build(str(tmp_path / "host"), 2, compile_cache=str(TOP / ".cache" / "fakehost"))
    (tmp_path / "scene").mkdir()
    scene = Scene(tmp_path / "scene", host, low)
    scene.tell("[refresh]", "deadline-seconds = 3")
    yield scene
    machine.end(str(scene.state))


def gone(name: str) -> Callable[[Host], object]:
    """Without a file or directory of the host."""

    def remove(host: Host) -> None:
        path = Path(host.root, name.format(host, *host.gpus))
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return remove


def text(name: str, data: bytes) -> Callable[[Host], object]:
    """With other contents in a file of the host."""
    return lambda host: Path(host.root, name.format(host)).write_bytes(data)


def length(name: str, size: int) -> Callable[[Host], object]:
    """With another length of a file of the host."""
    return lambda host: os.truncate(Path(host.root, name.format(host)), size)


def node(name: str, major: int, minor: int, mode: int = 0o666, group: int = 0) -> Callable[[Host], object]:
    """With another node in a GPU's place."""
    return lambda host: tree.make_node(host.node(name.format(*host.gpus)), major, minor, mode, 0, group)


def become(name: str, make: Callable[[Path], object]) -> Callable[[Host], object]:
    """With something else in the place of a file of the host."""

    def change(host: Host) -> None:
        path = Path(host.root, name.format(host, *host.gpus))
        path.unlink()
        make(path)

    return change


def both(*changes: Callable[[Host], object]) -> Callable[[Host], object]:
    """With several changes."""
    return lambda host: [change(host) for change in changes]


LIBRARIES = "usr/lib/x86_64-linux-gnu"
CUDA, NVML = f"{LIBRARIES}/libcuda.so.{{0.driver}}", f"{LIBRARIES}/libnvidia-ml.so.{{0.driver}}"
CACHE, VERSION, GPUS = "etc/ld.so.cache", "proc/driver/nvidia/version", "proc/driver/nvidia/gpus"
FIRST = "dev/nvidia{1.minor}"
HOSTS: dict[str, tuple[Callable[[Host], object], int]] = {
    # Group 24.
    "no driver": (both(gone("proc"), gone("dev")), 12),
    "versions differ": (lambda host: host.half_upgrade("535.54.03"), 13),
    "libcuda is cut": (length(CUDA, 100), 12),
    "libcuda is a FIFO": (become(CUDA, os.mkfifo), 12),
    "cache of 1 GB": (length(CACHE, 1 << 30), 0),
    "cache is a FIFO": (become(CACHE, os.mkfifo), 0),
    # Group 25.
    "version is large": (text(VERSION, b"x" * (1 << 24)), 12),
    "no GPU in /proc": (gone(GPUS), 0),
    "node is gone": (gone(FIRST), 0),
    "node is a link": (become(FIRST, lambda path: path.symlink_to("/dev/null")), 0),
    "node is a directory": (become(FIRST, Path.mkdir), INVENTORY),  # "all" never means fewer
    "nvidiactl is a FIFO": (become("dev/nvidiactl", os.mkfifo), 0),
    "no majors": (text("proc/devices", b""), 0),
    # Group 27.
    "no service": (gone("run"), 0),
    # Group 28.
    "NVML hangs": (lambda host: host.behave(hang=True), 12),
    "NVML fails": (lambda host: host.behave(fail=999), 0),
}


@pytest.mark.parametrize("case", HOSTS)
def test_host(scene: Scene, case: str) -> None:
    change, code = HOSTS[case]
    change(scene.host)
    scene.ask("NVIDIA_VISIBLE_DEVICES=void")
    scene.untouched()
    scene.ask(ALL)
    scene.answers(code)
    assert len(scene.nodes) == (0 if code else 2)


def test_a_gpu_that_cannot_be_used_is_refused_by_name(scene: Scene) -> None:
    become(FIRST, Path.mkdir)(scene.host)
    scene.ask("NVIDIA_VISIBLE_DEVICES=1")
    assert "this host has 1" in scene.answers(10).stderr


def drop_one(host: Host) -> None:
    host.gpus.pop()
    host.update()


def drop_all(host: Host) -> None:
    host.gpus.clear()
    host.update()


# Groups 25 and 26: what changes when the snapshot has been made.
LATER: dict[str, tuple[Callable[[Host], object], int]] = {
    "a GPU is gone": (drop_one, 0),
    "all GPUs are gone": (drop_all, 12),
    "the driver is upgraded": (lambda host: host.half_upgrade("560.35.03"), 13),
    "the driver container is unmounted": (lambda host: shutil.rmtree(host.root), 12),
}


@pytest.mark.parametrize("case", LATER)
def test_a_host_that_changes(scene: Scene, case: str) -> None:
    change, code = LATER[case]
    scene.ask(ALL)
    scene.answers(0)
    change(scene.host)
    scene.ask()
    scene.untouched()
    scene.ask(ALL)
    scene.answers(code)
    assert len(scene.nodes) == (0 if code else 1 if case == "a GPU is gone" else 2)


def test_a_host_that_changes_while_it_is_read(scene: Scene) -> None:
    """Nobody gets half of it: the two GPUs, or a refusal."""
    scene.ask(ALL)
    folder, other = (Path(scene.host.root, "proc/driver", name) for name in ("nvidia/gpus", "gpus"))
    other.mkdir()

    def change() -> None:
        exchange(folder, other)
        time.sleep(0.01)

    with running(change):
        for _ in range(4):
            shutil.rmtree(scene.state, ignore_errors=True)
            scene.answers(0, 12)
            assert len(scene.nodes) in (0, 2)
            scene.ask(ALL)


def test_a_driver_upgraded_before_the_container_starts(scene: Scene) -> None:
    """Group 26: config.json names files of the old driver; runc refuses the mount, and the next create is right."""
    scene.ask(ALL)
    scene.answers(0)
    sources = [mount["source"] for mount in scene.spec["mounts"] if scene.host.root in mount.get("source", "")]
    old = [source for source in sources if scene.host.driver in source]
    for path in old:
        Path(path).unlink()
    fakehost.build(scene.host.root, 2, driver="560.35.03", compile_cache=str(TOP / ".cache" / "fakehost"))
    scene.ask(ALL)
    scene.answers(0)
    assert old
    assert not {mount["source"] for mount in scene.spec["mounts"]} & {*old}


# Group 28.
def test_the_create_path_never_waits_for_nvml(scene: Scene) -> None:
    scene.ask(ALL)
    scene.answers(0)
    scene.host.behave(hang=True)
    scene.ask("NVIDIA_VISIBLE_DEVICES=1")
    started = time.monotonic()
    scene.answers(0)
    assert time.monotonic() - started < 3
