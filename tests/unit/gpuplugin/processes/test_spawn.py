"""The program as a process: its start, its end, and the snapshot that it finds or has made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import fakehost
from unit.gpuplugin.kubelet.fake import Kubelet, until

TOP = Path(__file__).parents[4]
GPU = "nvidia.com/gpu"


class Node:
    """A node with a simulated host.

    Args:
        folder: for all of it; short, as sockets' paths are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        self.kubelet = Kubelet(folder / "kubelet" / "device-plugins")
        self.kubelet.folder.mkdir(parents=True)
        (folder / "config.toml").write_text(f'[driver]\nroot = "{folder}/host"\n[cdi]\nwrite-spec = false\n')
        self.env = {"PATH": os.environ["PATH"], "GPUSHIM_CONFIG": f"{folder}/config.toml"}
        self.env["GPUSHIM_STATE"] = str(self.state)
        self.start()

    def start(self, *words: str) -> None:
        self.program = [
            sys.executable,
            "-B",
            f"{TOP}/bin/gpushim-device-plugin",
            f"--kubelet-dir={self.folder}/kubelet",
        ]
        self.program += words

    def build(self, gpus: int) -> None:
        fakehost.build(f"{self.folder}/host", gpus)

    def refresh(self) -> None:
        """Have a snapshot that is true."""
        stub = TOP / "shim/gpushim/create/stub.py"
        subprocess.run([sys.executable, "-B", str(stub), "refresh"], env=self.env, check=True)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[subprocess.Popen[str]]:
        """Run the program beside the kubelet."""
        await self.kubelet.start()
        with self.kept(), subprocess.Popen(self.program, env=self.env, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()
                await self.kubelet.stop()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Have the snapshot kept true."""
        command = [sys.executable, "-B", f"{TOP}/bin/gpushim", "refresh", "--keep"]
        with subprocess.Popen(command, env=self.env, stderr=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.terminate()

    @property
    def devices(self) -> int:
        return len(self.kubelet.well().get(GPU, ()))


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="pr", dir="/tmp"))
    yield Node(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_it_begins_soon_and_a_signal_ends_it_well(node: Node, number: int) -> None:
    async def run() -> None:
        node.build(2)
        node.refresh()
        async with node.running() as process:
            await until(lambda: node.devices == 2)
            process.send_signal(number)
            assert await asyncio.get_running_loop().run_in_executor(None, process.wait, 5) == 0
            assert not list(node.kubelet.folder.glob("*gpushim*"))
            assert process.stderr
            assert "Traceback" not in process.stderr.read()

    asyncio.run(run())


def without(path: Path) -> None:
    """No snapshot."""
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def writable(path: Path) -> None:
    path.chmod(0o666)
    path.write_bytes(path.read_bytes().replace(b"GPU-", b"BAD-"))


def a_link(path: Path) -> None:
    path.rename(path.parent / "away")
    path.symlink_to(path.parent / "away")


def stale(path: Path) -> None:
    fakehost.build(f"{path.parents[1]}/host", 2)


@pytest.mark.parametrize("harm", [without, cut_off, writable, a_link, stale])
def test_a_snapshot_that_cannot_be_gone_by_is_made_anew(node: Node, harm: Callable[[Path], None]) -> None:
    async def run() -> None:
        node.build(1)
        node.refresh()
        harm(node.state / "inventory.json")
        async with node.running():
            await until(lambda: node.devices == (2 if harm is stale else 1), 15)
            assert all(name.startswith("GPU-") for name in node.kubelet.lists[GPU])

    asyncio.run(run())


def test_without_a_driver_it_exits_with_one_sentence(node: Node) -> None:
    node.build(0)
    shutil.rmtree(node.folder / "host" / "proc")
    with node.kept():
        done = subprocess.run(node.program, env=node.env, capture_output=True, text=True, timeout=30)
    (line,) = done.stderr.splitlines()
    assert done.returncode in (12, 13)
    assert line.startswith("gpushim-device-plugin: ")
