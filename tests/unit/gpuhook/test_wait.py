"""The child of a create when it is asked; with real shells and creates in unit/gpushim/create/test_ahead."""

from __future__ import annotations

import os
import subprocess

import pytest

from gpuhook import wait
from gpushim.ground.errors import FAILED


@pytest.mark.parametrize(("parent", "asked"), [("1", "@"), ("@", "no pid"), ("@", "0")])
def test_who_cannot_be_its_shell_gets_no_word(monkeypatch: pytest.MonkeyPatch, parent: str, asked: str) -> None:
    """Another low-level runtime's shell, at any moment; what is no pid; a shell that has ended."""
    monkeypatch.setattr(wait, "TICK", 1000)
    (reading, request), (answers, writing) = os.pipe(), os.pipe()
    pid, here = os.getpid(), os.fork()
    if not here:
        os.dup2(reading, 0)
        os.dup2(writing, 1)
        wait.Shell(["wait", parent.replace("@", str(pid)), "prestart"])
        os._exit(0)
    os.write(request, asked.replace("@", str(pid)).encode())
    for fd in (writing, request, reading):
        os.close(fd)
    with open(answers) as pipe:
        assert pipe.read() == ""
    assert os.waitstatus_to_exitcode(os.waitpid(here, 0)[1]) == FAILED


def test_who_is_asked_late_has_all_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "TICK", 1000)
    (reading, request), (answers, writing) = os.pipe(), os.pipe()
    with subprocess.Popen(["/bin/sh", "-c", "exec 5</dev/null; echo; read -r _"], stdin=-1, stdout=-1) as shell:
        assert shell.stdin
        assert shell.stdout
        shell.stdout.readline()
        pid, here = os.getpid(), os.fork()
        if not here:
            os.dup2(reading, 0)
            os.dup2(writing, 1)
            ticks = wait.Shell(["wait", str(pid), "prestart"]).ticks
            os.write(1, b"all" if ticks == wait.MOST else b"less")
            os._exit(0)
        os.write(request, str(shell.pid).encode())
        for fd in (writing, request, reading):
            os.close(fd)
        with open(answers) as pipe:
            assert pipe.read() == "begun\nall"
        os.waitpid(here, 0)
        shell.stdin.close()
