"""Run commands of `gpushim` with the standard streams that a way names: `python3 streamed.py WAY JSON`.

JSON is a list of command lines; prints a list of [exit code, stdout, stderr]. Each runs in a child of its own whose
streams are as a new interpreter finds them, which costs a hundredth of starting one.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import pty
import struct
import sys
import tempfile
import termios
import traceback
from typing import Any

TERMINALS = {"40": 40, "80": 80, "200": 200}  # columns
CLOSED = {"closed stdin": 0, "closed stdout": 1, "closed stderr": 2}
PLACES = ("deleted directory", "no temporary directory")
WAYS = ("well", "full stdout", "full stderr", "broken pipe", *CLOSED, *TERMINALS, *PLACES)


def outcome(way: str, words: list[str]) -> tuple[int, str, str]:
    """Run a command; returns its exit code, stdout (on a terminal with stderr, as people see them) and stderr."""
    read, write = pty.openpty() if way in TERMINALS else os.pipe()
    if way in TERMINALS:
        fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", 24, TERMINALS[way], 0, 0))
    if way == "broken pipe":
        os.close(read)
    said = os.memfd_create("stderr")
    child = os.fork()
    if not child:
        _places(way)
        _streams(way, write, said)
        code = 99
        try:
            code = _run(words)
        finally:
            os._exit(code)
    os.close(write)
    out = b"" if way == "broken pipe" else _all(read)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(said, "rb") as file:
        file.seek(0)
        return code, out.decode().replace("\r\n", "\n"), file.read().decode()


def _streams(way: str, out: int, said: int) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nothing, 0), (full if way == "full stdout" else out, 1)):
        os.dup2(fd, target)
    os.dup2(full if way == "full stderr" else out if way in TERMINALS else said, 2)
    os.closerange(3, 100)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if CLOSED.get(way) == fd:
            os.close(fd)
        stream: Any = None if CLOSED.get(way) == fd else open(fd, "w" if fd else "r", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _places(way: str) -> None:
    """Let a directory that a command may need be none."""
    if way == "deleted directory":
        os.chdir(folder := tempfile.mkdtemp())
        os.rmdir(folder)
    if way == "no temporary directory":
        tempfile._candidate_tempdir_list = lambda: ["/proc"]  # type: ignore[attr-defined]


def _run(words: list[str]) -> int:
    """Run a command as an interpreter does; returns the exit code."""
    from gpushim.cli import main

    code = 1
    try:
        main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:
        with contextlib.suppress(Exception):
            traceback.print_exc()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        return 120  # as Py_FinalizeEx says it
    return code


def _prepare() -> None:
    """Import what is not ours, which takes most of the time; ours is imported in each child, by its streams."""
    for command in ("configure", "doctor", "explain", "labels", "list", "refresh"):
        importlib.import_module(f"gpushim.cli.{command}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpushim"]:
        del sys.modules[name]


def _all(fd: int) -> bytes:
    parts = []
    with contextlib.suppress(OSError):  # the terminal's other side is closed
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    os.close(fd)
    return b"".join(parts)


if __name__ == "__main__":
    _prepare()
    print(json.dumps([outcome(sys.argv[1], words) for words in json.loads(sys.argv[2])]))
