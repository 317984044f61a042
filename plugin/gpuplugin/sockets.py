"""A UNIX socket of grpc's at a path where others come and go: bound aside, renamed into place, known by its inode.

kubelet removes all sockets in its directory when it starts; a second instance of this plugin puts its own in the
place of the first one's; an administrator may remove the directory and make it anew. So a path is looked at again and
again, and its file is ours only if its inode is.
Out of scope: what is served (endpoint.py), and when to look (daemon.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from typing import TYPE_CHECKING

import grpc.aio

from gpushim.errors import FAILED, GpushimError

if TYPE_CHECKING:
    Identity = tuple[int, int, int]

LONGEST_PATH = 107  # bytes, of sun_path in unix(7) less the null
_serial = itertools.count()


class Listener:
    """A grpc server at a path.

    Args:
        path: absolute.

    Attributes:
        inode: of its socket, as `identity` tells it.
        streams: how many calls that do not end by themselves are being served.
    """

    def __init__(self, path: str) -> None:
        self.path, self.streams = path, 0
        self.inode: Identity | None = None
        self._server = grpc.aio.server()

    async def bind(self, handlers: grpc.GenericRpcHandler) -> None:
        """Serve, in the place of whatever is at the path.

        Args:
            handlers: what is served.

        Raises:
            GpushimError: it cannot be bound; its directory may be gone.
        """
        folder, _, name = self.path.rpartition("/")
        aside = f"{folder}/.{name}.{os.getpid()}.{next(_serial)}"
        if len(os.fsencode(aside)) > LONGEST_PATH:
            sentence = f"{self.path} is too long for a socket; --kubelet-dir must name a shorter directory"
            raise GpushimError(sentence, FAILED)
        self._server.add_generic_rpc_handlers((handlers,))
        try:
            os.stat(folder)  # grpc says nothing of why it cannot bind
            self._server.add_insecure_port("unix:" + aside)
            await self._server.start()
            self.inode = identity(aside)
            os.rename(aside, self.path)
        except (OSError, RuntimeError) as error:
            await self.stop()
            with contextlib.suppress(OSError):
                os.unlink(aside)
            why = error.strerror if isinstance(error, OSError) else f"{folder} cannot be written"
            raise GpushimError(f"the socket {self.path} cannot be made: {why}", FAILED) from None

    async def stop(self) -> None:
        """End what is served, and remove the socket if it is still our own."""
        if self.inode is not None and identity(self.path) == self.inode:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        await self._server.stop(None)


def identity(path: str) -> Identity | None:
    """Tell one socket at a path from another: (device, inode number, time in ns); the number alone comes again."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def listening(path: str) -> bool:
    """Say whether a process listens on a socket; what cannot be asked at once, because it is busy, does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
