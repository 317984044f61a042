"""A snapshot in the file where gpushim's refresh saves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpushim.ground import system
from gpushim.inventory import ensure
from unit.gpuplugin.snapshots import gpu, snapshot


def saved(state: Path, module: Any = "580", **more: Any) -> Path:
    """Save a snapshot that is well, but for what is said."""
    facts = {"boot": system.boot(), "module": module, "gpus": {}, **more.pop("stamp", {})}
    head = {
        "version": ensure.READABLE,
        "form": ensure.FORM,
        "gpushim": "0",
        "life": 300,
        "looked": system.clock(),
        "stamp": facts,
    }
    found = {**snapshot([gpu(0)]), **head, **more}
    found["driver"]["version"] = module or ""
    path = state / ensure.SNAPSHOT
    aside = state / "aside"
    aside.write_text(json.dumps(found))
    aside.replace(path)
    return path
