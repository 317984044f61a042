"""An ordinary user to whom more ids are lent, as rootlesskit and newuidmap do it, and a gpushim for that user.

Out of scope: engines (podman.py, engines.py); what they are given to see of the host (views.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fakehost
from e2e import leftovers
from e2e.expect import PROBE
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host

USER, NAME, MORE = 1, "daemon", 100000  # on every Debian; and the first of the ids that are lent to that user
IDS = 65536
MAP = f"0 {USER} 1\n1 {MORE} {IDS}\n"
BECOME = ("/usr/bin/setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
HOLD = (*BECOME, "/usr/bin/unshare", "--user", "--mount", "--net", "/bin/sh", "-c", "echo ready; exec cat")


@dataclass
class Installed:
    """A directory that the user may look at, with a simulated host and a gpushim that knows it."""

    folder: Path
    host: Host
    env: dict[str, str]


@contextlib.contextmanager
def installed() -> Iterator[Installed]:
    """Install gpushim for a simulated host; nothing has been refreshed yet."""
    with leftovers.state() as folder:
        folder.chmod(0o755)
        host = fakehost.build(f"{folder}/host", 3, compile_cache=str(TOP / ".cache" / "fakehost"))
        for name in ("bin", "hook", "shim", "vendor"):
            shutil.copytree(TOP / name, folder / "gpushim" / name, symlinks=True)
        shutil.copy2(PROBE, folder)
        (folder / "settings").mkdir()
        env = settings(folder / "settings", host.root)
        log = folder / "settings/gpushim.log"
        log.touch()
        os.chown(log, USER, USER)
        yield Installed(folder, host, env)


@contextlib.contextmanager
def become(prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Hold the user, mount, network and PID namespaces of an ordinary user's engine.

    Args:
        prefix: command that enters the machine.

    Yields:
        What to put before a command that shall have them.
    """
    with subprocess.Popen([*prefix, *HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n", "there is no user namespace to be had"
        try:
            # A prefix that enters a PID namespace forks, and its command is a child.
            children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
            child = children[0] if children else str(holder.pid)
            for name in ("uid_map", "gid_map"):
                Path("/proc", child, name).write_text(MAP)
            kinds = ("user", "mnt", "net", "pid")
            flags = [f"--{'mount' if kind == 'mnt' else kind}=/proc/{child}/ns/{kind}" for kind in kinds]
            yield ("/usr/bin/nsenter", *flags, "--")
        finally:
            holder.stdin.close()
