"""Groups of GPUs that claims share inside: the DRA driver keeps them in its file of claims, for supervisors to read.

So a claim's group is there from before its unit is started until the claim ends, whatever becomes of the driver.
Out of scope: what a claim asks for (gpuplugin.dra), that file (gpuplugin.book.claimed).
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

from gpuplugin.book import claimed
from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.book.claimed import Row

# Longer than the name of any group of the settings (settings.resources.LONGEST_NAME).
NAME = re.compile("claim-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-[0-9]{1,2}")
KEY = "sharing"  # of a claim in the file


def of(row: Mapping[str, Any]) -> list[MpsGroup]:
    """List the groups of a claim of the file, without those that are not understood."""
    rows = row.get(KEY)
    found = [_group(one) for one in rows] if isinstance(rows, list) else []
    return [one for one in found if one is not None]


def shared() -> dict[str, Row]:
    """Return the claims that share something, by uid.

    Raises:
        GpushimError: the file cannot be read, or is damaged: it says nothing, not that there are none.
    """
    _, rows, damaged = claimed.read()
    if damaged:
        raise GpushimError(f"{claimed.path()} is damaged: what claims share is not known", FAILED)
    return {uid: row for uid, row in rows.items() if row.get(KEY)}


def find(name: str) -> MpsGroup | None:
    """Return a group by its name; None if no claim has it.

    Raises:
        GpushimError: as for `shared`.
    """
    return next((one for row in shared().values() for one in of(row) if one.name == name), None)


def version() -> object:
    """Return what is another thing when the file is another one."""
    try:
        found = os.stat(claimed.path())
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def left(state_dir: str) -> dict[str, str]:
    """Return uids of claims by the names of groups that have, or had, a supervisor.

    Args:
        state_dir: gpushim's state directory.
    """
    return {name: found[1] for name in _names(state_dir) if (found := NAME.fullmatch(name))}


def over(state_dir: str) -> list[str]:
    """List groups with, or once with, a supervisor that no claim has now; all, if it is not known what claims share.

    Args:
        state_dir: gpushim's state directory.
    """
    claims, shares = left(state_dir), {}
    with contextlib.suppress(GpushimError):
        shares = shared() if claims else {}
    return [name for name in _names(state_dir) if claims.get(name) not in shares]


def _names(state_dir: str) -> list[str]:
    try:
        return [name for name in os.listdir(f"{state_dir}/mps") if not name.startswith(".")]
    except OSError:
        return []


def described(group: MpsGroup) -> dict[str, Any]:
    """Return what there is to know of a group, as the file and a supervisor's state have it."""
    more: dict[str, Any] = {"each": [*group.each]} if group.each else {}
    return {
        "group": group.name,
        "gpus": [gpu.uuid for gpu in group.gpus],
        "memory": group.memory,
        "threads": group.threads,
        "multi_user": group.multi_user,
        **more,
        **({"interval": group.interval} if group.interval else {}),
    }


def _group(row: Any) -> MpsGroup | None:
    try:
        name, gpus, each = row["group"], row["gpus"], row.get("each") or []
        numbers = [row["threads"], row.get("interval", 0), *(size for size in each if size is not None)]
        if not (NAME.fullmatch(name) and gpus and all(isinstance(uuid, str) for uuid in gpus)):
            return None
        if len(each) not in (0, len(gpus)) or not all(type(number) is int and number >= 0 for number in numbers):
            return None
        places = tuple(MpsGpu(uuid, place, 0) for place, uuid in enumerate(gpus))
        return MpsGroup(name, places, None, numbers[0], False, tuple(each), numbers[1])
    except (KeyError, TypeError, AttributeError):
        return None
