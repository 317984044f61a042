#!/usr/bin/env python3
"""List the files that somebody reads who follows a create, a refresh, or `gpushim configure`, to its end.

    bench/walk.py create|refresh|configure [docker|containerd]

A file counts if one of its functions runs for a container of one GPU on a simulated host, or for an engine's settings
with one value. It counts to the walk if it is in a room of the walk's own (ROOMS); others are listed behind, as what
the walk calls. Needs root.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP), str(TOP / "tests")]

from bench import scenes  # noqa: E402

ROOMS = {
    "create": {"create", "decision", "oci", "inventory"},
    "refresh": {"refresh", "inventory", "cdi/generate"},
    "configure": {"cli", "engines/containerd", "engines/docker", "engines/processes", "engines/settings"},
}
SHELL = {"create": ["shim/gpushim/launcher", "shim/gpushim/create/stub.py"]}  # start the Python below
MAIN = {what: f"from gpushim.{what}.{what} import main" for what in ("create", "refresh")}
MAIN["configure"] = """
from gpushim.cli.configure import configure as main
from gpushim.engines.containerd import process
from gpushim.engines.docker import dockerd
folder = words.pop()  # in place of this machine's
process.SYSTEM_CONFIG = folder + "/config.toml"
dockerd.SYSTEM_CONFIG, dockerd.LINKS, dockerd.PATH = folder + "/daemon.json", folder, folder
"""
PROGRAM = """
import atexit, json, posix, sys, threading
top, out, imports, *words = sys.argv[1:]
sys.path += [top + "/shim", top + "/vendor"]
exec(imports)
ran, execve = set(), posix.execve
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        ran.add(frame.f_code.co_filename)
def save(*words):
    sys.setprofile(None)
    with open(out, "w") as file:
        json.dump(sorted(ran), file)
    if words:
        execve(*words)
posix.execve = save
atexit.register(save)
threading.setprofile(note)
sys.setprofile(note)
main(words)
"""


def main() -> None:
    """Run the walk and print its files."""
    what, engine = sys.argv[1], [*sys.argv[2:], "docker"][0]
    with ExitStack() as stack:
        # Not in /tmp, where others may make files: `configure` touches none there.
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushim-walk-", dir="/run")))
        env, bundle, out = scenes.settings(work, "host", 1, "/bin/true"), work / "bundle", work / "ran.json"
        bundle.mkdir()
        (bundle / "config.json").write_text(scenes.asking("all"))
        create = ["/bin/true", "", "create", str(bundle), "x", "", "", "", "0", "", "", "/bin/sh"]
        (work / "daemon.json").write_text('{"debug": true}')
        (work / "config.toml").write_text('version = 2\nroot = "/x"\n')
        words = {"create": create, "refresh": ["--force"], "configure": [engine, str(work)]}[what]
        command = ["/usr/bin/python3", "-IBS", "-c", PROGRAM, str(TOP), str(out), MAIN[what], *words]
        subprocess.run(command, env=env, check=True, stderr=subprocess.DEVNULL)
        ran = [Path(name).relative_to(TOP) for name in json.loads(out.read_text()) if name.startswith(f"{TOP}/shim/")]
    own = [path for path in ran if str(path.parent).removeprefix("shim/gpushim/") in ROOMS[what]]
    listed = SHELL.get(what, []) + [str(path) for path in own]
    print(*listed, f"{len(listed)} files", sep="\n")
    print("called:", *sorted({*ran} - {*own}), sep="\n")


if __name__ == "__main__":
    main()
