"""The file beside the book with the claims that have GPUs by gpushim's DRA driver, by uid.

Unknown members, and claims that are not understood, stay in it, so that versions before and after read it. A version
whose claims an older one would misunderstand raises FORM, and the older one refuses all of it. So what is not
understood of a known form is damaged, for which the book's rule holds: a claim has each UUID that is left in it, as
its own; what else it may have, kubelet alone tells.
Out of scope: its lock, which is the book's, and who gets what (gpuplugin.dra.ledger).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.book import book
from gpushim.containers.kubelet import DRIVERS
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushim.containers.kubelet import Claim

    # "namespace", "name", "devices": [{"request", "device", "uuid", "admin"}], "pods" (uids), "sharing"
    # (gpuplugin.mps.of_claims)
    Row = dict[str, Any]

NAME = "claims.json"  # in the book's directory
PODS = "pods"  # member of a row: uids of the pods that have the claim
FORM = 1
_NAMES = ("namespace", "name", "devices")  # members of a row that `read` completes


def path() -> str:
    """Return where it is."""
    return f"{book.folder()}/{NAME}"


def read() -> tuple[dict[str, Any], dict[str, Row], bool]:
    """Return all of the file, what is understood of its claims, and whether it is damaged.

    A claim that is not understood in full, but has UUIDs, has "" where its namespace or the name of a device is not
    known, and its uid where its name is not.

    Raises:
        GpushimError: it cannot be read now, or a newer version has written it in another form.
    """
    data = book.content(path())
    if data is None:
        return {}, {}, False
    try:
        found = json.loads(data)
        book.check_form(path(), found, FORM)
        rows = {uid: raw if is_row(raw) else _partly(uid, raw) for uid, raw in found["claims"].items()}
        return found, {uid: row for uid, row in rows.items() if row is not None}, False
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, {}, True


def doubt(found: Mapping[str, Any], rows: Mapping[str, Row], damaged: bool) -> str:
    """Begin a sentence about what `read` did not understand; "" if it has understood all."""
    if damaged:
        return f"{path()} is damaged: which claims had GPUs"
    if any(uid not in rows or rows[uid] is not raw for uid, raw in found.get("claims", {}).items()):
        return f"{path()} has claims that are not understood, which stay there: what else they have"
    return ""


def is_row(row: Any) -> bool:
    """Say whether a claim of the file is understood in full."""
    try:
        texts = [row["namespace"], row["name"]]
        texts += [one[key] for one in row["devices"] for key in ("request", "device", "uuid")]
        return all(isinstance(text, str) for text in texts) and all(isinstance(one, dict) for one in row["devices"])
    except (KeyError, TypeError, AttributeError):
        return False


def _partly(uid: str, raw: Any) -> Row | None:
    """Return a claim that is not understood in full; None if there is no UUID in it."""
    there = (raw.get("devices") or raw) if isinstance(raw, dict) else raw
    members, devices = raw if isinstance(raw, dict) else {}, []
    for one in there if isinstance(there, list) else [there]:
        if is_row({"namespace": "", "name": "", "devices": [one]}):
            devices.append(one)
        else:
            devices += [{"request": "", "device": "", "uuid": uuid} for uuid in _uuids(one)]
    if not devices:
        return None
    names = {key: members[key] for key in ("namespace", "name") if isinstance(members.get(key), str)}
    return {**members, "namespace": "", "name": uid, **names, "devices": devices}


def _uuids(found: Any) -> Iterator[str]:
    """List the UUIDs of GPUs and MIG instances that stand somewhere in a value."""
    if isinstance(found, str):
        yield from [found] if found.startswith(("GPU-", "MIG-")) else []
    elif isinstance(found, (dict, list)):
        for one in found.values() if isinstance(found, dict) else found:
            yield from _uuids(one)


def write(rows: Mapping[str, Row]) -> None:
    """Have these claims in it from now on, and as they were those that are not understood, or not in full.

    Raises:
        GpushimError: it cannot be written, or as for `read`.
    """
    before, known, _ = read()
    there = before.get("claims", {})
    strange = {uid: raw for uid, raw in there.items() if uid not in known}
    after = {uid: _as_it_was(row, known[uid], there[uid]) if uid in known else row for uid, row in rows.items()}
    data = json.dumps({**before, "form": FORM, "claims": {**strange, **after}}).encode()
    try:
        replace(path(), data + b"\n", 0o600)  # on the disk: it outlives a boot, which a loss of power is
    except OSError as error:
        raise GpushimError(
            f"{path()}, the record of claims that have GPUs, cannot be written: {error.strerror}; without it "
            "a GPU could be given out twice. Its directory must be root's, on a disk with room",
            FAILED,
        ) from None


def _as_it_was(row: Row, known: Row, raw: Any) -> Any:
    """Return a claim with what `read` has completed as the file has it, unless it was changed."""
    if any(row[key] != known[key] for key in _NAMES):
        return row
    if not isinstance(raw, dict):
        return raw
    return {**{key: one for key, one in row.items() if key not in _NAMES}, **{k: raw[k] for k in _NAMES if k in raw}}


def held(row: Row) -> list[str]:
    """List the UUIDs of what a claim has to itself."""
    return [one["uuid"] for one in row["devices"] if not one.get("admin")]


class Instance(NamedTuple):
    """A MIG instance that a claim has: the UUID of its GPU, and its place there."""

    gpu: str
    place: str


def instances(rows: Mapping[str, Row]) -> dict[str, Instance]:
    """Return the MIG instances that claims have, by UUID; the host may have made others in their places since."""
    found = {}
    for one in (one for row in rows.values() for one in row["devices"] if not one.get("admin")):
        if isinstance(gpu := one.get("gpu"), str) and isinstance(place := one.get("place"), str):
            found[one["uuid"]] = Instance(gpu, place)
    return found


def pods_of(row: Row) -> list[str]:
    """List the uids of the pods that have a claim; none, if an older version has written it."""
    pods = row.get(PODS)
    return [uid for uid in pods if isinstance(uid, str)] if isinstance(pods, list) else []


class Known(NamedTuple):
    """What claims have by gpushim's driver, which kubelet lists as any other's: UUIDs; "" of what they only look at.

    Attributes:
        named: by namespace and name of the claim, and name of the device.
        uids: by uid of the claim and name of the device.
    """

    named: Mapping[tuple[str, str, str], str] = {}
    uids: Mapping[tuple[str, str], str] = {}

    def of(self, claim: Claim) -> str | None:
        """Return what a claim has, as kubelet has it; None if it has it by another driver, or nobody knows."""
        if claim.driver not in DRIVERS:
            return None
        if claim.uid:  # one of the same name may have been before it
            return self.uids.get((claim.uid, claim.device))
        return self.named.get((claim.namespace, claim.name, claim.device))


def looking() -> frozenset[tuple[str, str, str]]:
    """List what claims only look at: namespace and name of the claim, and name of the device.

    Raises:
        GpushimError: as for `read`.
    """
    return frozenset(key for key, uuid in known().named.items() if not uuid)


def known() -> Known:
    """Return what claims have by gpushim's driver; of one that also looks at what it has, that it has it.

    Raises:
        GpushimError: as for `read`.
    """
    named: dict[tuple[str, str, str], str] = {}
    uids: dict[tuple[str, str], str] = {}
    for uid, row in read()[1].items():
        for one in row["devices"]:
            name, mine = (row["namespace"], row["name"], one["device"]), "" if one.get("admin") else one["uuid"]
            named[name] = mine or named.get(name, "")
            uids[uid, one["device"]] = mine or uids.get((uid, one["device"]), "")
    return Known(named, uids)
