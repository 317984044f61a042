"""`tests/machine/run`: print the trials' rows, and say whether all of them are a PASS."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from machine import boot, image
from machine.machines import MACHINES, Machine
from machine.trials.rows import LAST


def arguments() -> argparse.Namespace:
    """Read the command line."""
    listed = "".join(f"  {name:<16}{machine.shows}\n" for name, machine in MACHINES.items())
    parser = argparse.ArgumentParser(
        prog="tests/machine/run",
        description="Try gpushim on whole machines, emulated.",
        epilog=f"machines:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a machine; without one, all of them")
    parser.add_argument("--part", action="append", default=[], help="run this part of a trial alone (see its PARTS)")
    given = parser.parse_args()
    if unknown := set(given.names) - set(MACHINES):
        parser.error(f"no machine {', '.join(sorted(unknown))}; there are {', '.join(MACHINES)}")
    return given


def tried(name: str, machine: Machine, parts: list[str]) -> bool:
    """Run a machine's trial.

    Returns:
        Whether every case passed and the trial came to its end, or it is skipped.
    """
    try:
        if machine.policy:
            machine.policy()
    except FileNotFoundError as error:
        print(f"{name}: skipped: {error}", flush=True)
        return True
    image.debian(machine.processor, machine.packages)
    print(f"{name}: {machine.shows}", flush=True)
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    console = image.CACHE / f"console-{name}.log"
    lines = []
    for line in boot.trial(machine, console, parts):
        print(line, flush=True)
        lines.append(line)
    passed, failed = (sum(line.startswith(word) for line in lines) for word in ("PASS ", "FAIL "))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{name}: {passed} passed, {failed} failed, {time.monotonic() - begun:.0f} seconds, {used:.0f} of a processor"
    )
    ended = LAST in lines
    if not ended:
        print(f"The trial did not come to its end. The console's last lines, of {console}:", file=sys.stderr)
        print(*Path(console).read_text(errors="replace").splitlines()[-20:], sep="\n", file=sys.stderr)
    return ended and not failed


def main() -> int:
    """Run the trials of the command line.

    Returns:
        0 if all of them passed or were skipped.
    """
    given = arguments()
    results = [tried(name, MACHINES[name], given.part) for name in given.names or MACHINES]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
