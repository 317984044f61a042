"""Which pods have processes: kubelet makes a cgroup for each, which has the pod's uid in its name.

kubelet lists a pod no more as soon as it is deleted by force, though its containers end later: by their cgroups they
are seen until then. A host without kubelet's cgroups, or a pod without a view of them, says nothing (`sees`).
Source: Kubernetes' pkg/kubelet/cm (node allocatable, QoS and pod containers; names of systemd's slices).
Out of scope: which pods matter (starts.py).
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUPS = "/sys/fs/cgroup"
# Controllers of cgroup v1, in each of which a container is. The first one counts processes also for who is in another
# PID namespace, whose cgroup.procs is empty.
_V1 = ("pids", "devices", "memory")
_TOP, _SLICE = "kubepods", ".slice"
_CLASSES = ("", "burstable", "besteffort")  # of service; pods of the first have no directory of their own
DEPTH, MOST = 3, 4096  # of directories above kubelet's, as --cgroup-root names them, and how many are looked into
AGAIN = 1.0  # seconds between looks for kubelet's cgroups, least, as it may make others
_UID = re.compile("[0-9A-Za-z-]{1,128}", re.ASCII)  # a static pod's is a hash


class PodCgroups:
    """kubelet's cgroups.

    Args:
        mounted: where cgroups are mounted.
    """

    def __init__(self, mounted: str = CGROUPS) -> None:
        self._mounted = mounted
        self._tops: list[str] = []
        self._looked = 0.0  # time.monotonic() of the last look for them

    def sees(self, uid: str) -> bool:
        """Say whether there is a cgroup of this pod; kubelet's are looked for where it has none in those known."""
        if not any(self._of(uid)):
            self._look()
        return any(self._of(uid))

    def runs(self, uid: str) -> bool:
        """Say whether a process of this pod is seen."""
        if not any(self._of(uid)) and time.monotonic() - self._looked >= AGAIN:
            self._look()
        return any(map(_populated, self._of(uid)))

    def there(self) -> bool:
        """Say whether kubelet's cgroups are seen at all."""
        if not any(map(os.path.isdir, self._tops)) and time.monotonic() - self._looked >= AGAIN:
            self._look()
        return any(map(os.path.isdir, self._tops))

    def _look(self) -> None:
        self._tops, self._looked = _tops(self._mounted), time.monotonic()

    def _of(self, uid: str) -> Iterator[str]:
        """List the cgroups of a pod."""
        if _UID.fullmatch(uid):
            names = [_named(top, of, uid) for top in self._tops for of in _CLASSES]
            yield from filter(os.path.isdir, names)


def _named(top: str, of: str, uid: str) -> str:
    """Return the path of a pod's cgroup.

    Args:
        top: of that of all pods.
        of: class of service.
        uid: the pod's.
    """
    if not top.endswith(_SLICE):  # a name of systemd's repeats those above it
        return "/".join(filter(None, (top, of, f"pod{uid}")))
    stem = os.path.basename(top)[: -len(_SLICE)]
    if of:
        stem = f"{stem}-{of}"
        top = f"{top}/{stem}{_SLICE}"
    return f"{top}/{stem}-pod{uid.replace('-', '_')}{_SLICE}"


def _tops(mounted: str) -> list[str]:
    """List the cgroups of all pods, which are root's: who has a cgroup of his own may give others any name."""
    level, found, left = [_hierarchy(mounted)], [], MOST
    for _ in range(DEPTH + 1):
        here = [path for folder in level[: max(0, left)] for path in _folders(folder)]
        stems = {path: os.path.basename(path).partition(_SLICE)[0] for path in here}
        found += [path for path in here if stems[path] == _TOP or stems[path].endswith(f"-{_TOP}")]
        left -= len(level)
        level = [path for path in here if path not in found]
    return found


def _hierarchy(mounted: str) -> str:
    if os.path.exists(f"{mounted}/cgroup.controllers"):
        return mounted
    return next(filter(os.path.isdir, (f"{mounted}/{name}" for name in _V1)), mounted)


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as listed:
            return [one.path for one in listed if one.is_dir(follow_symlinks=False) and trust.ours(one.path)]
    except OSError:  # it has ended
        return []


def _populated(folder: str) -> bool:
    """Say whether a process is in a cgroup, or below it."""
    if events := _text(f"{folder}/cgroup.events"):  # of cgroup v2
        return "populated 1" in events.splitlines()
    if count := _text(f"{folder}/pids.current"):
        return count.strip() != "0"
    return any(_text(f"{place}/cgroup.procs") for place, *_ in os.walk(folder))


def _text(path: str) -> str:
    """Read a file; nothing of one that is not there, or has ended."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
