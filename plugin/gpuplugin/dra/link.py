"""The socket to the other half, which has the token: it is sent what to publish, and asked for claims.

Both send lines of JSON; gpuplugin/cluster/dra_in_cluster.py lists them. The kernel says who connects. Only the newest
client is served. What it says of a claim comes from strangers, so claim.py checks it; an answer that cannot be read
fails that claim alone.
Out of scope: what is published, and the API server.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.kubelet import sockets
from gpuplugin.kubelet.sockets import identity
from gpuplugin.processes.peer_unit import is_of_unit
from gpushim.ground.bounds import CLAIM_DEPTH, CLAIM_LINE
from gpushim.ground.errors import FAILED, GpushimError, visible
from gpushim.ground.logs import logger
from gpushim.ground.nesting import deeper

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from gpuplugin.kubelet.sockets import Identity

PUBLISHED = 64 << 10  # bytes of a line that is kept
ERROR = 500  # characters
GENERATIONS = 1 << 63  # of a pool, fewer than these (int64)
CLIENTS = 4  # that wait, of which one counts
PAUSE = 0.1  # seconds from one client to the next: whoever comes again and again costs little
STAYS = 60.0  # seconds; what is wrong with clients is logged once, until one has stayed so long
ANSWER = 30.0  # seconds for a claim; kubelet waits for 45
_CLAIM = re.compile(rb'\{"claim": ?([0-9]{1,18}),')  # begins an answer


class LinkSocket(NamedTuple):
    """Where the halves meet.

    Attributes:
        path: of the socket.
        user: number of the user who may connect, beside root.
        unit: of systemd that whoever connects has to be in, besides; "" for any, or none.
    """

    path: str
    user: int
    unit: str = ""


class Link:
    """The socket.

    Args:
        options: of the socket, where the halves meet.
        start: starts a coroutine as a task.
        changed: is called when the other half has published something, or is gone.

    Attributes:
        published: what the other half said last of its slices: "generation" and "problem"; or nothing.
    """

    def __init__(
        self, options: LinkSocket, start: Callable[[Any], asyncio.Task[Any]], changed: Callable[[], object]
    ) -> None:
        (self.path, self._user, self._unit), self._start, self._changed = options, start, changed
        self.published: Mapping[str, Any] = {}
        self._logged: set[str] = set()
        self._accepting: asyncio.Task[Any] | None = None
        self._inode: Identity | None = None
        self._client: asyncio.StreamWriter | None = None
        self._asked: dict[int, tuple[asyncio.Future[Any], bytes]] = {}
        self._number = 0
        self._desired: list[list[dict[str, Any]]] | None = None
        self._pool, self._api = _line({"pool": None}), b""

    @property
    def connected(self) -> bool:
        """Whether the other half is there."""
        return self._client is not None

    async def attend(self) -> None:
        """See to it that the socket is there.

        Raises:
            GpushimError: it cannot be made.
        """
        if self._accepting and identity(self.path) == self._inode:
            return
        try:
            # The other half is not root; `_admit` says who is let in. It may have put a link where the socket was.
            listening, inode = sockets.listen_privately(self.path, CLIENTS, 0o666)
        except OSError as error:
            raise GpushimError(f"the socket {self.path} cannot be made: {error.strerror or error}", FAILED) from None
        if self._accepting:
            self._accepting.cancel()
        self._inode = inode
        listening.setblocking(False)
        self._accepting = self._start(self._accept(listening))
        self._accepting.add_done_callback(lambda _: listening.close())

    def stop(self) -> None:
        """Serve no more."""
        if self._accepting:
            self._accepting.cancel()
        if self._client:
            self._client.close()
        if self._inode and identity(self.path) == self._inode:
            os.unlink(self.path)

    def tell(self, slices: list[list[dict[str, Any]]] | None) -> None:
        """Have these slices published from now on, and no others; None: have nothing written.

        Args:
            slices: devices of each.
        """
        if slices == self._desired:  # mostly of the same objects, which costs less than a line
            return
        self._desired = slices
        self._pool = _line({"pool": None if slices is None else {"slices": slices}})
        self._send(self._pool)

    def lend(self, access: dict[str, str] | None) -> None:
        """Have the other half ask the API server with this; None: with what its pod has."""
        line = _line({"api": access}) if access or self._api else b""
        if line != self._api:
            self._api = line
            self._send(line)

    async def claim(self, request: Mapping[str, str]) -> dict[str, Any] | None:
        """Return a claim as the API server has it; None if it does not have it any more.

        Args:
            request: "namespace", "name" and "uid".

        Raises:
            GpushimError: there is no answer.
        """
        self._number += 1
        number, future = self._number, asyncio.get_running_loop().create_future()
        line = _line({"claim": number, **{key: request[key] for key in ("namespace", "name", "uid")}})
        self._asked[number] = future, line
        self._send(line)
        try:
            answer = await asyncio.wait_for(future, ANSWER)
        except asyncio.TimeoutError:
            state = "does not answer" if self.connected else "is not there"
            raise GpushimError(f"the container beside this one, which asks the API server, {state}", FAILED) from None
        finally:
            del self._asked[number]
        if "error" in answer:
            raise GpushimError(_sentence(answer["error"]), FAILED)
        return None if answer.get("absent") else answer.get("object")

    def _send(self, line: bytes) -> None:
        """Write to the other half if it is there; all that counts is written again when it comes.

        One that does not read has to come again: it would go on without what it has missed.
        """
        if self._client and self._client.transport.get_write_buffer_size() < CLAIM_LINE:
            self._client.write(line)
        elif self._client:
            self._client.transport.abort()

    async def _accept(self, listening: socket.socket) -> None:
        """Admit clients, one in PAUSE seconds at most."""
        while True:
            try:
                connected, _ = await asyncio.get_running_loop().sock_accept(listening)
                await self._admit(connected)
            except OSError:  # it has gone, or no descriptor is left
                pass
            await asyncio.sleep(PAUSE)

    async def _admit(self, connected: socket.socket) -> None:
        """Serve a client if it is the other half."""
        if not sockets.is_user(connected, self._user) or (self._unit and not is_of_unit(connected, self._unit)):
            connected.close()
            owner = f"of {self._unit}" if self._unit else f"user {self._user}'s"
            self._warn(f"a process that is not {owner} connects to {self.path}, and is sent away")
            return
        reader = asyncio.StreamReader(limit=CLAIM_LINE)
        protocol = asyncio.StreamReaderProtocol(reader, self._met)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connected)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it ends, or another one comes."""
        if self._client:
            self._client.close()
        self._client, begun = writer, time.monotonic()
        writer.write(self._api + self._pool + b"".join(line for _, line in self._asked.values()))
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                self._heard(_parsed(line), len(line))
                await asyncio.sleep(0)  # lines that are there already come at once, and others wait
        except OSError:
            pass
        except ValueError:  # a line over CLAIM_LINE, too
            self._warn("the container beside this one sends a line that is not understood")
        finally:
            if time.monotonic() - begun > STAYS:
                self._logged.clear()
            writer.close()
            if self._client is writer:
                self._client, self.published = None, {}
                self._changed()

    def _warn(self, sentence: str) -> None:
        """Log what is wrong with a client, but not each time that it comes."""
        if sentence not in self._logged:
            logger.warning("%s", sentence)
        self._logged.add(sentence)

    def _heard(self, news: dict[str, Any], size: int) -> None:
        question = self._asked.get(news["claim"]) if isinstance(news.get("claim"), int) else None
        if question and not question[0].done():
            question[0].set_result(news)
        published = _published(news.get("published")) if size < PUBLISHED else None
        if published is not None and published != self.published:
            self.published = published
            self._changed()


def _parsed(line: bytes) -> dict[str, Any]:
    """Return what a line says; an answer that cannot be read, or is deeper than any claim, is an error of its claim.

    Raises:
        ValueError: it is nothing that is known.
    """
    try:
        # Not of bytes, which json would read in UTF-16, too.
        answer = None if deeper(line, CLAIM_DEPTH) else json.loads(line.decode())
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    answered = _CLAIM.match(line)
    if not answered:
        raise ValueError
    return {"claim": int(answered[1]), "error": None}


def _published(news: Any) -> dict[str, Any] | None:
    """Return what is understood of what the other half says of its slices; None if it says nothing."""
    if not isinstance(news, dict):
        return None
    generation = news.get("generation")
    is_number = type(generation) is int and 0 <= generation < GENERATIONS
    return {"generation": generation if is_number else 0, "problem": _sentence(news.get("problem") or "")}


def _sentence(news: Any) -> str:
    """Return a sentence of the other half's for logs and terminals; what is no text may be deep."""
    return visible(news[:ERROR]) if isinstance(news, str) else "what the other container says is not understood"


def _line(news: Any) -> bytes:
    return json.dumps(news, separators=(",", ":")).encode() + b"\n"
