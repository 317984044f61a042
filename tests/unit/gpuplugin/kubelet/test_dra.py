"""The DRA driver as kubelet's one connection finds it while calls wait."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpuplugin.kubelet import dra
from gpushim.containers import protobuf

OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


async def story(folder: Path, waiting: int) -> None:
    begun, answer = asyncio.Semaphore(0), asyncio.Event()

    async def prepare(claims: Any) -> dict[str, Any]:
        begun.release()
        await answer.wait()
        return {one["uid"]: "no" for one in claims}

    async def unprepare(claims: Any) -> None:
        pass

    one = dra.Driver("d", str(folder), prepare, unprepare, list, lambda: None)
    (folder / "plugins_registry").mkdir()
    await one.attend()
    (path,) = Path(one.folder).glob("*.sock")
    async with grpc.aio.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:

        def call(method: str, answered: str) -> Any:
            encode, decode = (partial(do, dra.MESSAGES) for do in (protobuf.encode, protobuf.decode))
            work = channel.unary_unary(
                f"/{dra.PREPARING[0]}/{method}", partial(encode, "Claims"), partial(decode, answered)
            )
            return work({"claims": [{"namespace": "n", "uid": "u", "name": "c"}]}, timeout=20)

        calls = [call("NodePrepareResources", "PreparedClaims") for _ in range(waiting)]
        for _ in calls:
            await asyncio.wait_for(begun.acquire(), 20)
        found = await call("NodeUnprepareResources", "UnpreparedClaims")
        answer.set()
        assert {row["claims"][0]["key"] for row in [found, *await asyncio.gather(*calls)]} == {"u"}
    await one.stop()


@pytest.mark.parametrize("waiting", [1, 250])
def test_unprepare_does_not_wait_for_prepares(folder: Path, waiting: int) -> None:
    """250: pods of a large node, which all wait for an API server, or for MPS."""
    asyncio.run(story(folder, waiting))
