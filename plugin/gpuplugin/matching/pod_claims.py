"""Claims of pods in a file, against the claims and templates that it has: sentences.

Out of scope: what claims ask for (manifests.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.matching.fields import Form
from gpushim.ground.bounds import LISTED
from gpushim.ground.errors import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"
_KINDS = {"resourceClaimName": CLAIM, "resourceClaimTemplateName": TEMPLATE}  # by the field of a pod
RESOURCES = "nvidia.com/"


def notes(pod: Mapping[str, Any], kinds: Mapping[str, Sequence[str]]) -> list[str]:
    """Say which claims of a pod are not in the file, and what else it asks for.

    Args:
        pod: as the file has it.
        kinds: of the file's claims and templates, by name.
    """
    form = Form()
    name = quote(str(form.object(pod.get("metadata"), "metadata").get("name") or ""))
    found = [*_notes(name, form.object(pod.get("spec"), "spec"), kinds, form)]
    left = len(found) - LISTED
    return found[:LISTED] + [f"pod {name}: {left} more such notes"] * (left > 0)


def _notes(name: str, spec: Mapping[str, Any], kinds: Mapping[str, Sequence[str]], form: Form) -> Iterator[str]:
    here, known = 0, set()
    for one in form.list(spec.get("resourceClaims"), "resourceClaims"):
        row = form.object(one, "resourceClaims")
        known.add(str(row.get("name")))
        for key, kind in _KINDS.items():
            asked = str(row.get(key) or "")
            there = kinds.get(asked, ())
            if kind in there:
                here += 1
            elif asked:
                other = "".join(there[:1])
                more = f", where {quote(asked)} is a {other}" if other else ""
                yield f"pod {name} has the {kind} {quote(asked)}, which is not in the file{more}"
    if here > 1:
        yield f"pod {name} has {here} claims of the file, which are judged one by one: it needs all of them at once"
    for field in ("initContainers", "containers"):
        for box in form.list(spec.get(field), field):
            yield from (f"pod {name}: {note}" for note in _of_container(form.object(box, field), known, form))


def _of_container(box: Mapping[str, Any], known: set[str], form: Form) -> Iterator[str]:
    """Say what a container asks for that its pod has no claim of."""
    resources, name = form.object(box.get("resources"), "resources"), quote(str(box.get("name")))
    for one in form.list(resources.get("claims"), "claims"):
        asked = str(form.object(one, "claims").get("name"))
        if asked not in known:
            yield f"the API server refuses it: container {name} names {quote(asked)}, which is not in resourceClaims"
    for key, number in form.object(resources.get("limits"), "limits").items():
        if str(key).startswith(RESOURCES):
            asked = f"{quote(str(key))}={quote(str(number))}"
            yield f"container {name} asks for {asked}: see gpushim explain --kubernetes {asked}"
