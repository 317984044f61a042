"""From kubelet's NodePrepareResources to its answer, and back: claims become names in the node's own CDI spec.

So nothing of a claim has to survive a boot but what the ledger has. Each refusal is one sentence, which the pod's
event shows. Unprepare answers ok to anything: an error would hold the pod, and its GPU.
Budget: 5 ms beside the API server's answer. Out of scope: the wire (gpuplugin.kubelet.dra), files (ledger.py).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.dra.claim import DRIVER, allocated, check
from gpuplugin.kubelet import podresources
from gpushim.ground.errors import INVENTORY, REQUEST, GpushimError, quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplugin.dra.claim import Claim
    from gpuplugin.dra.ledger import Ledger
    from gpuplugin.dra.link import Link
    from gpuplugin.dra.offered import Offered

SWEEP = 15.0  # seconds between looks for claims that nobody takes back
SUSPECTED = 45.0  # seconds between questions to the API server for the same one


class Offer(NamedTuple):
    """What this node has.

    Attributes:
        devices: by name.
        homes: UUIDs of the GPUs that have them, by UUID of all GPUs and MIG instances.
        kind: of the CDI spec.
        problem: why nothing can be given now, or "".
    """

    devices: Mapping[str, Offered]
    homes: Mapping[str, str]
    kind: str
    problem: str = ""


class Claims:
    """What kubelet asks for.

    Args:
        ledger: who has what.
        link: to the half that asks the API server.
        node: this node's name.
        kubelet_dir: kubelet's directory.
        offer: returns what this node has now.
    """

    def __init__(self, ledger: Ledger, link: Link, node: str, kubelet_dir: str, offer: Callable[[], Offer]) -> None:
        self._ledger, self._link, self._node, self._kubelet_dir, self._offer = ledger, link, node, kubelet_dir, offer
        self._asked: dict[str, float] = {}  # time.monotonic() of the last question, by uid

    async def prepare(self, claims: Sequence[Mapping[str, str]]) -> dict[str, list[dict[str, Any]] | str]:
        """Answer NodePrepareResources: devices by uid, or a sentence."""
        answers = await asyncio.gather(*map(self._prepared, claims))
        return {claim["uid"]: answer for claim, answer in zip(claims, answers)}

    async def _prepared(self, asked: Mapping[str, str]) -> list[dict[str, Any]] | str:
        name = quote(f"{asked['namespace']}/{asked['name']}")
        try:
            found = await self._link.claim(asked)
            if found is None:
                raise GpushimError(f"the API server does not have the claim {name} of this pod any more", REQUEST)
            claim, offer = allocated(asked, found, self._node), self._offer()
            if offer.problem:
                raise GpushimError(offer.problem, INVENTORY)
            check(claim)
            await self._give(claim, offer)
        except GpushimError as error:
            logger.error("claim %s: %s", name, error)
            return str(error)
        logger.info("claim %s has %s", name, ", ".join(one.device for one in claim.results))
        return [
            {
                "request_names": [one.request],
                "pool_name": self._node,
                "device_name": one.device,
                "cdi_device_ids": [f"{offer.kind}={offer.devices[one.device].uuid}"],
            }
            for one in claim.results
        ]

    async def _give(self, claim: Claim, offer: Offer) -> None:
        """Note what a claim gets; what the book says of others is asked again before it counts.

        Raises:
            GpushimError: it cannot have that.
        """
        for one in claim.results:
            if one.device not in offer.devices:
                raise GpushimError(
                    f"this node does not have {quote(one.device)}, of claim {claim}, any more", REQUEST
                )
        uuids = {one.device: offer.devices[one.device].uuid for one in claim.results}
        try:
            self._ledger.give(claim, uuids, offer.homes, None)
        except GpushimError:
            listing = await podresources.listed(self._kubelet_dir)
            if listing is None:
                raise
            self._ledger.give(claim, uuids, offer.homes, listing)

    async def unprepare(self, claims: Sequence[Mapping[str, str]]) -> None:
        """Answer NodeUnprepareResources; what cannot be written now is taken back later."""
        try:
            self._ledger.forget([one["uid"] for one in claims])
        except GpushimError as error:
            logger.error("%s", error)

    async def keep(self) -> None:
        """Take back, as long as the driver runs, what kubelet does not list and the API server does not have."""
        while True:
            await asyncio.sleep(SWEEP)
            try:
                await self._sweep()
            except GpushimError as error:
                logger.warning("%s", error)

    async def _sweep(self) -> None:
        rows = self._ledger.claims()
        self._asked = {uid: then for uid, then in self._asked.items() if uid in rows}
        listing = await podresources.listed(self._kubelet_dir) if rows else None
        if listing is None:
            return
        listed = {(one.namespace, one.name) for one in listing.claims if one.driver == DRIVER}
        for uid, row in rows.items():
            now = time.monotonic()
            if (row["namespace"], row["name"]) in listed or now - self._asked.get(uid, -SUSPECTED) < SUSPECTED:
                continue
            self._asked[uid] = now
            if await self._link.claim({"namespace": row["namespace"], "name": row["name"], "uid": uid}) is None:
                logger.info("claim %s/%s is gone, and is taken back", quote(row["namespace"]), quote(row["name"]))
                self._ledger.forget([uid])
