"""A container that is about to start waits until no other one runs with what is to be its alone (PreStartContainer).

kubelet gives on what a pod has as soon as that is deleted by force, or its static manifest removed, though its
containers run until they have been ended. An Allocate cannot wait, as the whole node would, and one that is refused
fails its pod for good. This call is of the pod's own worker; if it fails, kubelet makes the container later. Where a
plugin has it, kubelet starts no container of a pod whose devices it has forgotten, instead of allocating others.
Out of scope: which pods run (pod_cgroups.py), who excludes whom (started.py), the call itself (kubelet/service.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

from gpuplugin.book import claimed, started
from gpuplugin.book.pod_cgroups import CGROUPS, PodCgroups
from gpuplugin.book.started import Started
from gpuplugin.kubelet import podresources
from gpuplugin.processes import instances
from gpuplugin.snapshot import release
from gpushim.containers import kubelet
from gpushim.ground.errors import REQUEST, GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpuplugin.book.book import Book
    from gpuplugin.book.started import Row
    from gpushim.ground.model import Snapshot

LONGEST = 10.0  # seconds that a container waits; kubelet waits for the call 30 s, and tries again after 10 to 20 s
EACH = 0.1  # seconds between looks meanwhile
# Containers that wait at one time for devices of a resource, most: kubelet's other calls come by the same connection,
# which has 32 streams.
WAITING = 16
STAYS = 10.0  # seconds after which a pod that kubelet does not list is one that stays; others are about to end


class Starts:
    """The pods that start, and those of before.

    Args:
        shared: the book.
        kubelet_dir: returns kubelet's directory, which settings may change.
        heeds: says whether what DRA drivers gave counts.
    """

    def __init__(
        self,
        shared: Book,
        kubelet_dir: Callable[[], str],
        heeds: Callable[[], bool],
        cgroups: PodCgroups | None = None,
    ) -> None:
        self._book, self._kubelet_dir, self._heeds = shared, kubelet_dir, heeds
        self._cgroups = cgroups or PodCgroups()
        self._file = Started()
        self._seen: object = None  # identity of kubelet's checkpoint that was read last
        self._known = False  # whether it was understood
        self._given: Mapping[str, set[str]] = {}  # by it: keys of the book's entries by the pod's uid
        self._looked: object = None  # that, and of the book
        self._listed: tuple[object, Collection[str]] = None, ()  # pods that kubelet listed, with the same checkpoint
        self._since: dict[str, float] = {}  # time.monotonic() since when pods run that it does not list, by uid
        self._waiting: Counter[str] = Counter()  # containers, by resource
        self._why = ""  # it was not known who runs

    @property
    def problem(self) -> str:
        """Why it is not known who runs, or ""."""
        return "; ".join(filter(None, (self._why, self._file.problem and _doubtful(self._file.problem))))

    async def start(self, resource: str, ids: Sequence[str]) -> None:
        """Let a container start with devices of a resource.

        Raises:
            GpushimError: another pod runs with one of them still, or a file cannot be written.
        """
        keys, until = [f"{resource} {name}" for name in ids], time.monotonic() + LONGEST
        if not (why := await self._excluded(keys)):
            return
        if self._waiting[resource] >= WAITING:
            raise GpushimError(why, REQUEST)
        self._waiting[resource] += 1
        try:
            while why and time.monotonic() < until:
                await asyncio.sleep(EACH)
                why = await self._excluded(keys)
        finally:
            self._waiting[resource] -= 1
        if why:
            raise GpushimError(why, REQUEST)

    async def look(self) -> None:
        """Take note of the pods that kubelet has given something to, if there is news.

        Raises:
            GpushimError: a file cannot be written.
        """
        await self._checkpoint()
        if self._looked != self._sources():
            self._note()

    async def hear(self) -> None:
        """Ask kubelet which pods it lists: its checkpoint has those deleted by force until the next Allocate."""
        await self._checkpoint()
        seen = self._seen
        answer = await podresources.listed(self._kubelet_dir()) if self._rows() else None
        if answer:
            self._listed = seen, answer.pods

    def held(self, snapshot: Snapshot) -> dict[str, str]:
        """Say what is not to be given out for a pod that runs with it and is listed no more: sentences by UUID.

        Not at once, as a pod that ends is not listed before its last process has ended. A share leaves others usable.

        Args:
            snapshot: what the node has.
        """
        rows, now = self._rows(), time.monotonic()
        self._calm(rows)
        left = [uid for uid, row in rows.items() if self._is_left(uid, row["to"]) and self._cgroups.runs(uid)]
        self._since = {uid: self._since.get(uid, now) for uid in left}
        gpus = {gpu["index"]: gpu["uuid"] for gpu in snapshot["gpus"]}
        units = [(uuid, uuid) for uuid in gpus.values()] + [
            (mig["uuid"], gpus.get(mig["gpu"], "")) for mig in snapshot["mig"]
        ]
        found = {}
        for uid in (uid for uid in left if now - self._since[uid] >= STAYS):
            who = f"{quote(started.named(uid, rows))}, which kubelet does not list any more, runs with"
            for had in (had for key, had in rows[uid]["had"].items() if "::" not in key):
                for uuid, gpu in units:
                    if started.touch(had["uuid"], had["gpu"], uuid, gpu):
                        what = "it" if had["uuid"] == uuid else had["uuid"]
                        found[uuid] = f"{who} {what} until its processes have ended"
        return found

    def _rows(self) -> Mapping[str, Row]:
        """Return the file's pods; none while it cannot be read, which `look` tells of."""
        with contextlib.suppress(GpushimError):
            return self._file.read()
        return {}

    def _is_left(self, uid: str, name: str) -> bool:
        """Say whether kubelet has forgotten a pod of the file, as far as it is known."""
        seen, pods = self._listed
        unlisted = seen == self._seen and name != "" and name not in pods
        return self._known and (unlisted or uid not in self._given)

    def _calm(self, rows: Mapping[str, Row]) -> None:
        """Forget a doubt when checkpoint and cgroups are seen again."""
        mine = rows.keys() & self._given.keys()
        if self._why and self._known and (any(map(self._cgroups.runs, mine)) if mine else self._cgroups.there()):
            self._why = ""

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
        self._why = ""
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
        if not (self._heeds() and instances.anyone(release.folder(), name=instances.DRIVERS)):
            return ""  # nobody who is away takes anything back
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
        if _doubtful(why) != self._why:
            self._why = _doubtful(why)
            logger.warning("%s", self._why)

    async def _checkpoint(self) -> object:
        """Read kubelet's checkpoint, if it is another than before."""
        folder = self._kubelet_dir()
        seen = trust.identity(f"{kubelet.plugins(folder)}/{kubelet.CHECKPOINT}")
        if seen is None or seen != self._seen:
            found = await asyncio.to_thread(_given, folder) if seen else None
            self._given, self._known, self._seen = found or {}, found is not None, seen
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


def _doubtful(why: str) -> str:
    return f"a GPU of a pod that is deleted by force may be in two containers until that has ended: {why}"


def _given(folder: str) -> dict[str, set[str]] | None:
    """List what kubelet has given to which pod; None if it cannot be read, of which nothing follows."""
    found: dict[str, set[str]] = {}
    try:
        for one in kubelet.checkpoint(folder).given:
            found.setdefault(one.uid, set()).update(f"{one.resource} {name}" for name in one.devices)
    except (OSError, ValueError):
        return None
    return found
