"""What whoever connects can make of it: many streams, big messages, lists that are not read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpuplugin.kubelet import service
from gpuplugin.kubelet.service import Service
from gpuplugin.kubelet.sockets import Listener
from gpuplugin.kubelet.v1beta1 import DEVICE_PLUGIN, reader, writer
from unit.gpuplugin.kubelet.fake import OPTIONS, until

LIST = [{"ID": "GPU-0", "health": "Healthy"}]
BIG = [{"ID": f"GPU-{number:059}", "health": "Healthy"} for number in range(10000)]  # 0.8 MiB


@pytest.fixture
def path(folder: Path) -> str:
    return f"{folder}/gpushim-gpu.sock"


@contextlib.asynccontextmanager
async def serving(path: str) -> AsyncIterator[tuple[Service, grpc.aio.Channel]]:
    """A service, and a channel to it."""
    served, listener = Service("nvidia.com/gpu", lambda request: {"envs": {}}, dict, lambda: None), Listener(path)
    served.offer(LIST)
    await listener.bind(served.handlers(listener))
    channel = grpc.aio.insecure_channel(f"unix:{path}", options=OPTIONS)
    try:
        yield served, channel
    finally:
        await channel.close()
        await listener.stop()


def listed(channel: grpc.aio.Channel) -> Any:
    return channel.unary_stream(f"/{DEVICE_PLUGIN}/ListAndWatch", writer("Empty"), reader("ListAndWatchResponse"))({})


async def allocated(channel: grpc.aio.Channel, *ids: str) -> Any:
    call = channel.unary_unary(f"/{DEVICE_PLUGIN}/Allocate", writer("AllocateRequest"), reader("AllocateResponse"))
    return await call({"container_requests": [{"devices_ids": ids}]}, timeout=5)


def test_of_too_many_readers_the_oldest_goes(path: str) -> None:
    async def run() -> None:
        async with serving(path) as (served, channel):
            streams = []
            for _ in range(service.READERS + 4):
                streams.append(listed(channel))
                assert (await streams[-1].read())["devices"][0]["ID"] == "GPU-0"
            assert [await one.read() is grpc.aio.EOF for one in streams[:4]] == [True] * 4
            await until(lambda: len(served.readers) == service.READERS)
            served.offer([])
            assert (await streams[-1].read())["devices"] == []

    asyncio.run(run())


def test_who_does_not_read_holds_nobody_up(path: str) -> None:
    async def run() -> None:
        async with serving(path) as (served, channel):
            lazy = listed(channel)
            await until(lambda: len(served.readers) == 1)
            for turn in range(5):
                served.offer(BIG[turn:])
                assert (await allocated(channel, "GPU-0"))["container_responses"]
            lists = [await lazy.read() for _ in range(2)]
            assert len(lists[-1]["devices"]) < len(BIG) + 1  # none waited in a queue but what is on its way

    asyncio.run(run())


def test_a_message_too_big_is_refused(path: str) -> None:
    async def run() -> None:
        async with serving(path) as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await allocated(channel, "x" * (5 << 20))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await allocated(channel, "GPU-0")

    asyncio.run(run())


def test_a_list_is_told_once_more_to_who_came_last(path: str) -> None:
    async def run() -> None:
        async with serving(path) as (served, channel):
            old = listed(channel)
            assert (await old.read())["devices"]
            new = listed(channel)
            assert (await new.read())["devices"]
            served.repeat()
            assert len((await new.read())["devices"]) == 1
            assert served.listed
            served.offer([])
            assert (await old.read())["devices"] == (await new.read())["devices"] == []
            assert old.cancel()
            assert new.cancel()

    asyncio.run(run())


def test_no_news_while_another_instance_speaks(path: str) -> None:
    async def run() -> None:
        async with serving(path) as (served, channel):
            stream = listed(channel)
            assert len((await stream.read())["devices"]) == 1
            served.set_quiet(True)
            served.offer([])
            assert (await listed(channel).read())["devices"] == []  # who comes gets what there is
            late = asyncio.create_task(stream.read())
            await asyncio.sleep(0.1)
            assert not late.done()
            served.set_quiet(False)
            assert (await late)["devices"] == []

    asyncio.run(run())
