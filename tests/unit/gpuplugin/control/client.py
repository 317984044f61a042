"""A client of the plugin's control socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gpuplugin.control.control import near


async def ask(folder: Path, data: bytes) -> Any:
    with near(str(folder)) as path:
        reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
    line = asyncio.wait_for(reader.readline(), 5)  # and no more, as gpushim: behind a refusal the connection is reset
    writer.write(data)
    answer = json.loads(await line)
    writer.close()
    return answer


async def do(top: Path, word: str) -> Any:
    return await ask(top / "state", b'{"do": "%s"}\n' % word.encode())
