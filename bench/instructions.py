#!/usr/bin/env python3
"""Count the instructions (user space) of what gpushim starts: unlike times they hardly drift on a loaded machine.

    bench/instructions.py

Needs root, gcc and valgrind. Each program is counted up to its exec of the low-level runtime, a stub. Of a call of
gpushim-runtime that is the shell's part and, where it gets so far, grep's and Python's; what its child does until it
waits is listed, and not in the sum. What the kernel does for them, starting programs above all, is not in it: see
bench.py.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP), str(TOP / "tests"), str(TOP / "shim")]

from bench.processes import adopt, reap  # noqa: E402
from bench.rows import P, Row, build  # noqa: E402
from bench.scenes import STUB  # noqa: E402

# The children of a start, by their command lines.
PARTS = {"grep": "grep", "python": "Python", "gpushim-hook": "Python"}


def main() -> None:
    """Count and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    adopt()
    subprocess.run(["/usr/bin/python3", "-IB", STUB, "compile"], check=True)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushim-bench-")))
        rows = {row.name: row for row in build(work, stack) if "cycle" not in row.name and "first" not in row.name}
        unit = sum(count(rows[P], work).values())
        print(f"millions of instructions; P = {unit / 1e6:.2f}")
        for name, row in rows.items():
            parts = count(row, work)
            child = parts.pop("child", 0)
            listed = ", ".join(f"{part} {number / 1e6:.2f}" for part, number in parts.items())
            print(f"{name:40} {sum(parts.values()) / 1e6:8.2f}  {sum(parts.values()) / unit:5.2f} P  ({listed})")
            if child:
                own = child - parts["Python"]  # which it has from before the fork
                print(f"{'  its child':40} {own / 1e6:8.2f}")


def count(row: Row, work: Path) -> dict[str, int]:
    """Count one row's command, per program; a process that executes another is dumped just before it does."""
    row.prepare()
    out = work / "counted"
    out.mkdir()
    options = ["--tool=callgrind", "--trace-children=yes", "--dump-before=execve", f"--callgrind-out-file={out}/%p"]
    with open(row.stdin, "rb") as stdin:
        command = ["/usr/bin/valgrind", "-q", *options, *row.commands[0]]
        subprocess.run(command, env=row.env, stdin=stdin, capture_output=True, check=True)
    reap()
    parts: dict[str, int] = {}
    for path in sorted(out.iterdir()):
        text = path.read_text(errors="replace")
        program, total = re.search(r"^cmd: +(\S+)", text, re.M), re.search(r"^(?:totals|summary): (\d+)", text, re.M)
        if program and total and int(total[1]):
            words = [name for part, name in PARTS.items() if part in program[1].rpartition("/")[2]]
            name = words[0] if words else "stub" if "recorder" in program[1] else "sh"
            if name == "Python" and row.over and "Program termination" in text:
                name = "child"  # the create itself becomes the stub
            parts[name] = parts.get(name, 0) + int(total[1])
        path.unlink()
    out.rmdir()
    return parts


if __name__ == "__main__":
    main()
