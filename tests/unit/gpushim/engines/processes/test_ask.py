"""Asking programs: deadlines hold, whatever the program does, and its environment is small."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from gpushim.engines.processes import ask


def script(folder: Path, text: str) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def alive(group: int) -> list[str]:
    """List the processes of a group; one that nobody has waited for yet (Z) is dead."""
    states = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(") ")[2].split()
            states += [fields[0]] if fields[2] == str(group) and fields[0] != "Z" else []
    return states


def test_an_answer(tmp_path: Path) -> None:
    answer = ask.program([script(tmp_path, 'echo "$1"; echo one >&2; echo two >&2; exit 3'), "word"])
    assert (answer.code, answer.out, answer.last) == (3, "word\n", "two")


@pytest.mark.parametrize("text", ["sleep 100", "sleep 100 & sleep 100", "trap '' TERM; while :; do sleep 1; done"])
def test_a_program_that_hangs_ends_with_its_children(tmp_path: Path, text: str) -> None:
    begin = time.monotonic()
    answer = ask.program([script(tmp_path, f"echo $$ >{tmp_path}/pid\n{text}")], 0.3)
    assert time.monotonic() - begin < 5
    assert (answer.code, "has not ended within 0.3 s" in answer.error) == (None, True)
    end = time.monotonic() + 5  # a signal takes its time
    while alive(int((tmp_path / "pid").read_text())) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_child_that_keeps_the_output_does_not_keep_us(tmp_path: Path) -> None:
    begin = time.monotonic()
    ask.program([script(tmp_path, "sleep 100 &")], 0.3)
    assert time.monotonic() - begin < 5


def test_a_program_that_is_not_there() -> None:
    assert "cannot be started" in ask.program(["/gone"]).error


def test_secrets_of_the_environment_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("HOME", "/home/somebody")
    out = ask.program([script(tmp_path, "env")], more={"LD_TEST": "1"}).out
    assert ("AWS" in out, "HOME=/home/somebody" in out, "LD_TEST=1" in out) == (False, True, True)


def test_nobody_listens(tmp_path: Path) -> None:
    (tmp_path / "socket").touch()
    assert not ask.listens(str(tmp_path / "socket"))
    assert not ask.listens(str(tmp_path / "gone" / "socket"))
