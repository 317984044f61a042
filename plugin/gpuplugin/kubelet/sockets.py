"""A UNIX socket of grpc's at a path where others come and go: bound aside, renamed into place, known by its inode.

kubelet removes all sockets in its directory when it starts; a second instance of this plugin puts its own in the
place of the first one's; an administrator may remove the directory and make it again. So a path is looked at
regularly, and its file is ours only if its inode is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from itertools import islice
from typing import TYPE_CHECKING, Any

import grpc.aio

from gpuplugin.processes.peer_unit import peer
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    Identity = tuple[int, int, int]

LONGEST_PATH = 107  # bytes, of sun_path in unix(7) less the null
KUBELET = "kubelet"  # begins names of its socket and checkpoint
PREFIX, ASIDE, SUFFIX = "gpushim-", ".gpushim-", ".sock"  # of our sockets' names; aside, until they are renamed
GRACE = 1.0  # seconds for calls that are being answered
# Whoever may connect, kubelet alone by the socket's mode, cannot make this process big: a connection without a call
# is closed, and a message has at most what kubelet's own lists may have.
OPTIONS = (("grpc.max_receive_message_length", 4 << 20), ("grpc.so_reuseport", 0))
IDLE = (("grpc.max_connection_idle_ms", 60_000),)
STREAMS = 32  # calls at a time of a connection; over all connections, twice as many
_ROOT = 0
NAMES = 4096  # of a directory that are looked at, most; one of kubelet's has a dozen


class Listener:
    """A grpc server at a path.

    Args:
        path: absolute.
        idle: whether a connection without a call ends after a while; to kubelet the end of that to a DRA driver is
            the driver's.
        streams: calls at a time of a connection; those beyond wait in it.

    Attributes:
        inode: of its socket, as `identity` tells it.
    """

    def __init__(self, path: str, idle: bool = True, streams: int = STREAMS) -> None:
        self.path = path
        self.inode: Identity | None = None
        self._alias = ""
        options = (*OPTIONS, ("grpc.max_concurrent_streams", streams), *(IDLE if idle else ()))
        self._server: Any = grpc.aio.server(options=options, maximum_concurrent_rpcs=2 * streams)

    async def bind(self, *handlers: grpc.GenericRpcHandler) -> None:
        """Serve, in the place of whatever is at the path.

        Its directory is opened once, as itself: a container that may write there can have put a link in its place, or
        in that of the socket.

        Raises:
            GpushimError: it cannot be bound; its directory may be gone, or a link.
        """
        folder, _, name = self.path.rpartition("/")
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            sentence = f"{self.path} is too long for a socket; --kubelet-dir must name a shorter directory"
            raise GpushimError(sentence, FAILED)
        self._server.add_generic_rpc_handlers(handlers)
        folder_fd, aside = -1, ""
        try:
            folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            folder_path = f"/proc/self/fd/{folder_fd}"
            aside = f"{folder_path}/{ASIDE}{os.urandom(4).hex()}"  # not the process's number: each container has a 1
            sweep(folder_path)
            if not self._server.add_insecure_port("unix:" + aside):  # grpc before 1.60 does not raise
                raise RuntimeError
            _allow(aside, 0o600)
            await self._server.start()
            self.inode = identity(aside)
            os.rename(aside, f"{folder_path}/{name}")
        except BaseException as error:
            with contextlib.suppress(Exception):  # of a server that was cancelled while it started
                await self._server.stop(None)
            if not isinstance(error, (OSError, RuntimeError)):
                raise
            reason = error.strerror if isinstance(error, OSError) else f"{folder} cannot be written"
            if folder_fd < 0 and os.path.islink(folder):
                reason = f"{folder} is a link, which is not followed; mount the directory there instead"
            raise GpushimError(f"the socket {self.path} cannot be made: {reason}", FAILED) from None
        finally:
            if folder_fd >= 0:
                with contextlib.suppress(OSError):
                    os.unlink(aside)
                os.close(folder_fd)

    def rename(self) -> str:
        """Give the socket one more name, which none has had before, instead of the last such one, and return it.

        Raises:
            OSError: its directory is gone, or a link, or the socket has left it.
        """
        folder, _, name = self.path.rpartition("/")
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._remove_alias()
            alias = f"{ASIDE}{os.urandom(3).hex()}"  # no longer than gpushim-gpu.sock
            os.link(name, alias, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
        finally:
            os.close(folder_fd)
        self._alias = f"{folder}/{alias}"
        return alias

    def _remove_alias(self) -> None:
        if self._alias and identity(self._alias) == self.inode:
            with contextlib.suppress(OSError):
                os.unlink(self._alias)

    def leave(self) -> None:
        """Remove the socket if it is still our own."""
        self._remove_alias()
        if self.inode is not None and identity(self.path) == self.inode:
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    async def stop(self) -> None:
        """End the server, and remove the socket if it is still our own."""
        self.leave()
        # It goes while the loop runs: older grpcio has the loop stop it once more then.
        server, self._server = self._server, None
        if server is not None:
            await server.stop(GRACE)


def listen_privately(path: str, backlog: int, mode: int = 0o600) -> tuple[socket.socket, Identity | None]:
    """Listen at a path that root alone may connect to, in the place of whatever is there.

    Args:
        path: with room for nine bytes more in LONGEST_PATH.
        backlog: connections that wait, as for listen(2).
        mode: of the socket; another one lets others connect, too.

    Returns:
        the socket, and its file's identity.

    Raises:
        OSError: it cannot be bound.
    """
    aside = f"{path}.{os.urandom(4).hex()}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        server.bind(aside)
        _allow(aside, mode)
        server.listen(backlog)
        inode = identity(aside)
        os.rename(aside, path)
    except BaseException:
        server.close()
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    return server, inode


def _allow(path: str, mode: int) -> None:
    """Set a socket's mode; a link that others put in its place keeps its own."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
        os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


def sweep(folder: str) -> None:
    """Remove the sockets of instances that were killed: those of our names that nobody listens to.

    Raises:
        OSError: the directory cannot be read.
    """
    for name in names(folder):
        if name.startswith(ASIDE) or (name.startswith(PREFIX) and name.endswith(SUFFIX)):
            path = f"{folder}/{name}"
            if is_socket(path) and not is_listening(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def others(folder: str) -> frozenset[tuple[str, Identity | None]]:
    try:
        foreign_names = {name for name in names(folder) if is_foreign(name)}
    except OSError:
        foreign_names = set()
    return frozenset((name, identity(f"{folder}/{name}")) for name in foreign_names if is_socket(f"{folder}/{name}"))


def names(folder: str) -> list[str]:
    """List a directory, NAMES of it at most.

    Raises:
        OSError: it cannot be read.
    """
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, NAMES)]


def is_foreign(name: str) -> bool:
    """Return whether a name in kubelet's directory of plugins is neither ours nor kubelet's.

    kubelet writes its checkpoint, which it does with each list and each Allocate, aside under a dot and a number.
    """
    aside = name[:1] == "." and name[1:].isdigit()
    return not aside and not name.lstrip(".").startswith((PREFIX, KUBELET))


def identity(path: str) -> Identity | None:
    """Return what tells one socket at a path from another: (device, inode number, time in ns); the number comes
    again.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def is_socket(path: str) -> bool:
    """Return whether a path is a socket's own, and no link to one."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def is_root(connected: Any) -> bool:
    """Return whether a process of root's, or of this one's user, is at a socket's other end; the kernel knows."""
    return is_user(connected, _ROOT)


def is_user(connected: Any, user: int) -> bool:
    """Return whether a process of a user's, root's or this one's user is at the other end of a socket."""
    return peer(connected)[1] in (user, _ROOT, os.geteuid())


def is_listening(path: str) -> bool:
    """Return whether a process listens on a socket; a busy one counts as listened to."""
    try:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError:  # no descriptor is left: that speaks for no socket's end
        return True
    with client:
        client.setblocking(False)
        try:
            client.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
