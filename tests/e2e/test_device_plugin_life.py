"""The device plugin through the ends and beginnings of kubelet, of other plugins, of its files, and of itself.

A pod that runs from the first test to the last has the same GPU in the same container all the time.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

import fakehost
from e2e import otherplugin, plugins
from e2e.engines import run
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import gpu_node, plugin
from e2e.podgpus import GPU, gpus
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host

NVIDIAS = "nvidia-gpu.sock"
KNOWN = 1.0  # seconds from kubelet's listening until it has our list; 0.004 were measured
DRIVER = 8.0  # seconds from a driver's coming until kubelet has its GPUs; three of them it has to stay as it is
SOON = 3.0  # seconds until a change is noticed that nothing tells of
NUMBERS = itertools.count()
ASKED = 15.0  # seconds until kubelet, which is asked every 10 s, has been asked
LISTENS, LISTED = "Starting device plugin registration server", f'State pushed for device plugin" resource="{GPU}"'


@pytest.fixture(scope="module")
def node(gpu_host: Host, gpushim_env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[Node]:
    """A node of the simulated host."""
    with gpu_node(gpu_host, gpushim_env, debian_image, busybox_tree) as found:
        yield found


@pytest.fixture(scope="module")
def kept(node: Node, gpu_host: Host, gpushim_env: dict[str, str]) -> tuple[str, list[str]]:
    """The container and GPU of the pod that runs all the time."""
    with plugin(node, gpushim_env) as one:
        one.offers()
        node.pod("kept", {GPU: 1})
    return gpus(node, gpu_host, "kept")


@pytest.fixture(autouse=True)
def through(node: Node, gpu_host: Host, kept: tuple[str, list[str]]) -> Iterator[None]:
    """Look at that pod after each test, and at what lies beside kubelet's socket when no plugin runs."""
    yield
    assert gpus(node, gpu_host, "kept") == kept
    litter = {path.name for path in folder(node).iterdir() if "gpushim" in path.name}
    assert not litter


@pytest.fixture
def ids(gpu_host: Host) -> set[str]:
    """The ids of the host's GPUs."""
    return {gpu.uuid for gpu in gpu_host.gpus}


def folder(node: Node) -> Path:
    """The directory that plugins and kubelet meet in."""
    return node.kubelet_dir / "device-plugins"


def made(node: Node) -> int:
    """When the plugin's socket was made, in ns (an inode's number comes again); 0 if there is none, or it is dead."""
    path = folder(node) / "gpushim-gpu.sock"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        return path.stat().st_mtime_ns
    return 0


def again(directory: Path) -> None:
    """Remove a directory and make it again, with its files; without its checkpoint kubelet forgets who has what."""
    aside = directory.with_name("aside")
    directory.rename(aside)
    shutil.copytree(aside, directory, ignore=shutil.ignore_patterns("*.sock", ".gpushim-*"))
    shutil.rmtree(aside)


def works(node: Node, host: Host, kept: tuple[str, list[str]]) -> None:
    """Assert that a pod gets a GPU, another one than the pod that runs all the time."""
    name = f"new{next(NUMBERS)}"  # the same one again would wait for kubelet's next round
    node.pod(name, {GPU: 1})
    assert gpus(node, host, name)[1] != kept[1]
    node.remove(name)


def known(node: Node, since: int) -> float:
    """Seconds between kubelet's listening and its having the list, by its own clock, in its log from a place on."""
    text = node.log.read_text()[since:]
    times = []
    for words in (LISTENS, LISTED):
        found = re.search(rf"I\d{{4}} (\S+) .*{re.escape(words)}", text)
        assert found, text[-3000:]
        times.append(datetime.strptime(found[1], "%H:%M:%S.%f"))
    seconds = (times[1] - times[0]).total_seconds()
    print(f"known {seconds} s after kubelet listens")
    return seconds


@pytest.mark.parametrize(
    ("number", "left", "late"),
    [
        (signal.SIGTERM, "socket", False),
        (signal.SIGKILL, "socket", True),
        (signal.SIGTERM, "no socket", True),
        (signal.SIGTERM, "", False),
    ],
    ids=["restart", "killed", "clean", "emptied"],
)
def test_kubelet_ends(
    node: Node, gpushim_env: dict[str, str], ids: set[str], number: int, left: str, late: bool
) -> None:  # fmt: skip
    """What is left is found by the next kubelet; `late` is a plugin that has started while there was no kubelet."""
    with plugin(node, gpushim_env, start=not late) as one:
        if not late:
            one.offers(ids=ids)
        node.stop(number)
        assert (folder(node) / "kubelet.sock").exists()  # whatever ended it, since 1.36 it is left behind
        if left != "socket":
            (folder(node) / "kubelet.sock").unlink()
        if late:
            one.start()
            assert until(lambda: made(node) > 0, plugins.SECONDS), one.said()
        if not left:
            again(folder(node))
        since = node.log.stat().st_size
        node.start()
        one.offers(ids=ids)
        assert known(node, since) < KNOWN


@contextlib.contextmanager
def other(node: Node) -> Iterator[None]:
    """Run somebody else's plugin, which registers our resource, for the block; kill it then."""
    command = [sys.executable, otherplugin.__file__, str(folder(node)), GPU]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=plugins.environment({})) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listed\n"
            assert until(lambda: node.allocatable() == [otherplugin.DEVICE], SOON)
            yield
        finally:
            process.kill()
    (folder(node) / otherplugin.SOCKET).unlink(missing_ok=True)


def test_others_end_closes_our_stream(node: Node, gpushim_env: dict[str, str], ids: set[str]) -> None:
    with contextlib.ExitStack() as stack:
        with other(node):
            one = stack.enter_context(plugin(node, gpushim_env))
            one.offers(ids=ids)
        one.offers(ids=ids, seconds=SOON)


def test_others_registration_takes_our_place(
    node: Node, gpu_host: Host, gpushim_env: dict[str, str], ids: set[str], kept: tuple[str, list[str]]
) -> None:
    with plugin(node, gpushim_env) as one:
        one.offers(ids=ids)
        with other(node):
            pass
        one.offers(ids=ids, seconds=ASKED)
        works(node, gpu_host, kept)


@pytest.mark.parametrize(("ends", "number"), [("old", signal.SIGTERM), ("new", signal.SIGKILL)])
def test_two_instances(node: Node, gpushim_env: dict[str, str], ids: set[str], number: int, ends: str) -> None:
    with plugin(node, gpushim_env) as old, plugin(node, gpushim_env, name="new", start=False) as new:
        old.offers(ids=ids)
        first = made(node)
        new.start()
        assert until(lambda: made(node) not in (0, first), plugins.SECONDS), new.said()
        second = made(node)
        left, gone = (new, old) if ends == "old" else (old, new)
        assert until(lambda: "registered" in new.said(), plugins.SECONDS), new.said()
        assert gone.stop(number) == (0 if number == signal.SIGTERM else -number)
        assert until(lambda: made(node) != 0 and (ends == "old") == (made(node) == second), SOON)
        left.offers(ids=ids, seconds=SOON)


def test_own_socket_deleted(
    node: Node, gpu_host: Host, gpushim_env: dict[str, str], ids: set[str], kept: tuple[str, list[str]]
) -> None:
    with plugin(node, gpushim_env) as one:
        one.offers(ids=ids)
        before = made(node)
        (folder(node) / "gpushim-gpu.sock").unlink()
        assert until(lambda: made(node) not in (0, before), SOON), one.said()
        one.offers(ids=ids, seconds=SOON)
        works(node, gpu_host, kept)


def test_sigterm_leaves_what_is_not_its_own(node: Node, gpushim_env: dict[str, str], ids: set[str]) -> None:
    with socket.socket(socket.AF_UNIX) as nvidias:
        path = folder(node) / NVIDIAS
        nvidias.bind(str(path))
        nvidias.listen()
        before = path.stat()
        with plugin(node, gpushim_env) as one:
            one.offers(ids=ids)
            assert one.stop() == 0
        assert os.path.samestat(path.stat(), before)
        assert not (folder(node) / "gpushim-gpu.sock").exists()
        assert until(lambda: node.allocatable() == [], SOON)
        path.unlink()


def test_kubelet_dir(node: Node, gpushim_env: dict[str, str], ids: set[str]) -> None:
    place = node.work / "k0s/kubelet"
    place.parent.mkdir()
    place.symlink_to(node.kubelet_dir)
    with plugin(node, gpushim_env, f"--kubelet-dir={place}/") as one:
        one.offers(ids=ids)


def opened(host: Host) -> set[str]:
    """The processes that have the simulated host's NVML, or a node of its GPUs, open."""
    found = set()
    for process in glob.glob("/proc/[0-9]*"):
        try:
            paths = Path(process, "maps").read_text().split() + [
                os.readlink(fd) for fd in glob.glob(f"{process}/fd/*")
            ]
        except OSError:
            continue
        if any(path.startswith(host.root) and ("libnvidia-ml" in path or "/dev/nvidia" in path) for path in paths):
            found.add(process)
    return found


def test_gpus_are_let_go_and_taken(
    node: Node, gpu_host: Host, gpushim_env: dict[str, str], ids: set[str], kept: tuple[str, list[str]]
) -> None:
    """And the plugin tells its state meanwhile."""

    def ask(*words: str) -> str:
        return run(
            [str(TOP / "bin" / "gpushim"), "device-plugin", *words], env=plugins.environment(gpushim_env)
        ).stdout

    _, (held,) = kept
    with plugin(node, gpushim_env) as one:
        one.offers(ids=ids)
        assert until(lambda: len(opened(gpu_host)) == 2, plugins.SECONDS), one.said()  # its children
        table = ask("status")
        assert [held, "1", "1", "healthy"] in [line.split()[2:6] for line in table.splitlines()]
        assert any(line.split()[:1] == ["default"] and "kept-" in line for line in table.splitlines())
        (pod,) = json.loads(ask("status", "--format=json"))["pods"]
        assert (pod["pod"].rpartition("-")[0], pod["devices"]) == ("kept", [held])
        said = ask("release")
        assert not opened(gpu_host)  # at the answer, not some time after it
        assert held in said
        assert until(lambda: not node.allocatable(), SOON)
        assert "released by gpushim device-plugin release" in ask("status")
        gpu_host.update()  # as a driver that changes: nothing is opened because of it
        assert not until(lambda: bool(opened(gpu_host)), 3)
        ask("take")
        one.offers(ids=ids, seconds=plugins.SECONDS)  # of a list that was made since
        assert until(lambda: len(opened(gpu_host)) == 2, SOON)


@pytest.fixture
def bare(tmp_path: Path) -> tuple[Host, dict[str, str]]:
    """A host of the same GPUs whose driver lies aside, and variables that lead gpushim to it."""
    host = fakehost.build(str(tmp_path / "host"), 3, compile_cache=str(TOP / ".cache" / "fakehost"))
    env = settings(tmp_path, host.root)
    Path(host.root).rename(tmp_path / "aside")
    Path(host.root).mkdir()
    return host, env


def test_waits_for_a_driver(node: Node, bare: tuple[Host, dict[str, str]], ids: set[str]) -> None:
    host, env = bare
    with plugin(node, env, "--fail-on-init-error=false") as one:
        assert until(lambda: "no device is given out" in one.said(), plugins.SECONDS), one.said()
        assert node.allocatable() == []
        Path(host.root).rmdir()
        Path(host.root).with_name("aside").rename(host.root)
        one.offers(ids=ids, seconds=DRIVER)
        assert one.stop() == 0
