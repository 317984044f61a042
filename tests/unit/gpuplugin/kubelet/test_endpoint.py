"""A resource at a kubelet that comes, goes, forgets and refuses; beside other instances and strangers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpuplugin.kubelet.endpoint import POLL, Endpoint
from gpuplugin.kubelet.sockets import is_listening
from gpuplugin.snapshot.inotify import Watch
from gpushim.ground.errors import FAILED, GpushimError
from unit.gpuplugin.kubelet.fake import KINDS, Kubelet, until

GPU = "nvidia.com/gpu"
LIST = [{"ID": "GPU-0", "health": "Healthy"}, {"ID": "GPU-1", "health": "Unhealthy"}]
SEEN = {one["ID"]: one["health"] for one in LIST}


def give(request: dict[str, Any]) -> dict[str, Any]:
    for one in request["devices_ids"]:
        if one not in SEEN:
            raise GpushimError(f"there is no device {one}", FAILED)
    return {"envs": {"NVIDIA_VISIBLE_DEVICES": ",".join(request["devices_ids"])}}


def prefer(request: dict[str, Any]) -> dict[str, Any]:
    return {"deviceIDs": request["available_deviceIDs"][: request["allocation_size"]]}


@contextlib.asynccontextmanager
async def plugin(folder: Path, others: Callable[[], bool] = lambda: False) -> AsyncIterator[Endpoint]:
    """An endpoint, attended as the daemon attends it."""
    endpoint, watch, loop = Endpoint(str(folder), GPU, give, prefer, others), Watch(), asyncio.get_running_loop()
    endpoint.offer(LIST)
    watch.add(endpoint.folder)
    endpoint.watched = lambda: watch.tells(endpoint.folder)

    def listed() -> None:
        watch.changed()
        endpoint.changed.set()

    loop.add_reader(watch.fd, listed)
    task = asyncio.create_task(endpoint.keep())
    try:
        yield endpoint
    finally:
        loop.remove_reader(watch.fd)
        task.cancel()
        await endpoint.stop()
        watch.close()


@contextlib.asynccontextmanager
async def both(folder: Path, kind: str = "1.36") -> AsyncIterator[tuple[Kubelet, Endpoint]]:
    """A kubelet that knows the plugin's resource."""
    kubelet = Kubelet(folder, kind)
    await kubelet.start()
    try:
        async with plugin(folder) as endpoint:
            await until(lambda: knows(kubelet))
            yield kubelet, endpoint
    finally:
        await kubelet.stop()


def knows(kubelet: Kubelet) -> bool:
    return kubelet.lists.get(GPU) == SEEN and GPU in kubelet.clients


def sockets(folder: Path) -> list[str]:
    """The sockets of plugins, by their lasting names."""
    found = (path.name for path in folder.iterdir() if path.is_socket() and path.name != "kubelet.sock")
    return sorted(name for name in found if not name.startswith("."))


@pytest.mark.parametrize("turns", range(5))
def test_it_ends_even_if_something_changes_just_then(folder: Path, turns: int) -> None:
    async def run() -> None:
        endpoint = Endpoint(str(folder), GPU, give, prefer)
        task = asyncio.create_task(endpoint.keep())
        await until(lambda: sockets(folder) != [])
        await asyncio.sleep(0.05)
        endpoint.changed.set()
        for _ in range(turns):  # of the loop, each of which may be the one before it has noticed
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=2)
        assert task.cancelled()
        await endpoint.stop()

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_it_registers_lists_and_answers(folder: Path, kind: str) -> None:
    async def run() -> None:
        async with both(folder, kind) as (kubelet, endpoint):
            assert kubelet.clients[GPU].options["get_preferred_allocation_available"]
            answer = await kubelet.allocate(GPU, "GPU-0")
            assert answer["envs"] == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
            with pytest.raises(grpc.aio.AioRpcError, match="there is no device GPU-7"):
                await kubelet.allocate(GPU, "GPU-7")
            endpoint.offer([])
            await until(lambda: kubelet.lists[GPU] == {})
            assert sockets(folder) == ["gpushim-gpu.sock"]
            assert len(kubelet.registered) == 1
        assert sockets(folder) == []

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clean", [True, False])
def test_kubelet_restarts(folder: Path, clean: bool, kind: str) -> None:
    async def run() -> None:
        async with both(folder, kind) as (kubelet, _):
            for _ in range(3):
                await kubelet.stop(clean)
                await asyncio.sleep(0.1)  # it is away for a while
                await kubelet.start()
                assert await until(lambda: knows(kubelet)) < 1
            assert len(kubelet.registered) == 4

    asyncio.run(run())


@pytest.mark.parametrize(("watched", "often"), [(True, False), (False, True)])
def test_what_kubelet_has_is_looked_at_rarely_where_somebody_tells_of_changes(
    folder: Path, watched: bool, often: bool
) -> None:
    async def run() -> None:
        async with both(folder) as (_, endpoint):
            endpoint.watched = lambda: watched
            await until(lambda: endpoint.listed)
            pause = await endpoint.attend()
            assert (pause <= POLL) is often

    asyncio.run(run())


@pytest.mark.parametrize("stale", [True, False])
def test_kubelet_comes_late(folder: Path, stale: bool) -> None:
    async def run() -> None:
        kubelet = Kubelet(folder)
        if stale:
            await kubelet.start()
            await kubelet.stop(clean=False)
        async with plugin(folder):
            await until(lambda: sockets(folder))
            await kubelet.start()
            assert await until(lambda: knows(kubelet)) < 1
            await kubelet.stop()

    asyncio.run(run())


def test_its_own_socket_is_deleted(folder: Path) -> None:
    async def run() -> None:
        async with both(folder) as (kubelet, _):
            (folder / "gpushim-gpu.sock").unlink()
            await until(lambda: sockets(folder) == ["gpushim-gpu.sock"])
            await until(lambda: len(kubelet.registered) == 2)
            assert knows(kubelet)
            assert (await kubelet.allocate(GPU, "GPU-0"))["envs"]

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first_ends", [True, False])
def test_two_instances_overlap(folder: Path, first_ends: bool, kind: str) -> None:
    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            kubelet = Kubelet(folder, kind)
            await kubelet.start()
            stack.push_async_callback(kubelet.stop)
            first, second = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
            await first.enter_async_context(plugin(folder))
            await until(lambda: knows(kubelet))
            await second.enter_async_context(plugin(folder))
            # Not before kubelet reads the second's list; an old one has then closed the first's connection itself.
            old = kind == "old"
            await until(lambda: kubelet.ended == old and len(kubelet.reading) == 2 - old and knows(kubelet))
            # That of 1.36 closes the second's connection when the first's list ends.
            counts = {"old": [(3, 2), (2, 1)], "1.36": [(3, 1), (3, 2)], "1.37": [(3, 1), (2, 1)]}
            times, ends = counts[kind][first_ends]
            going, staying = (first, second) if first_ends else (second, first)
            stack.push_async_callback(staying.aclose)
            await going.aclose()
            await until(lambda: len(kubelet.registered) >= times and kubelet.ended >= ends and knows(kubelet))
            assert sockets(folder) == ["gpushim-gpu.sock"]
            assert (await kubelet.allocate(GPU, "GPU-0"))["envs"]

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["1.36", "1.37"])
def test_the_end_of_an_older_instance_takes_nothing_from_kubelet(folder: Path, kind: str) -> None:
    async def run() -> None:
        kubelet, old = Kubelet(folder, kind), contextlib.AsyncExitStack()
        await kubelet.start()
        await old.enter_async_context(plugin(folder))
        await until(lambda: knows(kubelet))
        others = [True]
        async with plugin(folder, lambda: bool(others)) as new:
            await until(lambda: new.listed)
            kubelet.lists = Remembered(kubelet.lists)
            await old.aclose()
            await until(lambda: kubelet.ended == 1)
            others.clear()
            await until(lambda: len(kubelet.registered) == 4 and len(kubelet.reading) == 2)
            assert kubelet.lists.worse == []
            assert knows(kubelet)
        await until(lambda: not knows(kubelet))  # its own end is noticed
        await kubelet.stop()

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_it_registers_again_while_kubelet_reads_its_list(folder: Path, kind: str) -> None:
    async def run() -> None:
        kubelet = Kubelet(folder, kind)
        await kubelet.start()
        async with plugin(folder) as endpoint:
            for times in (1, 2, 3):
                await until(lambda: len(kubelet.registered) == times and endpoint.listed and knows(kubelet))  # noqa: B023
                endpoint.forgotten()
        await until(lambda: not knows(kubelet))  # its end is noticed
        await kubelet.stop()

    asyncio.run(run())


class Remembered(dict[str, Any]):
    """Lists of a kubelet, and those among them by which no device is well."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__(found)
        self.worse: list[Any] = []

    def __setitem__(self, name: str, listed: Any) -> None:
        super().__setitem__(name, listed)
        if "Healthy" not in listed.values():
            self.worse.append(listed)


def test_who_was_taken_over_tells_no_news(folder: Path) -> None:
    async def run() -> None:
        async with both(folder) as (kubelet, first), plugin(folder) as second:
            await until(lambda: len(kubelet.reading) == 2)
            await asyncio.sleep(0.1)  # the first has seen what is at its path
            second.offer(LIST[:1])
            await until(lambda: kubelet.lists[GPU] == {"GPU-0": "Healthy"})
            first.offer([])
            await asyncio.sleep(0.1)
            assert kubelet.lists[GPU] == {"GPU-0": "Healthy"}

    asyncio.run(run())


def test_a_link_to_another_socket_is_no_instance(folder: Path) -> None:
    async def run() -> None:
        async with both(folder) as (kubelet, _):
            path = folder / "gpushim-gpu.sock"
            path.unlink()
            path.symlink_to(kubelet.socket)
            await until(path.is_symlink)
            await until(lambda: not path.is_symlink() and len(kubelet.registered) == 2)

    asyncio.run(run())


def test_a_kubelet_that_ends_as_it_is_dialled_is_dialled_again_soon(folder: Path) -> None:
    async def run() -> None:
        dying = await asyncio.start_unix_server(lambda _, writer: writer.close(), f"{folder}/kubelet.sock")
        endpoint = Endpoint(str(folder), GPU, give, prefer)
        assert await endpoint.attend() == 0.05
        dying.close()
        await endpoint.stop()

    asyncio.run(run())


def test_the_directory_is_removed_and_made_anew(folder: Path) -> None:
    async def run() -> None:
        async with both(folder) as (kubelet, _):
            await kubelet.stop()
            shutil.rmtree(folder)
            await asyncio.sleep(0.1)
            folder.mkdir()
            await kubelet.start()
            await until(lambda: knows(kubelet))

    asyncio.run(run())


def test_a_directory_that_becomes_a_link_is_said_once_and_is_used_when_it_is_one_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with both(folder) as (_, endpoint):
            aside = folder.with_name(folder.name + "-aside")
            folder.rename(aside)
            folder.symlink_to(aside)
            os.unlink(aside / Path(endpoint.path).name)  # as a kubelet does that starts
            for _ in range(3):
                endpoint.changed.set()
                await asyncio.sleep(0.05)
            words = [one.getMessage() for one in caplog.records]
            assert [one for one in words if "made" in one] == [
                f"the socket {endpoint.path} cannot be made: {folder} is a link, which is not followed; "
                "mount the directory there instead"
            ]
            folder.unlink()
            aside.rename(folder)
            endpoint.changed.set()
            await until(lambda: sockets(folder) == [endpoint.path.rpartition("/")[2]])
            assert f"{endpoint.path} was gone, and is made again" in caplog.messages

    asyncio.run(run())


def test_a_refusal_is_one_short_line_without_controls(folder: Path) -> None:
    async def run() -> None:
        kubelet = Kubelet(folder, refuses="no\x1b[2J\nforged\u202e" + "x" * 5000)
        await kubelet.start()
        endpoint = Endpoint(str(folder), GPU, give, prefer)
        try:
            with pytest.raises(GpushimError, match=r": no\\x1b\[2J\\nforged\\u202ex{400,500}$"):
                await endpoint.attend()
        finally:
            await endpoint.stop()
            await kubelet.stop()

    asyncio.run(run())


def test_a_call_for_very_many_containers_is_refused(folder: Path) -> None:
    async def run() -> None:
        async with both(folder) as (kubelet, _):
            names = ("AllocateRequest", "AllocateResponse")
            for number in (100, 101):
                request = {"container_requests": [{"devices_ids": ["GPU-0"]}] * number}
                with (
                    contextlib.nullcontext()
                    if number == 100
                    else pytest.raises(
                        grpc.aio.AioRpcError, match="kubelet asks for 101 containers at a time; ask for one"
                    )
                ):
                    await kubelet.clients[GPU].call("Allocate", request, names)

    asyncio.run(run())


def test_without_a_free_descriptor_every_socket_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    assert not is_listening("/nowhere.sock")
    monkeypatch.setattr(socket, "socket", none)
    assert is_listening("/nowhere.sock")
