"""A run of the child process that watches NVML's events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from unit.gpuplugin.watched import Heard


def run(heard: Heard, body: Callable[[], Awaitable[Any]]) -> None:
    async def whole() -> None:
        heard.child.begin()
        try:
            await body()
        finally:
            assert await heard.child.stop()

    asyncio.run(whole())
