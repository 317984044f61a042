"""The lines of pages for who administers a cluster, run against one: kubectl's by a shell, Helm's by its Go code.

Out of scope: which lines a page has (pages.py), and the cluster (plane.py).
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from e2e.helm import Values
from e2e.plane import Cluster

# Options of Helm's that take no word, and what its library calls them.
SWITCHES = {"--create-namespace": "create_namespace", "--reuse-values": "reuse_values"}


def told(line: str) -> Values:
    """The values that a command's --set give, as Helm reads them: words are text but for true and false."""
    words, values = shlex.split(line), Values()
    for pair in (word for before, word in zip(words, words[1:]) if before == "--set"):
        place, _, value = pair.partition("=")
        *parts, last = place.split(".")
        members = values
        for part in parts:
            members = members.setdefault(part, {})
        members[last] = {"true": True, "false": False}.get(value, value)
    return values


def do(cluster: Cluster, folder: Path, line: str) -> str:
    """Run a line; returns what it printed, or what Helm answered.

    Args:
        cluster: the cluster.
        folder: where it is typed, seen on the node and outside.
        line: of kubectl; or of Helm with a release, a chart in the folder, and options.
    """
    if not line.startswith("helm "):
        return cluster.run(f"cd {folder}; export KUBECONFIG={cluster.kubeconfig}; {line}")
    _, action, *words = shlex.split(line)
    more: dict[str, Any] = {SWITCHES[word]: True for word in words if word in SWITCHES}
    if "--namespace" in words:
        more["namespace"] = words[words.index("--namespace") + 1]
    name, *charts = words[: next(place for place, word in enumerate(words) if word.startswith("--"))]
    values = [told(line)] if charts else []
    return str(cluster.helm(action, *(folder / chart for chart in charts), name, *values, **more))
