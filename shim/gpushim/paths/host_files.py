"""Files on the host, opened or judged by the users who could have put them there.

A path is walked one component at a time (walk.py). For paths from other programs' settings and command lines
(`open_parent`), every directory, link and file on the way must belong to root or this user, and no other user may
write to it: in a directory where anybody may make files, sticky or not, nothing can be trusted (a FUSE mount shows
any owners). Below /proc/PID/root the walk stays in that root. The file is then reached through its directory's fd,
never by its path again. On the way to a file that root has named (`replaceable`), a sticky directory protects root's
names, and a read-only mount, as a pod's ConfigMap (mode 0777), protects all.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import re
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushim.ground.errors import GpushimError
from gpushim.paths import trust
from gpushim.paths.walk import walk_from, walk_to_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

NEW_DIRECTORY_MODE = 0o755
OTHERS_WRITE, GROUP_WRITES = 0o002, 0o020
_ROOT = re.compile(r"(/proc/(?:\d+|self(?:/fd/\d+)?)/root)(/.*)?", re.ASCII | re.DOTALL)
_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class HostFile:
    """A file's directory, open, and the file's name in it.

    Attributes:
        folder: an O_PATH fd.
        name: of the file, which need not exist, and is no link if it does.
        path: of the file, links followed, as this process sees it.
        link: text of the last link at the path's end; "" if there is none.
    """

    folder: int
    name: str
    path: str
    link: str = ""

    def status(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)


@contextlib.contextmanager
def open_parent(path: str, make: bool = False, output: bool = False) -> Iterator[HostFile]:
    """Open the directory of a file, the file's links followed.

    Args:
        path: absolute.
        make: whether to make directories that are missing.
        output: accept directories of others, as for a new file in a user's home: the directory's owner controls the
            file anyway, and only a link could lead elsewhere.

    Raises:
        FileNotFoundError: a directory is missing, and all before it may be trusted.
        GpushimError: another user could change what is there, or a link leads nowhere or in circles.
        OSError: the path cannot be walked for another reason.
    """
    result = _open_parent(path, make, output)
    try:
        yield result
    finally:
        os.close(result.folder)


def check(path: str, fd: int, status: os.stat_result, output: bool = False) -> None:
    """Raise if another user owns or may write a directory, link or file on the way to `path`.

    Raises:
        GpushimError: another user could change what `path` means.
    """
    if output and stat.S_ISDIR(status.st_mode):
        return
    if not trust.trusted(status.st_uid):
        culprit = found_at(fd, path)
        raise GpushimError(
            f"{path} is not touched: {culprit} belongs to user {status.st_uid}; {_owner_fix(culprit, status.st_uid)}"
        )
    if not _others_write(status):
        return
    culprit = found_at(fd, path)
    if status.st_mode & stat.S_ISVTX:
        raise GpushimError(
            f"{path} is not touched: others may make files in {culprit}; "
            "move it to a directory that only its owner may write"
        )
    raise GpushimError(
        f"{path} is not touched: others may write {culprit} (mode {stat.S_IMODE(status.st_mode):o}); chmod go-w it, "
        "and look at what is in it"
    )


def check_file(path: str, status: os.stat_result) -> None:
    """Raise if another user owns or may write a file, whose directory has been checked."""
    if not trust.trusted(status.st_uid):
        raise GpushimError(f"{path} belongs to user {status.st_uid}; {_owner_fix(path, status.st_uid)}")
    if not stat.S_ISSOCK(status.st_mode) and _others_write(status):
        raise GpushimError(
            f"{path} may be written by others (mode {stat.S_IMODE(status.st_mode):o}); look at a copy, and put that "
            "in its place"
        )


def _owner_fix(path: str, user: int) -> str:
    """Return what to do about another user's file or directory, which is right in that user's home."""
    try:
        home_folder = pwd.getpwuid(user).pw_dir.rstrip("/")
    except KeyError:
        home_folder = ""
    if home_folder and f"{path}/".startswith((f"{home_folder}/", f"/run/user/{user}/")):
        return "run this as that user"
    return "move it away and write your own"  # no chown: the other user may still have it open


def socket_path(path: str) -> str:
    """Return the path of the UNIX socket at an absolute path, links followed.

    Raises:
        GpushimError: another user could listen there.
        OSError: there is none.
    """
    with open_parent(path) as file:
        check_file(path, file.status())
        return file.path


def connect(path: str, seconds: float) -> socket.socket:
    """Connect to a UNIX socket that no other user could have put there.

    Its path may have any length: the kernel's limit of 107 bytes is on the address alone. `seconds` limits this and
    each later step.

    Raises:
        OSError: nothing listens, or another user could.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(seconds)
    try:
        with open_parent(path) as file:
            check_file(path, file.status())
            client.connect(f"/proc/self/fd/{file.folder}/{file.name}")
    except GpushimError as error:
        client.close()
        raise PermissionError(str(error)) from None
    except BaseException:
        client.close()
        raise
    return client


def replaceable(path: str) -> str:
    """Return the directory or link by which another user could put another file at an absolute path; "" for none.

    Raises:
        OSError: a name is not there, or there are too many links.
    """
    paths: list[str] = []

    def allow(fd: int, status: os.stat_result, _words: int) -> None:
        is_ours = trust.trusted(status.st_uid)
        if not is_ours and _others_make_names(os.path.dirname(found_at(fd, path))):
            paths.append(os.path.dirname(found_at(fd, path)))
        if stat.S_ISLNK(status.st_mode):
            paths.extend([] if is_ours else [found_at(fd, path)])
        elif (
            stat.S_ISDIR(status.st_mode)
            and not (is_ours and status.st_mode & stat.S_ISVTX)
            and _others_make_names(fd)
        ):
            paths.append(found_at(fd, path))

    os.close(walk_from("/", path, allow))
    return paths[0] if paths else ""


def others_change(status: os.stat_result) -> bool:
    """Return whether another user owns a file, directory or link, or may write to it."""
    return not trust.trusted(status.st_uid) or _others_write(status)


def _others_make_names(folder: int | str) -> bool:
    """Return whether another user may make names in a directory (fd or path), sticky or not."""
    return trust.others_may(os.stat(folder)) and not os.statvfs(folder).f_flag & os.ST_RDONLY


def folders(path: str) -> list[str]:
    """List the directories whose change shows that a file was replaced: its own, and those of links to it."""
    paths = [os.path.dirname(path)]

    def allow(fd: int, status: os.stat_result, words: int) -> None:
        if stat.S_ISLNK(status.st_mode) or not words:
            paths.append(os.path.dirname(found_at(fd, path)))

    with contextlib.suppress(OSError):  # as far as the way goes
        os.close(walk_from("/", path, allow))
    return [*dict.fromkeys(paths)]


def _open_parent(path: str, make: bool, output: bool) -> HostFile:
    process_root = _ROOT.fullmatch(path)
    top, below = (process_root[1], process_root[2] or "/") if process_root else ("/", path)
    make = make and os.path.basename(below) not in ("", ".", "..")
    link, foreign = "", len(path)  # the number of words after the first link: no fewer are in its text

    def allow(fd: int, status: os.stat_result, words: int) -> None:
        nonlocal link, foreign
        if words or stat.S_ISLNK(status.st_mode):
            check(path, fd, status, output)
        if stat.S_ISLNK(status.st_mode):
            foreign = min(foreign, words)
            if not words:
                link = os.path.join(os.path.dirname(found_at(fd, path)), os.readlink("", dir_fd=fd))

    def missing(folder: int, name: str, words: int) -> bool:
        if words and link:
            raise dangling(path, link)
        if words and (not make or words >= foreign):
            raise FileNotFoundError(2, os.strerror(2), os.path.dirname(below))
        if words:
            _make(folder, name)
        return words > 0

    root = os.open(top, _OPEN)
    try:
        check(path, root, os.fstat(root), output)
        folder, name, fd = walk_to_entry(root, below, missing, allow)
    except OSError as error:
        if error.errno == errno.EISDIR:
            raise GpushimError(f"{path} is not a regular file; an engine could not read it either") from None
        if error.errno == errno.ELOOP and link:
            raise GpushimError(f"{path} is a link that leads back to itself; remove it") from None
        raise
    finally:
        os.close(root)
    if fd >= 0:
        os.close(fd)
    directory = found_at(folder, os.path.dirname(below))
    return HostFile(folder, name, f"{top.rstrip('/')}{directory.rstrip('/')}/{name}", link)


def _make(folder: int, name: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, NEW_DIRECTORY_MODE, dir_fd=folder)
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fchmod(made, NEW_DIRECTORY_MODE)  # mkdir applies the umask, and engines of all users read it
        finally:
            os.close(made)


def found_at(fd: int, otherwise: str) -> str:
    """Return the path of an O_PATH fd as this process sees it; `otherwise` where that is unknown."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return otherwise  # there is no /proc


def dangling(path: str, target: str) -> GpushimError:
    return GpushimError(f"{path} is a link to {target}, which does not exist; make that file, or remove the link")


def _is_one_user(user: int, group: int) -> bool:
    """Return whether a group is one user alone: it has that name, or number, and lists no other member."""
    try:
        name, entry = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:  # neither needs to be listed
        return user == group
    return entry.gr_name == name and {*entry.gr_mem} <= {name}


def _others_write(status: os.stat_result) -> bool:
    """Return whether another user may write a file or directory; a link's mode means nothing.

    Where users have a group each and a umask of 002, the group of an ordinary user's files is that user.
    """
    if stat.S_ISLNK(status.st_mode):
        return False
    user = os.geteuid()
    is_own_group = (
        user != 0 and status.st_uid == user and status.st_mode & GROUP_WRITES and _is_one_user(user, status.st_gid)
    )
    return bool(status.st_mode & (OTHERS_WRITE if is_own_group else OTHERS_WRITE | GROUP_WRITES))
