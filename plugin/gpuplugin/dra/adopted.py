"""Claims that the record has by kubelet's word alone, as after it was lost: kubelet knows devices, and no parts.

So such a claim has all of a device, until the API server has told which part of it.
Out of scope: how they come into the record (gpuplugin.record).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import defaultdict
from typing import TYPE_CHECKING

from gpuplugin.record import transitions
from gpuplugin.record.kubelet_state import name_claim
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from gpuplugin.record.allocations_file import AllocationsFile
    from gpuplugin.record.record_form import Claim, ClaimDevice
    from gpushim.containers import kubelet


async def learn_parts(
    file: AllocationsFile,
    entries: Iterable[kubelet.Claim],
    uuids: Collection[str],
    describe: Callable[[str, Claim], Awaitable[Sequence[ClaimDevice]]],
) -> None:
    """Write down which parts of devices such claims have; of one that nobody tells it stays all.

    Args:
        file: the record.
        entries: what kubelet has.
        uuids: of the devices.
        describe: returns the devices of a claim, with this uid, as the API server has them.

    Raises:
        GpushimError: the record cannot be written.
    """
    uids = defaultdict[str, set[str]](set)
    for entry in entries:
        uids[name_claim(entry.namespace, entry.name, entry.driver)] |= {entry.uid} - {""}
    for key, claim in file.read_current()["claims"].items():
        is_adopted = claim["driver"] == OWN_DRIVER and not transitions.is_own(key, claim)
        is_whole = any(device["uuid"] in uuids and "share" not in device for device in claim["devices"])
        if is_adopted and is_whole and len(uids[key]) == 1:  # of two with one name nobody knows which this is
            rows: Sequence[ClaimDevice] = ()
            with contextlib.suppress(GpushimError, asyncio.TimeoutError):
                rows = await describe(uids[key].pop(), claim)
            file.change_claims([key], functools.partial(_divide, rows))


def _divide(rows: Sequence[ClaimDevice], claim: Claim) -> Claim:
    """Return a claim with these in the place of its devices of the same names."""
    devices = []
    for device in claim["devices"]:
        devices += [row for row in rows if row["device"] == device["device"]] or [device]
    return {**claim, "devices": devices}
