"""Fixes for what belongs to another user, or could be written by others, without trusting any of its content.

Whoever made a file may still hold it open, and what they wrote stays in it, so a change of its owner or mode is no
fix: it is moved away, or a copy that others cannot write is looked at and then replaces it. Both go where nobody else
can have put anything, for a destination that somebody has made a link leads where he likes. Of a directory of root's
others lose their right to write, and what they have put into it is shown.
Out of scope: who is trusted (paths/trust.py); the state directory, which a refresh makes again (check_state.py).
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
    """Return the command that moves a file or directory to where nobody else can make a name.

    It makes a directory of its own there when it runs: another fix may have moved a file of the same name.
    """
    place = _moved()
    return f'{shlex.join(_made(place))} && mv -t "$(mktemp -d {shlex.quote(f"{place}/XXXXXX")})" {shlex.quote(path)}'


def _moved() -> str:
    """Return the directory for what is moved away: only root, or the user who runs this, can write above it."""
    state = system.state_dir()
    lasting = os.path.expanduser("~/.local/state/gpushim") if os.geteuid() else system.LASTING_DIR
    return f"{lasting if state == system.STATE_DIR else state}/moved"


def _made(folder: str) -> list[str]:
    return ["install", "-d", "-m", "700", folder]


def file(path: str) -> str:
    """Return the command for an existing file, in a trusted directory, that others own or may write.

    Another user's file is moved away; root's is replaced once somebody has looked at a copy (mv asks).
    """
    status = os.lstat(path)
    if not trust.trusted(status.st_uid) or not stat.S_ISREG(status.st_mode):
        return away(path)
    copy = f"{_moved()}/{os.path.basename(path)}.copy"  # who has the file open goes on writing into the old one
    commands = (
        _made(_moved()),
        ["install", "-T", "-m", "644", path, copy],
        ["cat", "-v", copy],
        ["mv", "-iT", copy, path],
    )
    return " && ".join(map(shlex.join, commands))


def directory(path: str) -> str:
    """Return the command for an existing directory that others own or may write.

    It also lists what others own or may write in a directory of root's. There is none ("") for a directory in which
    everybody makes files by design, as in /tmp, and for a home or what is above or below one.
    """
    status = os.stat(path)
    if not trust.trusted(status.st_uid):
        return "" if _home(os.path.realpath(path), status.st_uid) else away(path)
    return "" if status.st_mode & stat.S_ISVTX else closed(path)


def closed(path: str) -> str:
    """Return the command that keeps others than root out of a directory of root's, and lists what they put there."""
    theirs = ["(", "!", "-user", "root", "-o", "!", "-type", "l", "-perm", "/022", ")"]
    look = ["find", "-H", path, "-mindepth", "1", *theirs, "-ls"]
    return f"{shlex.join(['chmod', 'go-w', path])} && {shlex.join(look)}"


def program(path: str) -> str:
    """Say how a program that others could have made becomes one of root's; `path` is absolute, linked or not.

    Returns:
        a command, where others may only write to directories of root's on its path; else a sentence.
    """
    closable = []
    try:
        for folder in dict.fromkeys((*_above(path), *_above(os.path.realpath(path)))):
            status = os.stat(folder)
            if not trust.trusted(status.st_uid) or status.st_mode & (stat.S_ISVTX | stat.S_IWOTH) > stat.S_ISVTX:
                return REINSTALL
            closable += [folder] if trust.others_may(status) else []
        theirs = not trust.trusted(os.lstat(path).st_uid) or trust.others_may(os.stat(path))
    except OSError:  # it is seen through another root
        return REINSTALL
    again = [f"remove {shlex.quote(path)} and install it from its package"] if theirs else []
    return "; then ".join([*again, *[" && ".join(map(closed, closable))] * bool(closable)]) or REINSTALL


def _above(path: str) -> list[str]:
    """List the directories that a path leads through, the root first."""
    names = path.split("/")
    return ["/".join(names[:count]) or "/" for count in range(1, len(names))]


def _home(path: str, user: int) -> bool:
    """Say whether a path is a user's home, or above or below it."""
    try:
        home = os.path.realpath(pwd.getpwuid(user).pw_dir)
    except KeyError:
        return False
    return f"{path}/".startswith(f"{home}/") or f"{home}/".startswith(f"{path}/")
