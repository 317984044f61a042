"""What this node can serve of the claims in a file: which devices match each request, which not, and why.

What is not known here is said, never guessed: the scheduler alone knows other nodes, and what it has promised to pods
that kubelet has not started. Out of scope: one claim that has devices (explain_held.py).
"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.dra import offered
from gpuplugin.dra.configs import chosen
from gpuplugin.dra.node_state import present
from gpuplugin.matching import manifests
from gpuplugin.matching.fitting import MOST, Candidates, TooManyError, fit
from gpuplugin.matching.manifests import ALL, CLAIM, Class
from gpuplugin.matching.verdicts import FAILS, NO, UNSURE, YES, Verdict, untolerated, verdict
from gpushim.cdi import yaml
from gpushim.cli import show
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.bounds import CLAIM_FILE, CLAIM_NODES
from gpushim.ground.errors import REQUEST, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplugin.dra.node_state import NodeState
    from gpuplugin.dra.offered import Offered
    from gpuplugin.matching.manifests import ClaimSpec, Request
    from gpuplugin.settings.settings import Settings

LATER = "not now"  # an answer
# As the chart has them, which a test holds to it; a class of the file counts before.
CLASSES = {
    name: Class((f"device.driver == '{OWN_DRIVER}' && device.attributes['{OWN_DRIVER}'].type == '{type_}'",))
    for type_, name in offered.CLASSES.items()
}
ADMIN = 'its namespace must have the label resource.kubernetes.io/admin-access: "true"'
ELSEWHERE = (
    "not looked at: other nodes, whether this node's ResourceSlices are written, what the scheduler has promised to "
    "pods that kubelet has not started, DeviceTaintRules and quotas"
)
SECONDS = 20.0  # of CPU time for a file; selectors and constraints may be many
ANSWERS = 100_000  # of devices and requests, each with a clause
SLOW = "the file has more than gpushim looks at; put fewer claims into it"
_PART = re.compile(rb"^---(?=[ \t\r]|$)", re.MULTILINE)


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


def tell(path: str, settings: Settings, form: str) -> None:
    """Print it, as "table" or "json".

    Args:
        path: of the file; - is stdin.
        settings: in force.
        form: how to print it.

    Raises:
        GpushimError: the file has no claim, or this host cannot serve GPUs.
    """
    found = report(manifests.read(documents(path)), present(settings), path)
    if form == "json":
        show.emit(form, found)
        return
    for note in found["notes"]:
        show.say(f"note: {note}")
    for claim in found["claims"]:
        show.say(f"{claim['kind']} {claim['name']}: {claim['answer']}{', ' * bool(claim['why'])}{claim['why']}")
        rows = [[request["name"], *one.values()] for request in claim["requests"] for one in request["devices"]]
        show.table(("REQUEST", "DEVICE", "INDEX", "ANSWER", "BECAUSE"), rows)
        show.say()


def documents(path: str) -> list[Any]:
    """Read the documents of a file of YAML or JSON; - is stdin.

    Raises:
        GpushimError: it cannot be read, or is neither.
    """
    name = "stdin" if path == "-" else path
    try:
        with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
            data = file.read(CLAIM_FILE + 1)
        if len(data) > CLAIM_FILE:
            raise yaml.YamlError(f"has more than {CLAIM_FILE >> 10} KiB")
        found = [yaml.loads(part) for part in _PART.split(data)]
        yaml.check_size(found, CLAIM_NODES)
        return found
    except OSError as error:
        raise GpushimError(f"{quote(name)} cannot be read: {error.strerror}", REQUEST) from None
    except yaml.YamlError as error:
        raise GpushimError(f"{quote(name)} {error}", REQUEST) from None


def report(file: manifests.File, node: NodeState, path: str = "") -> dict[str, Any]:
    """Find out what this node can serve.

    Args:
        file: what a file has.
        node: what counts here.
        path: of the file, for a message.

    Returns:
        "notes"   sentences
        "claims"  [{"kind", "name", "answer", "why", "requests"}]: the answer is yes, no, not now or cannot tell; of
                  each request or alternative {"name", "class", "devices"}, of these {"device", "index", "answer",
                  "why"}, where the answer may be "fails", too

    Raises:
        GpushimError: the file has no claim.
    """
    if not file.claims:
        raise GpushimError(
            f"{quote(path)} has no ResourceClaim and no ResourceClaimTemplate of resource.k8s.io", REQUEST
        )
    claims, left, late = [], ANSWERS, time.process_time() + SECONDS
    for spec in file.claims:
        left -= len(node.offered) * sum(map(len, spec.requests))
        claims.append(_explained(spec, file, node, late if left >= 0 else 0.0))
    return {"notes": [*node.notes, *file.notes, ELSEWHERE], "claims": claims}


def _explained(spec: ClaimSpec, file: manifests.File, node: NodeState, late: float) -> dict[str, Any]:
    """Find out about one claim, unless time.process_time() is `late`, or becomes it meanwhile."""
    choices = [one for choice in spec.requests for one in choice] if time.process_time() < late else []
    rows = {one.name: _rows(spec, one, file, node, late) for one in choices}
    answer, why = _conclusion(spec, rows) if time.process_time() < late else (UNSURE, SLOW)
    if answer == YES and node.problem:
        answer, why = LATER, node.problem
    if answer == YES and node.doubt:
        answer, why = UNSURE, node.doubt
    requests = [
        {"name": one.name, "class": one.device_class, "devices": [_shown(row, node) for row in rows[one.name]]}
        for one in choices
    ]
    name = "/".join(filter(None, (spec.namespace, spec.name)))
    return {"kind": spec.kind, "name": name, "answer": answer, "why": why, "requests": requests}


def _shown(row: Row, node: NodeState) -> dict[str, str]:
    index = node.indices.get(row.device.uuid, "")
    answer, why = (UNSURE, node.doubt) if row.answer == YES and node.doubt else (row.answer, row.why)
    return {"device": row.device.name, "index": index, "answer": answer, "why": why}


def _rows(spec: ClaimSpec, request: Request, file: manifests.File, node: NodeState, late: float) -> list[Row]:
    """Judge each device for a request; `late` as for `_explained`."""
    found = file.classes.get(request.device_class) or CLASSES.get(request.device_class)
    refused: dict[str, str] = {}  # by the type of devices
    rows = []
    for one in node.offered:
        slow = time.process_time() >= late
        verdict_ = Verdict(UNSURE, SLOW) if slow else verdict(request, found, OWN_DRIVER, one.body)
        type_ = one.body["attributes"]["type"]["string"]
        if verdict_.answer != NO and type_ not in refused:
            refused[type_] = _refusal(spec, request, found, one.name)
        rows.append(Row(one, verdict_, _busy(spec, request, one, node), refused.get(type_, "")))
    return rows


def _refusal(spec: ClaimSpec, request: Request, found: Class | None, device: str) -> str:
    """Say why the driver refuses a device of this type, as it would when a pod is to run."""
    of_class = [
        {**row, "source": "FromClass", "requests": [request.name]} for row in (found.configs if found else ())
    ]
    results = [{"request": request.name, "driver": OWN_DRIVER, "device": device}]
    devices = {"config": [*of_class, *_configs(spec)], "results": results}
    return _driver_says(lambda: chosen({"devices": devices}, OWN_DRIVER, {device: device.partition("-")[0]}))


def _configs(spec: ClaimSpec) -> list[dict[str, Any]]:
    return [{**row, "source": "FromClaim"} for row in spec.configs]


def _driver_says(prepare: Callable[[], object]) -> str:
    try:
        prepare()
    except GpushimError as error:
        return f"the driver refuses it: {error}"
    return ""


def _busy(spec: ClaimSpec, request: Request, one: Offered, node: NodeState) -> str:
    """Say why a device cannot be given now."""
    for row in node.claims.values() if not request.admin else ():
        same = spec.kind == CLAIM and (row["namespace"], row["name"]) == (spec.namespace, spec.name)
        if not same and any(each["uuid"] == one.uuid and not each.get("admin") for each in row["devices"]):
            return f"claim {row['namespace']}/{row['name']} has it"
    for taint in untolerated(request, node.taints.get(one.uuid, ())):
        value = f"={taint['value']}" if taint.get("value") else ""
        why = f": {node.why[one.uuid]}" if one.uuid in node.why else ""
        return f"it has the taint {taint['key']}{value}:{taint['effect']}{why}"
    return ""


def _conclusion(spec: ClaimSpec, rows: Mapping[str, Sequence[Row]]) -> tuple[str, str]:
    """Say whether this node can serve a claim, and why not."""
    if spec.unsure:
        return UNSURE, spec.unsure[0]
    if wrong := _driver_says(lambda: chosen({"devices": {"config": _configs(spec)}}, OWN_DRIVER, {})):
        return NO, wrong
    everything = [row for some in rows.values() for row in some]
    doubts = [row.verdict.doubt for row in everything if row.verdict.doubt]
    try:
        if _fit(spec, rows, {YES, UNSURE}, now=False) is None:
            return NO, _lack(spec, rows)
        if doubts:
            return UNSURE, doubts[0]
        failing = next((row for row in everything if row.verdict.answer == FAILS), None)
        if failing:
            return UNSURE, f"the scheduler gives up if it comes to {failing.device.name}: {failing.why}"
        refused = [row for row in everything if row.verdict.answer == YES and row.refused]
        if refused:
            return _refused(spec, rows, refused[0].refused)
        if _fit(spec, rows, {YES}, now=True) is not None:
            admin = any(one.admin for choice in spec.requests for one in choice)
            return YES, ADMIN if admin else "this node can serve it now"
    except TooManyError:
        return UNSURE, "there are too many ways to combine devices"
    busy = next((f"{row.device.name}: {row.busy}" for row in everything if row.answer == LATER), "")
    return LATER, busy


def _refused(spec: ClaimSpec, rows: Mapping[str, Sequence[Row]], why: str) -> tuple[str, str]:
    """Say what follows from a refusal: which device is refused the scheduler does not know."""
    left = {name: [row for row in some if not row.refused] for name, some in rows.items()}
    return (NO, why) if _fit(spec, left, {YES}, now=False) is None else (UNSURE, f"it may get such a device: {why}")


def _fit(spec: ClaimSpec, rows: Mapping[str, Sequence[Row]], answers: set[str], now: bool) -> object:
    """Find devices of these answers; of all that match, if not all of them are known, those that are."""
    requests: list[list[Request]] = []
    candidates: dict[str, Candidates] = {}
    for choice in spec.requests:
        requests.append([])
        for one in choice:
            some = [row for row in rows[one.name] if row.verdict.answer in answers]
            free = [row.device.body for row in some if not (now and row.busy)]
            candidates[one.name] = Candidates(free, [row.device.body for row in some])
            sure = sum(row.verdict.answer == YES for row in some)
            known = one.mode != ALL or sure == len(some)
            requests[-1].append(one if known else one._replace(mode="", number=max(1, sure)))
    return fit(requests, spec.constraints, candidates, OWN_DRIVER)


def _lack(spec: ClaimSpec, rows: Mapping[str, Sequence[Row]]) -> str:
    """Say why no devices fit."""
    for choice in spec.requests:
        if len(choice) > 1:
            continue
        (one,) = choice
        found = [row for row in rows[one.name] if row.verdict.answer in (YES, UNSURE)]
        failing = next((row for row in rows[one.name] if row.verdict.answer == FAILS), None)
        if len(found) < one.number and failing:
            return f"the scheduler gives up the claim: {failing.why}"
        if len(found) < one.number:
            return f"the request {one.name} asks for {one.number}, and this node has {len(found)} that match"
        if one.number > MOST:
            return f"a claim can have {MOST} devices"
    return "this node has no devices for all of its requests and constraints together"
