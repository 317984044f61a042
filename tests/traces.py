"""What the tests leave on this machine: `traces.py FILE` writes down how it is, and the second time what has changed.

Files, mounts, cgroups, network interfaces, and processes of the tests. What others change
meanwhile is told as well. Out of scope: what is installed, which is over before the first look (tools/setup.sh says
what that is); the tests' directory, which tools/test removes; homes and /tmp, which others use meanwhile and
which are the tests' own (apart.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import scratch

# Directly in the first, and anywhere in the others; none is looked at across a mount, but for /dev and /run.
PLACES = ("/", "/dev", "/etc", "/opt", "/run", "/srv", "/usr/local", "/var")
# What others write there meanwhile: terminals, package managers, logs of services.
OTHERS = ("/dev/pts/", "/var/cache/", "/var/lib/apt/", "/var/log/journal/", "/var/tmp/")
OURS = "GPUSHIM_TESTS"  # a variable of what apart.py has started
LIMIT = 40  # lines that are told


def look() -> dict[str, str]:
    """Describe the machine: by path or name, what is there."""
    found = {f"mount {name}": "" for name in mounts()}
    found |= {f"cgroup {name}": "" for name in cgroups()}
    found |= {f"interface {name}": "" for name in os.listdir("/sys/class/net")}
    found |= {f"process {name}": "" for name in processes()}
    for place in PLACES:
        found |= {path: _facts(path) for path in _below(place) if not path.startswith((*OTHERS, str(scratch.TOP)))}
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return what is there, has gone, or is another."""
    new = [f"is there: {name} {after[name]}" for name in after.keys() - before.keys()]
    gone = [f"has gone: {name} {before[name]}" for name in before.keys() - after.keys()]
    other = [
        f"is another: {name}: {before[name]}, then {after[name]}"
        for name in before.keys() & after.keys()
        if before[name] != after[name]
    ]
    return sorted([*new, *gone, *other])


def mounts() -> list[str]:
    """List where something is mounted, in order."""
    return [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]


def cgroups() -> set[str]:
    """List the directories of all cgroups."""
    tops = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {
        folder
        for top, kind in tops
        if kind in ("cgroup", "cgroup2")
        for folder, _, _ in os.walk(top)
        if folder != top
    }


def processes() -> Iterator[str]:
    """List the processes that tests have started, by their environment, or the tests' directory among their words."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words, variables = ((entry / name).read_bytes() for name in ("cmdline", "environ"))
            if os.fsencode(scratch.TOP) in words or f"\0{OURS}=".encode() in b"\0" + variables:
                line = words.replace(b"\0", b" ").decode(errors="replace")
                yield f"{entry.name} {line}"


def _below(place: str) -> Iterator[str]:
    if place == "/":
        yield from (f"/{name}" for name in os.listdir("/"))
        return
    device = os.lstat(place).st_dev
    for folder, folders, files in os.walk(place):
        yield from (f"{folder}/{name}" for name in (*folders, *files))
        folders[:] = [name for name in folders if _device(f"{folder}/{name}") == device]


def _device(path: str) -> int:
    with contextlib.suppress(OSError):  # it has gone meanwhile
        return os.lstat(path).st_dev
    return -1


def _facts(path: str) -> str:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        facts = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid} {status.st_rdev}"
        if stat.S_ISREG(status.st_mode):
            return f"{facts} {status.st_size} {status.st_mtime_ns}"
        return f"{facts} {os.readlink(path)}" if stat.S_ISLNK(status.st_mode) else facts
    return "gone"


def main() -> int:
    """Write down, or compare with what is written down."""
    file = Path(sys.argv[1])
    if not file.exists():
        file.write_text(json.dumps(look()))
        return 0
    told = changes(json.loads(file.read_text()), look())
    if told:
        print(f"test: the tests have left this machine changed, in {len(told)} places:", *told[:LIMIT], sep="\n  ")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
