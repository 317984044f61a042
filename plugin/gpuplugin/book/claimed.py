"""The file beside the book with the claims that have GPUs by gpushim's DRA driver, by uid.

Unknown members, and claims that are not understood, stay in it, so that versions before and after read it.
Out of scope: its lock, which is the book's, and who gets what (gpuplugin.dra.ledger).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpuplugin.book import book
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    # "namespace", "name", "devices": [{"request", "device", "uuid", "admin"}], "sharing" (gpuplugin.mps.of_claims)
    Row = dict[str, Any]

NAME = "claims.json"  # in the book's directory
FORM = 1


def path() -> str:
    """Return where it is."""
    return f"{book.folder()}/{NAME}"


def read() -> tuple[dict[str, Any], dict[str, Row], bool]:
    """Return all of the file, the claims of it that are understood, and whether it is damaged.

    Raises:
        GpushimError: it cannot be read now.
    """
    data = book.content(path())
    if data is None:
        return {}, {}, False
    try:
        found = json.loads(data)
        return found, {uid: row for uid, row in found["claims"].items() if is_row(row)}, False
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, {}, True


def doubt(found: Mapping[str, Any], rows: Mapping[str, Row], damaged: bool) -> str:
    """Begin a sentence about what `read` did not understand; "" if it has understood all."""
    if damaged:
        return f"{path()} is damaged: which claims had GPUs"
    if len(rows) < len(found.get("claims", ())):  # of a newer version, most likely
        return f"{path()} has claims that are not understood, which stay there: what they have"
    return ""


def is_row(row: Any) -> bool:
    """Say whether a claim of the file is understood."""
    try:
        texts = [row["namespace"], row["name"]]
        texts += [one[key] for one in row["devices"] for key in ("request", "device", "uuid")]
        return all(isinstance(text, str) for text in texts) and all(isinstance(one, dict) for one in row["devices"])
    except (KeyError, TypeError, AttributeError):
        return False


def write(rows: Mapping[str, Row]) -> None:
    """Have these claims in it from now on, and those that are not understood.

    Raises:
        GpushimError: it cannot be written.
    """
    before, known, _ = read()
    strange = {uid: row for uid, row in before.get("claims", {}).items() if uid not in known}
    data = json.dumps({**before, "form": FORM, "claims": {**strange, **rows}}).encode()
    try:
        replace(path(), data + b"\n", 0o600, durable=False)
    except OSError as error:
        raise GpushimError(
            f"{path()}, the record of claims that have GPUs, cannot be written: {error.strerror}; without it "
            "a GPU could be given out twice. Its directory must be root's, on a disk with room",
            FAILED,
        ) from None


def held(row: Row) -> list[str]:
    """List the UUIDs of what a claim has to itself."""
    return [one["uuid"] for one in row["devices"] if not one.get("admin")]


def known() -> dict[tuple[str, str, str], str]:
    """Return what claims have by gpushim's driver, which kubelet lists as any other's.

    Returns:
        UUIDs by namespace and name of the claim, and name of the device; "" of what it only looks at.

    Raises:
        GpushimError: as for `read`.
    """
    return {
        (row["namespace"], row["name"], one["device"]): "" if one.get("admin") else one["uuid"]
        for row in read()[1].values()
        for one in row["devices"]
    }
