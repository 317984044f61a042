"""Which claims have which GPUs: written before kubelet is answered, and read again after a restart or a boot.

A file beside the book, under the book's lock, has what only a claim needs: its uid, since names come again, and
what it looks at as an administrator. The book has the rest, for the device plugin to see. Over a boot the claims
stay, for kubelet keeps them and asks no more; the book is told of them again. Of what containers have by the device
plugin, and by claims of a driver before this one, kubelet tells.
Out of scope: the file (gpuplugin.book.claimed), what a claim is to get (claim.py), who asks (prepare.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuplugin.book import by_device, checkpoints, claimed, listed
from gpuplugin.book.claimed import PODS, held, pods_of
from gpuplugin.mps import of_claims
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import FAILED, REQUEST, GpushimError, quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from gpuplugin.book.book import Book
    from gpuplugin.book.checkpoints import Remembered
    from gpuplugin.book.claimed import Row
    from gpuplugin.book.page import Page
    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.dra.claim import Claim

QUIET = 10.0  # seconds in which kubelet may not list what was given


class Holders(NamedTuple):
    """Who has what, as kubelet lists it.

    Attributes:
        held: pods by resource of device plugins and id.
        pods: that are listed; None while kubelet has just begun.
        whole: none of the API server's is missing in them.
        promised: what kubelet's checkpoint has.
        claims: claims by UUID, without those that only look.
        asked: when kubelet was asked, in seconds since boot.
        stale: no device plugin of gpushim's has kubelet write its checkpoint.
        running: uids of pods that kubelet does not list, and of which a process is left.
    """

    held: Mapping[str, Mapping[str, str]]
    pods: Collection[str] | None
    whole: bool
    promised: Remembered | None
    claims: Mapping[str, str] = {}
    asked: float = float("inf")
    stale: bool = False
    running: Collection[str] = frozenset()

    @property
    def all_held(self) -> dict[str, dict[str, str]]:
        """With what kubelet does not list, as of init containers: its checkpoint has it, and maybe what has ended."""
        found = {name: {**row} for name, row in self.held.items()}
        for key, uid in self.promised.uids.items() if self.promised else ():
            resource, _, name = key.partition(" ")
            found.setdefault(resource, {}).setdefault(name, checkpoints.by_uid(uid))
        return found


class Ledger:
    """The file, and the book.

    Args:
        shared: the book.

    Attributes:
        sure: kubelet has listed all pods since this began, and the book has all that they have.
        unnoted: UUIDs of what pods have by a device plugin that does not write the book, such as NVIDIA's.
        places: of the MIG instances that the host has, by UUID.
        ending: why claims that are over have not ended, as a process of a pod is left, by uid.
    """

    def __init__(self, shared: Book) -> None:
        self.book = shared
        self.sure = self._all_was_listed = False
        self._problem = ""  # of the file, logged once
        self.unnoted: frozenset[str] = frozenset()
        self.places: Mapping[str, str] = {}
        self.ending: dict[str, str] = {}

    @property
    def path(self) -> str:
        """Where the file is."""
        return claimed.path()

    def claims(self) -> dict[str, Row]:
        """Return the claims that have something, by uid."""
        found, rows, damaged = claimed.read()
        problem = claimed.doubt(found, rows, damaged)
        if problem and problem != self._problem:
            logger.warning("%s is known to kubelet alone", problem)
        self._problem = problem
        return rows

    @property
    def unended(self) -> dict[str, str]:
        """Why what claims that are over have is not free yet, by UUID; the scheduler may know nothing of them."""
        rows = self.claims() if self.ending else {}
        return {uuid: why for uid, why in self.ending.items() if uid in rows for uuid in held(rows[uid])}

    def held(self) -> dict[str, str]:
        """Return claims by UUID of what they have."""
        return _by_uuid(self.claims())

    def open(self, homes: Mapping[str, str]) -> None:
        """Have the book know all claims, as after a boot.

        Args:
            homes: UUIDs of the GPUs that have them, by UUID of the GPUs and MIG instances that the host has.

        Raises:
            GpushimError: a file cannot be written.
        """
        self.book.prepare()
        with self.book.locked() as before:
            page = self.book.now(before)
            homes, places = self._with_former(homes)
            rows = self.claims().values()
            for uuid, name, pods in [(uuid, _named(row), pods_of(row)) for row in rows for uuid in held(row)]:
                try:
                    home = {uuid: homes[uuid]} if uuid in homes else {}
                    page = by_device.claim(page, home, name, system.clock(), places, pods)
                except GpushimError as error:  # both have it already, and nobody can take it back
                    logger.warning("%s", error)
            if page != before:
                self.book.write(page)

    def _with_former(self, homes: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return homes, and places of MIG instances, with those that claims have and the host has not any more."""
        former = claimed.instances(self.claims())
        gone = {uuid: one for uuid, one in former.items() if uuid not in homes and one.gpu in homes}
        places = {**{uuid: one.place for uuid, one in gone.items()}, **self.places}
        return {**{uuid: one.gpu for uuid, one in gone.items()}, **homes}, places

    def give(
        self,
        claim: Claim,
        uuids: Mapping[str, str],
        homes: Mapping[str, str],
        holders: Holders | None,
        groups: Sequence[MpsGroup] = (),
    ) -> None:
        """Note that a claim gets its devices; again what it has already.

        Args:
            claim: that is prepared.
            uuids: of the devices of its results, by name.
            homes: as for `open`.
            holders: what kubelet has listed just now, if it was asked.
            groups: what its containers share.

        Raises:
            GpushimError: another claim or a container has one of them, or a file cannot be written.
        """
        devices = [
            {"request": one.request, "device": one.device, "admin": one.admin, "uuid": uuids[one.device]}
            for one in claim.results
        ]
        for one in devices:
            if place := self.places.get(str(one["uuid"])):
                one.update(gpu=homes[str(one["uuid"])], place=place)
        row: Row = {"namespace": claim.namespace, "name": claim.name, "devices": devices, PODS: [*claim.pods]}
        with self.book.locked() as before:
            rows = self.claims()
            if groups or of_claims.KEY in rows.get(claim.uid, {}):
                row[of_claims.KEY] = [of_claims.describe(group) for group in groups]
            _refuse(claim, held(row), {uid: one for uid, one in rows.items() if uid != claim.uid}, homes)
            page = self.book.now(before)
            if claim.uid in rows:  # it may have had others, which nobody else would take back
                page = by_device.unclaimed(page, held(rows[claim.uid]), _named(rows[claim.uid]))
            if holders:
                # A book that is lost, or new, may lack what the device plugin will find in kubelet's checkpoint.
                known = before is not None and before["boot"] == self.book.boot and not before["unknown"]
                _refuse_listed(claim, held(row), holders.held, homes)
                if not known or not self._all_was_listed:
                    new = [uuid for uuid in held(row) if uuid not in held(rows.get(claim.uid, {"devices": []}))]
                    _refuse_listed(claim, new, holders.all_held, homes)
                page = self._heard(page, holders, rows, homes)
            mine = {uuid: homes[uuid] for uuid in held(row)}
            page = by_device.claim(page, mine, _named(row), system.clock(), self.places, claim.pods)
            if holders is None and self._asks(before):
                raise GpushimError(
                    f"what containers had before is not known, and kubelet (pod-resources) does not say; claim "
                    f"{claim} gets a GPU when it does",
                    FAILED,
                )
            if rows.get(claim.uid) != row:
                claimed.write({**rows, claim.uid: {**rows.get(claim.uid, {}), **row}})
            self.book.write(page)

    def _asks(self, page: Page | None) -> bool:
        """Say whether kubelet has to be asked who has what before anything is given.

        As where the book says nothing, or the device plugin gave something in an earlier boot: such a pod comes back
        with it, and nobody is asked.
        """
        if page is None or page["boot"] != self.book.boot or page["unknown"]:
            return True
        return not self.sure and any(one["divisions"] for one in page["gpus"].values())

    def given(self) -> bool:
        """Say whether it is to be asked who has what: somebody may, of whom the file does not tell."""
        page = self.book.read()
        return not self.sure or self._asks(page) or any(by_device.entries(page) if page else ())

    def hear(self, holders: Holders, homes: Mapping[str, str]) -> None:
        """Have the book know which containers have ended: the device plugin, which may be gone, asks seldom.

        Args:
            holders: what kubelet has listed just now.
            homes: as for `open`.

        Raises:
            GpushimError: the book cannot be written.
        """
        with self.book.locked() as before:
            page = self.book.now(before)
            found = self._heard(page, holders, self.claims(), homes)
            if found != page:
                self.book.write(found)

    def _heard(self, page: Page, holders: Holders, rows: Mapping[str, Row], homes: Mapping[str, str]) -> Page:
        """Return the book after what kubelet lists."""
        since = min(system.clock(), holders.asked) - QUIET
        page = listed.listed(
            page,
            holders.held,
            holders.pods,
            since,
            holders.promised,
            holders.whole,
            "",
            holders.stale,
            holders.running,
        )
        known = _by_uuid(rows)
        then = since if holders.whole else None
        homes, places = self._with_former(homes)
        page = listed.claims(page, {**holders.claims, **known}, homes, then, holders.running, places)
        self.unnoted = frozenset(_unnoted(page, holders.held, homes))
        self.sure = holders.whole and not self.unnoted
        self._all_was_listed |= holders.whole
        if holders.whole and holders.stale and page["unknown"]:  # else the device plugin finds that out
            page = {**page, "unknown": ""}
        return page

    def join(self, uid: str, pods: Collection[str]) -> None:
        """Note which pods have a claim: kubelet has it prepared for the first one alone.

        Args:
            uid: of the claim.
            pods: uids of those that have it, or may have a process left.

        Raises:
            GpushimError: a file cannot be written.
        """
        with self.book.locked() as before:
            rows = self.claims()
            row = rows.get(uid)
            if row is None or {*pods_of(row)} == {*pods}:
                return
            rows[uid] = {**row, PODS: sorted(pods)}
            claimed.write(rows)
            page = self.book.now(before)
            self.book.write(by_device.with_pods(page, held(row), _named(row), sorted(pods)))

    def unshare(self, uids: Collection[str]) -> None:
        """Have claims share nothing any more, which their supervisors follow.

        Raises:
            GpushimError: a file cannot be written.
        """
        with self.book.locked():
            rows = self.claims()
            mine = [uid for uid in uids if of_claims.KEY in rows.get(uid, {})]
            for uid in mine:
                del rows[uid][of_claims.KEY]
            if mine:
                claimed.write(rows)

    def forget(self, uids: Collection[str]) -> None:
        """Take back what claims have; of those that have nothing, nothing.

        Raises:
            GpushimError: a file cannot be written.
        """
        with self.book.locked() as before:
            rows = self.claims()
            page: Page = self.book.now(before)
            for uid in uids:
                if uid in rows:
                    page = by_device.unclaimed(page, held(rows[uid]), _named(rows[uid]))
            if page != before:
                self.book.write(page)
            left = {uid: row for uid, row in rows.items() if uid not in uids}
            if left != rows:
                claimed.write(left)


def _by_uuid(rows: Mapping[str, Row]) -> dict[str, str]:
    return {uuid: _named(row) for row in rows.values() for uuid in held(row)}


def _named(row: Row) -> str:
    return checkpoints.named(row["namespace"], row["name"], OWN_DRIVER)


def _refuse(claim: Claim, uuids: Collection[str], others: Mapping[str, Row], homes: Mapping[str, str]) -> None:
    """Refuse what another claim has."""
    for row in others.values():
        for had in held(row):
            for uuid in uuids:
                if _touch(had, uuid, homes):
                    who = quote(f"{row['namespace']}/{row['name']}")
                    raise GpushimError(
                        f"claim {claim} cannot have {uuid} yet: claim {who} has {'it' if had == uuid else had}, "
                        "and gives it back within a minute of its deletion, when no process of its pods is left",
                        REQUEST,
                    )


def _refuse_listed(
    claim: Claim, uuids: Collection[str], found: Mapping[str, Mapping[str, str]], homes: Mapping[str, str]
) -> None:
    """Refuse what a pod has by the device plugin, also where the book does not have that."""
    for name, who in ((name, who) for row in found.values() for name, who in row.items()):
        had = by_device.stem(name)
        for uuid in uuids:
            if _touch(had, uuid, homes):
                what = "it" if had == uuid else had
                raise GpushimError(f"claim {claim} cannot have {uuid} yet: {quote(who)} has {what}", REQUEST)


def _unnoted(page: Page, held: Mapping[str, Mapping[str, str]], homes: Mapping[str, str]) -> Iterator[str]:
    """List what pods have by device plugins, and is not in the book: kubelet is asked of it each time."""
    noted = {(resource, name) for resource, name, _ in by_device.entries(page)}
    for resource, row in held.items():
        yield from (
            by_device.stem(name) for name in row if (resource, name) not in noted and by_device.stem(name) in homes
        )


def _touch(had: str, uuid: str, homes: Mapping[str, str]) -> bool:
    """Say whether two are one, or one is a MIG instance of the other."""
    return had == uuid or (homes.get(had) == homes[uuid] and homes[uuid] in (had, uuid))
