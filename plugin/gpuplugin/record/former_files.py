"""Take over what the version before kept in two files, book.json and claims.json: once, until 2027-12.

Their locks are not needed: an instance of that version that still runs, as in a rolling update, writes again what it
knows, and that is added to the record. A file that says nothing is left to kubelet's checkpoint, as a damaged record
is.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from gpuplugin.devices.changes import is_instance
from gpuplugin.record import record_form
from gpuplugin.record.record_form import CONFIRMED, GRANTED
from gpushim.containers.kubelet import OWN_DRIVER

if TYPE_CHECKING:
    from gpuplugin.record.record_form import Allocation, Claim, ClaimDevice, Division, Record

BOOK, CLAIMS, LOCK = "book.json", "claims.json", "book.lock"
LIMIT = 1 << 26  # bytes
_UNLIKE = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


def exist(folder: str) -> bool:
    """Return whether the version before has left one of its files."""
    return any(os.path.lexists(f"{folder}/{name}") for name in (BOOK, CLAIMS))


def read(folder: str, boot: str) -> Record | None:
    """Return the record that they make; None if they say nothing."""
    try:
        first, *lines = _read(f"{folder}/{BOOK}").split(b"\n")
        book = json.loads(first)
        for line in filter(None, lines if book["boot"] == boot else ()):
            for gpu, entries in json.loads(line).items():
                book["gpus"][gpu]["entries"].update(entries)
        claims = json.loads(_read(f"{folder}/{CLAIMS}") or b'{"claims": {}}')["claims"]
        return record_form.parse(_convert(book, claims), [], boot)
    except _UNLIKE:
        return None


def add(former: Record, record: Record) -> Record:
    """Return what the files have with what the record had; kubelet tells what has ended of either."""
    gpus = dict(record["gpus"])
    for uuid, gpu in former["gpus"].items():
        later = gpus[uuid]["allocations"] if uuid in gpus else {}
        gpus[uuid] = {**gpu, "allocations": {**gpu["allocations"], **later}}
    claims = {**former["claims"], **record["claims"]}
    return {**former, "unknown": former["unknown"] or record["unknown"], "gpus": gpus, "claims": claims}


def remove(folder: str) -> None:
    for name in (BOOK, CLAIMS, LOCK):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{name}")


def _read(path: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(path, "rb", opener=lambda path, _: os.open(path, flags)) as file:
            return file.read(LIMIT)
    except FileNotFoundError:
        return b""


def _convert(book: Any, claims: Any) -> Record:
    record = record_form.fresh(book["boot"], book["unknown"])
    record["generation"], record["kubelet"] = book["turn"], book["kubelet"]
    for uuid, gpu in book["gpus"].items():
        divisions: dict[str, Division] = {
            name: {"parts": row["parts"], "owner": row["owner"], "placement": row["place"]}
            for name, row in gpu["divisions"].items()
        }
        allocations: dict[str, Allocation] = {
            key: {
                "device": entry["uuid"],
                "placement": divisions[entry["uuid"]]["placement"] if entry["uuid"] in divisions else "",
                "sharing": entry["division"],
                "pod": entry["to"] if entry["to"].startswith("pod ") else "",
                "uid": entry.get("uid", ""),
                "state": GRANTED,
                "since": entry["time"],
            }
            for key, entry in gpu["entries"].items()
            if entry["giver"] == "device-plugin"
        }
        record["gpus"][uuid] = {"divisions": divisions, "allocations": allocations}
    record["claims"] = {uid: _convert_claim(claim) for uid, claim in claims.items()}
    return record


def _convert_claim(claim: Any) -> Claim:
    devices: list[ClaimDevice] = [
        {
            "request": device["request"], "device": device["device"], "uuid": device["uuid"],
            "admin": bool(device.get("admin")),
            "gpu": device.get("gpu") or ("" if is_instance(device["uuid"]) else device["uuid"]),
            "placement": device.get("place", ""),
        }
        for device in claim["devices"]
    ]  # fmt: skip
    return {
        "driver": OWN_DRIVER, "namespace": claim["namespace"], "name": claim["name"], "devices": devices,
        "pods": claim.get("pods", []), "sharing": claim.get("sharing", []), "state": CONFIRMED, "since": 0.0,
    }  # fmt: skip
