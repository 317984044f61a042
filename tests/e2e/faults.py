"""Faults at chosen system calls of a command: strace kills it there, or makes the call fail (strace(1), `inject`).

A clean run tells which calls there are. A fault comes before its call does anything, so that one at each call is one
in each state that the command goes through. GPUSHIM_LONG=1 leaves none out.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sample import LONG

KILL = "signal=SIGKILL"
CHANGES = ("write", "renameat", "rename", "mkdirat", "mkdir", "symlinkat", "unlinkat", "unlink", "fchmod", "chmod")
SECONDS = 60.0
SHORT = """
#include <sys/syscall.h>
#include <unistd.h>
ssize_t write(int fd, const void *data, size_t size)
{
    return syscall(SYS_write, fd, data, fd > 2 && size > 7 ? 7 : size);
}
"""
Done = subprocess.CompletedProcess[str]
LINE = re.compile(r"^(?P<pid>\d+) +(?P<name>\w+)\((?P<words>.*)")


class Call(NamedTuple):
    """One system call of a command's first process, the number-th of its name."""

    name: str
    number: int
    words: str


def calls(command: Sequence[object], **options: Any) -> list[Call]:
    """Run a command that ends well; return the calls of its process, and of what that becomes, in their order.

    The first of all, which starts it, is strace's own.
    """
    with tempfile.NamedTemporaryFile("r") as file:
        words = ["/usr/bin/strace", "-f", "-qq", "-s", "200", "-e", "signal=none", "-o", file.name]
        subprocess.run([*words, *map(str, command)], check=True, timeout=SECONDS, **options)
        found = [match for match in map(LINE.match, file) if match]
    count: Counter[str] = Counter()
    made = []
    for match in found:
        if match["pid"] == found[0]["pid"]:
            count[match["name"]] += 1
            made.append(Call(match["name"], count[match["name"]], match["words"]))
    return made[1:]


def strike(command: Sequence[object], call: Call, what: str, **options: Any) -> Done | None:
    """Run a command with a fault at a call; an error comes also to the same call of each child.

    Args:
        command: whose calls are about the same at each run.
        call: which.
        what: as strace has it: `signal=SIGKILL`, `error=ENOSPC`.
        options: of subprocess.run.

    Returns:
        how it ended; None if there were fewer calls of that name this time, and no fault.
    """
    quick = [] if what == KILL else ["-f", "--seccomp-bpf"]  # with which a signal does not arrive
    with tempfile.NamedTemporaryFile("r") as file:
        words = ["/usr/bin/strace", *quick, "-qq", "-o", file.name, "-e", f"trace={call.name}", "-e", "signal=none"]
        words += ["-e", f"inject={call.name}:{what}:when={call.number}", *map(str, command)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=SECONDS, **options)
        struck = done.returncode == -9 if what == KILL else "(INJECTED)" in file.read()
    return done if struck else None


def split(made: list[Call], path: object) -> tuple[list[Call], list[Call]]:
    """Part calls where a path that begins so is first opened."""
    first = next(index for index, call in enumerate(made) if call.name == "openat" and f'"{path}' in call.words)
    return made[:first], made[first:]


def telling(made: list[Call], step: int) -> list[Call]:
    """Take the calls that may change a file, before and behind which each state is seen, and some of the others."""
    return made if LONG else [call for index, call in enumerate(made) if call.name in CHANGES or index % step == 0]


def some(made: list[Call], step: int) -> list[Call]:
    """Take every step-th, or all if there is time."""
    return made if LONG else made[::step]


def shorten(directory: Path) -> Path:
    """Compile a library, to be preloaded, with which write(2) takes no more than 7 bytes of a file at once."""
    library = directory / "short.so"
    command = ["/usr/bin/gcc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=SHORT, text=True, check=True)
    return library


def tree(top: Path) -> dict[str, tuple[int, bytes]]:
    """Return what is below a directory: mode and content, or target, of each name."""
    found = {}
    for path in sorted(top.rglob("*")):
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (path.lstat().st_mode, content)
    return found
