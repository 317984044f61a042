"""A device plugin of somebody else's, that may take our resource's name; it has a device that no host has.

It is told kubelet's directory, a resource, and the seconds that an Allocate takes; without these it has none.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc

from gpuplugin.kubelet.v1beta1 import (
    DEVICE_PLUGIN,
    HEALTHY,
    REGISTER,
    VERSION,
    reader,
    writer,
)
from gpushim.containers.kubelet import KUBELET_SOCKET

DEVICE, SOCKET = "somebody-elses", "somebody-elses.sock"
CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


def serve(folder: str, resource: str, seconds: str = "") -> None:
    """Register the resource, and say so when kubelet has the list; serve until killed."""

    def watched(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield writer("ListAndWatchResponse")({"devices": [{"ID": DEVICE, "health": HEALTHY}]})
        print("listed", flush=True)
        threading.Event().wait()

    def allocate(_: bytes, __: object) -> bytes:
        time.sleep(float(seconds))
        return b"\x0a\x00"  # of one container: nothing

    empty = grpc.unary_unary_rpc_method_handler(lambda _, __: b"")
    methods = {"GetDevicePluginOptions": empty, "ListAndWatch": grpc.unary_stream_rpc_method_handler(watched)}
    if seconds:
        methods["Allocate"] = grpc.unary_unary_rpc_method_handler(allocate)
    Path(folder, SOCKET).unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(DEVICE_PLUGIN, methods),))
    server.add_insecure_port(f"unix:{folder}/{SOCKET}")
    server.start()
    with grpc.insecure_channel(f"unix:{folder}/{KUBELET_SOCKET}", options=CHANNEL) as channel:
        request = {"version": VERSION, "endpoint": SOCKET, "resource_name": resource}
        channel.unary_unary(REGISTER, writer("RegisterRequest"), reader("Empty"))(request, timeout=15)
    server.wait_for_termination()


if __name__ == "__main__":
    serve(*sys.argv[1:])
