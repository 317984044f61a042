"""Containers of pods that conmon watches for CRI-O, and the program that is called for each, as /proc tells.

CRI-O calls the program of a handler by the handler's name, which it must have in its settings as long as one of its
containers is there. Which process is this host's says origin.py.
Out of scope: Podman's containers, which have conmon, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpushim.engines.processes import origin

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "conmon"
ID, NAME, RUNTIME = ("-c", "--cid"), ("-n", "--name"), ("-r", "--runtime")  # CRI-O has the short ones
POD = "k8s_"  # the beginning of such a container's name


def calling(is_meant: Callable[[str], bool], proc: str = "/proc") -> list[str]:
    """List the ids of containers for which a program is called that is meant.

    Args:
        is_meant: says it of a program's absolute path.
        proc: where procfs is mounted, if it is.
    """
    found, entries = [], os.listdir(proc) if os.path.isdir(proc) else []
    for entry in filter(str.isdigit, entries):
        folder = f"{proc}/{entry}"
        if origin.program(folder, proc, (PROGRAM,), service=False) != PROGRAM:
            continue
        words = [os.fsdecode(word) for word in origin.data(f"{folder}/cmdline").split(b"\0")]
        values = dict(zip(words, words[1:]))
        identity, name, program = (
            next((values[each] for each in option if each in values), "") for option in (ID, NAME, RUNTIME)
        )
        if identity and name.startswith(POD) and is_meant(program):
            found.append(identity)
    return sorted(found)
