#!/usr/bin/env python3
"""Put what bench/publish measured between the marks of a page, and into README: bench/tables.py PAGE FOLDER."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP), str(TOP / "tests")]

from bench import report  # noqa: E402


def main() -> None:
    """Renew the page."""
    page, folder = Path(sys.argv[1]), Path(sys.argv[2])
    found = json.loads((folder / "results.json").read_text())
    machine = found["machine"]
    parts = {
        "machine": f"{machine['date']}: {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']}, runc "
        f"{machine['runc']}, Python {machine['python']}, {machine['sh']} as sh; {found['rounds']} rounds, "
        f"S = {found['s']:.2f} ms, P = {found['p']:.2f} ms.",
        "costs": report.costs(found),
        "times": report.markdown(found),
    }
    text = page.read_text()
    for name, new in parts.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text, found_it = before + mark + new + "\n" + end + after, bool(mark and end)
        if not found_it:
            raise SystemExit(f"{page} has no place for {name}")
    page.write_text(text)
    readme = TOP / "README.md"
    readme.write_text(in_readme(readme.read_text(), parts["costs"]))


def in_readme(text: str, costs: str) -> str:
    """Write in README's table what the page says of costs."""
    (plain, _, least), (_, _, one), (_, _, most) = re.findall(r"\| (\d+) ms \| (\d+) ms \| (\d+) ms \|", costs)
    text = re.sub(r"starts \d+ ms later", f"starts {least} ms later", text)
    return re.sub(r"\d+ to \d+ ms over plain runc's \d+ ms", f"{one} to {most} ms over plain runc's {plain} ms", text)


if __name__ == "__main__":
    main()
