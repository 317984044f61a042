"""Bound what a hook may use, by the kernel's own limits: what stands behind bounds.py if a bound is missing there.

A hook is a process of its own, so its limits reach neither the low-level runtime nor the container. A refresh needs
more (NVML maps gigabytes) and is a hook's child: a hook that may start one is confined when that is over.
Out of scope: what is bounded where it is read, which is what counts; what a process may call.

Hot path: one C module of the standard library, 0.3 ms.
"""

from __future__ import annotations

import _signal
import posix
import sys

from gpushim.ground import bounds
from gpushim.ground.errors import ROOTFS, GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MIB = 20
GRACE = 2  # seconds of CPU time after the signal: then the kernel ends the process


def confine(*logs: str, for_good: bool = True) -> None:
    """Lower this process's limits: memory, CPU time, size of files, number of open ones, core dumps.

    Args:
        logs: paths on the host of files that it appends to, or ""; they may be large already, and so may stderr.
        for_good: children cannot raise them again, as one that asks NVML must.
    """
    before = sys.path[:]
    sys.path[:] = [path for path in before if path.endswith("/lib-dynload")]  # to look elsewhere first takes as long
    try:
        import resource
    except ImportError:  # a Python in parts, such as Debian's python3-minimal
        return
    finally:
        sys.path[:] = before
    _signal.signal(_signal.SIGXCPU, _out_of_time)
    written = max([_size(2), *[_size(path) for path in logs]])
    for kind, limit, grace in (
        (resource.RLIMIT_AS, bounds.HOOK_MEMORY, 0),
        (resource.RLIMIT_CPU, bounds.HOOK_SECONDS, GRACE),
        (resource.RLIMIT_FSIZE, bounds.HOOK_FILE + written, 0),
        (resource.RLIMIT_NOFILE, bounds.HOOK_OPEN, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        ceiling = resource.getrlimit(kind)[1]
        soft, hard = [limit + grace if current < 0 else current for current in resource.getrlimit(kind)]  # -1: none
        try:
            resource.setrlimit(kind, (min(soft, limit), min(hard, limit + grace) if for_good else ceiling))
        except (OSError, ValueError):
            pass  # seccomp of a nested engine, for instance; it is only the second line


def exhausted() -> GpushimError:
    """Return the error for a limit that has struck, of which Python makes a MemoryError."""
    return GpushimError(
        f"the hook needs more than {bounds.HOOK_MEMORY >> MIB} MiB or {bounds.HOOK_SECONDS} s of CPU time for this "
        "container: its image may be hostile, or this machine too slow just now, as an emulated or overcommitted one "
        "can be; try again, or start another image",
        ROOTFS,
    )


def _out_of_time(*_: object) -> NoReturn:
    raise MemoryError  # unlike our own errors, nothing takes it for a step that may be left out


def _size(file: int | str) -> int:
    try:
        return posix.stat(file).st_size
    except (OSError, ValueError):
        return 0
