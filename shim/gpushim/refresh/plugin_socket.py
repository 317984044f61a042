"""Ask this node's gpushim-device-plugin, by its socket in the state directory: one line of JSON each way.

That is the program for both fronts, and gpushim-dra-driver, too.

A refresh asks it before it removes a CDI spec whose devices kubelet may still give to pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

SOCKET = "device-plugin.sock"  # in the state directory, as the plugin has it
LIMIT = 64 << 20  # bytes of an answer
STATUS = b'{"do": "status"}\n'
PAUSE = 0.1  # seconds between two questions


def exchange(folder: str, question: bytes, seconds: float) -> bytes:
    """Send a line to the socket in a directory, however long its path, and read one.

    Raises:
        socket.timeout: the whole took longer, however often a byte came.
        OSError: nothing listens, or it cannot be asked.
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
                chunk = client.recv(1 << 16)
                if not chunk:
                    break
                data += chunk
            return bytes(data)
    finally:
        os.close(fd)


def status(folder: str, seconds: float) -> dict[str, Any]:
    """Return what the plugin says of itself; nothing where none runs, none may be asked, or it is not understood."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        answer = json.loads(exchange(folder, STATUS, seconds))
        return answer if isinstance(answer, dict) else {}
    return {}


def wait_for_unhealthy(folder: str, seconds: float) -> bool:
    """Wait until the plugin, which sees the snapshot by itself, has told kubelet that no device is healthy.

    Returns:
        whether it has; True at once where no plugin listens, False after an answer that is not understood.
    """
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        try:
            answer = json.loads(exchange(folder, STATUS, remaining))
            if not any(device["healthy"] for resource in answer["resources"] for device in resource["devices"]):
                return True
        except (FileNotFoundError, ConnectionRefusedError):
            return True
        except (OSError, ValueError, KeyError, TypeError):  # it is late, closes, or is another program
            return False
        time.sleep(PAUSE)
    return False
