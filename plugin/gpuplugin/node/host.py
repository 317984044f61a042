"""Enter the node: afterwards this process sees the node's files, and its commands run there.

The mount and cgroup namespaces of the node's first process are entered instead of a chroot to the directory where the
pod has the node's root mounted: absolute links mean the node's, and an engine that is asked finds itself in the same
namespaces as gpushim. The directory shows which node that first process belongs to. No module can be imported
afterwards, for it would be the node's. Out of scope: the work on the node.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sys
from typing import TYPE_CHECKING

from gpushim.config.policy import SYSTEM_PATH
from gpushim.engines.processes import ask
from gpushim.ground.errors import NOT_FOUND, GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDED = ("etc", "proc/1/ns", "run", "usr/bin", "var/lib")
CLONE_NEWNS, CLONE_NEWCGROUP = 0x20000, 0x2000000
LOCK = "/run/gpushim-node.lock"  # root's alone: whoever may open a file can lock it
PYTHON = "/usr/bin/python3"
OLDEST = (3, 9)
VERSION = "import sys; print(*sys.version_info[:2], sys.implementation.cache_tag)"


def enter(host: str) -> None:
    """Enter the node, at a directory that `check_root` accepts.

    Raises:
        GpushimError: the pod may not enter it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    namespaces = [
        (os.open(f"{host}/proc/1/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag) for name, flag in _NAMESPACES
    ]
    for fd, flag in namespaces:
        if libc.setns(fd, flag):
            reason = os.strerror(ctypes.get_errno())
            raise GpushimError(f"the node cannot be entered: {reason}; the container must be privileged")
        os.close(fd)
    os.chdir("/")
    os.umask(0o022)
    os.environ.clear()
    os.environ.update({"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root"})
    sys.path.clear()


def check_root(host: str) -> None:
    """Raise if a directory (absolute) is not the root of the node's first process.

    Raises:
        GpushimError: this user is not root, the directory is no node's root, or the pod may not read it.
    """
    if os.geteuid():
        raise GpushimError("only root can install on a node; give the container runAsUser: 0")
    missing = [name for name in NEEDED if not os.path.isdir(f"{host}/{name}")]
    if missing:
        raise GpushimError(
            f"{host} is not the root of a node: it has no {missing[0]}; mount the node's / there (hostPath) with all "
            "that is mounted below it (mountPropagation: HostToContainer)"
        )
    try:
        pids = [os.stat(f"{host}/proc/{process}/ns/pid") for process in ("1", "self")]
        roots = [os.stat(path) for path in (host, f"{host}/proc/1/root")]
    except OSError as error:
        raise GpushimError(f"{error.filename}: {error.strerror}; the container must be privileged") from None
    if not os.path.samestat(*pids):
        raise GpushimError("this container has process ids of its own; give the pod hostPID: true")
    if not os.path.samestat(*roots):
        raise GpushimError(f"{host} is not the root of this node's process 1; mount the node's / there (hostPath)")


@contextlib.contextmanager
def lock_node() -> Iterator[None]:
    """Hold the lock on this node for installing or uninstalling.

    Raises:
        GpushimError: another gpushim-node has it.
    """
    fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _lock(fd)
        try:
            yield
        finally:
            os.unlink(LOCK)
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:  # else its owner has removed it, and ended
            return
    raise GpushimError("another gpushim-node is at work on this node; try again when it has ended")


def read_python_tag() -> str:
    """Return the cache tag of the node's Python, such as "cpython-313".

    Raises:
        GpushimError: the node has no Python, or it is too old.
    """
    answer = ask.program([PYTHON, "-IBS", "-c", VERSION])
    words = answer.out.split()
    if answer.code != 0 or len(words) != 3:
        raise GpushimError(
            f"the node has no {PYTHON} that runs ({answer.last}); install Python 3.9 or later there", NOT_FOUND
        )
    major, minor, tag = words
    if (int(major), int(minor)) < OLDEST:
        raise GpushimError(f"the node's {PYTHON} is Python {major}.{minor}; install 3.9 or later there", NOT_FOUND)
    return tag


_NAMESPACES = (("cgroup", CLONE_NEWCGROUP), ("mnt", CLONE_NEWNS))
