"""Whether others could change what one of gpushim's programs does: its file, its interpreters, its code.

What an engine's settings, a link on its PATH or a CDI spec name runs with each container, as root where they are
root's. So the rule is that of the settings themselves (places.py): each directory, link and file is root's, or of who
runs this, and nobody else may write it. Out of scope: who may write the settings.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import stat

from gpushim.ground.errors import GpushimError
from gpushim.paths import places, rooted
from gpushim.paths.walk import walk_from

PYTHON = "/usr/bin/python3"  # which gpushim-runtime starts
CHECKOUT = ("bin", "shim", "hook", "plugin", "vendor")  # what a checkout runs
LAUNCHER = "/shim/gpushim/launcher"  # in a checkout, which bin/gpushim-runtime leads to
COPIES = ("/opt/gpushim", "/usr/local/lib/gpushim")  # where root's copy of a checkout may go
OWN_COPY = "~/.local/lib/gpushim"
HERE = os.path.realpath(__file__)  # a copy is advised of nothing but what runs this
LINE = 256  # bytes of a script's first line (execve(2))


def by(program: str) -> str:
    """Return the file, directory or link by which others could change what a program does; "" for none.

    Args:
        program: absolute path of gpushim-runtime or gpushim-hook; one that is not there has nothing to change.
    """
    if not os.path.exists(program):
        return ""
    if found := _on_the_way(program):  # before anything of it is read
        return found
    code = _code(program)
    found = next(filter(None, map(_on_the_way, (*_interpreters(program), *code))), "")
    seen: set[tuple[int, int]] = set()
    return found or next(filter(None, (_in_tree(path, seen) for path in code)), "")


def check(program: str) -> None:
    """Refuse a program that others could change.

    Raises:
        GpushimError: they could; it says how the program comes to where they cannot.
    """
    if found := by(program):
        who = "this user" if os.geteuid() else "root"
        raise GpushimError(
            f"{program} runs with every container, and users other than {who} own or can write to {found}; "
            f"{fix(program)}"
        )


def fix(program: str, then: str = "") -> str:
    """Say how a program that others could change comes to where they cannot.

    Args:
        program: absolute path.
        then: what gpushim is to do from there, as words behind its name; "" for the same as now.
    """
    top = _checkout(program)
    place = next(filter(_free, [os.path.expanduser(OWN_COPY)] if os.geteuid() else COPIES), "")
    if not top or not place or not HERE.startswith(f"{top}/"):  # nobody looked at that code, or ran it
        again = f"; then gpushim {then}" if then else ""
        return f"install gpushim's package, and use the programs that it brings{again}"
    parts = [f"{top}/{name}" for name in CHECKOUT if os.path.isdir(f"{top}/{name}")]
    # Not cp -a: the copies would be the other user's for a moment, who could keep them open.
    commands = (
        ["install", "-d", place],
        ["cp", "-r", "--preserve=timestamps", "-t", place, *parts],
        ["chmod", "-R", "go-w", place],
    )
    command = " && ".join(map(shlex.join, commands))
    mine = f"{shlex.quote(place)}/bin/gpushim"
    return f"{command} && {mine} {then}" if then else f"copy it with `{command}`, and use {mine}"


def _free(place: str) -> bool:
    """Say whether a copy may go to a directory: nobody else can change it, nor those above it."""
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return os.path.isdir(place) and not _on_the_way(place)


def _checkout(program: str) -> str:
    """Return the directory of the checkout that a program is in; "" if it is in none."""
    real = os.path.realpath(program)
    top = real[: -len(LAUNCHER)] if real.endswith(LAUNCHER) else os.path.dirname(os.path.dirname(real))
    return top if os.path.isdir(f"{top}/shim/gpushim") else ""


def _code(program: str) -> list[str]:
    """List the directories of code that a program runs: of a checkout, of a package, of pip or uv."""
    if top := _checkout(program):
        return [f"{top}/{name}" for name in CHECKOUT if os.path.isdir(f"{top}/{name}")]
    top = glob.escape(os.path.dirname(os.path.dirname(os.path.realpath(program))))
    # What pip or uv installed imports what lies beside it.
    return glob.glob(f"{top}/lib/gpushim") or sorted(glob.glob(f"{top}/lib/python3*/*-packages"))


def _interpreters(program: str) -> list[str]:
    """List the programs that run a script: the one in its first line, and the one that the launcher starts."""
    with open(program, "rb", opener=rooted.nonblocking) as file:
        first = file.readline(LINE) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    word = os.fsdecode(first[2:].split()[0]) if first.startswith(b"#!") and first[2:].split() else ""
    return [path for path in (word, PYTHON) if path.startswith("/") and os.path.exists(path)]


def _in_tree(top: str, seen: set[tuple[int, int]]) -> str:
    """Return the first name below a directory of code by which others could change the code; "" for none.

    Args:
        top: the directory, which is judged itself.
        seen: device and inode of the directories that were looked through; links may lead there again.
    """
    status = os.stat(top)
    if (status.st_dev, status.st_ino) in seen:
        return ""
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(top) as entries:
        for entry in entries:
            found = ""
            with contextlib.suppress(
                FileNotFoundError
            ):  # a link leads nowhere, or it has gone: its directory is judged
                if entry.is_symlink():
                    found = _on_the_way(entry.path)
                elif places.others_change(entry.stat(follow_symlinks=False)):
                    found = entry.path
                if not found and entry.is_dir():
                    found = _in_tree(entry.path, seen)
            if found:
                return found
    return ""


def _on_the_way(path: str) -> str:
    """Return the first directory, link or file by which others could change what an absolute path means; "" for none.

    Raises:
        OSError: a name is not there, or there are too many links.
    """
    found: list[str] = []

    def allow(fd: int, status: os.stat_result, _left: int) -> None:
        if places.others_change(status):
            found.append(places.found_at(fd, path))

    os.close(walk_from("/", path, allow))
    return found[0] if found else ""
