"""How much of a GPU's memory each container uses, and may use: by its cgroup, where that has a limit.

kubelet's checkpoint has a pod's uid, for which its cgroup is named. Those of its containers have names that kubelet
does not tell: of a pod in which two containers have one GPU, nothing is told of either.
Files are read in a thread, and NVML is asked by a child of its own, at the pace of scrapes: not in the loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.kubelet import cgroups
from gpushim.containers import memory_use
from gpushim.containers.kubelet import checkpoint
from gpushim.decision import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpuplugin.kubelet.podresources import Listed
    from gpushim.containers.memory_use import Use
    from gpushim.ground.model import Snapshot

    Chains = list[list[str]]  # of each container of a pod, its cgroup's directory and that of crun's below it

PACE = 5.0  # seconds between questions to NVML, at least
AGAIN = 60.0  # seconds after one that was not answered
STALE = 60.0  # seconds for which an answer is told
CRUN_ADDS = "container"  # a cgroup below the container's own


class Holding(NamedTuple):
    """A container that alone of its pod has a GPU."""

    uuid: str
    namespace: str
    pod: str
    container: str


class ContainerMemory:
    """What containers use, as it was last known.

    Args:
        start: starts a task, and sees to what it ends with.
        held: returns whether nothing may ask the driver.
    """

    def __init__(self, start: Callable[[Any], asyncio.Task[Any]], held: Callable[[], bool]) -> None:
        self._start, self._held = start, held
        self._task: asyncio.Task[None] | None = None
        self._next = 0.0  # time.monotonic() before which nothing is asked
        self._last: tuple[float, dict[Holding, Use]] = (0.0, {})  # with time.monotonic()

    async def ask(
        self,
        seconds: float,
        folder: str,
        snapshot: Snapshot | None,
        listed: Listed | None,
        holdings: Callable[[], Collection[Holding]],
    ) -> None:
        """Ask for containers, unless that was done just now; return after so many seconds, whatever comes.

        Args:
            seconds: to wait for an answer; a later one counts the next time.
            listed: what kubelet has listed last.
            holdings: lists those that count, of GPUs that answer; called in a thread.
        """
        running = self._task is not None and not self._task.done()
        if not running and not self._held() and time.monotonic() >= self._next:
            if snapshot is None or listed is None or memory.missing(snapshot):
                return
            self._task = self._start(self._look(folder, snapshot, listed, holdings))
        if self._task:
            await asyncio.wait([self._task], timeout=seconds)

    def uses(self) -> Mapping[Holding, Use]:
        """Return what containers with a limit use."""
        at, uses = self._last
        return uses if time.monotonic() - at <= STALE else {}

    async def stop(self) -> None:
        """Wait until no child asks the driver, which ends by itself."""
        if self._task:
            await asyncio.wait([self._task])

    async def _look(
        self, folder: str, snapshot: Snapshot, listed: Listed, holdings: Callable[[], Collection[Holding]]
    ) -> None:
        uses, problem = await asyncio.to_thread(lambda: _look(folder, snapshot, listed, holdings()))
        self._next = time.monotonic() + (AGAIN if problem else PACE)
        self._last = time.monotonic(), uses


def _look(
    folder: str, snapshot: Snapshot, listed: Listed, holdings: Collection[Holding]
) -> tuple[dict[Holding, Use], str]:
    pcis = {gpu["uuid"]: gpu["pci"] for gpu in snapshot["gpus"]}
    top, chains = _find_cgroups(folder, listed, {(holding.namespace, holding.pod) for holding in holdings})
    rows = [(pcis[row.uuid], row, chains.get((row.namespace, row.pod), [])) for row in holdings if row.uuid in pcis]
    questions = {(pci, path) for pci, _, pod in rows for chain in pod for path in chain}
    answers, problem = memory_use.look(questions, snapshot, top) if questions else ({}, "")
    uses = {}
    for pci, holding, pod in rows:
        smallest = [memory_use.smallest([answers.get((pci, path)) for path in chain]) for chain in pod]
        limited = [use for use in smallest if use and use.limit is not None]
        if len(limited) == 1:
            uses[holding] = limited[0]
    return uses, problem


def _find_cgroups(
    folder: str, listed: Listed, pods: Collection[tuple[str, str]]
) -> tuple[str, dict[tuple[str, str], Chains]]:
    """Return where cgroups are mounted, and those of the containers of each pod, by namespace and name."""
    try:
        grants = checkpoint(folder).given
    except (OSError, ValueError):
        return "", {}
    uids = {(grant.resource, device): grant.uid for grant in grants for device in grant.devices}
    by_pod = {
        (row["namespace"], row["pod"]): uid
        for row in listed.devices
        for device in row["devices"][:1]
        if (row["namespace"], row["pod"]) in pods and (uid := uids.get((row["resource"], device)))
    }
    top, directories = cgroups.directories({*by_pod.values()})
    chains = {uid: [_chain(path) for path in cgroups.folders(path)] for uid, path in directories.items()}
    return top, {pod: chains[uid] for pod, uid in by_pod.items() if uid in chains}


def _chain(path: str) -> list[str]:
    inner = f"{path}/{CRUN_ADDS}"
    return [path, inner] if os.path.isdir(inner) else [path]
