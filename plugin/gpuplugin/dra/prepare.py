"""From kubelet's NodePrepareResources to its answer, and back: claims become names in the node's own CDI spec.

Nothing of a claim has to survive a boot but what the record has. Each refusal is one sentence, which the pod's
event shows. Unprepare answers ok to anything: an error would hold the pod, and its GPU.
Budget: 5 ms beside the API server's answer. Out of scope: the wire (kubelet/dra.py), the record (gpuplugin.record).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.dra import taints
from gpuplugin.dra.claim import allocated, groups
from gpuplugin.dra.configs import of_others
from gpuplugin.dra.cutting import POLL
from gpuplugin.dra.partitions import find_unit
from gpuplugin.dra.shared import names
from gpuplugin.dra.upkeep import Upkeep
from gpuplugin.kubelet import cgroups
from gpuplugin.mps import of_claims
from gpuplugin.processes import tasks
from gpuplugin.record import grants, transitions
from gpuplugin.record.record_form import GRANTED, LOST
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import FAILED, INVENTORY, REQUEST, GpushimError, quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.dra.claim import Claim
    from gpuplugin.dra.claim_offer import Offer
    from gpuplugin.dra.cutting import OnDemand
    from gpuplugin.dra.link import Link
    from gpuplugin.dra.shared import Sharing
    from gpuplugin.record import record_form
    from gpuplugin.record.kubelet_watch import KubeletWatch
    from gpuplugin.record.record_form import Record

LATE = 38.0  # seconds after which kubelet, which waits for 45, is told what a claim waits for


class Claims:
    """What kubelet asks for.

    Args:
        watch: what kubelet has, with the record.
        link: to the half that asks the API server.
        node: this node's name.
        offer: returns what this node has now.
        sharing: what containers of claims share.
        on_demand: what is made for claims.

    Attributes:
        warned: why what lost claims have is not free yet, sentences by uid.
    """

    def __init__(
        self,
        watch: KubeletWatch,
        link: Link,
        node: str,
        offer: Callable[[], Offer],
        sharing: Sharing,
        on_demand: OnDemand,
    ) -> None:
        self._file, self._watch, self._link, self._node, self._offer = watch.file, watch, link, node, offer
        self._sharing, self._on_demand = sharing, on_demand
        self._over: dict[str, float] = {}  # uids of what kubelet has undone, and seconds since boot of that
        self._upkeep = Upkeep(watch, link, node, offer, self._over)
        self.warned: dict[str, str] = {}
        self._removing: set[str] = set()  # uids whose partitions are being removed

    async def prepare(self, claims: Sequence[Mapping[str, str]]) -> dict[str, list[dict[str, Any]] | str]:
        """Answer NodePrepareResources: devices by uid, or a sentence."""
        answers = await asyncio.gather(*map(self._prepare, claims))
        return {claim["uid"]: answer for claim, answer in zip(claims, answers)}

    async def _prepare(self, request: Mapping[str, str]) -> list[dict[str, Any]] | str:
        name, deadline = quote(f"{request['namespace']}/{request['name']}"), time.monotonic() + LATE
        try:
            body = await self._link.claim(request)
            if body is None:
                raise GpushimError(f"the API server no longer has the claim {name} of this pod", REQUEST)
            claim = allocated(request, body, self._node)
            await self._make_partitions(claim, deadline)
            offer = self._offer()
            for sentence in of_others(body["status"]["allocation"]["devices"].get("config") or ()):
                logger.info("claim %s: %s", name, sentence)
            if offer.problem:
                raise GpushimError(offer.problem, INVENTORY)
            uuids = self._admit(claim, offer)
            sharing_groups = groups(claim, uuids)
            devices = offer.describe(claim)
            self._sharing.check(
                sharing_groups, [uuids[result.device] for result in claim.results if not result.admin]
            )
            await self._grant(claim, devices, sharing_groups)
            await self._wait_for_removal(claim, deadline)  # a removal may have begun before the grant was written
            if self._on_demand.find_unmade(claim):
                raise GpushimError(
                    f"what was made for claim {claim} was removed meanwhile; the next try makes it", INVENTORY
                )
            await self._sharing.begin(claim, sharing_groups, devices, deadline)
        except GpushimError as error:
            logger.error("claim %s: %s", name, error)
            return str(error)
        logger.info("claim %s has %s", name, ", ".join(result.device for result in claim.results))
        return [
            {
                "request_names": [result.request],
                "pool_name": self._node,
                "device_name": result.device,
                "cdi_device_ids": [f"{offer.kind}={uuids[result.device]}", *more_names],
                "share_id": result.share,
            }
            for result, more_names in zip(claim.results, names(devices, sharing_groups))
        ]

    def _admit(self, claim: Claim, offer: Offer) -> dict[str, str]:
        """Return the UUIDs of a claim's devices by their names, if it can have all of them now.

        Raises:
            GpushimError: the node does not have one, no CDI spec names it since it does not answer, or it is
                unhealthy and the claim does not tolerate that.
        """
        missing = next((result.device for result in claim.results if result.device not in offer.devices), "")
        if missing:
            raise GpushimError(f"this node no longer has {quote(missing)}, of claim {claim}", REQUEST)
        uuids = {result.device: offer.devices[result.device].uuid for result in claim.results}
        problems = taints.problems(offer.snapshot) if offer.snapshot else {}
        for name, uuid in uuids.items():
            if problem := problems.get(uuid):
                raise GpushimError(f"{name} of claim {claim} cannot be used: {problem}", INVENTORY)
        before = self._file.read_current()["claims"].get(claim.uid)
        held = {device["uuid"] for device in transitions.list_held(before)} if before else set()
        for result in claim.results:
            unit = find_unit(offer.devices[result.device])
            sick = taints.untolerated(result.tolerations, offer.sick.get(unit, ()), uuids[result.device] in held)
            if not result.admin and sick:
                raise GpushimError(
                    f"{result.device} of claim {claim} is unhealthy: {offer.sentences.get(unit, '')}", INVENTORY
                )
        return uuids

    async def _make_partitions(self, claim: Claim, deadline: float) -> None:
        """Make the partitions of a claim that are not there; recorded first, so that a kill leaves none unknown.

        Raises:
            GpushimError: it cannot have them; then the claim is released.
        """
        await self._wait_for_removal(claim, deadline)
        offer = self._offer()
        unmade = self._on_demand.find_unmade(claim)
        if offer.problem or not unmade:
            return
        if any(result.admin and result.device in unmade for result in claim.results):
            raise GpushimError(f"claim {claim} has adminAccess to what nobody has, and so is not there", REQUEST)
        before = self._file.read_current()["claims"].get(claim.uid)
        if not before or not transitions.list_made(before):  # else what is there may be the claim's own
            await self._on_demand.check(claim)
        self._admit(claim, offer)
        await self._grant(claim, offer.describe(claim), ())
        try:
            await self._on_demand.make(claim, deadline)
        except GpushimError:
            await self.unprepare([{"uid": claim.uid}])
            raise

    async def _wait_for_removal(self, claim: Claim, deadline: float) -> None:
        """Wait until nothing is being removed that a claim had before. Raise GpushimError after `deadline`."""
        while claim.uid in self._removing:
            if time.monotonic() > deadline:
                raise GpushimError(f"what was made for claim {claim} before is still being removed", INVENTORY)
            await asyncio.sleep(POLL)

    async def _grant(
        self, claim: Claim, devices: list[record_form.ClaimDevice], sharing_groups: Sequence[MpsGroup]
    ) -> None:
        """Write down what a claim gets; who else has it counts as kubelet tells it then.

        Raises:
            GpushimError: it cannot have that, or the record cannot be written.
        """
        before = self._file.read_current()["claims"].get(claim.uid)
        running = await cgroups.find_running(frozenset(before["pods"])) if before else frozenset()
        if before and running and not _identify(transitions.list_held(before)) <= _identify(devices):
            self._lose([claim.uid])
            raise GpushimError(
                f"claim {claim} has other devices now; it gets them when the process of the pod with uid "
                f"{min(running)} has ended that has the former ones",
                REQUEST,
            )
        if before and _name_made(before) - {device["device"] for device in devices}:
            self._lose([claim.uid])
            raise GpushimError(f"claim {claim} had other MIG instances, which are removed first", REQUEST)
        row: record_form.Claim = {
            "driver": OWN_DRIVER,
            "namespace": claim.namespace,
            "name": claim.name,
            "devices": devices,
            "pods": sorted({*claim.pods, *running}),
            "sharing": [of_claims.describe(group) for group in sharing_groups],
            "state": GRANTED,
            "since": system.clock(),
        }
        self._upkeep.granted.add(claim.uid)
        self._over.pop(claim.uid, None)
        await self._watch.reconcile(ask=not self._watch.has_listed_all or self._file.read() is None)
        try:
            self._write_grant(claim, row)
        except GpushimError:
            await self._watch.reconcile()
            uuids = {device["uuid"] for device in devices if "share" in device}
            await self._upkeep.learn_parts(uuids)
            self._write_grant(claim, row)

    def _write_grant(self, claim: Claim, row: record_form.Claim) -> None:
        def grant(record: Record) -> Record:
            if record["unknown"]:
                raise GpushimError(
                    "what containers had before is not known, and kubelet (pod-resources) does not say; claim "
                    f"{claim} gets a GPU when it does",
                    FAILED,
                )
            self._admit(claim, self._offer())  # again: kubelet and the API server may have taken their time
            return grants.grant_claim(record, claim.uid, row)

        self._file.change(grant)

    async def unprepare(self, claims: Sequence[Mapping[str, str]]) -> None:
        """Answer NodeUnprepareResources; what is not free yet, or cannot be written now, is released later."""
        for claim in claims:
            self._over[claim["uid"]] = system.clock()
        try:
            await self._release()
        except GpushimError as error:
            logger.error("%s", error)

    def is_unreleased(self, uid: str) -> bool:
        """Return whether a claim is over and could not be released yet."""
        return uid in self._find_over(self._file.read_current())

    def _lose(self, uids: Collection[str]) -> None:
        """Write down that claims are over, whatever becomes of this process before they are released."""
        self._file.change_claims(uids, lambda claim: {**claim, "state": LOST})

    async def _release(self) -> None:
        """Release claims that are over when their GPUs are what they were; unless one was prepared again meanwhile.

        A process that hangs in the kernel has them still, though kubelet has its pod deleted by force unprepared.
        """
        record = self._file.read_current()
        claims = self._find_over(record)
        self.warned = {uid: sentence for uid, sentence in self.warned.items() if uid in record["claims"]}
        for uid in self._over.keys() - claims.keys():
            del self._over[uid]
        if not claims:
            return
        running = await cgroups.find_running(frozenset(pod for claim in claims.values() for pod in claim["pods"]))
        over = claims.keys() & self._find_over(self._file.read_current()).keys()  # but what was prepared anew since
        ending = {uid for uid in over if not running.isdisjoint(claims[uid]["pods"])}
        lost = {uid for uid in ending if system.clock() - self._over.get(uid, 0.0) >= transitions.GRACE}
        for uid in lost:
            self._warn(uid, transitions.describe_ending(claims[uid]))
        self._lose(lost)
        await self._sharing.end(over - ending)
        free = await self._remove_partitions({uid: claims[uid] for uid in over - ending})

        def release(record: Record) -> Record:
            released = free & self._find_over(record).keys()
            left = {uid: claim for uid, claim in record["claims"].items() if uid not in released}
            return {**record, "claims": left}

        self._file.change(release)

    async def _remove_partitions(self, claims: Mapping[str, record_form.Claim]) -> set[str]:
        """Remove what was made for claims that are still over; return the uids of those of which nothing is left."""
        uids = claims.keys() & self._find_over(self._file.read_current()).keys() - self._removing
        self._removing |= uids
        try:
            problems = await self._on_demand.remove({uid: claims[uid] for uid in uids})
        finally:
            self._removing -= uids
        for uid, sentence in problems.items():
            self._warn(uid, sentence)
        self._lose(problems)
        return uids - problems.keys()

    def _find_over(self, record: Record) -> dict[str, record_form.Claim]:
        """Return claims that are over; what another instance has prepared since is not."""
        return {
            uid: claim
            for uid, claim in record["claims"].items()
            if claim["state"] == LOST or claim["since"] <= self._over.get(uid, -1.0)
        }

    def _warn(self, uid: str, sentence: str) -> None:
        if self.warned.get(uid) != sentence:
            logger.warning("%s", sentence)
        self.warned[uid] = sentence

    async def keep(self) -> None:
        """Keep claims and what they share true, and release those that are over, as long as the driver runs.

        To release may take long, until GPUs are what they were; it holds up nothing else.
        """
        await asyncio.gather(*map(tasks.repeat, (self._upkeep.look, self._release, self._sharing.look)))


def _identify(devices: Sequence[record_form.ClaimDevice]) -> set[tuple[str, str]]:
    """Return the UUID of each device, and the id of its part."""
    return {(device["uuid"], device["share"]["id"] if "share" in device else "") for device in devices}


def _name_made(claim: record_form.Claim) -> set[str]:
    return {device["device"] for device in transitions.list_made(claim)}
