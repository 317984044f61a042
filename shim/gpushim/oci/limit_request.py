"""The limits of GPU memory that a config.json names: by a variable, an annotation, or a mount of a file of root's.

Out of scope: which count, and what a text means (gpushim.decision.memory).
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.ground.errors import REQUEST, GpushimError
from gpushim.oci.authorization import LIMITS, MEMORY_ANNOTATION, MEMORY_VARIABLE
from gpushim.oci.bundle import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from gpushim.oci.authorization import Gate

EFFECT = "limits the memory of GPUs"


def read(spec: Mapping[str, object], env: Mapping[str, str], gate: Gate, state: str) -> list[tuple[str, str]]:
    """List the limits of GPU memory that a container has, or asks for and is granted: source and text of each."""
    folder = state + LIMITS
    limits = []
    for mount in member(spec, "mounts", list):
        source = mount.get("source") if type(mount) is dict else None
        if type(source) is str and source.startswith(folder):
            gate.effects[f"mount {mount.get('destination')}"] = EFFECT
            limits.append(("mount " + source, source[len(folder) :]))
    annotations = member(spec, "annotations", dict)
    for source, label, text in (
        ("variable", MEMORY_VARIABLE, env.get(MEMORY_VARIABLE)),
        ("annotation", f"annotation {MEMORY_ANNOTATION}", annotations.get(MEMORY_ANNOTATION)),
    ):
        if text and len(str(text)) > bounds.VALUE:
            raise GpushimError(f"{label} has more than {bounds.VALUE} characters", REQUEST)
        if text and gate.lets("memory-limit", source, f"{label} limits nothing", [label]):
            gate.effects[label] = EFFECT
            limits.append(("env " + label if source == "variable" else label, str(text)))
    return limits
