"""The system calls that put files of the host into a container's mount namespace, by file descriptors alone.

open_tree(2), mount_setattr(2) and move_mount(2) where the kernel has them (5.2, 5.12) and a seccomp profile lets
them through; mount(2) on /proc/self/fd/N elsewhere. No path below a rootfs is ever given to the kernel.

`posix` has none of these calls. ctypes would take 4 ms to import, its C half 1.3; only a hook that mounts pays that.
"""

from __future__ import annotations

import _ctypes
import posix
from errno import EACCES, ENOSYS, EPERM, ESTALE

from gpuhook.inject.roots import same
from gpushim.ground.errors import ROOTFS, GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence

# Numbers of <asm-generic/unistd.h>; calls as young as these have the same on every machine.
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
OPEN_TREE_CLONE = 1
AT_EMPTY_PATH = 0x1000
MOVE_MOUNT_BOTH_EMPTY = 0x04 | 0x40  # MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
MS_REMOUNT, MS_BIND, MS_PRIVATE = 1 << 5, 1 << 12, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS = 0x20000
# MOUNT_ATTR_*, MS_* and ST_* agree on these four.
FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8}
NODEV = FLAGS["nodev"]
FOUR = 15
ABSENT = (ENOSYS, EPERM)  # an old kernel; a seccomp profile that does not know the call
_PATH_ONLY = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # ctypes.c_long; a plain int would be passed with its lower half only
    _type_ = "l"


class _Function(_ctypes.CFuncPtr):  # what ctypes.CDLL(None, use_errno=True) makes
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_libc = _ctypes.dlopen(None, 2)  # type: ignore[arg-type]  # RTLD_NOW: the process itself has the C library
_syscall, _mount_call, _umount, _setns = [
    _Function(_ctypes.dlsym(_libc, name)) for name in ("syscall", "mount", "umount2", "setns")
]


class Bind:
    """One file or device node of the host, and its target in a container.

    Args:
        path: of the file on the host, trusted.
        source: O_PATH fd of it.
        target: (O_PATH fd of the directory, name in it, O_PATH fd of the target), all in the container's mount
            namespace.
        options: as in the mounts of config.json; only ro, nosuid, nodev and noexec count, and all is private.
    """

    __slots__ = ("directory", "flags", "name", "path", "source", "target")

    def __init__(self, path: str, source: int, target: tuple[int, str, int], options: Sequence[str]) -> None:
        self.path, self.source = path, source
        self.directory, self.name, self.target = target
        self.flags = sum([FLAGS.get(option, 0) for option in options])


def bind(process: str, binds: Sequence[Bind]) -> None:
    """Mount files of the host in a container. The calling process must have one thread (setns(2)).

    Args:
        process: directory of the container's process in /proc, held open (mountinfo.held); "" if the caller is in its
            mount namespace.

    Raises:
        GpushimError: a mount would not be what it should be, or may not be made.
    """
    trees = [_clone(file) for file in binds]

    def attach() -> None:
        for file, tree in zip(binds, trees):
            try:
                if tree < 0 or not _move(tree, file.target):
                    _bind(file)
            except OSError as error:
                raise GpushimError(
                    f"{file.path} cannot be mounted in the container: {error.strerror}", ROOTFS
                ) from None

    try:
        inside(process, attach)
    finally:
        for tree in trees:
            if tree >= 0:
                posix.close(tree)


def bind_data(
    process: str, data: bytes, above: tuple[int, str], target: tuple[int, str, int], options: Sequence[str]
) -> None:
    """Mount a new file over one of a container. It lies on no file system that anybody else has.

    A tmpfs is mounted over a directory for as long as it takes; the file's own mount outlives it.

    Args:
        process: as for `bind`.
        data: of the file, at most 64 KiB.
        above: the directory for the tmpfs, as (O_PATH fd of the one that it is in, its name).
        target: as in `Bind`.
        options: as in `Bind`.

    Raises:
        OSError: the kernel refuses.
        GpushimError: the namespace cannot be entered.
    """

    def attach() -> None:
        parent, name = above
        fds = [posix.open(name, _PATH_ONLY | posix.O_DIRECTORY, dir_fd=parent)]
        try:
            flags = _Long(FLAGS["nosuid"] | FLAGS["nodev"] | FLAGS["noexec"])
            _check(_mount_call(b"tmpfs", b"/proc/self/fd/%d" % fds[0], b"tmpfs", flags, b"mode=0555,size=1m"))
            fds.append(posix.open(name, _PATH_ONLY | posix.O_DIRECTORY, dir_fd=parent))  # now with the tmpfs on it
            try:
                new = posix.O_RDWR | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
                fds.append(posix.open("data", new, 0o444, dir_fd=fds[1]))
                posix.write(fds[2], data)
                _bind(Bind(f"/proc/self/fd/{fds[2]}", fds[2], target, options))
            finally:
                take_away(fds[1])
        finally:
            for fd in fds:
                posix.close(fd)

    inside(process, attach)


def take_away(root: int) -> None:
    """Unmount a mount, given by an O_PATH fd of its root in the caller's namespace, and all its copies in peers.

    Raises:
        OSError: the kernel refuses.
    """
    _check(_umount(b"/proc/self/fd/%d" % root, _Long(MNT_DETACH)))


def inside(process: str, work: Callable[[], None]) -> None:
    """Call a function in the mount namespace of a process, and come back.

    Args:
        process: directory of the process in /proc; "" if the caller is in its mount namespace.
        work: must import nothing: files below the usual paths may be others there.

    Raises:
        GpushimError: the namespace cannot be entered.
    """
    if not process:
        work()
        return
    flags = posix.O_RDONLY | posix.O_CLOEXEC
    fds = [posix.open("/proc/self/ns/mnt", flags)]
    try:
        fds += [posix.open(path, flags | posix.O_DIRECTORY) for path in ("/", ".")]
        home, root, directory = fds
        try:
            fds.append(posix.open(f"{process}/ns/mnt", flags))
            _check(_setns(_Long(fds[3]), _Long(CLONE_NEWNS)))
        except OSError as error:
            raise GpushimError(
                f"the mount namespace of the container's process cannot be entered: {error.strerror}; the hook "
                "must run as root, or as the user of the container's user namespace, in a single thread",
                ROOTFS,
            ) from None
        try:
            work()
        finally:
            _check(_setns(_Long(home), _Long(CLONE_NEWNS)))
            posix.fchdir(root)  # setns(2) leaves both at the namespace's root
            posix.chroot(".")
            posix.fchdir(directory)
    finally:
        for fd in fds:
            posix.close(fd)


def _check(result: int) -> int:
    if result < 0:
        number = _ctypes.get_errno()
        raise OSError(number, posix.strerror(number))
    return result


def _call(number: int, *args: int | bytes) -> int:
    wide = [argument if isinstance(argument, bytes) else _Long(argument) for argument in args]
    return _check(_syscall(_Long(number), *wide))


def _clone(file: Bind) -> int:
    """Make the detached mount of a file; return -1 where the kernel or a profile forbids it."""
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd. What is on a nodev mount still is to open.
    values = (file.flags, NODEV & ~file.flags, MS_PRIVATE, 0)
    attributes = b"".join([value.to_bytes(8, "little") for value in values])
    tree = -1
    try:
        tree = _call(OPEN_TREE, file.source, b"", OPEN_TREE_CLONE | AT_EMPTY_PATH | posix.O_CLOEXEC)
        _call(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, len(attributes))
    except OSError as error:
        if tree >= 0:
            posix.close(tree)
        if error.errno not in ABSENT:
            raise GpushimError(f"{file.path} cannot be cloned as a mount: {error.strerror}", ROOTFS) from None
        return -1
    return tree


def _move(tree: int, target: int) -> bool:
    try:
        _call(MOVE_MOUNT, tree, b"", target, b"", MOVE_MOUNT_BOTH_EMPTY)
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return False
    return True


def _mount(source: int | None, target: int, flags: int) -> None:
    path = None if source is None else b"/proc/self/fd/%d" % source
    _check(_mount_call(path, b"/proc/self/fd/%d" % target, None, _Long(flags), None))


def _bind(file: Bind) -> None:
    """Mount with mount(2), in the container's namespace: the source must be of that namespace too."""
    source = posix.open(file.path, posix.O_PATH | posix.O_CLOEXEC)
    new = -1
    try:
        _same(source, file.source)
        _mount(source, file.target, MS_BIND)
        new = posix.open(file.name, _PATH_ONLY, dir_fd=file.directory)  # the place again, now with the mount on it
        _same(new, source)
        _mount(None, new, MS_PRIVATE)
        # What a user namespace has locked must be asked for again (mount_namespaces(7)).
        _mount(None, new, MS_REMOUNT | MS_BIND | file.flags | (posix.fstatvfs(source).f_flag & FOUR))
        if posix.fstatvfs(new).f_flag & NODEV & ~file.flags:
            raise OSError(EACCES, "it lies on a mount with the option nodev")
    finally:
        for fd in (source, new):
            if fd >= 0:
                posix.close(fd)


def _same(first: int, second: int) -> None:
    if not same(first, second):
        raise OSError(ESTALE, "another file has come into its place")
