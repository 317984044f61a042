"""Who may have what, out of all that says so: kubelet, the book, kubelet's checkpoints, other instances.

Pure. Out of scope: who asks (kubelet_view.py), and the rule by which that decides (changes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.book import records
from gpuplugin.devices import changes
from gpuplugin.devices.changes import OTHERS
from gpuplugin.settings.resources import GONE

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuplugin.book.checkpoints import Promised
    from gpuplugin.book.page import Page
    from gpuplugin.devices.changes import Devices, Held, Served, Settled, Units
    from gpuplugin.settings.resources import Device

STARTS, UNSAID = "a pod that starts", "pods that kubelet (pod-resources) has not named yet"


@dataclass(frozen=True)
class Evidence:
    """What is known beside the book.

    Attributes:
        asked: seconds since boot at which kubelet was asked.
        pods: who has what, as kubelet says; None if it says nothing.
        names: of all pods that it lists, with devices or without.
        runs: kubelet listens for plugins.
        young: it has started just now, and may not know all pods.
        promised: what its checkpoints say.
    """

    asked: float
    pods: Held | None
    names: Collection[str]
    runs: bool
    young: bool
    promised: Promised

    @property
    def answered(self) -> bool:
        """Whether kubelet has said of all pods what they have."""
        return self.pods is not None and not self.young


def served(page: Page, units: Units, said: Evidence, held: Held) -> dict[str, dict[str, Device]]:
    """List what was given out last, by resource and id: as the book has it, else as kubelet's checkpoint has it."""
    ids = [(resource, name) for resource, row in held.items() for name in row]
    found = records.devices(page, units, ids)
    known = records.owners(page)
    for resource, row in said.promised.served.items():
        more = {name: one for name, one in row.items() if one.uuid not in known}
        if more:
            found[resource] = {**more, **found.get(resource, {})}
    return found


def holders(page: Page, said: Evidence) -> dict[str, dict[str, str]]:
    """List who has, or is known to be about to get, what; by resource and id.

    Args:
        page: the book, after what kubelet has said.
        said: what is known beside it.
    """
    found = {name: {**row} for name, row in (said.pods or {}).items()}
    for resource, name, entry in records.entries(page):
        found.setdefault(resource, {}).setdefault(name, entry["to"] or STARTS)
    for resource, row in said.promised.held.items() if not said.answered else ():
        for name, who in row.items():
            found.setdefault(resource, {}).setdefault(name, who)
    return found


def suspected(page: Page, last: Served, said: Evidence, alien: Collection[str]) -> dict[str, dict[str, str]]:
    """List, beside those, who may have what was given out last.

    Args:
        page: the book.
        last: what was given out last.
        said: what is known beside it.
        alien: UUIDs of what another instance that is there gives out.
    """
    found: dict[str, dict[str, str]] = {}
    for resource, row in last.items():
        for name, one in row.items():
            if one.uuid in alien and one.problem != GONE:
                found.setdefault(resource, {})[name] = OTHERS
            elif _unsaid(page, said):
                found.setdefault(resource, {})[name] = UNSAID
    return found


def _unsaid(page: Page, said: Evidence) -> bool:
    """Say whether there may be holders that nobody has named.

    There are none before the first kubelet of a boot: nothing runs but what was given out since, and what
    kubelet's checkpoints promise; nor where there is neither a kubelet nor a checkpoint.
    """
    if said.answered:
        return False
    first = page["kubelet"] is None
    nothing = not said.runs and not said.promised.there
    return bool(page["unknown"] or said.promised.damaged) or not (first or nothing)


def unknown(page: Page, said: Evidence) -> str:
    """Say why nobody knows what was given out last of what is in no record; "" if that was nothing."""
    why = "" if said.answered else page["unknown"] or said.promised.damaged
    return (
        f"nobody can say yet what pods have of it, for {why}; kubelet says so when it has run for a while"
        if why
        else ""
    )


def decided(
    page: Page, desired: Devices, units: Units, said: Evidence, alien: Collection[str], lost: Held
) -> tuple[Settled, dict[str, dict[str, Device]]]:
    """Decide what kubelet is told.

    Args:
        page: the book, after what kubelet has said.
        desired: what it would be told if nobody had anything.
        units: as `confirmed.known` lists them.
        said: what is known beside the book.
        alien: UUIDs of what another instance that is there gives out.
        lost: of what somebody has, what kubelet has forgotten.

    Returns:
        that, and what was given out last.
    """
    held = holders(page, said)
    last = served(page, units, said, held)
    for resource, row in suspected(page, last, said, alien).items():
        for name, who in row.items():
            if who == OTHERS or name not in held.get(resource, {}):
                held.setdefault(resource, {})[name] = who
    return changes.settled(last, desired, held, units, unknown(page, said), lost), last
