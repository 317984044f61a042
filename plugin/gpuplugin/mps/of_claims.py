"""Groups of GPUs that claims share inside: the DRA driver keeps them in the record, for supervisors to read.

So a claim's group is there from before its unit is started until the claim ends, whatever becomes of the driver.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.record.allocations_file import AllocationsFile
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.record.record_form import Claim

# Longer than the name of any group of the settings (settings.resources.LONGEST_NAME).
NAME = re.compile("claim-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-[0-9]{1,2}")
_file = AllocationsFile()  # what was read of it last


def groups_of(row: Mapping[str, Any]) -> list[MpsGroup]:
    """Return the groups of a recorded claim, without those that are not understood."""
    rows = row.get("sharing")
    groups = [_parse_group(group_row) for group_row in rows] if isinstance(rows, list) else []
    return [group_row for group_row in groups if group_row is not None]


def recorded() -> dict[str, Claim]:
    """Return all claims, by uid.

    Raises:
        GpushimError: the file cannot be read, or is damaged: then it is unknown which there are.
    """
    if _file.damaged:
        raise GpushimError(f"{_file.path} is damaged: what claims share is not known", FAILED)
    record = _file.read()
    return record["claims"] if record else {}


def shared() -> dict[str, Claim]:
    """Return the claims that share something, as `recorded`."""
    return {uid: claim for uid, claim in recorded().items() if claim["sharing"]}


def find(name: str) -> MpsGroup | None:
    """Return a group by its name; None if no claim has it.

    Raises:
        GpushimError: as for `shared`.
    """
    return next((group for row in shared().values() for group in groups_of(row) if group.name == name), None)


def version() -> object:
    """Return a value that differs when the file is another one."""
    return trust.identity(_file.path)


def claims_by_group(state_dir: str) -> dict[str, str]:
    """Return uids of claims by the names of groups that have, or had, a supervisor."""
    return {name: match[1] for name in _names(state_dir) if (match := NAME.fullmatch(name))}


def orphaned(state_dir: str) -> list[str]:
    """Return groups with, or once with, a supervisor that no claim has now; all, if claims cannot be read."""
    claims, shares = claims_by_group(state_dir), {}
    with contextlib.suppress(GpushimError):
        shares = shared() if claims else {}
    return [name for name in _names(state_dir) if claims.get(name) not in shares]


def _names(state_dir: str) -> list[str]:
    try:
        return [name for name in os.listdir(f"{state_dir}/mps") if not name.startswith(".")]
    except OSError:
        return []


def describe(group: MpsGroup) -> dict[str, Any]:
    """Return a group as the file and a supervisor's state have it."""
    limits: dict[str, Any] = {"each": [*group.each]} if group.each else {}
    return {
        "group": group.name,
        "gpus": [gpu.uuid for gpu in group.gpus],
        "memory": group.memory,
        "threads": group.threads,
        "multi_user": group.multi_user,
        **limits,
        **({"interval": group.interval} if group.interval else {}),
    }


def _parse_group(row: Any) -> MpsGroup | None:
    try:
        name, gpus, limits = row["group"], row["gpus"], row.get("each") or []
        numbers = [row["threads"], row.get("interval", 0), *(size for size in limits if size is not None)]
        if not (NAME.fullmatch(name) and gpus and all(isinstance(uuid, str) for uuid in gpus)):
            return None
        if len(limits) not in (0, len(gpus)) or not all(type(number) is int and number >= 0 for number in numbers):
            return None
        mps_gpus = tuple(MpsGpu(uuid, position, 0) for position, uuid in enumerate(gpus))
        return MpsGroup(name, mps_gpus, None, numbers[0], row.get("multi_user") is True, tuple(limits), numbers[1])
    except (KeyError, TypeError, AttributeError):
        return None
