#!/usr/bin/env python3
"""Show where the time of a create and of a hook goes, phase by phase.

    bench/phases.py [--rounds N]

Needs root, gcc and strace. Two views, medians of N runs (default 20): the system calls of one start as
`strace -r` times them, summed between milestones (under strace everything is slower, so only the shares count), and
the modules that each imports without its precompiled file (`-X importtime`), in milliseconds.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

TOP = Path(__file__).resolve().parents[1]
SHOWN = 6  # imports that are listed, the dearest first
sys.path[:1] = [str(TOP), str(TOP / "tests"), str(TOP / "shim")]

from bench.rows import Row, build  # noqa: E402
from bench.scenes import STUB  # noqa: E402

# (phase, what its first system call looks like), in the order in which they come.
CREATE = [
    ("sh: start, arguments, runtime", r"execve\("),
    ("grep: search, and going on to Python", r"(?:v?fork|clone3?)\("),
    ("Python: start", r"execve\(\"/usr/bin/python3"),
    ("Python: imports", r"openat\(.*/stub\.py"),
    ("read config.json", r"openat\(.*\bconfig\.json|openat\(.*O_PATH\|O_DIRECTORY"),
    ("snapshot and stamp", r"openat\(.*inventory\.json"),
    ("plan, replace config.json", r"openat\(.*config\.json\.gpushim"),
    ("execute the runtime", r"execve\(\".*/recorder"),
]
HOOK = [
    ("Python: start", r"execve\("),
    ("Python: imports", r"openat\(.*prestart.*\.precompiled|openat\(.*gpuhook/__pycache__"),
    ("state, rootfs", r"openat\(.*/dev/null"),
    ("links", r"symlinkat\("),
    ("loader's cache", r"openat\(.*ld\.so\.cache"),
    ("loader's configuration, end", r"openat\(.*ld\.so\.conf\.d"),
]
CALL = re.compile(r"^(?:\[pid +\d+\] )?\s*(\d+\.\d+) (.*)")
IMPORT = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")


def main() -> None:
    """Trace and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    subprocess.run(["/usr/bin/python3", "-IB", STUB, "compile"], check=True)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushim-bench-")))
        rows = {row.name: row for row in build(work, stack)}
        for name, steps in (("create, 1 GPU", CREATE), ("hook, cache of 600", HOOK)):
            runs = [traced(rows[name], steps, work) for _ in range(rounds)]
            whole = sum(median(run[phase] for run in runs) for phase, _ in steps)
            print(f"\n{name}: share of each phase, system calls")
            for phase, _ in steps:
                calls = int(median(run[phase + " calls"] for run in runs))
                print(f"  {median(run[phase] for run in runs) / whole:5.0%} {calls:5}  {phase}")
    for module in ("gpushim.create.create", "gpuhook.prestart"):
        prices = imports(module, rounds)
        print(f"\n{module}: imports one by one, {sum(prices.values()):.2f} ms")
        dearest = sorted(prices.items(), key=lambda item: -item[1])
        for name, price in dearest[:SHOWN]:
            print(f"  {price:6.3f}  {name}")
        print(f"  {sum(price for _, price in dearest[SHOWN:]):6.3f}  {len(dearest[SHOWN:])} others")


def traced(row: Row, steps: list[tuple[str, str]], work: Path) -> dict[str, float]:
    """Run a row under strace; return each phase's seconds and number of system calls."""
    row.prepare()
    out = work / "trace"
    with open(row.stdin, "rb") as stdin:
        command = ["/usr/bin/strace", "-f", "-r", "-o", str(out), *row.commands[0]]
        subprocess.run(command, env=row.env, stdin=stdin, stdout=subprocess.DEVNULL, check=True)
    found = dict.fromkeys([key for phase, _ in steps for key in (phase, phase + " calls")], 0.0)
    at = -1
    lines = out.read_text().splitlines()
    for line in lines:
        pid, _, rest = line.partition(" ")
        call = CALL.match(rest)
        if not call or (row.over and at > 1 and pid != lines[0].partition(" ")[0]):
            continue  # or of a create's child, which goes on beside it
        found[steps[max(at, 0)][0]] += float(call[1])  # -r: since the call before
        if at + 1 < len(steps) and re.match(steps[at + 1][1], call[2]):
            at += 1
        found[steps[max(at, 0)][0] + " calls"] += 1
    return found


def imports(module: str, rounds: int) -> dict[str, float]:
    """Time what a module imports, without what Python imports by itself."""
    paths = [str(TOP / "shim"), str(TOP / "hook")]
    seen: dict[str, list[int]] = {}
    for _ in range(rounds):
        for code in (f"import sys; sys.path += {paths}; import {module}", "pass"):
            words = ["/usr/bin/python3", "-IBS", "-X", "importtime", "-c", code]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            for spent, name in IMPORT.findall(done.stderr):
                seen.setdefault(name, []).append(int(spent))
    # Python's own come twice a round.
    return {name: median(times) / 1000 for name, times in seen.items() if len(times) == rounds}


if __name__ == "__main__":
    main()
