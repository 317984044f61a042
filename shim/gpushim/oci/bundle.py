"""A bundle's config.json: read and replaced as a whole.

It is replaced by rename, never written in place: readers, and a crash, find the old bytes or the new ones.
On the create path: imports nothing but `posix`.
"""

from __future__ import annotations

import posix

from gpushim.ground import bounds
from gpushim.ground.errors import BUNDLE, GpushimError, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, TypedDict, TypeVar

    T = TypeVar("T")
    Names = dict[str, tuple[str, "Names"]]

    class _Mapped(TypedDict, total=False):
        gids: Any  # gidMappings of a user namespace, as config.json has them

    class Bundle(_Mapped):
        """What a plan must know of a bundle.

        With an empty rootfs, as in a CDI spec, the hook finds the rootfs and the container's GPUs by itself.
        """

        rootfs: str  # absolute path
        userns: bool  # the container has a user namespace of its own
        hook: str  # absolute path of gpushim-hook


SAVED = ".gpushim"  # config.json.gpushim is what `replace` saves
EBUSY = 16  # on every Linux; importing errno costs 0.1 ms


def working_directory() -> str:
    """Return the absolute path of the working directory; raise if it is gone or cannot be seen."""
    try:
        return posix.getcwd()
    except OSError:
        raise GpushimError("the working directory is gone; change to one that is there") from None


def absolute(path: str, base: str = "") -> str:
    if path.startswith("/"):
        return path
    return f"{absolute(base) if base else working_directory()}/{path}".rstrip("/")


def is_absent(path: str) -> bool:
    """Return whether there is no such file; one that cannot be seen may be there."""
    try:
        posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def directory(path: str) -> int:
    """Open a config.json's directory, so that the file read is the one replaced; the fd survives execve."""
    try:
        return posix.open(path.rpartition("/")[0] or "/", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}", BUNDLE) from None


def read(path: str, folder: int | None = None) -> tuple[bytes, posix.stat_result]:
    """Return a config.json's bytes and the status that `replace` needs; `folder` is the fd of `directory`.

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


def saved(path: str, folder: int) -> tuple[bytes, bytes]:
    """Return what an earlier create has saved beside a config.json: its result, and what the engine had written.

    The file counts only if nobody but root, or the user who runs the engine, can have written it: an annotation could
    be a pod author's. Reading it, or linking to it, tells no more than config.json does.

    Returns:
        both, or b"" for each if there is no such file.
    """
    try:
        flags = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_NOCTTY
        fd = posix.open(path.rpartition("/")[2] + SAVED, flags, dir_fd=folder)
    except OSError:
        return b"", b""
    try:
        status, data = posix.fstat(fd), b""
        is_foreign = status.st_mode & 0o170022 != 0o100000 or status.st_uid not in (0, posix.geteuid())
        if not is_foreign and status.st_size < 3 * bounds.CONFIG_JSON:
            data = _read_all(fd, status.st_size)
    except OSError:
        return b"", b""
    finally:
        posix.close(fd)
    size, _, body = data.partition(b"\n")
    number = int(size) if size.isdigit() and len(size) < 12 else len(body)
    return (body[:number], body[number:]) if number < len(body) else (b"", b"")


def replace(
    path: str, text: str | bytes, status: posix.stat_result, folder: int | None = None, original: bytes = b""
) -> None:
    """Replace a config.json, with the mode and owner of `status`.

    The new file is written beside the old one, synced, and renamed over it (rename(2): atomic). `original` is the
    engine's text, which is saved beside it with the new one, for `saved`; b"" saves nothing.

    Raises:
        GpushimError: it cannot be written; the old file is unchanged and nothing is left beside it.
    """
    name = path if folder is None else path.rpartition("/")[2]
    data = text.encode("ascii") if isinstance(text, str) else text
    target = path + SAVED
    try:
        if original:  # first: a create that is killed between the two leaves what counts for nothing
            _put(name + SAVED, b"%d\n%s%s" % (len(data), data, original), None, folder)
        target = path
        _put(name, data, status, folder)
    except OSError as error:
        if original:
            _remove(name + SAVED, folder)
        hint = " (it is a mount point)" if error.errno == EBUSY else ""
        raise GpushimError(
            f"{target} cannot be replaced: {error.strerror}{hint}; the old file is untouched", BUNDLE
        ) from None


def _remove(name: str, folder: int | None) -> None:
    try:
        posix.unlink(name, dir_fd=folder)
    except OSError:
        pass  # it was never there, or cannot be written to either, and is not the one for this config.json


def _put(name: str, data: bytes, status: posix.stat_result | None, folder: int | None) -> None:
    """Write a file beside its name and rename it; without a status to take over, 0600 and not synced."""
    base = name if name.endswith(SAVED) else name + SAVED
    new = f"{base}-{posix.urandom(8).hex()}"  # a pid might be that of a killed one
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    fd = posix.open(new, flags, 0o600, dir_fd=folder)
    try:
        try:
            _write_all(fd, data)
            if status:
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


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def member(parent: Mapping[str, object], key: str, kind: type[T]) -> T:
    """Return a member of an object of config.json; an empty one of its kind if it is absent.

    Raises:
        GpushimError: it is of another kind.
    """
    value = parent.get(key)
    if value is None:  # Go reads null as absent
        return kind()
    if not isinstance(value, kind):
        form = {"dict": "an object", "list": "a list", "str": "a string"}[kind.__name__]
        raise GpushimError(f'config.json: "{quote(key)}" is not {form}; the engine must write it again', BUNDLE)
    return value


def member_at(spec: dict[str, Any], path: str, empty: Any) -> Any:
    """Return a member by its dotted path, made, like its parents, where it is absent or null."""
    parent = spec
    *parents, last = path.split(".")
    for name in parents:
        if parent.get(name) is None:
            parent[name] = {}
        parent = parent[name]
        if not isinstance(parent, dict):
            raise GpushimError(f"config.json: {name} (of {path}) is not an object", BUNDLE)
    if parent.get(last) is None:
        parent[last] = empty
    if type(parent[last]) is not type(empty):
        raise GpushimError(f"config.json: {path} is not {'a list' if empty == [] else 'an object'}", BUNDLE)
    return parent[last]


def objects_at(spec: dict[str, Any], path: str) -> Any:
    entries = member_at(spec, path, [])
    if not {*map(type, entries)} <= {dict}:
        raise GpushimError(f"config.json: {path} has an entry that is not an object", BUNDLE)
    return entries


def check_spelling(spec: dict[str, Any], path: str) -> None:
    """Raise for a key of _NAMES in another case, which Go's JSON, and so runc, would accept."""
    _check_members(spec, _NAMES, path)


def _check_members(members: dict[str, Any], names: Names, path: str) -> None:
    for key, value in members.items():
        name, below = names.get(key.casefold(), (key, {}))
        if name != key:
            raise GpushimError(
                f'{path} has the key "{quote(key)}", which some runtimes take for "{name}" and others do not know; '
                "the engine must write it again",
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
        "linux": {
            "devices": {},
            "intelRdt": {},
            "namespaces": {},
            "resources": {"devices": {}},
            "rootfsPropagation": {},
        },
        "mounts": {},
        "process": {"capabilities": {"bounding": {}}, "env": {}, "user": {"additionalGids": {}}},
        "root": {"path": {}},
    }
)
