"""A plugin of kubelet's, as far as it tells who it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpuplugin.kubelet.plugins import DRIVER
from gpuplugin.kubelet.v1beta1 import GET_INFO, reader, writer


@contextlib.asynccontextmanager
async def driver(
    path: Path, name: str = "gpu.nvidia.com", kind: str = DRIVER, slow: float = 0
) -> AsyncIterator[None]:
    """Listen at a path until the block ends; the socket stays, as that of a driver that was killed."""

    async def info(request: Any, context: Any) -> dict[str, Any]:
        await asyncio.sleep(slow)
        return {"type": kind, "name": name, "endpoint": "/x", "supported_versions": ["v1.DRAPlugin"]}

    path.parent.mkdir(exist_ok=True)
    service, _, method = GET_INFO[1:].partition("/")
    serve = grpc.unary_unary_rpc_method_handler(info, reader("Empty"), writer("PluginInfo"))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: serve}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    kept = path.with_name(f".{path.name}")
    os.link(path, kept)
    try:
        yield
    finally:
        await server.stop(0)
        kept.replace(path)
