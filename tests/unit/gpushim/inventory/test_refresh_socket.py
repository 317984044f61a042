"""A create asks the service, which is a real one here but for systemd, and goes on by itself where none serves it."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpushim.ground.errors import INVENTORY
from gpushim.inventory import renew
from unit.gpushim.inventory.machine import Machine, refusal, snapshot

pytestmark = pytest.mark.slow
SERVICE = str(Path(__file__).parents[4] / "bin/gpushim") + " refresh --asked"
START = "export LISTEN_PID=$$ LISTEN_FDS=1; exec 3<&"


class Unit:
    """What systemd does for the socket: while somebody waits there, it runs the service; `began` counts."""

    def __init__(self, machine: Machine, service: str) -> None:
        self.began, self._over = 0, threading.Event()
        self._environment, self._service = machine.environment(), service
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"{machine.state}/{renew.SOCKET}")
        self._socket.listen()
        self._thread = threading.Thread(target=self._activate)
        self._thread.start()

    def _activate(self) -> None:
        while not self._over.is_set():
            if select.select([self._socket], [], [], 0.02)[0]:
                self.began += 1
                place = self._socket.fileno()
                words = ["/bin/bash", "-c", f"{START}{place}; {self._service}"]
                with subprocess.Popen(words, env=self._environment, pass_fds=[place], stderr=subprocess.PIPE) as ran:
                    while ran.poll() is None and not self._over.wait(0.02):
                        pass
                    ran.kill()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def serve(machine: Machine) -> Iterator[Callable[..., Unit]]:
    """Start the unit with a service, by default the real one."""
    units: list[Unit] = []

    def start(service: str = f"exec {SERVICE}") -> Unit:
        Path(machine.state).mkdir(exist_ok=True)
        units.append(Unit(machine, service))
        return units[-1]

    yield start
    for unit in units:
        unit.stop()


@pytest.fixture
def log(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each child that a create has started."""
    path, real = machine.folder / "children", renew.command()
    path.touch()
    words = ["/bin/sh", "-c", f'echo child >>{path}; exec "$@"', "sh", *real]
    monkeypatch.setattr(renew, "command", lambda: words)
    return path


def test_the_service_lists_for_all(machine: Machine, log: Path, serve: Callable[..., Unit]) -> None:
    machine.build(1)
    unit = serve()
    with ThreadPoolExecutor(8) as creates:
        found = list(creates.map(lambda _: snapshot(machine), range(8)))
    assert found == [machine.saved()] * 8
    assert log.read_text() == ""
    assert 1 <= unit.began <= 8


def test_a_create_that_was_served_takes_no_lock(
    machine: Machine, serve: Callable[..., Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen with its tenant, it would keep it."""
    machine.build(1)
    serve()
    monkeypatch.setattr(renew, "_take_lock", lambda lock: pytest.fail("it has taken the lock"))
    assert snapshot(machine) == machine.saved()


def test_how_the_service_fails_is_told(machine: Machine, log: Path, serve: Callable[..., Unit]) -> None:
    machine.configure("[drivers]\n")
    serve()
    assert "drivers is not a known key" in str(refusal(machine))
    assert log.read_text() == ""


@pytest.mark.parametrize(
    "service",
    ["exit 1", "kill -9 $$", f"GPUSHIM_CONFIG=/other.toml exec {SERVICE}", f"GPUSHIM_STATE=/nowhere exec {SERVICE}"],
)
def test_a_service_that_is_of_no_use(
    machine: Machine, log: Path, serve: Callable[..., Unit], monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    machine.build(1)
    monkeypatch.setattr(renew, "AGREEMENT", 0.5)
    serve(service)
    assert not renew.served(machine.config, machine.state, lambda: time.sleep(0.01))
    assert snapshot(machine) == machine.saved()
    assert log.read_text() == "child\n"


def test_a_service_that_never_starts(machine: Machine, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build(1)
    Path(machine.state).mkdir()
    monkeypatch.setattr(renew, "AGREEMENT", 0.5)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(f"{machine.state}/{renew.SOCKET}")
        silent.listen()
        assert snapshot(machine) == machine.saved()
    assert log.read_text() == "child\n"


def agreeing(machine: Machine) -> socket.socket:
    """A service that agrees, and then hangs."""
    Path(machine.state).mkdir()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(f"{machine.state}/{renew.SOCKET}")
    listening.listen()

    def agree() -> None:
        try:
            one, _ = listening.accept()
        except OSError:
            return
        with one:
            one.send(renew.AGREED)
            one.recv(1), one.recv(1)  # until it gives up

    threading.Thread(target=agree, daemon=True).start()
    return listening


IMPATIENT = "[refresh]\ndeadline-seconds = 1\n"


def test_a_service_that_hangs(machine: Machine, log: Path) -> None:
    machine.build(1, "[refresh]\ndeadline-seconds = 3\n")
    with agreeing(machine):
        assert snapshot(machine) == machine.saved()
    assert log.read_text() == "child\n"


def test_a_service_that_hangs_with_the_lock(machine: Machine, log: Path) -> None:
    """Beside it nobody may list the GPUs."""
    machine.build(1, IMPATIENT)
    with agreeing(machine), open(f"{machine.state}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = refusal(machine)
    assert (error.exit_code, "has waited 1 s" in str(error)) == (INVENTORY, True)
    assert log.read_text() == ""


def test_nobody_else_s_socket_is_asked(machine: Machine, log: Path, serve: Callable[..., Unit]) -> None:
    machine.build(1)
    unit = serve()
    os.chmod(machine.state, 0o777)
    assert "cannot be trusted" in str(refusal(machine))
    assert unit.began == 0


def test_who_says_nothing_holds_up_nobody(machine: Machine, serve: Callable[..., Unit]) -> None:
    """A create that has next to nothing of a processor connects, and does not get further."""
    machine.build(1)
    serve()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as slow:
        slow.connect(f"{machine.state}/{renew.SOCKET}")
        began = time.monotonic()
        assert renew.served(machine.config, machine.state, lambda: time.sleep(0.01))
    assert snapshot(machine) == machine.saved()
    assert time.monotonic() - began < 30


def test_without_a_socket_there_is_nothing_to_serve(machine: Machine) -> None:
    done = subprocess.run(["/bin/sh", "-c", f"exec {SERVICE}"], capture_output=True, env=machine.environment())
    assert (done.returncode, b"is for gpushim-refresh.socket" in done.stderr) == (2, True)
