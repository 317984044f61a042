"""What a node does that a driver asks: units of MPS are started, by hand as there is no systemd.

Out of scope: renewing the snapshot, which `gpushim refresh --keep` does beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from e2e.engines import SYSTEM_PATH, run
from e2e.plugins import PROGRAM
from gpuplugin.mps import mps

SECONDS = 30.0


class Units:
    """Supervisors, started while it is entered when the node's request names them; all end with it.

    Args:
        env: GPUSHIM_CONFIG and GPUSHIM_STATE.
        prefix: words before each command, as to enter a mount namespace.
        log: what supervisors say.
    """

    def __init__(self, env: dict[str, str], log: Path, prefix: tuple[str, ...] = ()) -> None:
        self.env, self.log, self._prefix = env, log, prefix
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.held = threading.Event()  # set: nothing is started
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Units:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ends.set()
        self._thread.join()
        for one in self.running.values():
            one.terminate()
        for one in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(SECONDS)
        self.crash()

    def place(self, group: str) -> mps.Folders:
        """Return the directories of a group."""
        return mps.Folders(self.env["GPUSHIM_STATE"], group)

    def groups(self) -> list[str]:
        """List the groups that have directories."""
        top = Path(self.env["GPUSHIM_STATE"], "mps")
        return sorted(os.listdir(top)) if top.is_dir() else []

    def told(self, group: str) -> list[str]:
        """Return what a daemon was told since it began, without questions."""
        lines = Path(self.place(group).log, "control.log").read_text().splitlines()
        return [line for line in lines if line.startswith("set_")]

    def daemon(self, group: str) -> int:
        """Return the pid of a group's daemon."""
        return int(json.loads(Path(self.place(group).state).read_text())["pid"])

    def crash(self) -> None:
        """Kill all of it at once, as a loss of power does: what was mounted and in /run is gone."""
        for one in self.running.values():
            one.kill()
            one.wait(SECONDS)
        self.running.clear()
        for group in self.groups():
            with contextlib.suppress(OSError, ValueError):
                if pid := self.daemon(group):
                    os.killpg(pid, signal.SIGKILL)
            run([*self._prefix, "/bin/umount", "--lazy", self.place(group).shm], check=False)
            run([*self._prefix, "/bin/rm", "-rf", self.place(group).top], check=False)

    def _serve(self) -> None:
        wanted, seen = Path(self.env["GPUSHIM_STATE"], "device-plugin/wanted"), ""
        while not self._ends.wait(0.05):
            with contextlib.suppress(OSError, ValueError):
                text = wanted.read_text()
                if text != seen and not self.held.is_set():
                    seen = text
                    for unit in json.loads(text)["units"]:
                        self._start(unit.removeprefix("gpushim-mps@").removesuffix(".service"))

    def _start(self, group: str) -> None:
        if group in self.running and self.running[group].poll() is None:
            return
        with self.log.open("ab") as log:
            self.running[group] = subprocess.Popen(
                [*self._prefix, "/usr/bin/python3", "-B", str(PROGRAM), "--mps", group], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env={"PATH": SYSTEM_PATH, **self.env}, start_new_session=True,
            )  # fmt: skip
