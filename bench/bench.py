#!/usr/bin/env python3
"""Measure what gpushim adds to runc, interleaved with the yardsticks in one run.

    bench/bench.py [--rounds N] [--json FILE] [--only WORD]

Needs root, gcc, runc and busybox-static (tools/setup.sh). Yardsticks: S = `sh -c 'exec STUB'`, P =
`/usr/bin/python3 -IS -c pass`, with STUB a static program that does nothing. All but the rows called `cycle` and
`hook` execute STUB as the low-level runtime, so they show what gpushim itself costs; a cycle is a real container's
create, start and delete. Times are wall time from posix_spawn to exit, in milliseconds; every round runs each row
once, in shuffled order. The last table is the CPU time of 50 creates at once, beside that of 50 alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP), str(TOP / "tests"), str(TOP / "shim")]

from bench import report  # noqa: E402
from bench.processes import adopt, reap  # noqa: E402
from bench.rows import P, Row, S, build  # noqa: E402
from bench.scenes import RUNTIME, STUB, asking, settings, stub_bundle  # noqa: E402

STORM = 50  # creates at once
STORMS = 5


def main() -> None:
    """Measure and print."""
    adopt()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="how often each row runs (default 100)")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    parser.add_argument(
        "--only", metavar="WORD", default="", help="rows with this word, and what they are compared with"
    )
    options = parser.parse_args()
    subprocess.run(["/usr/bin/python3", "-IB", STUB, "compile"], check=True)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushim-bench-")))
        # In memory, as /run with bundles and snapshot is on hosts: a disk's journal takes milliseconds for a link.
        subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "mode=755", "gpushim-bench", work], check=True)
        stack.callback(lambda: subprocess.run(["/bin/umount", work], check=True))
        rows = build(work, stack)
        wanted = [row for row in rows if options.only in row.name]
        needed = {S, P, "stub alone", *(name for row in wanted for name in (row.name, row.over, row.floor))}
        rows = [row for row in rows if row.name in needed]
        times = measure(rows, options.rounds)
        storms = [storm(work, number) for number in range(STORMS)]
    results = report.results(rows, times, storms)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    print(report.text(results))


def measure(rows: list[Row], rounds: int) -> dict[str, list[float]]:
    """Run every row once a round, in shuffled order; the first two rounds only warm the caches."""
    times: dict[str, list[float]] = {row.name: [] for row in rows}
    for number in range(rounds + 2):
        for row in random.sample(rows, len(rows)):
            row.prepare()
            spent = sum(run(command, row.env, row.stdin) for command in row.commands)
            reap()
            if number >= 2:
                times[row.name].append(spent)
    return times


def run(command: list[str], env: dict[str, str], stdin: str) -> float:
    """Run one command to its end and return its milliseconds."""
    started = time.perf_counter()
    finish(start(command, env, stdin), command)
    return (time.perf_counter() - started) * 1000


def start(command: list[str], env: dict[str, str], stdin: str) -> int:
    """Start a command and return its process id."""
    actions = [(os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0)]
    return os.posix_spawn(command[0], command, env, file_actions=actions)


def finish(pid: int, command: list[str]) -> None:
    """Wait for a command, which must end well."""
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"{command} ended with status {os.waitstatus_to_exitcode(status)}")


def storm(work: Path, number: int) -> dict[str, float]:
    """Measure CPU and wall time of creates for 1 GPU, per create: one after the other, and all at once."""
    env = settings(work, f"storm-{number}", 1, str(work / "recorder"))
    found = {}
    for way in ("lone", "together"):
        creates = [stub_bundle(work, f"{way}-{number}-{n}", asking("0")) for n in range(STORM)]
        for _, prepare in creates:
            prepare()
        before, started = _cpu(), time.perf_counter()
        pids = []
        for arguments, _ in creates:
            pids.append(start([RUNTIME, *arguments], env, "/dev/null"))
            if way == "lone":
                finish(pids.pop(), arguments)
        for pid in pids:
            finish(pid, [RUNTIME])
        found[way + " wall"] = (time.perf_counter() - started) * 1000 / STORM
        reap()
        found[way + " cpu"] = (_cpu() - before) * 1000 / STORM
    return {key: round(value, 3) for key, value in found.items()}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
