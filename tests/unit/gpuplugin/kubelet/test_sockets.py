"""A socket's file among others: whose it is, who may connect, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from gpuplugin.kubelet import sockets
from gpuplugin.kubelet.sockets import Listener
from gpushim.ground.errors import GpushimError

STOP = """
import asyncio, sys, grpc.aio
from grpc._cython import cygrpc
from gpuplugin.kubelet.sockets import Listener
again = cygrpc.schedule_coro_threadsafe
grpc.aio._server.Server.__del__ = lambda self: again(self._server.shutdown(None), self._loop)
async def run():
    await kept.bind(grpc.method_handlers_generic_handler("none", {}))
    async with grpc.aio.insecure_channel("unix:" + sys.argv[1]) as channel:
        await asyncio.wait_for(channel.channel_ready(), 5)
    await kept.stop()
async def whole():
    global kept
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is no news
    kept = Listener(sys.argv[1])
    await run()
asyncio.run(whole())
del kept
"""
NOTHING = grpc.method_handlers_generic_handler("none", {})


def dead(path: Path) -> None:
    """Leave a socket that nobody listens to."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def a_directory(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_text("kept")


def a_link(path: Path) -> None:
    path.symlink_to(path.parent / "target")
    (path.parent / "target").write_text("kept")


@pytest.mark.parametrize("place", [dead, a_file, a_link])
def test_it_takes_the_place_of_what_is_there(folder: Path, place: Callable[[Path], None]) -> None:
    async def run() -> None:
        path = folder / "gpushim-gpu.sock"
        place(path)
        listener = Listener(str(path))
        await listener.bind(NOTHING)
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert sockets.is_listening(str(path))
        await listener.stop()
        assert [one.read_text() for one in folder.iterdir()] == ["kept"] * (place is a_link)

    asyncio.run(run())


async def exchanged(listener: Listener, change: Callable[[str], None]) -> None:
    """Bind, while somebody who may write in the directory changes something as soon as the socket is there."""
    add = listener._server.add_insecure_port

    def changed(address: str) -> int:
        port = int(add(address))
        change(address.removeprefix("unix:"))
        return port

    listener._server.add_insecure_port = changed
    await listener.bind(NOTHING)


def test_a_link_in_the_socket_s_place_leads_to_no_file(folder: Path) -> None:
    (folder / "other").write_text("kept")
    (folder / "other").chmod(0o755)

    def linked(path: str) -> None:
        os.unlink(path)
        os.symlink(folder / "other", path)

    async def run() -> None:
        with pytest.raises(GpushimError, match="cannot be made"):
            await exchanged(Listener(f"{folder}/gpushim-gpu.sock"), linked)

    asyncio.run(run())
    assert stat.S_IMODE((folder / "other").stat().st_mode) == 0o755


def test_a_link_in_the_directory_s_place_leads_nowhere(folder: Path) -> None:
    there, other = folder / "plugin", folder / "other"
    there.mkdir()
    other.mkdir()
    dead(other / "gpushim-dead.sock")

    def linked(_: str) -> None:
        there.rename(folder / "former")
        there.symlink_to(other)

    async def run() -> None:
        listener = Listener(f"{there}/gpushim-gpu.sock")
        await exchanged(listener, linked)
        await listener.stop()
        with pytest.raises(GpushimError, match=r"cannot be made: .*plugin is a link, which is not followed; mount"):
            await Listener(f"{there}/gpushim-gpu.sock").bind(NOTHING)

    asyncio.run(run())
    assert os.listdir(other) == ["gpushim-dead.sock"]


def test_a_directory_in_its_place_is_said(folder: Path) -> None:
    async def run() -> None:
        a_directory(folder / "gpushim-gpu.sock")
        with pytest.raises(GpushimError, match=r"gpushim-gpu.sock cannot be made: Is a directory"):
            await Listener(f"{folder}/gpushim-gpu.sock").bind(NOTHING)
        assert os.listdir(folder) == ["gpushim-gpu.sock"]

    asyncio.run(run())


def test_it_leaves_another_s_socket(folder: Path) -> None:
    async def run() -> None:
        first, second = (Listener(f"{folder}/gpushim-gpu.sock") for _ in "12")
        await first.bind(NOTHING)
        await second.bind(NOTHING)
        await first.stop()
        assert sockets.is_listening(f"{folder}/gpushim-gpu.sock")
        await second.stop()
        assert os.listdir(folder) == []

    asyncio.run(run())


def test_what_killed_instances_left_is_removed(folder: Path) -> None:
    async def run() -> None:
        with socket.socket(socket.AF_UNIX) as alive:
            alive.bind(f"{folder}/gpushim-mig-1g.5gb.sock")
            alive.listen()
            for name in ("gpushim-gpu.shared.sock", ".gpushim-0a1b2c3d", "nvidia-gpu.sock"):
                dead(folder / name)
            a_file(folder / "gpushim-notes.sock")
            listener = Listener(f"{folder}/gpushim-gpu.sock")
            await listener.bind(NOTHING)
            await listener.stop()
            left = sorted(os.listdir(folder))
        assert left == ["gpushim-mig-1g.5gb.sock", "gpushim-notes.sock", "nvidia-gpu.sock"]

    asyncio.run(run())


def test_a_clean_stop_says_nothing_though_grpcio_is_an_older_one(folder: Path) -> None:
    """Which has its loop, if there is one still, stop a server once more that is collected."""
    words = [sys.executable, "-X", "dev", "-c", STOP, f"{folder}/gpushim-gpu.sock"]
    path = ":".join(one for one in sys.path if one)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_left_of_a_bind_that_is_cancelled(folder: Path) -> None:
    async def run() -> None:
        task = asyncio.create_task(Listener(f"{folder}/gpushim-gpu.sock").bind(NOTHING))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert os.listdir(folder) == []

    asyncio.run(run())


def test_other_plugins_sockets(folder: Path) -> None:
    for name in ("gpushim-gpu.sock", ".gpushim-0a1b2c3d", "kubelet.sock", "rdma.sock"):
        dead(folder / name)
    a_file(folder / "kubelet_internal_checkpoint")
    assert {name for name, _ in sockets.others(str(folder))} == {"rdma.sock"}
    assert sockets.others(f"{folder}/none") == frozenset()


def test_no_number_of_names_is_read_to_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "NAMES", 5)
    for number in range(9):
        dead(folder / f"rdma{number}.sock")
    assert len(sockets.others(str(folder))) == 5
    for number in range(9):
        os.rename(folder / f"rdma{number}.sock", folder / f"gpushim-{number}.sock")
    sockets.sweep(str(folder))
    assert len(os.listdir(folder)) == 4


@pytest.mark.parametrize(
    ("name", "stranger"),
    [
        ("nvidia-gpu.sock", True),
        (".aside", True),
        ("1175098982", True),
        ("kubelet_internal_checkpoint", False),
        (".1175098982", False),  # that checkpoint, before it is renamed
        ("gpushim-gpu.sock", False),
        (".gpushim-982134ca", False),
    ],
)
def test_who_may_be_another_plugin(name: str, stranger: bool) -> None:
    assert sockets.is_foreign(name) is stranger


@pytest.mark.parametrize(("length", "fits"), [(sockets.LONGEST_PATH, True), (sockets.LONGEST_PATH + 1, False)])
def test_the_longest_path(folder: Path, length: int, fits: bool) -> None:
    """Its name alone counts: that aside is longer."""
    path = folder / ("x" * (length - len(f"{folder}//s.sock"))) / "s.sock"
    path.parent.mkdir()

    async def story() -> None:
        listener = Listener(str(path))
        if not fits:
            with pytest.raises(GpushimError, match="is too long for a socket"):
                await listener.bind(NOTHING)
            return
        await listener.bind(NOTHING)
        assert sockets.is_listening(str(path))
        await listener.stop()

    asyncio.run(story())
