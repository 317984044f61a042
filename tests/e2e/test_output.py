"""What a terminal shows of the text of others: none of its rows is theirs to make."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

from e2e.hostile_places import Place

COLUMNS = 80
LINE = "note: all is well"


def on_a_terminal(argv: list[str], env: dict[str, str]) -> str:
    """Run a program whose stdout is a terminal of so many columns; returns what it wrote there."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    said = b""
    with open(outer, "rb", buffering=0) as screen:
        with open(inner, "wb", buffering=0) as terminal:
            process = subprocess.Popen(argv, stdout=terminal, stderr=subprocess.DEVNULL, env=env)
        try:
            while data := screen.read(65536):
                said += data
        except OSError:  # EIO: all who had it open have ended
            pass
        finally:
            process.kill()
            process.wait()
    return said.decode().replace("\r\n", "\n")


def test_no_row_is_theirs(place: Place, tmp_path: Path) -> None:
    """A variable of an image, such that the terminal breaks it in front of what looks like a line of ours."""
    env = [f"NVIDIA_X{at}={'-' * (COLUMNS - at)}{LINE}" for at in range(30)]
    spec = {"ociVersion": "1.0.2", "process": {"env": [*env, "NVIDIA_VISIBLE_DEVICES=0"]}}
    (tmp_path / "config.json").write_text(json.dumps(spec))
    said = on_a_terminal(
        [str(place.top / "bin/gpushim"), "explain", str(tmp_path)], {**os.environ, **place.env, "COLUMNS": "200"}
    )
    assert said.count("-note:") == len(env)
    rows = [line[at : at + COLUMNS] for line in said.splitlines() for at in range(0, len(line), COLUMNS)]
    assert not [row for row in rows if row.startswith(LINE)], said
