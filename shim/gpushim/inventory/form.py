"""What a reader makes of a snapshot that another version of gpushim has written, as while a cluster is updated.

A snapshot says its "form", and as "version" the form that its reader must know at least. A form that only adds
members asks no more of readers than the one before: they ignore what they do not know, and `completed` has a default
for what an older form lacks. So "version" is raised only where an old reader would misunderstand. A create, and
whoever else lists GPUs itself, goes by its own version's alone (ensure.py).
Out of scope: whether a snapshot is true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushim.inventory import ensure, stamp
from gpushim.paths import trust

if TYPE_CHECKING:
    from gpushim.ground.model import Snapshot

OLDEST = 10  # the oldest form that `completed` can complete


def understood(found: Any) -> bool:
    """Say whether a JSON object is a snapshot of a form that this version can read."""
    least = found.get("version")
    form = found.get("form", least)  # 10 and those before did not say it
    return isinstance(least, int) and isinstance(form, int) and least <= ensure.FORM and form >= OLDEST


def completed(found: Any) -> Snapshot:
    """Add what forms since OLDEST have added to a snapshot that is understood."""
    gpus = [{"nvml": gpu["index"], **gpu} for gpu in found["gpus"]]
    return {"form": found["version"], "absent": [], **found, "gpus": gpus}  # type: ignore[typeddict-item]


def of_another(config: str, state: str) -> Snapshot | None:
    """Return the saved snapshot if another version has written it, and it is true as far as this one can say."""
    found: Any = ensure.own(f"{state}/{ensure.SNAPSHOT}") if trust.ours(state) else {}
    try:
        if not understood(found) or found["inputs"]["config"] != config or not stamp.alive(found):
            return None
        then, now = found["stamp"], stamp.current(found["inputs"])
        true = all(then.get(name) == fact for name, fact in now.items()) and found["told"] == ensure.launcher_facts(
            state
        )
        return completed(found) if true else None
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None
