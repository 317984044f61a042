"""Which modules a piece of Python imports, and what each costs here and now (`python3 -X importtime`)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping

LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
START = {"errno", "time", "_signal", "posix", "marshal"}  # Python's own start, or nearly free


def imported(code: str, env: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run code, which has a name `started` from its beginning; return modules and what each took, in milliseconds."""
    words = ["/usr/bin/python3", "-IBS", "-X", "importtime", "-c", f"import sys\n{code}"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    idle = subprocess.run([*words[:5], "pass"], env=env, capture_output=True, text=True, check=True)
    before = {name for _, name in LINE.findall(idle.stderr)} | START
    return {name: int(spent) / 1000 for spent, name in LINE.findall(done.stderr) if name not in before}


def dearer(found: Mapping[str, float], known: Collection[str]) -> str:
    """Return what the modules that nobody expected cost; "" if there are none."""
    new = {name: spent for name, spent in found.items() if name not in known}
    listed = ", ".join(f"{name} ({spent:.2f} ms)" for name, spent in new.items())
    every = f"every such start becomes {sum(new.values()):.2f} ms dearer by what is imported now: {listed}"
    return every + "; import it where it is needed, or add it here and to gpushim/create/precompile.py" if new else ""
