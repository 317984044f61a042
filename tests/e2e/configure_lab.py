"""A daemon.json, and `gpushim configure docker` on it, killed or written against at one of its calls."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from e2e.engines import SYSTEM_PATH
from e2e.faults import CHANGES, Call, Done, calls, strike, tree
from e2e.trees import TOP

OLD = b'{\n    "debug": true\n}\n'
THEIRS = b'{"theirs": 1}\n'
CHANGING = {*CHANGES, "fsync", "openat", "read"}
LOOK = '"daemon.json"'


class Lab:
    """A daemon.json, and the command that changes it or takes that back.

    Args:
        work: empty directory.
        top: the checkout whose command it is.
    """

    def __init__(self, work: Path, top: Path = TOP) -> None:
        self.top = top
        self.folder, self.state = work / "etc", work / "state"
        self.config, self.runtime = self.folder / "daemon.json", work / "gpushim-runtime"
        self.runtime.touch(0o755)
        self.env = {"PATH": SYSTEM_PATH, "GPUSHIM_STATE": str(self.state)}
        self.configure = self.command(f"--runtime-path={self.runtime}")
        self.remove = self.command("--remove")
        self.saved = work / "saved"
        self.lay(self.configure)
        subprocess.run(self.configure, env=self.env, check=True, capture_output=True)
        self.new = self.config.read_bytes()
        for folder in (self.folder, self.state):
            shutil.copytree(folder, self.saved / folder.name)

    def command(self, *words: str) -> list[str]:
        program = ["/usr/bin/python3", "-IB", str(self.top / "bin/gpushim"), "configure", "docker"]
        return [*program, "--files-only", f"--config={self.config}", *words]

    def lay(self, command: list[str]) -> None:
        """Put the files as they are before a command."""
        for folder in (self.folder, self.state):
            shutil.rmtree(folder, ignore_errors=True)
            if command == self.remove:
                shutil.copytree(self.saved / folder.name, folder)
            else:
                folder.mkdir()
        if command != self.remove:
            self.config.write_bytes(OLD)

    def calls(self, command: list[str]) -> list[Call]:
        """List the calls of a command, from its first look at the file on, that change something or look."""
        self.lay(command)
        made = calls(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        first = next(place for place, call in enumerate(made) if LOOK in call.words)
        return [call for call in made[first:] if call.name in CHANGING]

    def strike(self, command: list[str], call: Call, what: str) -> Done | None:
        self.lay(command)
        return strike(command, call, what, env=self.env)

    def interrupt(self, command: list[str], call: Call, act: Callable[[], object]) -> str:
        """Run a command, and do something behind one of its calls, while it stands still; return what it says."""
        self.lay(command)
        trace = self.state.with_name("trace")
        words = ["/usr/bin/strace", "-qq", "-o", str(trace), "-e", f"trace={call.name}", "-e", "signal=STOP"]
        words += ["-e", f"inject={call.name}:signal=SIGSTOP:when={call.number}"]
        trace.write_text("")
        with subprocess.Popen(
            [*words, *command], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as it:
            while it.poll() is None and "SIGSTOP" not in trace.read_text():
                time.sleep(0.01)
            act()
            for child in (
                Path(f"/proc/{it.pid}/task/{it.pid}/children").read_text().split() if it.poll() is None else ()
            ):
                os.kill(int(child), signal.SIGCONT)
            return it.communicate(timeout=60)[0].decode()

    def replaced(self) -> None:
        """Another program writes, as an editor does."""
        fresh = self.folder / "fresh"
        fresh.write_bytes(THEIRS)
        fresh.rename(self.config)

    def ends(self) -> None:
        """Put gpushim in and take it out, after which all is as before."""
        for command in (self.configure, self.remove):
            subprocess.run(command, env=self.env, check=True, capture_output=True)
        assert tree(self.folder) == {self.config.name: (self.config.stat().st_mode, OLD)}
