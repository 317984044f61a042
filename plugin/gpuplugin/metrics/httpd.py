"""Answers a few paths over HTTP, to scrapers and probes that may be slow, hostile or many.

Bounded in what each may send, in time and in how many there are at once; one request a connection. Every answer is
made elsewhere, from memory, and sent in pieces, so that kubelet's calls in the same loop wait for none of them.
Source: RFC 9112, of which it reads the first line, Accept, Authorization and where the head ends. TLS is for proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.kubelet.sockets import identity, is_listening, is_socket, listen_privately
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gpuplugin.kubelet.sockets import Identity

    # From the path, and the values of Accept and Authorization.
    Answers = Callable[[str, str, str], Awaitable["Answer"]]

UNIX = "unix:"
HEAD = 8192  # bytes of a request, most
ASKING, READING = 2.0, 5.0  # seconds for a request to come, and for its answer to be read
CLIENTS = 32  # at a time; one more, and the oldest of the address that has most of them has to go
PIECE = 1 << 16  # bytes that are written at a time
AGAIN = 5.0  # seconds between tries to listen
OTHER = "the setting metrics, settings.metrics of the chart, chooses another place"
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Answer:
    """An answer: its status, its body, and the body's type."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


class RefusedError(Exception):
    """A request that is refused with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(REASONS[status])
        self.answer = Answer(status, REASONS[status].encode() + b"\n")


class Httpd:
    """A server at one address.

    Attributes:
        problem: why it does not listen; or "".
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._address, self.problem, self._next = "", "", 0.0  # time.monotonic()
        self._server: asyncio.AbstractServer | None = None
        self._inode: Identity | None = None
        self._clients: dict[asyncio.StreamWriter, str] = {}  # that have no whole answer yet: addresses, oldest first

    async def attend(self, address: str) -> None:
        """Listen at this address, "" for none, and log once why that fails."""
        if address != self._address:
            self.stop()
            self._address, self.problem, self._next = address, "", 0.0
        path = _path(address)
        listens = self._server is not None and (not path or identity(path) == self._inode)
        if not address or listens or time.monotonic() < self._next:
            return
        self._next, problem = time.monotonic() + AGAIN, ""
        try:
            await (self._bind_unix(path) if path else self._bind(address))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own words are longer
            problem = f"metrics cannot be served at {address}: {reason}; retrying, and {OTHER}"
        if problem and problem != self.problem:
            logger.error("%s", problem)
        elif not problem:
            logger.info("metrics are served at %s", address)
        self.problem = problem

    async def _bind(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        server = await asyncio.start_server(
            self._serve, host.strip("[]") or None, int(port), limit=HEAD, backlog=CLIENTS
        )
        if not server.sockets:  # asyncio skips families of which this process may have no socket, be it all of them
            server.close()
            raise OSError(
                errno.EAFNOSUPPORT, "this process may have no such socket; see RestrictAddressFamilies of its unit"
            )
        self._server = server

    async def _bind_unix(self, path: str) -> None:
        """Listen at a path that root alone may connect to, in the place of a socket that nobody listens at."""
        if is_socket(path):
            if is_listening(path):
                raise OSError(98, "another process listens there")
        elif os.path.lexists(path):
            raise OSError(17, "something is in the way that is not a socket; remove it")
        self.stop()
        server, self._inode = listen_privately(path, CLIENTS)
        self._server = await asyncio.start_unix_server(self._serve, sock=server, limit=HEAD)

    def stop(self) -> None:
        """Stop listening, and remove the socket if it is ours."""
        if self._server is None:
            return
        path = _path(self._address)
        if path and identity(path) == self._inode:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._server.close()
        self._server = None
        for writer in [*self._clients]:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients[writer] = (writer.get_extra_info("peername") or [""])[0]
        if len(self._clients) > CLIENTS:
            self._drop_oldest()
        try:
            await asyncio.wait_for(self._send(writer, *await self._answer(reader)), READING)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):  # it has gone, or does not read
            writer.transport.abort()
        finally:
            self._clients.pop(writer, None)
            writer.close()

    def _drop_oldest(self) -> None:
        """Make room, so that no flood out of one pod keeps the probes of kubelet and Prometheus from an answer."""
        crowd = Counter(self._clients.values()).most_common(1)[0][0]
        oldest = next(writer for writer, address in self._clients.items() if address == crowd)
        del self._clients[oldest]
        oldest.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[Answer, bool]:
        """Read a request; return its answer, and whether the body is wanted."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ASKING)
            method, *request = _read(head)
        except asyncio.LimitOverrunError:
            return RefusedError(431).answer, True
        except asyncio.TimeoutError:
            return RefusedError(408).answer, True
        except RefusedError as error:
            return error.answer, True
        return await self._answers(*request), method == "GET"

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer, with_body: bool) -> None:
        head = (
            f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\nContent-Type: {answer.kind}\r\n"
            f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n"
            + ("WWW-Authenticate: Bearer\r\n\r\n" if answer.status == 401 else "\r\n")
        )
        writer.transport.set_write_buffer_limits(0)  # `drain` waits until all is with the kernel
        writer.write(head.encode())
        for start in range(0, len(answer.body) if with_body else 0, PIECE):
            writer.write(answer.body[start : start + PIECE])
            await writer.drain()
        await writer.drain()


def _read(head: bytes) -> tuple[str, str, str, str]:
    """Return method, path, Accept and Authorization of a request.

    Raises:
        RefusedError: it is none, or another method than GET and HEAD.
    """
    first, *rows = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise RefusedError(400)
    if words[0] not in ("GET", "HEAD"):
        raise RefusedError(405)
    accept, authorization = (
        ",".join(row.partition(":")[2].strip() for row in rows if row.lower().startswith(name))
        for name in ("accept:", "authorization:")
    )
    return words[0], words[1].partition("?")[0], accept, authorization


def _path(address: str) -> str:
    return address[len(UNIX) :] if address.startswith(UNIX) else ""
