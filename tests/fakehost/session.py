"""A process that keeps NVML open, through the real nvidia-ml-py, and answers questions (questions.py).

Out of scope: what a fresh process sees (client.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fakehost.host import Host
QUESTIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "questions.py")


class Session:
    """A process that has NVML open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, words: str) -> None:
        """Send an expression without waiting for the answer."""
        assert self.process.stdin
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the oldest expression that has none yet; NVML's error as {"error": its number}."""
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def __call__(self, words: str) -> Any:
        self.send(words)
        return self.answer()


@contextlib.contextmanager
def opened(host: Host, *, container: bool = False, uid: int = 0) -> Iterator[Session]:
    """Start a session on a host, or in a chroot where nodes are in /dev and the host's directory is not there."""
    library = f"/{host.libdir}/libnvidia-ml.so.1" if container else host.nvml
    command = [sys.executable, QUESTIONS, library, host.root if container else "/", str(uid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            session = Session(process)
            session("1")
            yield session
        finally:
            process.kill()
