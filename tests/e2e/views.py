"""Views of the cgroup file systems as other machines have them, each in a mount namespace of its own.

This machine's layout is the hybrid one: v1 controllers beside an almost empty v2. In the view "v2" the controllers
that v1 owns (cpu, memory, pids) are absent. The machine's own mounts stay as they are.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from e2e.witness import RUNC

CRUN = "/usr/bin/crun"
# Layouts and low-level runtimes that go together: crun does not run in the hybrid one.
PLACES = [("hybrid", RUNC), ("v1", CRUN), ("v2", RUNC), ("v2", CRUN)]
PLACES_OF_RUNC, PLACES_OF_CRUN = ([place for place in PLACES if place[1] == program] for program in (RUNC, CRUN))
SCRIPTS = {
    # The hybrid one without its v2 part.
    "v1": "mount -t tmpfs none /sys/fs/cgroup/unified",
    "v2": """
for mount in $(awk '$2 ~ "^/sys/fs/cgroup/" { print $2 }' /proc/mounts | sort -r); do umount "$mount"; done
umount /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
""",
}
CRUN_WRAPPER = """#!/usr/bin/python3 -IS
import json, os, sys
words = sys.argv[1:]
if "--bundle" in words:
    path = words[words.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        spec = json.load(file)
    linux = spec["linux"]
    linux["resources"] = {{"devices": linux["resources"].get("devices", [])}}
    with open(path, "w") as file:
        json.dump(spec, file)
os.environ["LD_PRELOAD"] = "{library}"
os.execv("/usr/bin/crun", ["/usr/bin/crun", *words])
"""
WAIT = "\necho ready\nread -r line\n"  # until the pipe is closed


@contextlib.contextmanager
def view(name: str, more: str = "") -> Iterator[tuple[str, ...]]:
    """Hold a view.

    Args:
        name: of one in SCRIPTS, or "hybrid" for the machine's own.
        more: commands that change what else is to be seen.

    Yields:
        What to put before a command that shall see it; all of them share one mount namespace.
    """
    script = f"{SCRIPTS.get(name, '')}\n{more}"
    if not script.strip():
        yield ()
        return
    words = ["/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-euc", script + WAIT]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n", f"the view {name} cannot be made"
        try:
            yield ("/usr/bin/nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--")
        finally:
            holder.stdin.close()


def name_of(place: tuple[str, str]) -> str:
    """Return a place's name for a test's id."""
    return f"{place[0]}-{Path(place[1]).name}"


def low_level(place: tuple[str, str], directory: Path) -> Path:
    """Return the low-level runtime of a place, in a wrapper if it would not start there.

    crun 1.8 raises RLIMIT_MEMLOCK before it loads a device program, and gives up where it may not, though since
    Linux 5.11 no memory of such programs counts against that limit: a preloaded library lets it believe that it
    did. It also refuses what Docker asks of absent controllers, be it zeros: the wrapper takes that away.

    Args:
        place: one of PLACES.
        directory: to put the wrapper in.

    Returns:
        A path.
    """
    if place != ("v2", CRUN):
        return Path(place[1])
    library, wrapper = directory / "rlimit.so", directory / "crun"
    source = str(Path(__file__).with_name("rlimit.c"))
    subprocess.run(["/usr/bin/gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    wrapper.write_text(CRUN_WRAPPER.format(library=library))
    wrapper.chmod(0o755)
    return wrapper
