"""From kubelet's NodePrepareResources to its answer, and back: claims become names in the node's own CDI spec.

So nothing of a claim has to survive a boot but what the ledger has. Each refusal is one sentence, which the pod's
event shows. Unprepare answers ok to anything: an error would hold the pod, and its GPU.
Budget: 5 ms beside the API server's answer. Out of scope: the wire (gpuplugin.kubelet.dra), files (ledger.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.book import checkpoints, claimed, listed
from gpuplugin.book.by_device import CLAIM
from gpuplugin.book.kubelet_starts import Starts
from gpuplugin.devices import changes
from gpuplugin.dra import taints
from gpuplugin.dra.claim import allocated, groups, is_here, reserved_for
from gpuplugin.dra.configs import of_others
from gpuplugin.dra.ledger import Holders
from gpuplugin.dra.shared import names
from gpuplugin.kubelet import cgroups, podresources, sockets
from gpuplugin.processes import instances, tasks
from gpuplugin.settings import resources
from gpuplugin.snapshot import release
from gpushim.containers.kubelet import OWN_DRIVER, PODS_SOCKET
from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, REQUEST, GpushimError, quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpuplugin.book.claimed import Row
    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.dra.claim import Claim
    from gpuplugin.dra.ledger import Ledger
    from gpuplugin.dra.link import Link
    from gpuplugin.dra.offered import Offered
    from gpuplugin.dra.shared import Sharing
    from gpuplugin.kubelet.podresources import Listed
    from gpushim.ground.model import Snapshot

YOUNG = 10.0  # seconds in which a kubelet that was seen first may not list all pods yet
SUSPECTED = 45.0  # seconds between questions to the API server for the same one
SOON = 3.0  # seconds for an answer to that: what no pod has is to stay new in the book, for `ledger.QUIET` seconds
LATE = 38.0  # seconds after which kubelet, which waits for 45, is told what a claim waits for
ENDED = 30.0  # seconds in which kubelet lists no pod of a claim, before that is asked: containers may still end


class Offer(NamedTuple):
    """What this node has.

    Attributes:
        devices: by name.
        homes: UUIDs of the GPUs that have them, by UUID of all GPUs and MIG instances.
        kind: of the CDI spec.
        problem: why nothing can be given now, or "".
        snapshot: of which all that is; None at first.
        sick: taints of what is unhealthy, by UUID.
        why: sentences of that, by UUID.
    """

    devices: Mapping[str, Offered]
    homes: Mapping[str, str]
    kind: str
    problem: str = ""
    snapshot: Snapshot | None = None
    sick: Mapping[str, Sequence[Mapping[str, str]]] = {}
    why: Mapping[str, str] = {}

    @property
    def usable(self) -> Snapshot | None:
        """The snapshot; None while nothing can be given."""
        return None if self.problem else self.snapshot


class Claims:
    """What kubelet asks for.

    Args:
        ledger: who has what.
        link: to the half that asks the API server.
        node: this node's name.
        kubelet_dir: kubelet's directory.
        offer: returns what this node has now.
        shared: what containers of claims share.
    """

    def __init__(
        self,
        ledger: Ledger,
        link: Link,
        node: str,
        kubelet_dir: str,
        offer: Callable[[], Offer],
        shared: Sharing,
    ) -> None:
        self._shared = shared
        self._ledger, self._link, self._node, self._kubelet_dir, self._offer = ledger, link, node, kubelet_dir, offer
        self._kubelet: tuple[object, float] = None, 0.0  # its socket, and time.monotonic() when that was seen first
        self._complete = podresources.Complete(node)
        self._starts = Starts(ledger.book, lambda: kubelet_dir, lambda: None)
        self._asked: dict[str, float] = {}  # time.monotonic() of the last question, by uid
        self._unlisted: dict[str, float] = {}  # since when kubelet lists no pod that has it, by uid
        self._ended: set[str] = set()  # uids of what is to be taken back, and could not be yet
        self._pods: dict[str, frozenset[str]] = {}  # names of pods whose uids the ledger has, by uid of the claim
        self._young: set[str] = set()  # uids that were given something while one asks

    async def prepare(self, claims: Sequence[Mapping[str, str]]) -> dict[str, list[dict[str, Any]] | str]:
        """Answer NodePrepareResources: devices by uid, or a sentence."""
        answers = await asyncio.gather(*map(self._prepared, claims))
        return {claim["uid"]: answer for claim, answer in zip(claims, answers)}

    async def _prepared(self, asked: Mapping[str, str]) -> list[dict[str, Any]] | str:
        name, late = quote(f"{asked['namespace']}/{asked['name']}"), time.monotonic() + LATE
        try:
            found = await self._link.claim(asked)
            if found is None:
                raise GpushimError(f"the API server no longer has the claim {name} of this pod", REQUEST)
            claim, offer = allocated(asked, found, self._node), self._offer()
            for sentence in of_others(found["status"]["allocation"]["devices"].get("config") or (), OWN_DRIVER):
                logger.info("claim %s: %s", name, sentence)
            if offer.problem:
                raise GpushimError(offer.problem, INVENTORY)
            uuids = _uuids(claim, offer)
            shared = groups(claim, uuids)
            self._shared.check(shared, [uuids[one.device] for one in claim.results if not one.admin])
            await self._give(claim, offer, uuids, shared)
            await self._shared.begin(claim, shared, late)
        except GpushimError as error:
            logger.error("claim %s: %s", name, error)
            return str(error)
        logger.info("claim %s has %s", name, ", ".join(one.device for one in claim.results))
        return [
            {
                "request_names": [one.request],
                "pool_name": self._node,
                "device_name": one.device,
                "cdi_device_ids": [f"{offer.kind}={uuids[one.device]}", *more],
            }
            for one, more in zip(claim.results, names(claim, shared, uuids))
        ]

    async def _give(self, claim: Claim, offer: Offer, uuids: Mapping[str, str], shared: Sequence[MpsGroup]) -> None:
        """Note what a claim gets; what the book says of others is asked again before it counts.

        Raises:
            GpushimError: it cannot have that.
        """
        row = self._ledger.claims().get(claim.uid)
        left = await cgroups.find_running(frozenset(claimed.pods_of(row))) if row else frozenset()
        if row and left and not {*claimed.held(row)} <= {*uuids.values()}:  # another device, while one has the old
            self._hold(claim.uid, row, sorted(left))
            raise GpushimError(self._ledger.ending[claim.uid], REQUEST)
        claim = claim._replace(pods=tuple(sorted({*claim.pods, *left})))
        self._ended.discard(claim.uid)
        self._ledger.ending.pop(claim.uid, None)
        self._young.add(claim.uid)
        found = None if self._ledger.sure else await self._listed()
        try:
            self._ledger.give(claim, uuids, offer.homes, found and found[1], shared)
        except GpushimError:
            found = await self._listed()
            if found is None:
                raise
            self._ledger.give(claim, uuids, offer.homes, found[1], shared)

    async def unprepare(self, claims: Sequence[Mapping[str, str]]) -> None:
        """Answer NodeUnprepareResources; what cannot be written now is taken back later."""
        uids = {one["uid"] for one in claims}
        self._ended |= uids
        try:
            await self._forget(uids)
        except GpushimError as error:
            logger.error("%s", error)

    def owes(self, uid: str) -> bool:
        """Say whether a claim is over and could not be taken back yet."""
        return uid in self._ended

    async def _forget(self, uids: Collection[str]) -> None:
        """Take back what has ended, when its GPUs are what they were; unless it was given something meanwhile.

        A process that hangs in the kernel has them still, though kubelet has its pod deleted by force unprepared.
        """
        rows = self._ledger.claims()
        pods = {uid: claimed.pods_of(rows[uid]) for uid in uids if uid in rows}
        running = await cgroups.find_running(frozenset(pod for row in pods.values() for pod in row))
        uids = self._ended.intersection(uids)  # without those that were prepared again meanwhile
        ending = {uid: sorted(running.intersection(row)) for uid, row in pods.items() if running.intersection(row)}
        for uid in uids:
            self._ledger.ending.pop(uid, None) if uid not in ending else self._hold(uid, rows[uid], ending[uid])
        await self._shared.end([uid for uid in uids if uid not in ending])
        ended = self._ended.intersection(uids) - ending.keys()
        self._ledger.forget(ended)
        self._ended -= ended

    def _hold(self, uid: str, row: Row, pods: Sequence[str]) -> None:
        name = quote(f"{row['namespace']}/{row['name']}")
        why = changes.ending(f"claim {name} of {changes.UNNAMED}{pods[0]}")
        if self._ledger.ending.get(uid) != why:
            logger.warning("%s", why)
        self._ledger.ending[uid] = why

    async def _listed(self) -> tuple[Listed, Holders] | None:
        """Ask kubelet who has what; of one that has just begun it is not believed that others have nothing.

        It lists static pods alone until it has those of the API server, which may be away for long.
        """
        path, asked = f"{self._kubelet_dir}/{PODS_SOCKET}", system.clock()
        there = sockets.identity(path)
        await self._starts.met()
        found = await podresources.listed(self._kubelet_dir)
        if found is None or there != sockets.identity(path):
            return None
        now = time.monotonic()
        if there != self._kubelet[0]:
            self._kubelet = there, now
        young = now - self._kubelet[1] < YOUNG
        whole = self._complete.says(found, now, young=self._kubelet[1] == now)
        promised = await asyncio.to_thread(checkpoints.remembered, self._kubelet_dir)
        claims: dict[str, str] = {}
        if snapshot := self._offer().snapshot:
            units = resources.units(snapshot)
            rows = checkpoints.claimed(found.claims, snapshot, units, claimed.known())
            claims = {uuid: who for who, uuid in rows}
        young = young or not self._starts.is_met()
        stale = not instances.anyone(release.folder())
        held, page = found.held(), self._ledger.book.read()
        known = {**held, CLAIM: {**claims, **self._ledger.held()}}
        running = await cgroups.find_running(listed.unlisted_uids(page, known, promised) if page else ())
        return found, Holders(held, None if young else found.pods, whole, promised, claims, asked, stale, running)

    async def keep(self) -> None:
        """Take back, as long as the driver runs, what claims have no more; keep what they share.

        To take back may take long, until GPUs are what they were; meanwhile it is seen who has ended.
        """
        await asyncio.gather(*map(tasks.repeat, (self._sweep, self._take_back, self._shared.look)))

    async def _take_back(self) -> None:
        """Take back what has ended, and nobody has taken back yet."""
        if self._ended:
            await self._forget(frozenset(self._ended))

    async def _sweep(self) -> None:
        """Keep in the book what claims have; find what kubelet does not list and the API server does not have."""
        rows, given = self._ledger.claims(), self._ledger.given()
        self._young &= rows.keys()
        self._asked = {uid: then for uid, then in self._asked.items() if uid in rows}
        found = await self._listed() if (rows or given) and self._offer().snapshot else None
        if found is None:
            return
        listing, holders = found
        if given:
            self._ledger.hear(holders, self._offer().homes)
        listed = {(one.namespace, one.name, one.device) for one in listing.claims if one.driver == OWN_DRIVER}
        now = time.monotonic()
        self._unlisted = {
            uid: self._unlisted.get(uid, now)
            for uid, row in rows.items()
            if not any((row["namespace"], row["name"], one["device"]) in listed for one in row["devices"])
        }
        due = [
            uid
            for uid, since in self._unlisted.items()
            if now - since >= ENDED and now - self._asked.get(uid, -SUSPECTED) >= SUSPECTED
            if rows[uid]["namespace"] and uid not in self._ended
        ]
        self._asked.update(dict.fromkeys(due, now))
        await asyncio.gather(*(self._doubt(uid, rows[uid]) for uid in due))
        await self._join(rows, listing)

    async def _join(self, rows: Mapping[str, Row], listing: Listed) -> None:
        """Note which pods have which claims, where kubelet lists others than before.

        Raises:
            GpushimError: there is no answer, or a file cannot be written.
        """
        names: dict[tuple[str, str], set[str]] = {}
        for one in listing.claims:
            if one.driver == OWN_DRIVER:
                names.setdefault((one.namespace, one.name), set()).add(one.pod)
        here = {uid: frozenset(names.get((row["namespace"], row["name"]), ())) for uid, row in rows.items()}
        self._pods = {uid: self._pods[uid] & here[uid] for uid in self._pods.keys() & here.keys()}
        for uid, row in rows.items():
            if uid in self._ended or not here[uid] - self._pods.get(uid, frozenset()):
                continue
            with contextlib.suppress(asyncio.TimeoutError):
                found = await self._fetch(uid, row)
                self._pods[uid] = here[uid]
                if found:
                    before = await cgroups.find_running(frozenset(claimed.pods_of(row)))
                    self._ledger.join(uid, before.union(reserved_for(found)))

    async def _fetch(self, uid: str, row: Row) -> Mapping[str, Any] | None:
        """Return a claim of the ledger as the API server has it; None if it is gone.

        Raises:
            GpushimError: there is no answer.
            asyncio.TimeoutError: not soon.
        """
        asked = {"namespace": row["namespace"], "name": row["name"], "uid": uid}
        found = await asyncio.wait_for(self._link.claim(asked), SOON)
        return found if found is not None and found["metadata"].get("uid") == uid else None

    async def _doubt(self, uid: str, row: Row) -> None:
        """Have taken back what no pod has if the claim is gone, or has nothing here any more: names come again.

        Raises:
            GpushimError: there is no answer.
        """
        self._young.discard(uid)
        asked = {"namespace": row["namespace"], "name": row["name"], "uid": uid}
        try:
            found = await asyncio.wait_for(self._link.claim(asked), SOON)
        except asyncio.TimeoutError:
            return
        if uid not in self._young and (found is None or not is_here(row, found, self._node)):
            name = quote(f"{row['namespace']}/{row['name']}")
            logger.info("claim %s is gone from this node: its GPUs are taken back", name)
            self._ended.add(uid)


def _uuids(claim: Claim, offer: Offer) -> dict[str, str]:
    """Return the UUIDs of a claim's devices by their names.

    Raises:
        GpushimError: the node does not have one, no CDI spec names it since it does not answer, or it is unhealthy
            and the claim does not tolerate that.
    """
    gone = next((one.device for one in claim.results if one.device not in offer.devices), "")
    if gone:
        raise GpushimError(f"this node no longer has {quote(gone)}, of claim {claim}", REQUEST)
    uuids = {one.device: offer.devices[one.device].uuid for one in claim.results}
    sick = taints.problems(offer.snapshot) if offer.snapshot else {}
    for name, uuid in uuids.items():
        if why := sick.get(uuid):
            raise GpushimError(f"{name} of claim {claim} cannot be used: {why}", INVENTORY)
    for one in claim.results:
        uuid = uuids[one.device]
        if not one.admin and taints.untolerated(one.tolerations, offer.sick.get(uuid, ())):
            raise GpushimError(f"{one.device} of claim {claim} is unhealthy: {offer.why.get(uuid, '')}", INVENTORY)
    return uuids
