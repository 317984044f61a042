"""docs/labels.md lists the labels that there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpuplugin.cluster import labels
from gpuplugin.settings import settings
from gpuplugin.settings.resources import PREFIX
from gpushim.inventory.nvml import ATTRIBUTES
from unit.gpuplugin.snapshots import gpu, mig, snapshot

DOC = Path(__file__).parents[2] / "docs/labels.md"


def listed() -> set[str]:
    """The names in the first cells of the tables; `.ci` is the one before it with another last word."""
    found: list[str] = []
    for cell in re.findall(r"(?m)^\| (`.*?`) \|", DOC.read_text()):
        for name in re.findall(r"`([^`]+)`", cell):
            found.append(found[-1].rpartition(".")[0] + name if name.startswith(".") else name)
    return {*found}


def test_all_labels_are_listed_and_no_others() -> None:
    more: Any = {"fabric": "00112233-4455-6677-8899-aabbccddeeff.7"}
    there = snapshot([gpu(0, mig=True, **more), gpu(1)], [mig(0, 0)])
    there["mig"][0]["attributes"] = dict.fromkeys(ATTRIBUTES, 1)
    found = labels.labels(there, settings.resolve({}, {}, {"mig-strategy": "mixed"}), "DGX-1")
    assert listed() == {name.replace(PREFIX, "", 1) for name in (*found, labels.TIMESTAMP)}
