"""What kubelet is asked again and again, for the record: who has what, and whether it is another kubelet.

It is asked when there is news, and now and then: a question costs both sides some milliseconds. What it has goes into
the record at once, before a kubelet can forget it.
Out of scope: how it is asked (podresources.py), what follows (transitions.py), what kubelet is told (registry.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from gpuplugin.kubelet import cgroups, podresources, sockets
from gpuplugin.kubelet.plugins import Plugins
from gpuplugin.processes import instances
from gpuplugin.record import divisions, kubelet_state, transitions
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.record_form import CONFIRMED, LOST
from gpuplugin.settings import resources
from gpuplugin.snapshot import release
from gpushim.containers.kubelet import CHECKPOINT, CLAIMS, KUBELET_SOCKET, OWN_DRIVER, plugins
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.record.kubelet_state import KubeletState
    from gpuplugin.record.record_form import Record
    from gpushim.ground.model import Snapshot

YOUNG = 10.0  # seconds after kubelet's start in which it may not list all pods
TICK = 1.0  # seconds after a grant before kubelet is asked for the pod
AGAIN = 60.0  # seconds between two times that kubelet writes its checkpoint for the same pods


class KubeletWatch:
    """What kubelet has, as the record has it, for all fronts of this process.

    Args:
        kubelet_dir: returns kubelet's directory, which settings may change.
        changed: is called when the record has changed.
        heeds: returns whether claims of other DRA drivers count.

    Attributes:
        file: the record.
        plugins: others of kubelet's on this node.
        snapshot: of the host's inventory, by which the fronts go; None while there is none.
        repeat: makes kubelet write its checkpoint anew; None: this process serves no device plugin.
        has_listed_all: kubelet has told all that pods have since this process began.
        state: what kubelet had when it was asked last.
    """

    def __init__(
        self,
        kubelet_dir: Callable[[], str],
        changed: Callable[[], object] = lambda: None,
        heeds: Callable[[], bool] = lambda: True,
    ) -> None:
        self.file, self.kubelet_dir, self._changed, self._heeds = AllocationsFile(), kubelet_dir, changed, heeds
        self.plugins = Plugins()
        self.snapshot: Snapshot | None = None
        self.repeat: Callable[[], object] | None = None
        self._complete = podresources.Complete(os.environ.get("NODE_NAME", "") or socket.gethostname())
        self._repeated: tuple[object, float] = None, 0.0  # for what kubelet was to write its checkpoint, and when
        self._followed: object = None  # identities of the files when nothing was left to ask
        self._running: dict[str, float] = {}  # uids of pods that kubelet does not list, and since when
        self.has_listed_all, self.state = False, kubelet_state.KubeletState(0.0)

    def identify(self) -> str:
        """Return what tells the kubelet that is there from others."""
        return str(sockets.identity(self._socket))

    def runs(self) -> bool:
        """Return whether kubelet listens for plugins."""
        return sockets.is_listening(self._socket)

    @property
    def _socket(self) -> str:
        return f"{plugins(self.kubelet_dir())}/{KUBELET_SOCKET}"

    def is_met(self) -> bool:
        """Return whether the record was reconciled with the kubelet that is there now."""
        return self._knows(self.file.read(), self.identify())

    def _knows(self, record: Record | None, identity: str) -> bool:
        is_ours = record is not None and record["boot"] == self.file.boot
        return bool(is_ours and record and record["kubelet"] and record["kubelet"][0] == identity)

    async def meet(self) -> None:
        """Reconcile the record with a kubelet that has just started; nothing is granted where that fails."""
        if not self.is_met():
            with contextlib.suppress(GpushimError):
                await self.reconcile(ask=False)

    async def reconcile(self, ask: bool = True) -> None:
        """Write into the record what kubelet has.

        Args:
            ask: it; else its files alone are read.

        Raises:
            GpushimError: the record cannot be read or written.
        """
        identity = self.identify()
        state = await self._read_state(identity, ask)
        running = await self._find_running(self.file.read_current(), state)
        units = resources.units(state.snapshot) if state.snapshot else {}
        with self.file.locked() as before:
            record = self.file.current(before)
            if identity != self.identify():  # it has started meanwhile, and had what was asked of the one before
                return
            if state.runs and not self._knows(record, identity):
                record = {**record, "kubelet": [identity, state.clock]}
            record = transitions.reconcile(record, state, running, divisions.with_former(record, units))
            if record != before:
                self.file.write(record)
                self._changed()
        self.state, self.has_listed_all = state, self.has_listed_all or state.tells_all

    async def _read_state(self, identity: str, ask: bool) -> KubeletState:
        """Return what the kubelet of this identity has, by its files, and by its list if that is asked for."""
        folder, clock, snapshot, runs = self.kubelet_dir(), system.clock(), self.snapshot, self.runs()
        listed = await podresources.listed(folder) if ask else None
        record = self.file.read_current()
        since = record["kubelet"][1] if record["kubelet"] and self._knows(record, identity) else clock
        is_young = not runs or clock - since < YOUNG
        state = await asyncio.to_thread(kubelet_state.read, folder, listed, clock, snapshot)
        return state._replace(
            runs=runs,
            is_new=runs and not self._knows(record, identity),
            is_young=is_young,
            lists_all=listed is not None and self._complete.says(listed, clock, is_young) and not is_young,
            is_stale=self.repeat is None and not instances.anyone(release.folder()),
            claims=[claim for claim in state.claims if self._heeds() or claim.driver == OWN_DRIVER],
        )

    async def _find_running(self, record: Record, state: KubeletState) -> dict[str, float]:
        """Return for how many seconds pods that kubelet does not list have had a process, by uid."""
        clock = time.monotonic()
        uids = await cgroups.find_running(transitions.find_suspects(record, state))
        self._running = {uid: self._running.get(uid, clock) for uid in uids}
        return {uid: clock - since for uid, since in self._running.items()}

    async def follow(self, due: bool) -> bool:
        """Reconcile the record where somebody has to tell more, or something has changed.

        Args:
            due: ask kubelet in any case.

        Returns:
            whether something in the record waits for kubelet, or for the end of a process.

        Raises:
            GpushimError: as for `reconcile`.
        """
        record, clock = self.file.read(), system.clock()
        if record is None or record["boot"] != self.file.boot:
            return True
        waiting, is_ending = _list_waiting(record), self._is_ending(record)
        if not due and not is_ending:
            if not waiting and self._identify_files() == self._followed:
                return False
            if waiting and min(waiting) > clock - TICK:
                return True  # kubelet may not have it yet
        await self.reconcile(ask=due or bool(waiting))
        record = self.file.read() or record
        self._repeat_unlisted(record, clock)
        waits = bool(_list_waiting(record)) or self._is_ending(record)
        self._followed = None if waits else self._identify_files()
        return waits

    def _is_ending(self, record: Record) -> bool:
        """Return whether a process is left of what kubelet does not have any more."""
        rows = [*(allocation for *_, allocation in transitions.list_allocations(record)), *record["claims"].values()]
        return bool(self._running) or any(row["state"] == LOST for row in rows)

    def _identify_files(self) -> object:
        folder = self.kubelet_dir()
        paths = self.file.path, f"{plugins(folder)}/{CHECKPOINT}", f"{folder}/{CLAIMS}"
        return self.identify(), [trust.identity(path) for path in paths]

    def _repeat_unlisted(self, record: Record, clock: float) -> None:
        """Have kubelet write its checkpoint where that alone tells of pods: it may be some MiB."""
        if self.repeat is None or self.state.holders is None:
            return
        unlisted = frozenset(
            f"{resource} {name}"
            for resource, name, allocation in transitions.list_allocations(record)
            if not allocation["uid"] or not self.state.find_pod(resource, name)
        )
        subject = unlisted, self.state.pods
        if unlisted and (subject != self._repeated[0] or clock - self._repeated[1] >= AGAIN):
            self._repeated = subject, clock
            self.repeat()


def _list_waiting(record: Record) -> list[float]:
    """Return since when allocations wait for kubelet to tell whose they are."""
    return [
        allocation["since"]
        for _, _, allocation in transitions.list_allocations(record)
        if allocation["state"] != LOST and (allocation["state"] != CONFIRMED or not allocation["uid"])
    ]
