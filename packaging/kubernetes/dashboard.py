#!/usr/bin/env python3
"""Draw docs/metrics.svg, the panels of dashboard.json, from what a Prometheus answered: dashboard.py ANSWERS.json.

It prints the picture. The answers are those of tests/e2e/test_device_plugin_metrics.py, if GPUSHIM_DASHBOARD names a
file for them. Grafana draws the same numbers otherwise. Out of scope: other kinds of panels than this dashboard has.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

UNIT_X, UNIT_Y, GAP, TOP = 50, 27, 10, 44  # a cell of Grafana's grid, the space between panels, the title
LEFT, RIGHT, HEAD, FOOT, LEGEND = 46, 12, 30, 20, 17  # within a panel; a line of the legend
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-size: 13px; font-weight: 600 }
  .page { font-size: 18px; font-weight: 600 } .small { font-size: 11px; fill: #57606a }
  .panel { fill: #ffffff; stroke: #d0d7de } .ground { fill: #f6f8fa } .grid { stroke: #eaeef2 }
  .line { fill: none; stroke-width: 1.6; stroke-linejoin: round } .area { stroke: none; opacity: .35 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #8d96a0 } .panel { fill: #161b22; stroke: #30363d }
    .ground { fill: #0d1117 } .grid { stroke: #21262d }
  }
"""
COLORS = ("#2da44e", "#0969da", "#bf8700", "#cf222e", "#8250df", "#1b7c83", "#bc4c00", "#57606a")
UNITS = {"percent": " %", "celsius": " °C", "watt": " W", "s": " s"}
BAD = {"unhealthy": "#cf222e", "error": "#cf222e", "refused": "#cf222e", "warning": "#bf8700"}

Points = list[tuple[float, float]]
Series = tuple[str, str, Points]  # name, color, points


def named(legend: str, labels: dict[str, str]) -> str:
    """Write a legend as Grafana does."""
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)
    return " ".join(text.split())


def series(panel: dict[str, Any]) -> list[Series]:
    """List the series of a panel."""
    found: list[tuple[str, Points]] = []
    for target, answer in zip(panel["targets"], panel["answers"]):
        for row in answer:
            points = [(float(at), float(value)) for at, value in row["values"]]
            found.append((named(target["legendFormat"], row["metric"]), [one for one in points if one[1] == one[1]]))
    bad = {name: BAD[word] for name, _ in found for word in name.split() if word in BAD}
    return [(name, bad.get(name, COLORS[place % len(COLORS)]), points) for place, (name, points) in enumerate(found)]


def nice(highest: float) -> float:
    """Return a round number that is not less."""
    power = 10 ** math.floor(math.log10(highest)) if highest > 0 else 1.0
    return next(step * power for step in (1, 2, 2.5, 4, 5, 8, 10) if step * power >= highest * 0.999)


def shown(value: float, unit: str) -> str:
    """Write a value with its unit."""
    if unit == "s" and 0 < value < 1:
        return f"{value * 1e3:g} ms" if value >= 0.001 else f"{value * 1e6:g} µs"
    return f"{value:g}{UNITS.get(unit, '')}"


def stacked(rows: list[Series]) -> tuple[list[Series], list[Points]]:
    """Add each series to those below it; returns them, and the lower edges of their areas."""
    below: dict[float, float] = {}
    found, floors = [], []
    for name, color, points in rows:
        floors.append([(at, below.get(at, 0.0)) for at, _ in points])
        points = [(at, value + below.get(at, 0.0)) for at, value in points]
        below.update(points)
        found.append((name, color, points))
    return found, floors


class Frame:
    """A panel's place, in pixels, and its scales."""

    def __init__(self, panel: dict[str, Any], legend: int, span: tuple[float, float], highest: float) -> None:
        place = panel["gridPos"]
        self.x, self.y = place["x"] * UNIT_X + GAP, place["y"] * UNIT_Y + TOP
        self.width, self.height = place["w"] * UNIT_X - GAP, place["h"] * UNIT_Y - GAP
        self.left, self.right = self.x + LEFT, self.x + self.width - RIGHT
        self.upper, self.lower = self.y + HEAD, self.y + self.height - FOOT - legend * LEGEND
        self.span, self.highest = span, highest

    def at(self, point: tuple[float, float]) -> str:
        """Write a point as SVG has it."""
        begin, end = self.span
        x = self.left + (point[0] - begin) / (end - begin) * (self.right - self.left)
        return f"{x:.1f},{self.lower - min(point[1] / self.highest, 1) * (self.lower - self.upper):.1f}"


def box(frame: Frame, title: str) -> Iterator[str]:
    """Draw a panel's frame."""
    yield f'<rect class="panel" x="{frame.x}" y="{frame.y}" width="{frame.width}" height="{frame.height}" rx="4"/>'
    yield f'<text class="title" x="{frame.x + 10}" y="{frame.y + 19}">{escape(title)}</text>'


def chart(panel: dict[str, Any], span: tuple[float, float]) -> Iterator[str]:
    """Draw a panel of lines, steps, areas or bars."""
    defaults = panel["fieldConfig"]["defaults"]
    custom, unit = defaults["custom"], defaults["unit"]
    rows = series(panel)
    lines = legend(rows)
    drawn, floors = stacked(rows) if "stacking" in custom else (rows, [])
    most = max((value for *_, points in drawn for _, value in points), default=1)
    frame = Frame(panel, len(lines), span, defaults.get("max") or nice(most or 1))
    yield from box(frame, panel["title"])
    for part in range(5):
        value = frame.highest * part / 4
        y = frame.lower - (frame.lower - frame.upper) * part / 4
        yield f'<path class="grid" d="M{frame.left},{y:.1f}H{frame.right}"/>'
        place = f'text-anchor="end" x="{frame.left - 5}" y="{y + 4:.1f}"'
        yield f'<text class="small" {place}>{shown(value, unit)}</text>'
    for (_, color, points), floor in zip(drawn, floors):
        spots = " ".join(map(frame.at, [*points, *floor[::-1]]))
        yield f'<polygon class="area" fill="{color}" points="{spots}"/>'
    for number, (_, color, points) in enumerate(drawn):
        yield from curve(frame, points, color, custom, number)
    for number, row in enumerate(lines):
        y, x = frame.lower + 22 + number * LEGEND, frame.left - 30
        for name, color in row:
            yield f'<rect x="{x}" y="{y - 8}" width="10" height="4" fill="{color}"/>'
            yield f'<text class="small" x="{x + 14}" y="{y}">{escape(name)}</text>'
            x += 24 + round(6.1 * len(name))


def legend(rows: list[Series]) -> list[list[tuple[str, str]]]:
    """Put names into lines."""
    lines: list[list[tuple[str, str]]] = [[]]
    for name, color, _ in rows:
        if sum(24 + 6.1 * len(one) for one, _ in lines[-1]) + 24 + 6.1 * len(name) > 370:
            lines.append([])
        lines[-1].append((name, color))
    return lines


def curve(frame: Frame, points: Points, color: str, custom: dict[str, Any], number: int) -> Iterator[str]:
    """Draw one series; where samples are missing the line has a gap."""
    if custom["drawStyle"] == "bars":
        for at, value in points:
            x, y = frame.at((at, value)).split(",")
            if value > 0.01:
                left = float(x) + 3 * number
                high = frame.lower - float(y)
                yield f'<rect x="{left:.1f}" y="{y}" width="2.4" height="{high:.1f}" fill="{color}"/>'
        return
    for part in parts(points):
        spots = [frame.at(one) for one in part]
        if custom.get("lineInterpolation") == "stepAfter":
            spots = [
                spot for one, after in zip(part, part[1:]) for spot in (frame.at(one), frame.at((after[0], one[1])))
            ]
        yield f'<polyline class="line" stroke="{color}" points="{" ".join(spots)}"/>'


def parts(points: Points) -> list[Points]:
    """Part a series where samples are missing."""
    step = min((b[0] - a[0] for a, b in zip(points, points[1:])), default=1.0)
    found: list[Points] = []
    for one in points:
        if not found or one[0] - found[-1][-1][0] > 2.5 * step:
            found.append([])
        found[-1].append(one)
    return [part for part in found if len(part) > 1]


def table(panel: dict[str, Any]) -> Iterator[str]:
    """Draw a panel that is a table, with the columns that its transformation keeps."""
    options = panel["transformations"][0]["options"]
    columns = sorted(options["indexByName"], key=options["indexByName"].__getitem__)
    rows = [{**one["metric"], "Value": f"{float(one['value'][1]) / 1024:.1f} GiB"} for one in panel["answers"][0]]
    rows.sort(key=lambda row: [row.get(name, "") for name in columns])
    frame = Frame(panel, 0, (0, 1), 1)
    yield from box(frame, panel["title"])
    widths = [max(len(options["renameByName"].get(name, name)), *(len(row.get(name, "")) for row in rows)) + 2
              for name in columns]  # fmt: skip
    place = [frame.x + 10 + (frame.width - 20) * sum(widths[:number]) / sum(widths) for number in range(len(columns))]
    for x, name in zip(place, columns):
        heading = options["renameByName"].get(name, name)
        yield f'<text class="small" x="{x:.0f}" y="{frame.y + 42}">{escape(heading)}</text>'
    for number, row in enumerate(rows[:8]):
        y = frame.y + 62 + 18 * number
        yield f'<path class="grid" d="M{frame.x + 10},{y - 13}H{frame.right}"/>'
        for x, name in zip(place, columns):
            yield f'<text x="{x:.0f}" y="{y}">{escape(row.get(name, ""))}</text>'


def main() -> None:
    """Read the answers and write an SVG."""
    panels = json.loads(Path(sys.argv[1]).read_text())
    times = [at for panel in panels if panel["type"] != "table" for *_, points in series(panel) for at, _ in points]
    height = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels) * UNIT_Y + TOP
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {24 * UNIT_X + GAP} {height}" role="img">')
    print("<title>The dashboard: GPUs and pods of a simulated node</title>")
    print(f'<style>{STYLE}</style><rect class="ground" width="100%" height="100%"/>')
    print(f'<text class="page" x="{GAP}" y="28">gpushim: GPUs and pods</text>')
    seconds = max(times) - min(times)
    said = f"{seconds / 60:.0f} minutes of a simulated node, as Prometheus has them"
    print(f'<text class="small" text-anchor="end" x="{24 * UNIT_X}" y="28">{said}</text>')
    for panel in panels:
        drawn = table(panel) if panel["type"] == "table" else chart(panel, (min(times), max(times)))
        print("\n".join(drawn))
    print("</svg>")


if __name__ == "__main__":
    main()
