"""Places on the host, opened or judged by who else could have put there what is there.

A path is walked one component at a time (walk.py). For those that others' settings and command lines name (`place`),
every directory, link and file on the way must be root's, or of who runs this, and no directory or file may be written
by anybody else: sticky or not, a directory where anybody may make files holds nothing to trust (a mount of FUSE's
shows whatever owners it likes). Below /proc/PID/root the walk stays in that root, whatever links say. What is done
with a place is done through the fd of its directory, never by its path again.
On the way to a file that root has named (`replaceable`), a sticky directory keeps what is root's, and a read-only
mount, as a pod's ConfigMap is (mode 0777), all names.
Out of scope: what files say (files.py), and which process names a path (running.py).
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
from gpushim.paths.walk import walk_from, walk_to_place

if TYPE_CHECKING:
    from collections.abc import Iterator

NEW_DIRECTORY_MODE = 0o755
OTHERS_WRITE, GROUP_WRITES = 0o002, 0o020
_ROOT = re.compile(r"(/proc/(?:\d+|self(?:/fd/\d+)?)/root)(/.*)?", re.ASCII | re.DOTALL)
_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """A file's directory, open, and the file's name in it.

    Attributes:
        folder: an O_PATH fd.
        name: of the file, which need not exist, and is no link if it does.
        path: where that is, links followed, as this process sees it.
        link: where the last link at the path's end leads; "" if there is none.
    """

    folder: int
    name: str
    path: str
    link: str = ""

    def status(self) -> os.stat_result:
        """Look at the file; raises OSError if there is none."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)


@contextlib.contextmanager
def place(path: str, make: bool = False, output: bool = False) -> Iterator[Place]:
    """Open the directory that a file is in, the file's links followed.

    Args:
        path: absolute.
        make: whether to make directories that are missing.
        output: accept directories of others, as for a new file in a user's home: whoever has the directory has the
            file anyway, and only a link could lead elsewhere.

    Raises:
        FileNotFoundError: a directory is missing, and all before it may be trusted.
        GpushimError: somebody else could change what is there, or a link leads nowhere or in circles.
        OSError: the path cannot be walked for another reason.
    """
    found = _found(path, make, output)
    try:
        yield found
    finally:
        os.close(found.folder)


def check(path: str, fd: int, status: os.stat_result, output: bool = False) -> None:
    """Refuse a directory, link or file that somebody else owns or may write; `path` is what was asked for.

    Raises:
        GpushimError: somebody could change what `path` means.
    """
    if output and stat.S_ISDIR(status.st_mode):
        return
    if not trust.trusted(status.st_uid):
        where = found_at(fd, path)
        raise GpushimError(
            f"{path} is not touched: {where} belongs to user {status.st_uid}; {_whose(where, status.st_uid)}"
        )
    if not _others_write(status):
        return
    where = found_at(fd, path)
    if status.st_mode & stat.S_ISVTX:
        raise GpushimError(
            f"{path} is not touched: others may make files in {where}; "
            "move it to a directory that only its owner may write"
        )
    raise GpushimError(
        f"{path} is not touched: others may write {where} (mode {stat.S_IMODE(status.st_mode):o}); chmod go-w it, "
        "and look at what is in it"
    )


def check_file(path: str, status: os.stat_result) -> None:
    """Refuse a file that somebody else owns or may write; its directory has been checked."""
    if not trust.trusted(status.st_uid):
        raise GpushimError(f"{path} belongs to user {status.st_uid}; {_whose(path, status.st_uid)}")
    if not stat.S_ISSOCK(status.st_mode) and _others_write(status):
        raise GpushimError(
            f"{path} may be written by others (mode {stat.S_IMODE(status.st_mode):o}); look at a copy, and put that "
            "in its place"
        )


def _whose(path: str, user: int) -> str:
    """Say what to do about another user's file or directory, which is right in that user's home."""
    try:
        home = pwd.getpwuid(user).pw_dir.rstrip("/")
    except KeyError:
        home = ""
    if home and f"{path}/".startswith((f"{home}/", f"/run/user/{user}/")):
        return "run this as that user"
    return "move it away and write your own"  # no chown: the other user may still have it open


def socket_path(path: str) -> str:
    """Return where the UNIX socket at an absolute path is, links followed.

    Raises:
        GpushimError: somebody else could listen there.
        OSError: there is none.
    """
    with place(path) as found:
        check_file(path, found.status())
        return found.path


def connect(path: str, seconds: float) -> socket.socket:
    """Connect to a UNIX socket that nobody else could have put there.

    Args:
        path: absolute, of any length: the kernel's limit of 107 bytes is on the address alone.
        seconds: for this and each later step.

    Raises:
        OSError: nobody listens, or somebody else could.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(seconds)
    try:
        with place(path) as found:
            check_file(path, found.status())
            client.connect(f"/proc/self/fd/{found.folder}/{found.name}")
    except GpushimError as error:
        client.close()
        raise PermissionError(str(error)) from None
    except BaseException:
        client.close()
        raise
    return client


def replaceable(path: str) -> str:
    """Return the directory or link by which somebody else could put another file at an absolute path; "" for none.

    Raises:
        OSError: a name is not there, or there are too many links.
    """
    found: list[str] = []

    def allow(fd: int, status: os.stat_result, _left: int) -> None:
        ours = trust.trusted(status.st_uid)
        if not ours and _anybodys(os.path.dirname(found_at(fd, path))):
            found.append(os.path.dirname(found_at(fd, path)))
        if stat.S_ISLNK(status.st_mode):
            found.extend([] if ours else [found_at(fd, path)])
        elif stat.S_ISDIR(status.st_mode) and not (ours and status.st_mode & stat.S_ISVTX) and _anybodys(fd):
            found.append(found_at(fd, path))

    os.close(walk_from("/", path, allow))
    return found[0] if found else ""


def others_change(status: os.stat_result) -> bool:
    """Say whether others than root and this user own a file, directory or link, or may write to it."""
    return not trust.trusted(status.st_uid) or _others_write(status)


def _anybodys(folder: int | str) -> bool:
    """Say whether others may make names in a directory (fd or path), be it none but their own, as in a sticky one."""
    return trust.others_may(os.stat(folder)) and not os.statvfs(folder).f_flag & os.ST_RDONLY


def folders(path: str) -> list[str]:
    """List the directories in which it shows that another file is there: the file's own, and those of links to it."""
    found = [os.path.dirname(path)]

    def allow(fd: int, status: os.stat_result, left: int) -> None:
        if stat.S_ISLNK(status.st_mode) or not left:
            found.append(os.path.dirname(found_at(fd, path)))

    with contextlib.suppress(OSError):  # as far as the way goes
        os.close(walk_from("/", path, allow))
    return [*dict.fromkeys(found)]


def _found(path: str, make: bool, output: bool) -> Place:
    other = _ROOT.fullmatch(path)
    top, inside = (other[1], other[2] or "/") if other else ("/", path)
    make = make and os.path.basename(inside) not in ("", ".", "..")
    link, foreign = "", len(path)  # how many words are left after the first link: no fewer are in its text

    def allow(fd: int, status: os.stat_result, left: int) -> None:
        nonlocal link, foreign
        if left or stat.S_ISLNK(status.st_mode):
            check(path, fd, status, output)
        if stat.S_ISLNK(status.st_mode):
            foreign = min(foreign, left)
            if not left:
                link = os.path.join(os.path.dirname(found_at(fd, path)), os.readlink("", dir_fd=fd))

    def missing(folder: int, name: str, left: int) -> bool:
        if left and link:
            raise dangling(path, link)
        if left and (not make or left >= foreign):
            raise FileNotFoundError(2, os.strerror(2), os.path.dirname(inside))
        if left:
            _make(folder, name)
        return left > 0

    root = os.open(top, _OPEN)
    try:
        check(path, root, os.fstat(root), output)
        folder, name, fd = walk_to_place(root, inside, missing, allow)
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
    return Place(
        folder, name, f"{top.rstrip('/')}{found_at(folder, os.path.dirname(inside)).rstrip('/')}/{name}", link
    )


def _make(folder: int, name: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, NEW_DIRECTORY_MODE, dir_fd=folder)
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fchmod(made, NEW_DIRECTORY_MODE)  # mkdir applies the umask, and engines of all users read it
        finally:
            os.close(made)


def found_at(fd: int, otherwise: str) -> str:
    """Return where an O_PATH fd is, as this process sees it; `otherwise` where that cannot be known."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return otherwise  # there is no /proc


def dangling(path: str, target: str) -> GpushimError:
    """Return the refusal of a link to a file that is not there."""
    return GpushimError(f"{path} is a link to {target}, which does not exist; make that file, or remove the link")


def _alone(user: int, group: int) -> bool:
    """Say whether a group is one user alone: it bears that name, or number, and nobody else is listed in it."""
    try:
        name, known = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:  # neither needs to be listed
        return user == group
    return known.gr_name == name and {*known.gr_mem} <= {name}


def _others_write(status: os.stat_result) -> bool:
    """Say whether others may write a file or directory; of a link, the mode means nothing.

    Where users have a group each and a umask of 002, the group of an ordinary user's files is that user.
    """
    if stat.S_ISLNK(status.st_mode):
        return False
    user = os.geteuid()
    own = user != 0 and status.st_uid == user and status.st_mode & GROUP_WRITES and _alone(user, status.st_gid)
    return bool(status.st_mode & (OTHERS_WRITE if own else OTHERS_WRITE | GROUP_WRITES))
