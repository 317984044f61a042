"""What the half with the token does for claims: it publishes what the half on the node offers, and reads claims.

It connects to a socket that the node half makes, and gets and sends lines of JSON. Node to cluster:
{"api": {"path", "server", "ca", "name", "cert", "key", "token": ...}}, what a package's kubeconfig says,
{"pool": {"slices": [[device, ...], ...]}} to be published, {"pool": null} (leave what is there),
{"claim": n, "namespace": ..., "name": ..., "uid": ...}.
Cluster to node: {"claim": n, "object" | "absent" | "error": ...},
{"published": {"generation": n, "problem": sentence, "dropped": [field, ...]}}.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from gpushim.ground.bounds import CLAIM_DEPTH, CLAIM_LINE
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.ground.nesting import deeper
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplugin.cluster.access import RelayedAccess
    from gpuplugin.cluster.claims import Claims
    from gpuplugin.cluster.slices import Slices

LOOK = 3.0  # seconds between looks at whether the socket is still the one of that name
SEND = 10  # seconds for the other side to take a line


class Link:
    """The connection to the node half.

    Args:
        access: gets what the node half sends of the API server.

    Attributes:
        slices: get the pools that are desired.
    """

    slices: Slices
    claims: Claims

    def __init__(self, path: str, access: RelayedAccess) -> None:
        self._path, self._access = path, access
        self._sending = threading.Lock()
        self._connected: socket.socket | None = None

    def follow(self) -> Iterator[None]:
        """Handle the node half's lines until the connection ends.

        Raises:
            GpushimError: there is no socket, or a line is no JSON.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            identity = trust.identity(self._path)
            try:
                connected.connect(self._path)
            except OSError as error:
                reason = error.strerror or error
                raise GpushimError(
                    f"{self._path} cannot be reached: {reason}; the node half makes it", FAILED
                ) from None
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND, 0))
            self._connected = connected
            try:
                for line in self._lines(connected, identity):
                    self._take(line, connected)
                    yield
            finally:
                self.slices.want(None)
                with self._sending:
                    self._connected = None

    def _lines(self, connected: socket.socket, identity: object) -> Iterator[bytearray]:
        buffer = bytearray()
        while (trust.identity(self._path) or ())[:2] == (identity or ())[:2]:  # type: ignore[index]
            if not select.select([connected], [], [], LOOK)[0]:
                continue
            try:
                part = connected.recv(1 << 16)
            except OSError:
                return
            if not part:
                return
            buffer += part
            if b"\n" in part:
                *lines, buffer = buffer.split(b"\n")
                yield from lines
            if len(buffer) > CLAIM_LINE:
                raise GpushimError(f"{self._path} sends a line of more than {CLAIM_LINE >> 20} MiB", FAILED)

    def _take(self, line: bytearray, connected: socket.socket) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict) and isinstance(message.get("claim"), int):
            self.claims.ask(message, lambda answer: self.send(answer, connected))
        elif isinstance(message, dict) and "pool" in message and _is_pool(message["pool"]):
            self.slices.want(message["pool"] and message["pool"]["slices"])
        elif isinstance(message, dict) and "api" in message:
            self._access.take(message["api"])
        else:
            raise GpushimError(f"{self._path} sends a line that is not understood", FAILED)

    def send(self, message: dict[str, Any], connected: socket.socket | None = None) -> None:
        """Send a line; drop it if there is no connection, or another one than was meant."""
        try:
            line = _line(message)
        except GpushimError as error:
            line = _line({"claim": message.get("claim"), "error": str(error)})
        with self._sending:
            current = self._connected
            if current is None or (connected is not None and connected is not current):
                return
            try:
                current.sendall(line)
            except OSError:  # half a line may have gone
                with contextlib.suppress(OSError):
                    current.shutdown(socket.SHUT_RDWR)


def _line(message: dict[str, Any]) -> bytes:
    """Return a line that the node half reads; one about a claim, which others write, may have to be refused.

    Raises:
        GpushimError: it is too large, or too deep.
    """
    try:
        line = json.dumps(message).encode() + b"\n"
        deep = deeper(line, CLAIM_DEPTH)
    except RecursionError:
        line, deep = b"", True
    if len(line) > CLAIM_LINE:
        raise GpushimError(f"the claim has more than {CLAIM_LINE >> 20} MiB", FAILED)
    if deep:
        raise GpushimError("a config of the claim is nested too deep", FAILED)
    return line


def _is_pool(pool: Any) -> bool:
    if pool is None:
        return True
    slices = pool.get("slices") if isinstance(pool, dict) else None
    return isinstance(slices, list) and all(
        isinstance(devices, list) and all(isinstance(device, dict) for device in devices) for devices in slices
    )
