"""What bench.py found, as data and as tables."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from statistics import median, quantiles
from typing import Any, Sequence

from bench.rows import P, Row, S
from bench.scenes import RUNC

COSTS = {  # what docs/performance.md begins with: a kind of container, and its row
    "without a GPU": "cycle, no request",
    "1 GPU, utility and compute": "cycle, 1 GPU, utility and compute",
    "1 GPU, all capabilities": "cycle, 1 GPU, all capabilities",
}
HEAD = ["", "median", "quartiles", "added", "floor", "aim", "met"]


def results(rows: Sequence[Row], times: dict[str, list[float]], storms: list[dict[str, float]]) -> dict[str, Any]:
    """Sum a run up: times in milliseconds; `added` is over the row named, `of_s` and `of_p` are multiples."""
    mid = {name: median(values) for name, values in times.items()}
    s, p = mid[S], mid[P]
    found = []
    for row in rows:
        low, _, high = quantiles(times[row.name], n=4)
        cycle = row.name.startswith("cycle")
        value = mid[row.name] - (mid[row.over] if cycle else 0)  # what an aim is about
        one: dict[str, Any] = {"name": row.name, "median": mid[row.name], "q1": low, "q3": high}
        one.update(min=min(times[row.name]), of_s=value / s, of_p=value / p)
        if row.over:
            one.update(over=row.over, added=mid[row.name] - mid[row.over])
        if row.floor:
            one.update(floor=0 if cycle else mid[row.floor])
        if row.aim:
            aim = row.aim[0] * s + row.aim[1] * p
            one.update(aim=aim, aim_words=_words(*row.aim), value=value, met=value <= aim)
            one.update(value_words=_multiples(value, row.aim, s, p))
        found.append({key: round(value, 4) if isinstance(value, float) else value for key, value in one.items()})
    calm = {key: round(median(storm[key] for storm in storms), 3) for key in storms[0]}
    return {"machine": machine(), "rounds": len(times[S]), "s": s, "p": p, "rows": found, "storm": calm}


def _words(s: float, p: float) -> str:
    return " + ".join(f"{number:g} {name}".removeprefix("1 ") for number, name in ((s, "S"), (p, "P")) if number)


def _multiples(value: float, aim: tuple[float, float], s: float, p: float) -> str:
    """Write a time in the terms of its aim."""
    if not aim[1]:
        return f"{value / s:.2f} S"
    return f"S + {(value - s) / p:.2f} P" if aim[0] else f"{value / p:.2f} P"


def machine() -> dict[str, str]:
    """Return where this runs."""
    runc = subprocess.run([RUNC, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    python = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, text=True, check=True).stdout
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": str(os.cpu_count()),
        "cpu": cpu,
        "kernel": platform.release(),
        "runc": runc,
        "python": python.split()[1],
        "sh": os.path.realpath("/bin/sh").rpartition("/")[2],
    }


def table(found: dict[str, Any]) -> list[list[str]]:
    """Lay the rows out as cells."""
    lines = []
    for row in found["rows"]:
        added = f"{row['added']:.2f}" if row.get("over", row["name"]) != row["name"] else ""
        floor = f"{row['floor']:.2f}" if row.get("floor") else ""
        aim = f"{row['aim_words']} = {row['aim']:.2f}" if "aim" in row else ""
        met = ("yes" if row["met"] else "no") + f", {row['value_words']}" if "aim" in row else ""
        lines.append(
            [row["name"], f"{row['median']:.2f}", f"{row['q1']:.2f} to {row['q3']:.2f}", added, floor, aim, met]
        )
    return lines


def storm_line(found: dict[str, Any]) -> str:
    """Return what the storm cost."""
    storm = found["storm"]
    return (
        f"50 creates for 1 GPU at once: {storm['together cpu']:.2f} ms of CPU each, one by one "
        f"{storm['lone cpu']:.2f} ms; wall time {storm['together wall']:.2f} and {storm['lone wall']:.2f} ms"
    )


def text(found: dict[str, Any]) -> str:
    """Write everything for a terminal."""
    cells = [HEAD, *table(found)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in cells]
    first = f"{found['rounds']} rounds; milliseconds; S = {found['s']:.2f}, P = {found['p']:.2f}"
    return "\n".join([first, *lines, storm_line(found)])


def costs(found: dict[str, Any]) -> str:
    """Write the small table of docs/performance.md: what containers cost over plain runc."""
    rows = {row["name"]: row for row in found["rows"]}
    lines = ["| container | plain runc | with gpushim | added |", "| --- | --- | --- | --- |"]
    for name, row in ((name, rows[place]) for name, place in COSTS.items()):
        plain, added = row["median"] - row["added"], row["added"]
        lines.append(f"| {name} | {plain:.0f} ms | {row['median']:.0f} ms | {added:.0f} ms |")
    return "\n".join(lines)


def markdown(found: dict[str, Any]) -> str:
    """Write the table and the storm for docs/performance.md, without quartiles."""
    shown = [line[:2] + line[3:5] + [line[5].partition(" = ")[0], line[6]] for line in table(found)]
    rows = [HEAD[:2] + HEAD[3:], ["---"] * (len(HEAD) - 1), *shown]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", storm_line(found) + "."])
