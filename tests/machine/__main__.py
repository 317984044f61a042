"""`tests/machine/run`: print the trial's lines, and say whether all of them are a PASS."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from machine import boot, image


def main() -> int:
    """Run the trial.

    Returns:
        0 if every case passed and the trial came to its end.
    """
    image.debian()
    begun = time.monotonic()
    console = image.CACHE / "console.log"
    lines = []
    for line in boot.trial(console):
        print(line, flush=True)
        lines.append(line)
    passed, failed = (sum(line.startswith(word) for line in lines) for word in ("PASS ", "FAIL "))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = f"{time.monotonic() - begun:.0f} seconds, {used.ru_utime + used.ru_stime:.0f} of a processor"
    print(f"{passed} passed, {failed} failed, {seconds}")
    if boot.LAST not in lines:
        print(f"The trial did not come to its end. The console's last lines, of {console}:", file=sys.stderr)
        print(*Path(console).read_text(errors="replace").splitlines()[-20:], sep="\n", file=sys.stderr)
    return int(bool(failed) or boot.LAST not in lines)


if __name__ == "__main__":
    sys.exit(main())
