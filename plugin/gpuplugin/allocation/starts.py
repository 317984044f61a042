"""A container that is about to start waits until no other one runs with what is to be its alone (PreStartContainer).

kubelet gives on what a pod has as soon as that is deleted by force, or its static manifest removed, though its
containers run until they have been ended. An Allocate cannot wait, as the whole node would, and one that is refused
fails its pod for good. This call is of the pod's own worker; if it fails, kubelet makes the container later. Where a
plugin has it, kubelet starts no container of a pod whose devices it has forgotten, instead of allocating others.
Out of scope: which pods run (pod_cgroups.py), who excludes whom (started.py), the call itself (kubelet/service.py).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gpuplugin.book import claimed, started
from gpuplugin.book.pod_cgroups import CGROUPS, PodCgroups
from gpuplugin.book.started import Started
from gpuplugin.processes import instances
from gpuplugin.snapshot import release
from gpushim.containers import kubelet
from gpushim.ground.errors import REQUEST, GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplugin.book.book import Book
    from gpuplugin.book.started import Row

LONGEST = 10.0  # seconds that a container waits; kubelet waits for the call 30 s, and tries again after 10 to 20 s
EACH = 0.1  # seconds between looks meanwhile


class Starts:
    """The pods that start, and those of before.

    Args:
        shared: the book.
        kubelet_dir: returns kubelet's directory, which settings may change.

    Attributes:
        problem: why it is not known who runs, or "".
    """

    def __init__(self, shared: Book, kubelet_dir: Callable[[], str], cgroups: PodCgroups | None = None) -> None:
        self._book, self._kubelet_dir, self._cgroups = shared, kubelet_dir, cgroups or PodCgroups()
        self._file = Started()
        self._seen: object = None  # identity of kubelet's checkpoint that was read last
        self._given: Mapping[str, set[str]] = {}  # by it: keys of the book's entries by the pod's uid
        self._looked: object = None  # that, and of the book
        self.problem = ""

    async def start(self, resource: str, ids: Sequence[str]) -> None:
        """Let a container start with devices of a resource.

        Raises:
            GpushimError: another pod runs with one of them still, or a file cannot be written.
        """
        keys, until = [f"{resource} {name}" for name in ids], time.monotonic() + LONGEST
        while why := await self._excluded(keys):
            if time.monotonic() > until:
                raise GpushimError(why, REQUEST)
            await asyncio.sleep(EACH)

    async def look(self) -> None:
        """Take note of the pods that kubelet has given something to, if there is news.

        Raises:
            GpushimError: a file cannot be written.
        """
        await self._checkpoint()
        if self._looked != self._sources():
            self._note()

    async def _excluded(self, keys: Sequence[str]) -> str:
        """Say why a container cannot have its devices yet, or ""."""
        await self._checkpoint()
        rows = self._note()
        mine = next((uid for uid, given in self._given.items() if given.issuperset(keys)), "")
        if not mine or mine not in rows or not rows[mine]["had"].keys() >= {*keys}:
            self._doubt("kubelet's checkpoint does not say which pod starts")
            return ""
        if not self._cgroups.sees(mine):
            self._doubt(f"{CGROUPS} has no cgroup of the pod that starts")
            return ""
        self.problem = ""
        return self._by_pod(mine, keys, rows) or self._by_claim(mine, keys, rows)

    def _by_pod(self, mine: str, keys: Sequence[str], rows: Mapping[str, Row]) -> str:
        """Say which pod runs that kubelet lists no more.

        Args:
            mine: uid of the pod that starts.
            keys: of the devices of its container.
            rows: of the file.
        """
        for uid, row in rows.items():
            uuid, theirs = started.excludes(rows[mine], keys, row) if uid not in self._given else ("", "")
            if uuid:
                new, old = (quote(started.named(each, rows)) for each in (mine, uid))
                return (
                    f"{new} cannot use {uuid} yet: {old}, which kubelet does not list any more, runs with "
                    f"{theirs if theirs != uuid else 'it'} until its processes have ended; kubelet tries again"
                )
        return ""

    def _by_claim(self, mine: str, keys: Sequence[str], rows: Mapping[str, Row]) -> str:
        """Say which claim the DRA driver has not taken back yet: that is asked to when its containers have ended."""
        if not instances.anyone(release.folder(), name=instances.DRIVERS):  # none that is away takes anything back
            return ""
        page = self._book.now(self._book.read())
        homes = {uuid: gpu for gpu, one in page["gpus"].items() for uuid in (gpu, *one["divisions"])}
        for claim in claimed.read()[1].values():
            had = {uuid: {"uuid": uuid, "gpu": homes.get(uuid, ""), "division": ()} for uuid in claimed.held(claim)}
            uuid, theirs = started.excludes(rows[mine], keys, {"had": had})
            if uuid:
                new, name = quote(started.named(mine, rows)), quote(f"{claim['namespace']}/{claim['name']}")
                return (
                    f"{new} cannot use {uuid} yet: claim {name} has {theirs if theirs != uuid else 'it'}, which ends "
                    "with its containers; kubelet tries again"
                )
        return ""

    def _doubt(self, why: str) -> None:
        problem = f"a GPU of a pod that is deleted by force may be in two containers until that has ended: {why}"
        if problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem

    async def _checkpoint(self) -> object:
        """Read kubelet's checkpoint, if it is another than before."""
        folder = self._kubelet_dir()
        seen = trust.identity(f"{kubelet.plugins(folder)}/{kubelet.CHECKPOINT}")
        if seen is None or seen != self._seen:
            self._given = await asyncio.to_thread(_given, folder) if seen else {}
            self._seen = seen
        return seen

    def _note(self) -> Mapping[str, Row]:
        """Have the file know what kubelet's checkpoint has; return it."""
        with self._book.locked() as before:
            page, rows = self._book.now(before), self._file.read()
            if self._looked == self._sources() and rows.keys() <= self._given.keys():
                return rows
            found = started.after(rows, self._given, page, self._cgroups.runs)
            if found != rows:
                self._file.write(found)
            self._looked = self._sources()
        return found

    def _sources(self) -> object:
        """Return what is another thing when there is news."""
        return self._seen, trust.identity(self._book.path), trust.identity(self._file.path)


def _given(folder: str) -> dict[str, set[str]]:
    """List what kubelet has given to which pod; of what cannot be read nothing follows."""
    found: dict[str, set[str]] = {}
    try:
        for one in kubelet.checkpoint(folder).given:
            found.setdefault(one.uid, set()).update(f"{one.resource} {name}" for name in one.devices)
    except (OSError, ValueError):
        return {}
    return found
