"""What a command costs: the processor time and the peak of memory of it and all that it waits for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

# A child begins with its parent's peak, so the parent is a small one: this, and not pytest.
METER = """
import os, sys
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
with open(sys.argv[1], "w") as out:
    out.write("[%f, %f, %d]" % (usage.ru_utime, usage.ru_stime, usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Cost(NamedTuple):
    """What came of a command, and what it cost."""

    code: int
    stderr: str
    user: float  # seconds
    system: float
    memory: int  # bytes, of the largest process


def meter(record: Path) -> tuple[str, ...]:
    """Return words before a command, which write down there what it costs."""
    return ("/usr/bin/python3", "-IBS", "-c", METER, str(record))


def read(record: Path) -> tuple[float, float, int]:
    """Return user and system time in seconds, and the peak of memory in bytes."""
    user, system, memory = json.loads(record.read_text())
    return user, system, memory << 10


def of(work: Path, *command: object, state: bytes = b"", env: dict[str, str] | None = None) -> Cost:
    """Run a command with this on stdin, and measure it."""
    (work / "stdin").write_bytes(state)
    words = [*meter(work / "cost"), *map(str, command)]
    with (work / "stdin").open("rb") as stdin:
        done = subprocess.run(words, stdin=stdin, capture_output=True, text=True, env=env or {}, timeout=120)
    return Cost(done.returncode, done.stderr, *read(work / "cost"))
