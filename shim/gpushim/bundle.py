"""A bundle's config.json: read it whole, replace it whole.

The file is replaced by rename, never written in place: a reader sees the old bytes or the new ones, and a
crash leaves one of the two. Out of scope: what the file means, but for keys that only some runtimes understand.

On the create path: imports nothing but `posix`.
"""

from __future__ import annotations

import posix

from gpushim import bounds
from gpushim.errors import BUNDLE, GpushimError, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Names = dict[str, tuple[str, "Names"]]

EBUSY = 16  # on every Linux; importing errno costs 0.1 ms


def working_directory() -> str:
    """Return the absolute path of the working directory.

    Raises:
        GpushimError: it has been removed, or it lies where this process cannot see it.
    """
    try:
        return posix.getcwd()
    except OSError:
        raise GpushimError("the working directory is gone; change to one that is there") from None


def absolute(path: str, base: str = "") -> str:
    """Make a path absolute, against a base, or else the working directory.

    Raises:
        GpushimError: that directory is gone.
    """
    if path.startswith("/"):
        return path
    return f"{absolute(base) if base else working_directory()}/{path}".rstrip("/")


def missing(path: str) -> bool:
    """Say whether there is no such file; one that cannot be looked at may be there."""
    try:
        posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def directory(path: str) -> int:
    """Open the directory of a config.json: whatever becomes of its name, one file is read and replaced.

    Args:
        path: of the file.

    Returns:
        a file descriptor, which goes with execve.

    Raises:
        GpushimError: it is not there.
    """
    try:
        return posix.open(path.rpartition("/")[0] or "/", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}", BUNDLE) from None


def read(path: str, folder: int | None = None) -> tuple[bytes, posix.stat_result]:
    """Read a config.json.

    Args:
        path: of the file.
        folder: what `directory` returned, if the file may be replaced.

    Returns:
        its bytes, and the stat that `replace` wants back.

    Raises:
        GpushimError: it cannot be read, is not a regular file, or is larger than bounds.CONFIG_JSON.
    """
    try:
        # O_NONBLOCK: a FIFO must not hang the engine.
        name = path if folder is None else path.rpartition("/")[2]
        fd = posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY, dir_fd=folder)
        try:
            status = posix.fstat(fd)
            if status.st_mode & 0o170000 != 0o100000:
                raise GpushimError(f"{path} is not a regular file", BUNDLE)
            if status.st_size > bounds.CONFIG_JSON:
                raise GpushimError(
                    f"{path} has {status.st_size} bytes; at most {bounds.CONFIG_JSON} are read", BUNDLE
                )
            return _read_all(fd, status.st_size), status
        finally:
            posix.close(fd)
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}", BUNDLE) from None


def _read_all(fd: int, size: int) -> bytes:
    data = posix.read(fd, size + 1)
    if len(data) != size:  # it grew or shrank meanwhile, or the read was cut short
        chunks = [data]
        while data and sum(map(len, chunks)) <= bounds.CONFIG_JSON:
            data = posix.read(fd, 1 << 20)
            chunks.append(data)
        return b"".join(chunks)
    return data


def replace(path: str, text: str, status: posix.stat_result, folder: int | None = None) -> None:
    """Put a new config.json in the place of the old one, with its mode and owner.

    The new file is written beside the old one, synced, and renamed over it (rename(2): atomic).

    Args:
        path: of the file.
        text: the new content, ASCII.
        status: what `read` returned with the old content.
        folder: what `read` got.

    Raises:
        GpushimError: it cannot be written; the old file is as it was and nothing is left beside it.
    """
    name = path if folder is None else path.rpartition("/")[2]
    new = f"{name}.gpushim-{posix.urandom(8).hex()}"  # of a killed one that had our pid, the name is taken
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        fd = posix.open(new, flags, 0o600, dir_fd=folder)
        try:
            try:
                _write_all(fd, text.encode("ascii"))
                if (status.st_uid, status.st_gid) != (posix.geteuid(), posix.getegid()):
                    posix.fchown(fd, status.st_uid, status.st_gid)
                posix.fchmod(fd, status.st_mode & 0o7777)
                posix.fsync(fd)
            finally:
                posix.close(fd)
            posix.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            posix.unlink(new, dir_fd=folder)
            raise
    except OSError as error:
        hint = " (it is a mount point)" if error.errno == EBUSY else ""
        raise GpushimError(
            f"{path} cannot be replaced: {error.strerror}{hint}; the old file is untouched", BUNDLE
        ) from None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def check_spelling(spec: dict[str, Any], path: str) -> None:
    """See that no key which matters here is spelled in other letters: runc would take it all the same (Go's JSON).

    Args:
        spec: a parsed config.json.
        path: of the file.

    Raises:
        GpushimError: one is.
    """
    _check_members(spec, _NAMES, path)


def _check_members(members: dict[str, Any], names: Names, path: str) -> None:
    for key, value in members.items():
        name, below = names.get(key.casefold(), (key, {}))
        if name != key:
            raise GpushimError(
                f'{path} has the key "{quote(key)}", which some runtimes take for "{name}" and others do not know; '
                "the engine must write it anew",
                BUNDLE,
            )
        if below and isinstance(value, dict):
            _check_members(value, below, path)


def _folded(names: dict[str, Any]) -> Names:
    return {name.casefold(): (name, _folded(below)) for name, below in names.items()}


# What request.py reads and edits.py writes, by the names of OCI's runtime-spec.
_NAMES = _folded(
    {
        "annotations": {},
        "hooks": {"createRuntime": {}, "prestart": {}},
        "linux": {"devices": {}, "intelRdt": {}, "namespaces": {}, "resources": {"devices": {}}},
        "mounts": {},
        "process": {"capabilities": {"bounding": {}}, "env": {}, "user": {"additionalGids": {}}},
        "root": {"path": {}},
    }
)
