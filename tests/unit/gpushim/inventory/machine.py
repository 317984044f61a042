"""A simulated host together with gpushim's own files on it, and the refresh as a real process.

NVML is loaded only in that process: once loaded, a library stays, and the next test has another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import earlier, renew
from gpushim.refresh import refresh
from unit.gpuhook.sandbox import forked


def running(state: str) -> list[int]:
    """List the refreshes that creates have started for a state directory, and that still run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it is gone
            continue
        if f"GPUSHIM_STATE={state}".encode() in variables and b"--locked" in words:
            found.append(int(pid))
    return found


def end(state: str) -> None:
    """Kill them."""
    for pid in running(state):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def told(state: str, *uuids: str, ago: float = 0.0, **more: Any) -> None:
    """Write that calls of GPUs hang, as the plugin does."""
    Path(state, "device-plugin").mkdir(mode=0o700, parents=True, exist_ok=True)
    gpus = dict.fromkeys(uuids, system.clock() - ago)
    Path(state, earlier.HUNG).write_text(json.dumps({"boot": system.boot(), "gpus": gpus, **more}))


# What systemd notes in a container, in a mount namespace.
INSIDE = 'mount -t tmpfs inside /run && mkdir /run/systemd && : >/run/systemd/container && exec "$@"'


class Machine:
    inside = False  # a container of another machine

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = str(folder / "host")
        self.config = str(folder / "config.toml")
        self.state = str(folder / "state")

    def build(self, gpus: Any = 1, more: str = "", **options: Any) -> fakehost.Host:
        host = fakehost.build(self.root, gpus, **options)
        self.configure(f'[driver]\nroot = "{self.root}"\n{more}')
        return host

    def configure(self, text: str) -> None:
        Path(self.config).write_text(text)

    def start(self, *args: str, path: str = "/usr/sbin:/usr/bin") -> subprocess.Popen[str]:
        words = ["/usr/bin/unshare", "--mount", "/bin/sh", "-ec", INSIDE, "sh"] if self.inside else []
        words += [*renew.command(), *args]
        return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=self.environment(path))

    def environment(self, path: str = "/usr/sbin:/usr/bin") -> dict[str, str]:
        return {"PATH": path, "GPUSHIM_CONFIG": self.config, "GPUSHIM_STATE": self.state}

    def refresh(self, *args: str) -> tuple[int, str]:
        process = self.start(*args)
        _, said = process.communicate(timeout=60)
        return process.returncode, said

    def saved(self) -> Any:
        return json.loads((self.folder / "state/inventory.json").read_text())

    def refreshed(self, *args: str) -> Any:
        code, said = self.refresh(*args)
        assert code == 0, said
        return self.saved()

    def listed(self) -> None:
        """Refresh in a child that has the modules already, for tests that only begin with it."""

        def work() -> object:
            os.environ.clear()
            os.environ.update(self.environment())
            return refresh.refresh()["error"]

        assert not forked(work)


def snapshot(machine: Machine) -> Any:
    return renew.snapshot(machine.config, machine.state)


def refusal(machine: Machine) -> GpushimError:
    with pytest.raises(GpushimError) as caught:
        snapshot(machine)
    return caught.value
