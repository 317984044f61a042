"""Recorded claims kept as kubelet and the API server have them: which pods and parts, and whether they are gone.

kubelet prepares a claim once, for its first pod, and may forget to give it back. After the record was lost it knows
devices, and no parts: such a claim has all of a device until the API server has told which part.
Out of scope: what else kubelet has (gpuplugin.record), what is done when a claim is over (prepare.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpuplugin.dra.claim import allocated, is_here, reserved_for
from gpuplugin.kubelet import cgroups
from gpuplugin.record import transitions
from gpuplugin.record.kubelet_state import name_claim
from gpuplugin.record.record_form import LOST
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpuplugin.dra.claim_offer import Offer
    from gpuplugin.dra.link import Link
    from gpuplugin.record import record_form
    from gpuplugin.record.kubelet_watch import KubeletWatch

SUSPECTED = 45.0  # seconds between questions to the API server for the same claim
SOON = 3.0  # seconds for an answer to that
ENDED = 30.0  # seconds in which kubelet lists no pod of a claim, before that is asked: containers may still end


class Upkeep:
    """The claims of this driver on this node.

    Args:
        watch: what kubelet has, with the record.
        link: to the half that asks the API server.
        node: this node's name.
        offer: returns what this node has now.
        over: claims that are over, seconds since boot of that by uid; those that are gone are added.

    Attributes:
        granted: uids of claims that were granted something since the API server was asked for them.
    """

    def __init__(
        self, watch: KubeletWatch, link: Link, node: str, offer: Callable[[], Offer], over: dict[str, float]
    ) -> None:
        self._file, self._watch, self._link, self._node, self._offer = watch.file, watch, link, node, offer
        self._over, self.granted = over, set[str]()
        self._asked: dict[str, float] = {}  # time.monotonic() of the last question, by uid
        self._unlisted: dict[str, float] = {}  # since when kubelet lists no pod that has it, by uid
        # Names of pods whose uids are recorded, and time.monotonic() of that, by uid of the claim.
        self._pods: dict[str, tuple[frozenset[str], float]] = {}

    async def look(self) -> None:
        """Reconcile the record; find what kubelet does not list and the API server does not have.

        Raises:
            GpushimError: the record cannot be read or written, or there is no answer.
        """
        record = self._file.read_current()
        has_allocations = self._watch.repeat is None and any(transitions.list_allocations(record))
        if self._offer().snapshot is None or not (record["claims"] or has_allocations):
            return  # allocations of a device plugin in this process are followed by that
        await self._watch.reconcile()
        state, claims, clock = self._watch.state, self._file.read_current()["claims"], time.monotonic()
        self.granted &= claims.keys()
        self._asked = {uid: asked_at for uid, asked_at in self._asked.items() if uid in claims}
        if state.holders is None:
            return
        self._unlisted = {
            uid: self._unlisted.get(uid, clock) for uid, claim in claims.items() if not state.has_claim(uid, claim)
        }
        due = [
            uid
            for uid, since in self._unlisted.items()
            if clock - since >= ENDED and clock - self._asked.get(uid, -SUSPECTED) >= SUSPECTED
            if claims[uid]["state"] != LOST and uid not in self._over
        ]
        self._asked.update(dict.fromkeys(due, clock))
        await asyncio.gather(*(self._end_if_deleted(uid, claims[uid]) for uid in due))
        await self._update_pods(claims)

    async def _end_if_deleted(self, uid: str, claim: record_form.Claim) -> None:
        """Note that a claim that no pod has is over if it is gone, or has nothing here any more: names come again.

        Raises:
            GpushimError: there is no answer.
        """
        self.granted.discard(uid)
        try:
            body = await self._fetch(uid, claim)
        except asyncio.TimeoutError:
            return
        if uid not in self.granted and (body is None or not is_here(claim, body, self._node)):
            name = quote(f"{claim['namespace']}/{claim['name']}")
            logger.info("claim %s is gone from this node: its GPUs are taken back", name)
            self._over[uid] = system.clock()

    async def _update_pods(self, claims: Mapping[str, record_form.Claim]) -> None:
        """Write down the uids of the pods that have claims, where kubelet lists other names: it prepares one once.

        A new pod may have the name of one before it: a claim that several have is asked for now and then.

        Raises:
            GpushimError: there is no answer, or the record cannot be written.
        """
        pods: dict[tuple[str, str], set[str]] = {}
        for entry in self._watch.state.claims:
            if entry.driver == OWN_DRIVER:
                pods.setdefault((entry.namespace, entry.name), set()).add(entry.pod)
        listed = {uid: frozenset(pods.get((claim["namespace"], claim["name"]), ())) for uid, claim in claims.items()}
        self._pods = {uid: (row[0] & listed[uid], row[1]) for uid, row in self._pods.items() if uid in listed}
        for uid, claim in claims.items():
            names, asked_at = self._pods.get(uid, (frozenset(), 0.0))
            is_known = listed[uid] <= names and (len(names) < 2 or time.monotonic() - asked_at < SUSPECTED)
            if claim["state"] == LOST or uid in self._over or is_known:
                continue
            with contextlib.suppress(asyncio.TimeoutError):
                body = await self._fetch(uid, claim)
                self._pods[uid] = listed[uid], time.monotonic()
                if body:
                    running = await cgroups.find_running(frozenset(claim["pods"]))
                    uids = sorted(running.union(reserved_for(body)))
                    self._file.change_claims([uid], functools.partial(_set_pods, uids))

    async def learn_parts(self, uuids: Collection[str]) -> None:
        """Write down which parts of devices the claims have that kubelet alone knew; where nobody tells, all.

        Args:
            uuids: of the devices.

        Raises:
            GpushimError: the record cannot be written.
        """
        uids = defaultdict[str, set[str]](set)
        for entry in self._watch.state.claims:
            uids[name_claim(entry.namespace, entry.name, entry.driver)] |= {entry.uid} - {""}
        for key, claim in self._file.read_current()["claims"].items():
            is_adopted = claim["driver"] == OWN_DRIVER and not transitions.is_own(key, claim)
            is_whole = any(device["uuid"] in uuids and "share" not in device for device in claim["devices"])
            if is_adopted and is_whole and len(uids[key]) == 1:  # of two with one name nobody knows which this is
                rows: Sequence[record_form.ClaimDevice] = ()
                with contextlib.suppress(GpushimError, asyncio.TimeoutError):
                    rows = await self._describe_allocated(uids[key].pop(), claim)
                self._file.change_claims([key], functools.partial(_divide, rows))

    async def _describe_allocated(self, uid: str, claim: record_form.Claim) -> list[record_form.ClaimDevice]:
        """Return what a recorded claim has of what this node has now, by the API server; raise as `_fetch`."""
        body, offer = await self._fetch(uid, claim), self._offer()
        if body is None:
            return []
        request = {"namespace": claim["namespace"], "name": claim["name"], "uid": uid}
        allocation = allocated(request, body, self._node)
        present = tuple(result for result in allocation.results if result.device in offer.devices)
        return offer.describe(allocation._replace(results=present))

    async def _fetch(self, uid: str, claim: record_form.Claim) -> Mapping[str, Any] | None:
        """Return a recorded claim as the API server has it; None if it is gone, also where another has its name.

        Raises:
            GpushimError: there is no answer.
            asyncio.TimeoutError: not soon.
        """
        request = {"namespace": claim["namespace"], "name": claim["name"], "uid": uid}
        return await asyncio.wait_for(self._link.claim(request), SOON)


def _set_pods(pods: list[str], claim: record_form.Claim) -> record_form.Claim:
    return {**claim, "pods": pods}


def _divide(rows: Sequence[record_form.ClaimDevice], claim: record_form.Claim) -> record_form.Claim:
    """Return a claim with these in the place of its devices of the same names."""
    devices = []
    for device in claim["devices"]:
        devices += [row for row in rows if row["device"] == device["device"]] or [device]
    return {**claim, "devices": devices}
