"""Whether devices can be found for all requests of a claim together, as the scheduler looks for them.

It tries until it finds some, so that it is enough to know whether there are any. No device is in a claim twice.
Pure. Out of scope: which devices match a request (verdicts.py).
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.matching.manifests import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpuplugin.matching.manifests import Constraint, Request

    Way = Sequence[tuple[str, str]]  # names of requests and devices
    Taken = Sequence[tuple[str, Mapping[str, Any]]]  # name of the request, and device

MOST = 32  # devices of a claim (resource.k8s.io/v1, AllocationResultsMaxSize)
STEPS = 50_000  # requests and combinations that are looked at, these once for each constraint
ASKING = 20  # steps that it takes to ask whether a way is accepted


class TooManyError(Exception):
    """There are more combinations than are looked at."""


class Candidates(NamedTuple):
    """Devices that a request may have: `free` of `all` that match."""

    free: Sequence[Mapping[str, Any]]
    all: Sequence[Mapping[str, Any]]


def fit(
    requests: Sequence[Sequence[Request]],
    constraints: Sequence[Constraint],
    candidates: Mapping[str, Candidates],
    driver: str,
    accepted: Callable[[Way], bool] | None = None,
    late: Callable[[], bool] = lambda: False,
) -> Way | None:
    """Find devices for a claim.

    Args:
        requests: its requests, each with its alternatives.
        constraints: its constraints.
        candidates: devices in the form of resource.k8s.io/v1, by the request's name.
        driver: of the devices.
        accepted: says whether a way will do; without it any does.
        late: says whether that has taken too long.

    Returns:
        one way; None if there is none.

    Raises:
        TooManyError: that takes too long.
    """
    steps = 0

    def count(more: int) -> None:
        nonlocal steps
        steps += more
        if steps > STEPS or late():
            raise TooManyError

    def tried(rest: Sequence[Sequence[Request]], taken: Taken) -> Taken | None:
        if not rest:
            count(ASKING if accepted else 0)
            return taken if accepted is None or accepted(_names(taken)) else None
        for request in rest[0]:
            count(1)
            for some in _ways(request, candidates[request.name], {device["name"] for _, device in taken}):
                count(max(1, len(constraints)))
                more = [*taken, *((request.name, device) for device in some)]
                if len(more) <= MOST and all(_holds(one, more, driver) for one in constraints):
                    found = tried(rest[1:], more)
                    if found is not None:
                        return found
        return None

    found = tried(requests, [])
    return None if found is None else _names(found)


def concerns(constraint: Constraint, name: str) -> bool:
    """Say whether a constraint is on what a request gets."""
    return not constraint.requests or bool({name, name.partition("/")[0]} & {*constraint.requests})


def attribute(device: Mapping[str, Any], name: str, driver: str) -> Mapping[str, Any] | None:
    """Return what a device of a driver has by a full name, None if nothing."""
    attributes = device["attributes"]
    domain, _, last = name.rpartition("/")
    found = attributes.get(name) or (attributes.get(last) if domain == driver else None)
    return dict(found) if found else None


def _names(taken: Taken) -> Way:
    return [(name, str(device["name"])) for name, device in taken]


def _ways(request: Request, found: Candidates, taken: set[str]) -> Iterator[tuple[Mapping[str, Any], ...]]:
    """Yield what a request may get: all that match, or so many that are free."""
    free = [one for one in found.free if one["name"] not in taken]
    if request.mode != ALL:
        if len(free) >= request.number:
            yield from combinations(free, request.number)
    elif found.all and len(free) == len(found.all):
        yield (*free,)


def _holds(constraint: Constraint, taken: Taken, driver: str) -> bool:
    concerned = [
        attribute(device, constraint.attribute, driver) for name, device in taken if concerns(constraint, name)
    ]
    values = [repr(sorted(one.items())) for one in concerned if one]
    if len(values) < len(concerned):
        return False
    return len({*values}) == len(values) if constraint.distinct else len({*values}) <= 1
