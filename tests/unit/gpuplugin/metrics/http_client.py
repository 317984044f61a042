"""A client of the metrics server."""

from __future__ import annotations

import asyncio


async def ask(path: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(data)
    found = await asyncio.wait_for(reader.read(), 8)
    writer.close()
    return found


def get(path: str, *rows: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *rows, "", ""]).encode()
