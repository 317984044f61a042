"""Compile and read the recording low-level runtime (recorder.c)."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("recorder.c")


def build(directory: Path) -> Path:
    """Compile the recorder, static, below a directory."""
    binary = directory / "recorder"
    subprocess.run(["/usr/bin/gcc", "-O2", "-Wall", "-Werror", "-static", "-o", binary, SOURCE], check=True)
    return binary


def read(record: Path) -> Any:
    """Return what the recorder wrote; bytes that are not ASCII come as surrogates (os.fsencode gives them back)."""
    return json.loads(record.read_text())


def ignore_only(*numbers: int) -> None:
    """Ignore these signals and no other: whoever started the tests may have ignored some, as nohup(1) does."""
    for number in {*range(1, 32)} - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in numbers else signal.SIG_DFL)


def ignored(record: Any) -> set[int]:
    """Return the signals that were ignored; 32 and 33 are the C library's own and depend on who started the test."""
    mask = int(record["SigIgn"], 16)
    return {number for number in range(1, 32) if mask >> (number - 1) & 1}
