"""Which claims have which GPUs: written before kubelet is answered, and read again after a restart or a boot.

A file beside the book, under the book's lock, with what only a claim needs: its uid, since names come again, and
what it looks at as an administrator. The book has the rest, for the device plugin to see. Over a boot the claims
stay, for kubelet keeps them and asks no more; the book is told of them again.
Unknown members are kept, and another form is no error, so that versions before and after read it.
Out of scope: what a claim is to get (claim.py), who asks (prepare.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.book import book, by_device, checkpoints, listed
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import FAILED, REQUEST, GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplugin.book.book import Book
    from gpuplugin.book.page import Page
    from gpuplugin.dra.claim import Claim

    Row = dict[str, Any]  # "namespace", "name", "devices": [{"request", "device", "uuid", "admin"}]

NAME = "claims.json"  # in the book's directory
FORM = 1
QUIET = 10.0  # seconds in which kubelet may not list what was given


class Holders(NamedTuple):
    """Who has what of the device plugin, as kubelet lists it.

    Attributes:
        held: pods by resource and id.
        pods: all of them; None while there may be more.
    """

    held: Mapping[str, Mapping[str, str]]
    pods: Collection[str] | None


class Ledger:
    """The file, and the book.

    Args:
        shared: the book.
    """

    def __init__(self, shared: Book) -> None:
        self._book = shared
        self._problem = ""  # of the file, which is logged once

    @property
    def path(self) -> str:
        """Where the file is."""
        return f"{book.folder()}/{NAME}"

    def claims(self) -> dict[str, Row]:
        """Return the claims that have something, by uid."""
        return self._read()[1]

    def _read(self) -> tuple[dict[str, Any], dict[str, Row]]:
        """Return all of the file, and the claims of it that are as they are written."""
        data = book.content(self.path)
        if data is None:
            return {}, {}
        try:
            found = json.loads(data)
            rows = {uid: row for uid, row in found["claims"].items() if _is_row(row)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            found, rows = {}, {}
        whole = bool(found) and len(rows) == len(found["claims"])
        problem = "" if whole else f"{self.path} is damaged: which claims had GPUs is known to kubelet alone"
        if problem and problem != self._problem:
            logger.warning("%s", problem)
        self._problem = problem
        return found, rows

    def open(self, homes: Mapping[str, str]) -> None:
        """Have the book know all claims, as after a boot.

        Args:
            homes: UUIDs of the GPUs that have them, by UUID of the GPUs and MIG instances that the host has.

        Raises:
            GpushimError: a file cannot be written.
        """
        self._book.prepare()
        with self._book.locked() as before:
            page = self._book.now(before)
            for row in self.claims().values():
                mine = {uuid: homes[uuid] for uuid in _held(row) if uuid in homes}
                try:
                    page = by_device.claim(page, mine, _named(row), system.clock())
                except GpushimError as error:  # both have it already, and nobody can take it back
                    logger.warning("%s", error)
            if page != before:
                self._book.write(page)

    def give(self, claim: Claim, uuids: Mapping[str, str], homes: Mapping[str, str], holders: Holders | None) -> None:
        """Note that a claim gets its devices; again what it has already.

        Args:
            claim: that is prepared.
            uuids: of the devices of its results, by name.
            homes: as for `open`.
            holders: what kubelet has listed just now, if it was asked.

        Raises:
            GpushimError: another claim or a container has one of them, or a file cannot be written.
        """
        devices = [
            {"request": one.request, "device": one.device, "admin": one.admin, "uuid": uuids[one.device]}
            for one in claim.results
        ]
        row: Row = {"namespace": claim.namespace, "name": claim.name, "devices": devices}
        with self._book.locked() as before:
            rows = self.claims()
            _refuse(claim, _held(row), {uid: one for uid, one in rows.items() if uid != claim.uid}, homes)
            page = self._book.now(before)
            if holders:
                page = _ended(page, holders)
            mine = {uuid: homes[uuid] for uuid in _held(row)}
            page = by_device.claim(page, mine, _named(row), system.clock())
            if rows.get(claim.uid) != row:
                self._write({**rows, claim.uid: {**rows.get(claim.uid, {}), **row}})
            self._book.write(page)

    def given(self) -> bool:
        """Say whether the book has containers of the device plugin's."""
        page = self._book.read()
        entries = by_device.entries(page) if page and page["boot"] == self._book.boot else ()
        return any(one["giver"] == by_device.PLUGIN for *_, one in entries)

    def hear(self, holders: Holders) -> None:
        """Have the book know which containers have ended: the device plugin, which may be gone, asks seldom.

        Args:
            holders: what kubelet has listed just now.

        Raises:
            GpushimError: the book cannot be written.
        """
        with self._book.locked() as before:
            page = self._book.now(before)
            found = _ended(page, holders)
            if found != page:
                self._book.write(found)

    def forget(self, uids: Collection[str]) -> None:
        """Take back what claims have; of those that have nothing, nothing.

        Raises:
            GpushimError: a file cannot be written.
        """
        with self._book.locked() as before:
            rows = self.claims()
            page: Page = self._book.now(before)
            for uid in uids:
                if uid in rows:
                    page = by_device.unclaimed(page, _held(rows[uid]), _named(rows[uid]))
            if page != before:
                self._book.write(page)
            left = {uid: row for uid, row in rows.items() if uid not in uids}
            if left != rows:
                self._write(left)

    def _write(self, rows: Mapping[str, Row]) -> None:
        data = json.dumps({**self._read()[0], "form": FORM, "claims": rows}).encode()
        try:
            replace(self.path, data + b"\n", 0o600, durable=False)
        except OSError as error:
            raise GpushimError(
                f"{self.path}, the record of claims that have GPUs, cannot be written: {error.strerror}; without it "
                "a GPU could be given out twice. Its directory must be root's, on a disk with room",
                FAILED,
            ) from None


def _ended(page: Page, holders: Holders) -> Page:
    return listed.listed(page, holders.held, holders.pods, system.clock() - QUIET)


def _is_row(row: Any) -> bool:
    try:
        texts = [row["namespace"], row["name"]]
        texts += [one[key] for one in row["devices"] for key in ("request", "device", "uuid")]
    except (KeyError, TypeError):
        return False
    return all(isinstance(text, str) for text in texts)


def _held(row: Row) -> list[str]:
    """List what a claim has to itself."""
    return [one["uuid"] for one in row["devices"] if not one.get("admin")]


def _named(row: Row) -> str:
    return checkpoints.named(row["namespace"], row["name"], OWN_DRIVER)


def _refuse(claim: Claim, uuids: Collection[str], others: Mapping[str, Row], homes: Mapping[str, str]) -> None:
    """Refuse what another claim has."""
    for row in others.values():
        for had in _held(row):
            for uuid in uuids:
                whole = homes.get(had) == homes[uuid] and (had == homes[uuid] or uuid == homes[uuid])
                if had == uuid or whole:
                    who = quote(f"{row['namespace']}/{row['name']}")
                    raise GpushimError(
                        f"claim {claim} cannot have {uuid} yet: claim {who} has {'it' if had == uuid else had}, "
                        "and gives it back within a minute of its deletion",
                        REQUEST,
                    )
