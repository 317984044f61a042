"""Fixes for files of other users, or that others can write, without trusting any of their content.

The maker of a file may still hold it open, and its content stays, so a change of its owner or mode is no fix: it is
moved away, or a copy that others cannot write is looked at and then replaces it. Both go where no other user can have
put a name, which could be a link. A directory of root's is closed to others, and their names in it are listed.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat

from gpushim.ground import system
from gpushim.paths import trust

REINSTALL = "install the program from its package, where root alone may write, and start it from there"


def away(path: str) -> str:
    """Return the command that moves a file or directory into a new directory where no other user can make a name."""
    folder = _moved_folder()
    fresh = f'"$(mktemp -d {shlex.quote(f"{folder}/XXXXXX")})"'
    return f"{shlex.join(_make_folder(folder))} && mv -t {fresh} {shlex.quote(path)}"


def _moved_folder() -> str:
    """Return the directory for files that are moved away: only root, or this user, can write above it."""
    state = system.state_dir()
    lasting = os.path.expanduser("~/.local/state/gpushim") if os.geteuid() else system.LASTING_DIR
    return f"{lasting if state == system.STATE_DIR else state}/moved"


def _make_folder(folder: str) -> list[str]:
    return ["install", "-d", "-m", "700", folder]


def file(path: str) -> str:
    """Return the command for an existing file, in a trusted directory, that others own or may write.

    Another user's file is moved away; root's is replaced after a look at a copy (mv asks).
    """
    status = os.lstat(path)
    if not trust.trusted(status.st_uid) or not stat.S_ISREG(status.st_mode):
        return away(path)
    copy = (
        f"{_moved_folder()}/{os.path.basename(path)}.copy"  # who has the file open goes on writing into the old one
    )
    commands = (
        _make_folder(_moved_folder()),
        ["install", "-T", "-m", "644", path, copy],
        ["cat", "-v", copy],
        ["mv", "-iT", copy, path],
    )
    return " && ".join(map(shlex.join, commands))


def directory(path: str) -> str:
    """Return the command for an existing directory that others own or may write.

    It also lists the names in a directory of root's that others own or may write. There is none ("") for a directory
    in which everybody makes files by design, as /tmp, and for a home or a directory above or below one.
    """
    status = os.stat(path)
    if not trust.trusted(status.st_uid):
        return "" if _is_near_home(os.path.realpath(path), status.st_uid) else away(path)
    return "" if status.st_mode & stat.S_ISVTX else closed(path)


def closed(path: str) -> str:
    """Return the command that takes others' write permission from a directory of root's, and lists their names."""
    condition = ["(", "!", "-user", "root", "-o", "!", "-type", "l", "-perm", "/022", ")"]
    look = ["find", "-H", path, "-mindepth", "1", *condition, "-ls"]
    return f"{shlex.join(['chmod', 'go-w', path])} && {shlex.join(look)}"


def program(path: str) -> str:
    """Return the fix for a program, at an absolute path, that others could have made.

    It is a command where others may only write to directories of root's on its path; else a sentence.
    """
    closable = []
    try:
        for folder in dict.fromkeys((*_above(path), *_above(os.path.realpath(path)))):
            status = os.stat(folder)
            if not trust.trusted(status.st_uid) or status.st_mode & (stat.S_ISVTX | stat.S_IWOTH) > stat.S_ISVTX:
                return REINSTALL
            closable += [folder] if trust.others_may(status) else []
        is_foreign = not trust.trusted(os.lstat(path).st_uid) or trust.others_may(os.stat(path))
    except OSError:  # it is seen through another root
        return REINSTALL
    steps = [f"remove {shlex.quote(path)} and install it from its package"] if is_foreign else []
    return "; then ".join([*steps, *[" && ".join(map(closed, closable))] * bool(closable)]) or REINSTALL


def _above(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:count]) or "/" for count in range(1, len(names))]


def _is_near_home(path: str, user: int) -> bool:
    try:
        home_folder = os.path.realpath(pwd.getpwuid(user).pw_dir)
    except KeyError:
        return False
    return f"{path}/".startswith(f"{home_folder}/") or f"{home_folder}/".startswith(f"{path}/")
