"""Ask this node's gpushim-device-plugin, by its socket in the state directory: one line of JSON each way.

Imports nothing of the plugin's. Out of scope: what is answered (gpuplugin.control.control), and what is made of it.
"""

from __future__ import annotations

import os
import socket
import time

SOCKET = "device-plugin.sock"  # in the state directory, as the plugin has it
LIMIT = 64 << 20  # bytes of an answer


def exchange(folder: str, question: bytes, seconds: float) -> bytes:
    """Send a line to the socket in a directory, however long its path, and read one.

    Args:
        folder: the state directory.
        question: with its newline.
        seconds: for all of it: who answers byte by byte gets no more.

    Raises:
        socket.timeout: it took longer.
        OSError: nobody listens, or it cannot be asked.
    """
    end = time.monotonic() + seconds
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(seconds)
            client.connect(f"/proc/self/fd/{fd}/{SOCKET}")
            client.sendall(question)
            data = bytearray()
            while not data.endswith(b"\n") and len(data) < LIMIT:
                client.settimeout(max(end - time.monotonic(), 0.001))
                more = client.recv(1 << 16)
                if not more:
                    break
                data += more
            return bytes(data)
    finally:
        os.close(fd)
