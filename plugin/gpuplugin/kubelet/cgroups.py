"""Whether a process of a pod is left, by the cgroups that kubelet makes for pods: their names have the pods' uids.

kubelet forgets a pod that is deleted by force, and the API server its claims, while a process of it may hang in the
kernel for as long as its GPU does. Its cgroup is there, and has a process, until that has ended.
Source: pkg/kubelet/cm/pod_container_manager_linux.go of Kubernetes (podUID below each QoS class; systemd's names have
"_" for "-"), cgroups(7). Where no cgroup of kubelet's is seen, no pod counts as running; where the kernel cannot tell
for now (no descriptor or memory is left), each does.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

TOPS = ("/host/sys/fs/cgroup", "/sys/fs/cgroup")  # in a pod, whose own is no more than its own; on the node
PIDS = "pids"  # controller of cgroup v1, which kubelet needs
LOOK = 0.1  # seconds between looks for the end of a pod's processes
PATIENCE = 4.0  # seconds of all of them: kubelet leaves a container two, even of a pod deleted by force, till SIGKILL
DEEPEST = 8  # directories above that of a pod; a kubelet in a container has six
_POD = "pod"
_LIMIT = 1 << 12  # bytes of a file, which has a line or two


async def find_running(uids: Collection[str]) -> frozenset[str]:
    """Return which of these pods have a process, as `running`, without blocking the loop."""
    return await asyncio.to_thread(running, uids) if uids else frozenset()


async def wait_for_end(uids: Collection[str]) -> None:
    """Wait until none of these pods has a process, but not for long."""
    end = time.monotonic() + PATIENCE
    while (uids := await find_running(uids)) and time.monotonic() < end:
        await asyncio.sleep(LOOK)


def running(uids: Collection[str], tops: Collection[str] = TOPS) -> frozenset[str]:
    """Return which of these pods have a process; of `tops`, where cgroups may be mounted, the first that is there
    counts.
    """
    top = next(filter(os.path.isdir, tops), "") if uids else ""
    if not top:
        return frozenset()
    if not _is_v2(top):
        top = f"{top}/{PIDS}"
    try:
        return frozenset(uid for path, uid in _find_pod_cgroups(top, _names(uids), DEEPEST) if _is_populated(path))
    except OSError:
        return frozenset(uids)


def directories(uids: Collection[str], tops: Collection[str] = TOPS) -> tuple[str, dict[str, str]]:
    """Return where cgroups of version 2 are, out of `tops`, and the directories of those of pods, by uid."""
    top = next(filter(os.path.isdir, tops), "")
    if not _is_v2(top):
        return "", {}
    try:
        return top, {uid: path for path, uid in _find_pod_cgroups(top, _names(uids), DEEPEST)}
    except OSError:
        return "", {}


def _is_v2(top: str) -> bool:
    return os.path.exists(f"{top}/cgroup.controllers")


def _names(uids: Collection[str]) -> dict[str, str]:
    return {name: uid for uid in uids for name in (f"{_POD}{uid}", f"{_POD}{uid.replace('-', '_')}.slice")}


def _find_pod_cgroups(folder: str, names: dict[str, str], deeper: int) -> Iterator[tuple[str, str]]:
    """Yield the cgroups of pods with their uids; systemd's begin with the names of those above them."""
    for path in _list_folders(folder):
        name = os.path.basename(path)
        pod_part = name if name in names else name[name.rfind(f"-{_POD}") + 1 :]
        if pod_part in names:
            yield path, names[pod_part]
        elif deeper and not name.endswith((".scope", ".service")):
            yield from _find_pod_cgroups(path, names, deeper - 1)


def _is_populated(path: str) -> bool:
    """Return whether a cgroup, or one below it, has a process; version 1 lists none of another PID namespace."""
    events = _read(f"{path}/cgroup.events")
    if events is not None:  # of cgroup v2
        return "populated 1" in events
    return (_read(f"{path}/pids.current") or "0").strip() != "0"


def _read(path: str) -> str | None:
    """Return the text of a cgroup's file; None if there is none.

    Raises:
        OSError: the kernel cannot tell for now.
    """
    try:
        with open(path, "rb", opener=rooted.nonblocking) as file:
            return file.read(_LIMIT).decode("latin-1")
    except OSError as error:
        if error.errno in rooted.UNKNOWN:
            raise
        return None


def folders(path: str) -> list[str]:
    """List the cgroups below one, as far as they can be listed."""
    try:
        return _list_folders(path)
    except OSError:
        return []


def _list_folders(path: str) -> list[str]:
    """List the cgroups below one; raise OSError as `_read` does."""
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in rooted.UNKNOWN:
            raise
        return []  # it has just gone
