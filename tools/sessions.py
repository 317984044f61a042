"""Sessions: each command of a session is run on a machine with gpushim installed, engines and simulated GPUs.

The machine (tests/e2e/installed.py) goes through the stages below, in which the sessions of all pages are made.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / "shim"), str(TOP / "hook"), str(TOP / "tests")]

from e2e import installed, pages, trees  # noqa: E402

SUITE = "trixie"
UNIT = "/sys/fs/cgroup/systemd/system.slice/docker.service"
SETTLE = 3  # seconds: the doctor tells a process's start from a file's time to two


def main(argv: list[str]) -> int:
    """Make the sessions.

    Args:
        argv: --check, or nothing.

    Returns:
        0; with --check, 1 if a page is not what it would be now.
    """
    old = {page: page.read_text() for page in pages.PAGES}
    new = dict(old)
    left = set().union(*map(pages.stages, old.values()))
    with installed.machine(SUITE) as machine:

        def say(command: str) -> str:
            done = machine.run(f"{{ {command}; }} 2>&1", check=False)
            return machine.plain(done.stdout)

        for stage in reached(machine):
            new = {page: pages.written(text, stage, say) for page, text in new.items()}
            left.discard(stage)
    if left:
        sys.exit(f"sessions: no stage is called {', '.join(sorted(left))}")
    changed = [page for page in old if new[page] != old[page]]
    for page in changed:
        name = str(page.relative_to(TOP))
        if argv == ["--check"]:
            sys.stdout.writelines(
                difflib.unified_diff(old[page].splitlines(True), new[page].splitlines(True), name, "now")
            )
        else:
            page.write_text(new[page])
            print(f"changed {name}")
    return 1 if changed and argv == ["--check"] else 0


def reached(machine: installed.Machine) -> Iterator[str]:
    """Bring a machine from stage to stage: no engine knows gpushim; dockerd has not been restarted; all is well."""
    machine.run("gpushim refresh")
    yield "fresh"
    machine.restart("docker")
    time.sleep(SETTLE)
    machine.run("gpushim configure docker")
    with systemd(machine):
        yield "stale"
    machine.run("gpushim configure docker --cdi")
    machine.restart("docker")
    machine.run(f"docker load --input={trees.image(trees.debian(), 'debian:local', ['/bin/sh'])}")
    machine.run("docker tag debian:local debian:latest")
    yield "docker"


@contextlib.contextmanager
def systemd(machine: installed.Machine) -> Iterator[None]:
    """Let dockerd be a service of systemd's, by what shows it: systemd's directory and the service's cgroup."""
    machine.run(f"mkdir -p /run/systemd/system {UNIT} && pidof dockerd >{UNIT}/cgroup.procs")
    try:
        yield
    finally:
        machine.run(f"cat {UNIT}/cgroup.procs >{UNIT}/../../cgroup.procs; rmdir {UNIT} /run/systemd/system")
        machine.run(f"rmdir --ignore-fail-on-non-empty $(dirname {UNIT})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
