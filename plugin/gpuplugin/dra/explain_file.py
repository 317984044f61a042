"""What this node can serve of the claims in a file: which devices match each request, which not, and why.

What is not known here is said, never guessed: the scheduler alone knows other nodes, and what it has promised to pods
that kubelet has not started. Out of scope: one claim that has devices (explain_held.py).
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.dra import claim_answer, configs
from gpuplugin.dra.claim_answer import LATER, SLOW, Answer
from gpuplugin.dra.node_state import present
from gpuplugin.matching import manifests
from gpuplugin.matching.verdicts import NO, UNSURE, YES
from gpushim.cdi import yaml
from gpushim.cli import show
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.bounds import CLAIM_FILE, CLAIM_NODES, LISTED
from gpushim.ground.errors import REQUEST, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplugin.dra.claim_answer import Row
    from gpuplugin.dra.node_state import NodeState
    from gpuplugin.matching.manifests import ClaimSpec
    from gpuplugin.settings.settings import Settings

ELSEWHERE = (
    "not looked at: other nodes, whether this node's ResourceSlices are written, what the scheduler has promised to "
    "pods that kubelet has not started, DeviceTaintRules and quotas"
)
SECONDS = 20.0  # of CPU time for a file; selectors and constraints may be many
ANSWERS = 100_000  # of devices and requests, each with a clause
_PART = re.compile(rb"^---(?=[ \t\r]|$)", re.MULTILINE)


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
        found = [*_json(data)] or [yaml.loads(part) for part in _PART.split(data)]
        yaml.check_size(found, CLAIM_NODES)
        return found
    except OSError as error:
        raise GpushimError(f"{quote(name)} cannot be read: {error.strerror}", REQUEST) from None
    except yaml.YamlError as error:
        more = ", or ask in the DRA driver's pod, which has it" * (str(error) == yaml.MISSING)
        raise GpushimError(f"{quote(name)} {error}{more}", REQUEST) from None


def _json(data: bytes) -> Iterator[Any]:
    """Yield what a file has if that is JSON, which needs no PyYAML."""
    if data.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(ValueError, RecursionError):
            yield json.loads(data)


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
        more = "".join(f"; {note}" for note in file.notes[:LISTED])
        raise GpushimError(
            f"{quote(path)} has no ResourceClaim and no ResourceClaimTemplate of resource.k8s.io{more}", REQUEST
        )
    claims, left, late = [], ANSWERS, time.process_time() + SECONDS
    notes = [*node.notes, *file.notes, *_of_others(file)]
    for spec in file.claims:
        left -= len(node.offered) * sum(map(len, spec.requests))
        claims.append(_explained(spec, file, node, late if left >= 0 else 0.0, notes))
    return {"notes": [*notes, ELSEWHERE], "claims": claims}


def _of_others(file: manifests.File) -> Iterator[str]:
    """Say which configs this driver passes over."""
    rows = [(f"claim {one.name}", one.configs) for one in file.claims]
    for where, found in (*rows, *((f"class {name}", one.configs) for name, one in file.classes.items())):
        yield from (f"{where}: {sentence}" for sentence in configs.of_others(found, OWN_DRIVER))


def _explained(
    spec: ClaimSpec, file: manifests.File, node: NodeState, late: float, notes: list[str]
) -> dict[str, Any]:
    """Find out about one claim, unless time.process_time() is `late`, or becomes it meanwhile; more is noted."""
    asked = spec if time.process_time() < late and not spec.wrong else spec._replace(requests=())
    claim = claim_answer.judged(asked, file.classes, node, late)
    if spec.wrong:
        found = Answer(NO, f"the API server refuses it: {spec.wrong[0]}")
    elif time.process_time() < late:
        found = claim_answer.answer(claim)
    else:
        found = Answer(UNSURE, SLOW)
    notes += found.notes
    if found.answer == YES and node.problem:
        found = Answer(LATER, node.problem)
    if found.answer == YES and node.doubt:
        found = Answer(UNSURE, f"devices here match, but {node.doubt}")
    unknown = node.doubt or "what the claim gets is not known here" * (found.answer == UNSURE)
    doubt = "".join(spec.unsure[:1]) or (f"it matches, but {unknown}" if unknown else "")
    requests = [
        {
            "name": one.name,
            "class": one.device_class,
            "devices": [_shown(row, node, doubt) for row in claim.rows[one.name]],
        }
        for choice in asked.requests
        for one in choice
    ]
    name = "/".join(filter(None, (spec.namespace, spec.name)))
    return {"kind": spec.kind, "name": name, "answer": found.answer, "why": found.why, "requests": requests}


def _shown(row: Row, node: NodeState, doubt: str) -> dict[str, str]:
    """Show a device; one that matches not as sure where all of the claim is in doubt."""
    index = node.indices.get(row.device.uuid, "")
    answer, why = (UNSURE, doubt) if row.answer == YES and doubt else (row.answer, row.why)
    return {"device": row.device.name, "index": index, "answer": answer, "why": why}
