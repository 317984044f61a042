"""Who may have what, out of all that says so: kubelet, the book, kubelet's checkpoints, other instances.

Pure. Out of scope: who asks (kubelet_view.py), and the rule by which that decides (changes.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuplugin.book import by_device
from gpuplugin.book.by_device import CLAIM
from gpuplugin.devices import changes
from gpuplugin.devices.changes import OTHERS
from gpuplugin.settings.resources import GONE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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
        whole: no pod of the API server's is missing in `names`.
    """

    asked: float
    pods: Held | None
    names: Collection[str]
    runs: bool
    young: bool
    promised: Promised
    whole: bool = False

    @property
    def answered(self) -> bool:
        """Whether kubelet has said of all pods what they have."""
        return self.pods is not None and not self.young


def with_claims(known: Evidence, claims: Mapping[str, str]) -> Evidence:
    """Return what is known with claims that have GPUs even where kubelet does not list them.

    Args:
        known: what is known without them.
        claims: as `checkpoints.holding` returns them.
    """
    promised = replace(known.promised, held=_with(known.promised.held, claims))
    return replace(known, pods=None if known.pods is None else _with(known.pods, claims), promised=promised)


def _with(held: Held, claims: Mapping[str, str]) -> dict[str, dict[str, str]]:
    rows = {name: {**row} for name, row in held.items()}
    return {**rows, CLAIM: {**rows.get(CLAIM, {}), **claims}}


def served(page: Page, units: Units, known: Evidence, held: Held) -> dict[str, dict[str, Device]]:
    """List what was given out last, by resource and id: as the book has it, else as kubelet's checkpoint has it."""
    ids = [(resource, name) for resource, row in held.items() for name in row]
    found = by_device.devices(page, units, ids)
    owners = by_device.owners(page)
    for resource, row in known.promised.served.items():
        more = {name: one for name, one in row.items() if one.uuid not in owners}
        if more:
            found[resource] = {**more, **found.get(resource, {})}
    return found


def holders(page: Page, known: Evidence) -> dict[str, dict[str, str]]:
    """List who has, or is known to be about to get, what; by resource and id.

    Args:
        page: the book, after what kubelet has said.
        known: what is known beside it.
    """
    found = {name: {**row} for name, row in (known.pods or {}).items()}
    for resource, name, entry in by_device.entries(page):
        found.setdefault(resource, {}).setdefault(name, entry["to"] or STARTS)
    for resource, row in known.promised.held.items() if not known.answered else ():
        for name, who in row.items():
            found.setdefault(resource, {}).setdefault(name, who)
    return found


def suspected(page: Page, last: Served, known: Evidence, alien: Collection[str]) -> dict[str, dict[str, str]]:
    """List, beside those, who may have what was given out last.

    Args:
        page: the book.
        last: what was given out last.
        known: what is known beside it.
        alien: UUIDs of what another instance that is there gives out.
    """
    found: dict[str, dict[str, str]] = {}
    for resource, row in last.items():
        for name, one in row.items():
            if one.uuid in alien and one.problem != GONE:
                found.setdefault(resource, {})[name] = OTHERS
            elif _silent(page, known):
                found.setdefault(resource, {})[name] = UNSAID
    return found


def _silent(page: Page, known: Evidence) -> bool:
    """Say whether there may be holders that nobody has named.

    There are none before the first kubelet of a boot: nothing runs but what was given out since, and what
    kubelet's checkpoints promise; nor where there is neither a kubelet nor a checkpoint.
    """
    if known.answered:
        return False
    first = page["kubelet"] is None
    nothing = not known.runs and not known.promised.there
    return bool(page["unknown"] or known.promised.damaged) or not (first or nothing)


def unknown(page: Page, known: Evidence) -> str:
    """Say why nobody knows what was given out last of what is in no record; "" if that was nothing."""
    why = "" if known.answered else page["unknown"] or known.promised.damaged
    return (
        f"nobody can say yet what pods have of it, for {why}; kubelet reports that after running for a while"
        if why
        else ""
    )


def decided(
    page: Page, desired: Devices, units: Units, known: Evidence, alien: Collection[str], lost: Held
) -> tuple[Settled, dict[str, dict[str, Device]]]:
    """Decide what kubelet is told.

    Args:
        page: the book, after what kubelet has said.
        desired: what it would be told if nobody had anything.
        units: as `listed.known` lists them.
        known: what is known beside the book.
        alien: UUIDs of what another instance that is there gives out.
        lost: of what somebody has, why kubelet would give it once more, as it has forgotten that.

    Returns:
        that, and what was given out last.
    """
    held = holders(page, known)
    last = served(page, units, known, held)
    for resource, row in suspected(page, last, known, alien).items():
        for name, who in row.items():
            if who == OTHERS or name not in held.get(resource, {}):
                held.setdefault(resource, {})[name] = who
    return changes.settled(last, desired, held, units, unknown(page, known), lost), last
