"""Who is in a unit of systemd's: by cgroups, of a process that is still there."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuplugin.processes import peer_unit
from gpuplugin.processes.peer_unit import is_of_unit
from gpushim.ground import system

UNIT = "b.service"
CONNECT = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()"
OWN, THEIRS = "0::/system.slice/a.service", "0::/system.slice/b.service"


@contextmanager
def client(folder: Path) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """Have a process connect, which ends when its stdin does; yield the connection, and it."""
    words = [sys.executable, "-ISc", CONNECT, f"{folder}/s"]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(words[-1])
        server.listen()
        with subprocess.Popen(words, stdin=subprocess.PIPE) as process, server.accept()[0] as connected:
            yield connected, process


def groups(monkeypatch: pytest.MonkeyPatch, own: str, theirs: str) -> None:
    def text(path: str, limit: int) -> str | None:
        return own if path == "/proc/self/cgroup" else theirs or None

    monkeypatch.setattr(system, "text", text)


@pytest.mark.parametrize(
    ("own", "theirs", "found"),
    [
        (OWN, THEIRS, True),
        (OWN, "0::/x.slice/x-y.slice/b.service", True),  # by a drop-in
        (OWN, OWN, False),
        (OWN, "", False),  # it is gone, or hidden
        (OWN, "0::/", False),
        (OWN, "0::/system.slice/b.service/x", False),
        (OWN, "0::/system.slice/containerd.service/b.service", False),
        (OWN, "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope/b.service", False),
        (OWN, "0::/user.slice/user-1.slice/user@1.service/app.slice/b.service", False),
        ("0::/docker/1/system.slice/a.service", "0::/docker/1/system.slice/b.service", True),
        ("0::/docker/1/system.slice/a.service", THEIRS, False),
        (f"1:name=systemd:{OWN[3:]}\n0::/", f"1:name=systemd:{THEIRS[3:]}\n0::/", True),
        (f"1:name=systemd:/\n{OWN}", f"1:name=systemd:/\n{THEIRS}", True),
        (f"1:name=systemd:{OWN[3:]}\n{OWN}", f"1:name=systemd:{OWN[3:]}\n{THEIRS}", False),
        (f"1:name=systemd:{OWN[3:]}\n0::/", f"9:devices:{THEIRS[3:]}\n{THEIRS}", False),
        ("0::/", THEIRS, False),  # this process is in no unit
    ],
)
def test_a_unit(folder: Path, monkeypatch: pytest.MonkeyPatch, own: str, theirs: str, found: bool) -> None:
    groups(monkeypatch, own, theirs)
    with client(folder) as (connected, _):
        assert is_of_unit(connected, UNIT) is found


def test_a_number_that_another_process_has_now(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(monkeypatch, OWN, THEIRS)
    with client(folder) as (connected, process):
        process.communicate()
        assert not is_of_unit(connected, UNIT)


def test_a_kernel_that_does_not_tell_which_process_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(monkeypatch, OWN, THEIRS)
    monkeypatch.setattr(peer_unit, "_PEERPIDFD", 9999)
    with client(folder) as (connected, _):
        with pytest.raises(OSError, match=os.strerror(errno.ENOPROTOOPT)):
            connected.getsockopt(socket.SOL_SOCKET, 9999, 4)
        assert is_of_unit(connected, UNIT)
