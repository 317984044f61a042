"""Whether others could change what one of gpushim's programs does: its file, its interpreters, its code.

A program that an engine's settings, a link on its PATH or a CDI spec names runs with each container, as root where
they are root's. So the rule is that of the settings (host_files.py): each directory, link and file belongs to root or
this user, and no other user may write it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import stat

from gpushim.ground.errors import GpushimError
from gpushim.paths import host_files, rooted
from gpushim.paths.walk import walk_from

PYTHON = "/usr/bin/python3"  # which gpushim-runtime starts
CHECKOUT = ("bin", "shim", "hook", "plugin", "vendor")  # what a checkout runs
LAUNCHER = "/shim/gpushim/launcher"  # in a checkout, which bin/gpushim-runtime leads to
COPIES = ("/opt/gpushim", "/usr/local/lib/gpushim")  # where root's copy of a checkout may go
OWN_COPY = "~/.local/lib/gpushim"
HERE = os.path.realpath(__file__)  # only the checkout that runs this is copied
LINE = 256  # bytes of a script's first line (execve(2))


def by(program: str) -> str:
    """Return the file, directory or link by which others could change a program that is there; "" for none."""
    if not os.path.exists(program):
        return ""
    if culprit := _culprit_on_path(program):  # before anything of it is read
        return culprit
    code = _code(program)
    culprit = next(filter(None, map(_culprit_on_path, (*_interpreters(program), *code))), "")
    visited: set[tuple[int, int]] = set()
    return culprit or next(filter(None, (_in_tree(path, visited) for path in code)), "")


def check(program: str) -> None:
    """Raise if others could change a program.

    Raises:
        GpushimError: they could; it names the commands that put the program where they cannot.
    """
    if path := by(program):
        user = "this user" if os.geteuid() else "root"
        raise GpushimError(
            f"{program} runs with every container, and users other than {user} own or can write to {path}; "
            f"{fix(program)}"
        )


def fix(program: str, arguments: str = "") -> str:
    """Return how to put a program that others could change where they cannot.

    `arguments` are words for gpushim to be run with from there; "" for the same as now.
    """
    top = _checkout(program)
    folder = next(filter(_is_free, [os.path.expanduser(OWN_COPY)] if os.geteuid() else COPIES), "")
    if not top or not folder or not HERE.startswith(f"{top}/"):  # another checkout's code is not vouched for
        suffix = f"; then gpushim {arguments}" if arguments else ""
        return f"install gpushim's package, and use the programs that it brings{suffix}"
    parts = [f"{top}/{name}" for name in CHECKOUT if os.path.isdir(f"{top}/{name}")]
    # Not cp -a: the copies would be the other user's for a moment, who could keep them open.
    commands = (
        ["install", "-d", folder],
        ["cp", "-r", "--preserve=timestamps", "-t", folder, *parts],
        ["chmod", "-R", "go-w", folder],
    )
    command = " && ".join(map(shlex.join, commands))
    copy = f"{shlex.quote(folder)}/bin/gpushim"
    return f"{command} && {copy} {arguments}" if arguments else f"copy it with `{command}`, and use {copy}"


def _is_free(folder: str) -> bool:
    """Return whether a copy may go to a directory: only root or this user can change it, and those above it."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and not _culprit_on_path(folder)


def _checkout(program: str) -> str:
    """Return the directory of a program's checkout; "" if it is in none."""
    real = os.path.realpath(program)
    top = real[: -len(LAUNCHER)] if real.endswith(LAUNCHER) else os.path.dirname(os.path.dirname(real))
    return top if os.path.isdir(f"{top}/shim/gpushim") else ""


def _code(program: str) -> list[str]:
    """List the directories of a program's code: of a checkout, of a package, of pip or uv."""
    if top := _checkout(program):
        return [f"{top}/{name}" for name in CHECKOUT if os.path.isdir(f"{top}/{name}")]
    top = glob.escape(os.path.dirname(os.path.dirname(os.path.realpath(program))))
    # What pip or uv installed imports what lies beside it.
    return glob.glob(f"{top}/lib/gpushim") or sorted(glob.glob(f"{top}/lib/python3*/*-packages"))


def _interpreters(program: str) -> list[str]:
    """List the programs that run a script: that of its first line, and Python, which the launcher starts."""
    with open(program, "rb", opener=rooted.nonblocking) as file:
        first = file.readline(LINE) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    word = os.fsdecode(first[2:].split()[0]) if first.startswith(b"#!") and first[2:].split() else ""
    return [path for path in (word, PYTHON) if path.startswith("/") and os.path.exists(path)]


def _in_tree(top: str, visited: set[tuple[int, int]]) -> str:
    """Return the first name in a directory of code, or itself, by which others could change the code; "" for none.

    `visited` has device and inode of the directories that were looked through; links may lead there again.
    """
    status = os.stat(top)
    if (status.st_dev, status.st_ino) in visited:
        return ""
    visited.add((status.st_dev, status.st_ino))
    with os.scandir(top) as entries:
        for entry in entries:
            path = ""
            # A link leads nowhere, or it has gone: its directory is judged.
            with contextlib.suppress(FileNotFoundError):
                if entry.is_symlink():
                    path = _culprit_on_path(entry.path)
                elif host_files.others_change(entry.stat(follow_symlinks=False)):
                    path = entry.path
                if not path and entry.is_dir():
                    path = _in_tree(entry.path, visited)
            if path:
                return path
    return ""


def _culprit_on_path(path: str) -> str:
    """Return the first directory, link or file by which others could change what a path means; "" for none.

    Raises:
        OSError: a name is not there, or there are too many links.
    """
    paths: list[str] = []

    def allow(fd: int, status: os.stat_result, _words: int) -> None:
        if host_files.others_change(status):
            paths.append(host_files.found_at(fd, path))

    os.close(walk_from("/", path, allow))
    return paths[0] if paths else ""
