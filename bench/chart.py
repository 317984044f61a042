#!/usr/bin/env python3
"""Draw what a GPU container costs over plain runc, phase by phase: bench/chart.py RESULTS.json > IMAGE.svg."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WIDTH, BAR, GAP = 800, 34, 20
STYLE = """
  text { font: 13px sans-serif; fill: #24292f } .small { font-size: 11px }
  .a { fill: #8c959f } .b { fill: #0969da } .c { fill: #54aeff } .d { fill: #bf8700 } .e { fill: #1a7f37 }
  .f { fill: #74c476 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
"""


def phases(found: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Split the whole cycle with all capabilities into (class, what, milliseconds)."""
    at = {row["name"]: row["median"] for row in found["rows"]}
    plain, stub = at["cycle, plain runc"], at["stub alone"]
    mounts = max(0.0, at["cycle, mounts and nodes alone"] - plain)
    hook = at["cycle, mounts, nodes and hook"] - plain - mounts
    whole = at["cycle, 1 GPU, all capabilities"] - plain
    shell, start = at["S: sh executes the stub"] - stub, at["floor: Python starts and exits"]
    passed = 2 * (at["pass-through verb"] - stub)
    return [
        ("a", "plain runc: create, start, delete", plain),
        ("b", "create: sh and the start of Python", shell + start),
        ("c", "create: gpushim's own work", max(0.0, whole - mounts - hook - passed - shell - start)),
        ("d", "runc: the mounts and nodes of the GPU", mounts),
        ("e", "hook: the start of Python", start),
        ("f", "hook: its own work, start and delete passed on", max(0.0, hook - start) + passed),
    ]


def main() -> None:
    """Read the results and write an SVG."""
    found = json.loads(Path(sys.argv[1]).read_text())
    parts = phases(found)
    scale = (WIDTH - 20) / sum(spent for *_, spent in parts)
    height = 70 + BAR + GAP + 22 * len(parts)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>What a GPU container costs over plain runc</title>",
        f"<style>{STYLE}</style>",
        f'<text x="10" y="22">1 GPU, all capabilities: {sum(spent for *_, spent in parts):.1f} ms</text>',
    ]
    x = 10.0
    for name, _, spent in parts:
        lines.append(f'<rect class="{name}" x="{x:.1f}" y="40" width="{max(spent * scale, 1):.1f}" height="{BAR}"/>')
        x += spent * scale
    for number, (name, what, spent) in enumerate(parts):
        y = 40 + BAR + GAP + 22 * number
        lines.append(f'<rect class="{name}" x="10" y="{y}" width="14" height="14"/>')
        lines.append(f'<text x="32" y="{y + 12}">{spent:5.1f} ms</text><text x="100" y="{y + 12}">{what}</text>')
    machine = found["machine"]
    said = f"{machine['date']}, {machine['cores']} cores, Linux {machine['kernel']}, runc {machine['runc']}"
    lines.append(
        f'<text class="small" x="10" y="{height - 10}">{said}, Python {machine["python"]}; medians</text></svg>'
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
