"""Whether this node can serve a claim, and why not: each device for each request, then all of them together.

Out of scope: the file that has the claim (explain_file.py), the driver's own checks (rehearsal.py).
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gpuplugin.dra import offered
from gpuplugin.dra.rehearsal import Rehearsal
from gpuplugin.matching.fitting import MOST, Candidates, TooManyError, attribute, concerns, fit
from gpuplugin.matching.manifests import ALL, Class
from gpuplugin.matching.pod_claims import CLAIM
from gpuplugin.matching.tolerations import untolerated
from gpuplugin.matching.verdicts import FAILS, NO, UNSURE, YES, Verdict, verdict
from gpuplugin.settings.forms import find_meant, suggest
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.bounds import LISTED
from gpushim.ground.errors import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplugin.dra.node_state import NodeState
    from gpuplugin.dra.offered import Offered
    from gpuplugin.matching.fitting import Way
    from gpuplugin.matching.manifests import ClaimSpec, Constraint, Request

LATER = "not now"  # an answer
ADMIN = 'its namespace must have the label resource.kubernetes.io/admin-access: "true"'
SLOW = "the file has more than gpushim looks at; put fewer claims into it"
TOGETHER = "this node has no devices for all of its requests and constraints together"
EMPTY = "it has no request, so it gets no device"
TOO_FEW = "this node has no devices for all of its requests together"
# As the chart has them, which a test holds to it; a class of the file counts before.
CLASSES = {
    name: Class((f"device.driver == '{OWN_DRIVER}' && device.attributes['{OWN_DRIVER}'].type == '{type_}'",))
    for type_, name in offered.CLASSES.items()
}


class Row(NamedTuple):
    """A device, for a request.

    Attributes:
        device: it.
        verdict: whether it matches.
        busy: why it cannot be given now, or "".
        refused: why the driver would refuse it, or "".
    """

    device: Offered
    verdict: Verdict
    busy: str
    refused: str

    @property
    def answer(self) -> str:
        """YES, NO, UNSURE, FAILS or LATER."""
        if self.verdict.answer == YES:
            return NO if self.refused else LATER if self.busy else YES
        return self.verdict.answer

    @property
    def why(self) -> str:
        """A clause, or ""."""
        return self.verdict.why or self.refused or self.busy


class Answer(NamedTuple):
    """Whether this node can serve a claim, YES, NO, LATER or UNSURE; why, a clause; and sentences beside that."""

    answer: str
    why: str
    notes: Sequence[str] = ()


class Claim(NamedTuple):
    """A claim on this node.

    Attributes:
        spec: as the file has it.
        node: what counts here.
        rehearsal: what its driver says of it.
        rows: the devices, by the name of a request or alternative.
        late: time.process_time() from which on nothing is looked at.
    """

    spec: ClaimSpec
    node: NodeState
    rehearsal: Rehearsal
    rows: Mapping[str, Sequence[Row]]
    late: float


def judged(spec: ClaimSpec, of_file: Mapping[str, Class], node: NodeState, late: float) -> Claim:
    """Judge each device for each request.

    Args:
        spec: the claim.
        of_file: classes, by name.
        node: what counts here.
        late: time.process_time() from which on nothing is looked at.
    """
    choices = [one for choice in spec.requests for one in choice]
    classes = {one.name: _class(one.device_class, of_file) for one in choices}
    blank = Claim(spec, node, Rehearsal(spec, classes, node), {}, late)
    return blank._replace(rows={one.name: _rows(blank, one, classes[one.name]) for one in choices})


def answer(claim: Claim) -> Answer:
    """Say whether this node can serve a claim, and why not.

    Args:
        claim: on this node.
    """
    spec = claim.spec
    if spec.unsure:
        return Answer(UNSURE, spec.unsure[0])
    if wrong := claim.rehearsal.of_configs():
        return Answer(NO, wrong)
    if not spec.requests:
        return Answer(NO, EMPTY)
    everything = [row for some in claim.rows.values() for row in some]
    doubts = [row.verdict.doubt for row in everything if row.verdict.doubt]
    try:
        some = _fit(claim, {YES, UNSURE}, now=False)
        if some is None:
            return Answer(NO, _lack(claim))
        if doubts:
            return Answer(UNSURE, doubts[0])
        failing = next((row for row in everything if row.verdict.answer == FAILS), None)
        if failing:
            return Answer(UNSURE, f"the scheduler gives up if it comes to {failing.device.name}: {failing.why}")
        now = _fit(claim, {YES}, now=True)
        why = claim.rehearsal.of_way(now or some)
        chosen = [row for name in dict(now or some) for row in claim.rows[name]]  # of alternatives, those of the way
        if why := why or next((row.refused for row in chosen if row.verdict.answer == YES and row.refused), ""):
            return _refused(claim, why)
    except TooManyError:
        return Answer(UNSURE, "there are too many ways to combine devices")
    if now is None:
        busy = [f"{row.device.name}: {row.busy}" for row in everything if row.answer == LATER]
        return Answer(LATER, "".join(busy[:1]))
    admin = any(one.admin for choice in spec.requests for one in choice)
    notes = claim.rehearsal.notes(now)
    return Answer(YES, ADMIN if admin else "this node can serve it now", notes)


def _class(name: str, of_file: Mapping[str, Class]) -> Class:
    found = of_file.get(name) or CLASSES.get(name)
    if found:
        return found
    near = suggest(name, [*CLASSES, *islice(of_file, LISTED)])
    return Class((), (), (f"the class {quote(name)} is not known here{near}",))


def _rows(claim: Claim, request: Request, found: Class) -> list[Row]:
    """Judge each device for a request."""
    refused: dict[str, str] = {}  # by the type of devices
    rows = []
    for one in claim.node.offered:
        slow = time.process_time() >= claim.late
        verdict_ = Verdict(UNSURE, SLOW) if slow else verdict(request, found, OWN_DRIVER, one.body)
        type_ = one.body["attributes"]["type"]["string"]
        if not slow and verdict_.answer != NO and type_ not in refused:
            refused[type_] = claim.rehearsal.of_device(request.name, one.name)
        busy = "" if slow else _busy(claim.spec, request, one, claim.node)
        rows.append(Row(one, verdict_, busy, refused.get(type_, "")))
    return rows


def _busy(spec: ClaimSpec, request: Request, one: Offered, node: NodeState) -> str:
    """Say why a device cannot be given now."""
    health = f", and it is unhealthy: {node.why[one.uuid]}" if one.uuid in node.why else ""
    for row in node.claims.values() if not request.admin else ():
        same = spec.kind == CLAIM and (row["namespace"], row["name"]) == (spec.namespace, spec.name)
        if not same and any(each["uuid"] == one.uuid and not each.get("admin") for each in row["devices"]):
            return f"claim {row['namespace']}/{row['name']} has it{health}"
    for taint in untolerated(request.tolerations, node.taints.get(one.uuid, ())):
        value = f"={taint['value']}" if taint.get("value") else ""
        why = "; ".join(some[one.uuid] for some in (node.why, node.pods) if one.uuid in some)
        return f"it has the taint {taint['key']}{value}:{taint['effect']}{why and ': '}{why}"
    return ""


def _refused(claim: Claim, why: str) -> Answer:
    """Say what follows from a refusal: which devices of all that match are refused the scheduler does not know."""
    left = {name: [row for row in some if not row.refused] for name, some in claim.rows.items()}
    may = Answer(UNSURE, f"it may get such devices: {why}")
    try:
        way = _fit(
            claim._replace(rows=left),
            {YES},
            now=False,
            accepted=lambda way: not claim.rehearsal.of_way(way),
        )
    except TooManyError:
        return may
    return Answer(NO, why) if way is None else may


def _fit(claim: Claim, answers: set[str], now: bool, accepted: Callable[[Way], bool] | None = None) -> Way | None:
    """Find devices of these answers; of all that match, if not all of them are known, those that are."""
    requests: list[list[Request]] = []
    candidates: dict[str, Candidates] = {}
    for choice in claim.spec.requests:
        requests.append([])
        for one in choice:
            some = [row for row in claim.rows[one.name] if row.verdict.answer in answers]
            free = [row.device.body for row in some if not (now and row.busy)]
            candidates[one.name] = Candidates(free, [row.device.body for row in some])
            sure = sum(row.verdict.answer == YES for row in some)
            known = one.mode != ALL or sure == len(some)
            requests[-1].append(one if known else one._replace(mode="", number=max(1, sure)))
    late = lambda: time.process_time() >= claim.late  # noqa: E731
    return fit(requests, claim.spec.constraints, candidates, OWN_DRIVER, accepted, late)


def _lack(claim: Claim) -> str:
    """Say why no devices fit."""
    for choice in claim.spec.requests:
        if len(choice) > 1:
            continue
        (one,) = choice
        found = [row for row in claim.rows[one.name] if row.verdict.answer in (YES, UNSURE)]
        failing = next((row for row in claim.rows[one.name] if row.verdict.answer == FAILS), None)
        if len(found) < one.number and failing:
            return f"the scheduler gives up the claim: {failing.why}"
        if len(found) < one.number:
            return f"the request {one.name} asks for {one.number}, and this node has {len(found)} that match"
        if one.number > MOST:
            return f"a claim can have {MOST} devices"
    try:
        for some in ((), *((each,) for each in claim.spec.constraints[:LISTED])):
            alone = claim.spec._replace(constraints=some)
            if _fit(claim._replace(spec=alone), {YES, UNSURE}, now=False) is None:
                return _unmet(*some, claim=claim) if some else TOO_FEW
    except TooManyError:
        pass
    return TOGETHER


def _unmet(constraint: Constraint, *, claim: Claim) -> str:
    """Say why no devices fit a constraint that no other one disturbs."""
    what, name = "distinctAttribute" if constraint.distinct else "matchAttribute", constraint.attribute
    rows = [row for request, some in claim.rows.items() if concerns(constraint, request) for row in some]
    bodies = [row.device.body for row in rows if row.verdict.answer in (YES, UNSURE)]
    if any(attribute(body, name, OWN_DRIVER) for body in bodies):
        differ = "too few of its devices differ in it" if constraint.distinct else "its devices differ in it"
        return f"the constraint {what} {quote(name)} does not hold: {differ}"
    known = {each if "/" in each else f"{OWN_DRIVER}/{each}" for body in bodies for each in body["attributes"]}
    last = name.rpartition("/")[2]
    if any(last in body["capacity"] for body in bodies):
        what = f"the constraint {what} {quote(name)} does not hold"
        return f"{what}: {last} is a capacity, and constraints are of attributes"
    near = next((each for each in sorted(known) if each.endswith(f"/{last}")), "") or find_meant(name, sorted(known))
    more = f"; is {near} meant?" if near else ""
    return f"the constraint {what} {quote(name)} does not hold: no device here has this attribute{more}"
