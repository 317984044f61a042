"""The agent's own socket, for root's commands about its state and the release of GPUs.

One line of JSON each way. Whoever connects is known by the kernel's word, and can make nothing big or slow: few
clients at a time, each with a deadline, and answers are made beside the loop that kubelet's calls run in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuplugin.kubelet.sockets import identity, is_listening, is_root, is_socket, listen_privately
from gpushim.ground.errors import FAILED, GpushimError, quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gpuplugin.kubelet.sockets import Identity

    Command = Callable[[], Awaitable[dict[str, Any]]]

NAME = "device-plugin.sock"  # in the state directory
LIMIT = 4096  # bytes of a question
DEADLINE = 5.0  # seconds for a question, and for an answer to be read
CLIENTS = 8  # at a time
PATIENCE = 60.0  # seconds; an instance that is replaced has 30 s to end, as Kubernetes has it


class Control:
    """The socket.

    Args:
        commands: by the word of `do`; each may raise GpushimError.
        program: that is asked, for sentences.
    """

    def __init__(self, commands: Mapping[str, Command], program: str = "the device plugin") -> None:
        self._commands, self._program = commands, program
        self._server: asyncio.AbstractServer | None = None
        self._inode: Identity | None = None
        self._folder, self._last_problem = "", ""
        self._clients = 0
        self._rival_since = 0.0  # time.monotonic() since when another plugin listens there

    async def attend(self, folder: str) -> None:
        """Bind the socket, unless another plugin listens at it, and log once why that fails.

        One that is being replaced, as in an update, ends within PATIENCE, and is not logged.
        """
        self._folder, problem = folder, ""
        try:
            with near(folder) as path:
                if self._server is None or identity(path) != self._inode:
                    await self._bind(path)
        except GpushimError as error:
            problem = str(error)
        except OSError as error:
            problem = f"the socket {folder}/{NAME} cannot be made: {error.strerror or error}"
        if problem and problem != self._last_problem:
            logger.warning("%s; gpushim cannot ask %s that runs here", problem, self._program)
        self._last_problem = problem

    async def _bind(self, path: str) -> None:
        if is_socket(path):
            if is_listening(path):
                self._rival_since = self._rival_since or time.monotonic()
                if time.monotonic() - self._rival_since > PATIENCE:
                    raise GpushimError(f"another plugin listens at {self._folder}/{NAME}", FAILED)
                return
        elif os.path.lexists(path):
            raise GpushimError(f"{self._folder}/{NAME} is in the way and is not a socket; remove it", FAILED)
        self._close()
        self._rival_since = 0.0
        server, self._inode = listen_privately(path, CLIENTS)
        self._server = await asyncio.start_unix_server(self._serve, sock=server, limit=LIMIT)

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = None

    def stop(self) -> None:
        """Stop listening, and remove the socket if it is ours."""
        if self._server is not None:
            with contextlib.suppress(OSError), near(self._folder) as path:
                if identity(path) == self._inode:
                    os.unlink(path)
        self._close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            answer = await self._answer(reader, writer)
            data = await asyncio.to_thread(_line, answer)
            writer.write(data)
            await asyncio.wait_for(writer.drain(), DEADLINE)
        except (OSError, asyncio.TimeoutError):  # it has gone, or does not read
            pass
        finally:
            self._clients -= 1
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
        if not is_root(writer.get_extra_info("socket")):
            return {"error": f"only root may ask {self._program}"}
        if self._clients > CLIENTS:
            return {"error": f"too many ask {self._program} at a time; try again"}
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), DEADLINE))
            command = self._commands[request["do"]]
        except (ValueError, KeyError, TypeError, RecursionError, asyncio.TimeoutError) as error:
            return {"error": f"{self._program} does not understand what it is asked: {quote(str(error))}"}
        try:
            return await command()
        except GpushimError as error:
            return {"error": str(error)}


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


@contextlib.contextmanager
def near(folder: str) -> Iterator[str]:
    """Yield a short path of the socket in a directory: a socket's has 107 bytes at most (unix(7))."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)
