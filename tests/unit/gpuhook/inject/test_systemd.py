"""systemd told over D-Bus. The good answers come from systemd's own library, the bad ones are bytes."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuhook.inject import systemd
from gpushim.ground.errors import GpushimError

GPUS = [(195, 255), (195, 0)]
sd = ctypes.CDLL("libsystemd.so.0")  # of every Debian


class Identity(ctypes.Structure):
    """sd_id128_t, which goes by value."""

    _fields_ = (("one", ctypes.c_uint64), ("two", ctypes.c_uint64))


def text(read: str, message: ctypes.c_void_p) -> str:
    function = getattr(sd, f"sd_bus_message_{read}")
    function.restype = ctypes.c_char_p
    return (function(message) or b"-").decode()


def strings(message: ctypes.c_void_p, count: int) -> list[str]:
    values = [ctypes.c_char_p() for _ in range(count)]
    assert sd.sd_bus_message_read(message, b"s" * count, *[ctypes.byref(value) for value in values]) > 0
    return [(value.value or b"").decode() for value in values]


def enter(message: ctypes.c_void_p, form: str) -> bool:
    """Enter a container: its type, then what is in it."""
    return bool(sd.sd_bus_message_enter_container(message, ord(form[0]), form[1:].encode()) > 0)


def new_properties(message: ctypes.c_void_p) -> list[object]:
    """Read SetUnitProperties as systemd does: `sba(sv)`, the variant holding `a(ss)`."""
    name, runtime, found = strings(message, 1)[0], ctypes.c_int(), []
    assert sd.sd_bus_message_read(message, b"b", ctypes.byref(runtime)) > 0
    assert enter(message, "a(sv)")
    while enter(message, "rsv"):
        found += strings(message, 1)
        assert enter(message, "va(ss)")
        assert enter(message, "a(ss)")
        while enter(message, "rss"):
            found += strings(message, 2)
            assert sd.sd_bus_message_exit_container(message) > 0
        for _ in range(3):
            assert sd.sd_bus_message_exit_container(message) > 0
    assert sd.sd_bus_message_exit_container(message) > 0
    assert sd.sd_bus_message_at_end(message, 1) > 0
    return [name, bool(runtime.value), *found]


class Manager:
    """What systemd's private socket answers; a unit's properties and the calls so far."""

    def __init__(self, policy: str = "strict", rules: int = 0, error: str = "") -> None:
        self.policy, self.rules, self.error = policy.encode(), rules, error.encode()
        self.calls: list[object] = []

    def serve(self, connection: socket.socket) -> None:
        bus, message = ctypes.c_void_p(), ctypes.c_void_p()
        assert sd.sd_bus_new(ctypes.byref(bus)) >= 0
        fd = connection.detach()
        assert sd.sd_bus_set_fd(bus, fd, fd) >= 0
        assert sd.sd_bus_set_server(bus, 1, Identity(1, 2)) >= 0
        assert sd.sd_bus_start(bus) >= 0
        while sd.sd_bus_process(bus, ctypes.byref(message)) >= 0:
            if message.value:
                self.answer(bus, message)
                sd.sd_bus_message_unref(message)
                message = ctypes.c_void_p()
            # As systemd's event loop: one step for each time that something has come, sometimes late.
            sd.sd_bus_wait(bus, ctypes.c_uint64(10_000_000))
            time.sleep(0.005)

    def answer(self, bus: ctypes.c_void_p, message: ctypes.c_void_p) -> None:
        member = text("get_member", message)
        if member == "Get":
            interface, name = strings(message, 2)
            self.calls.append((text("get_path", message), interface, name))
            if name == "DevicePolicy":
                sd.sd_bus_reply_method_return(message, b"v", b"s", self.policy)
            else:
                pairs = [b"/dev/null", b"rwm"] * self.rules
                sd.sd_bus_reply_method_return(message, b"v", b"a(ss)", self.rules, *pairs)
        elif member == "SetUnitProperties":
            self.calls.append((text("get_path", message), text("get_interface", message), new_properties(message)))
            # systemd sends signals to everybody on its own socket.
            manager = b"org.freedesktop.systemd1.Manager"
            sd.sd_bus_emit_signal(bus, b"/org/freedesktop/systemd1", manager, b"UnitNew", b"so", b"x", b"/x")
            if self.error:
                sd.sd_bus_reply_method_errorf(message, self.error, b"no %s", b"way")
            else:
                sd.sd_bus_reply_method_return(message, b"")
        elif member == "Hello":
            self.calls.append(member)
            sd.sd_bus_reply_method_return(message, b"s", b":1.7")


@contextmanager
def listening(path: Path, *servers: object) -> Iterator[None]:
    """Serve one connection after the other, each by a Manager or with bytes sent at once."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    held = []

    def work() -> None:
        for server in servers:
            try:
                connection = listener.accept()[0]
            except OSError:
                return  # closed: the test is over
            if isinstance(server, Manager):
                server.serve(connection)
            else:
                assert isinstance(server, bytes)
                held.append(connection)
                connection.sendall(server)
                if server.endswith(b"END"):
                    connection.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        for connection in held:
            connection.close()
        listener.close()


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(systemd, "PRIVATE", str(tmp_path / "private"))
    monkeypatch.setattr(systemd, "SYSTEM", str(tmp_path / "system"))
    return tmp_path / "private"


UNIT = "/org/freedesktop/systemd1/unit/docker_2d1a_2escope"
SCOPE = "org.freedesktop.systemd1.Scope"
ADDED = (
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    ["docker-1a.scope", True, "DeviceAllow", "/dev/char/195:0", "rw", "/dev/char/195:255", "rw"],
)


@pytest.mark.parametrize(
    ("manager", "added"),
    [
        (Manager("strict"), True),
        (Manager("strict", 40), True),
        (Manager("closed"), True),
        (Manager("auto", 1), True),
        (Manager("auto", 0), False),
    ],
    ids=["strict", "strict with rules", "closed", "auto with rules", "auto"],
)
def test_a_unit_is_told(private: Path, manager: Manager, added: bool) -> None:
    """A unit without rules may use everything, and would not any longer with one."""
    with listening(private, manager):
        systemd.extend("docker-1a.scope", GPUS)
    asked = [(UNIT, SCOPE, "DevicePolicy"), (UNIT, SCOPE, "DeviceAllow")]
    assert manager.calls == asked + [ADDED] * added


def test_a_service(private: Path) -> None:
    manager = Manager()
    with listening(private, manager):
        systemd.extend("1é.service", GPUS)
    path = "/org/freedesktop/systemd1/unit/_31_c3_a9_2eservice"
    assert manager.calls[0] == (path, "org.freedesktop.systemd1.Service", "DevicePolicy")


def test_the_system_bus_wants_a_greeting(private: Path) -> None:
    manager = Manager()
    with listening(Path(systemd.SYSTEM), manager):
        systemd.extend("docker-1a.scope", GPUS)
    assert manager.calls[::3] == ["Hello", ADDED]


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_many_numbers(private: Path, count: int) -> None:
    manager = Manager()
    with listening(private, manager):
        systemd.extend("a.scope", [(195, index) for index in range(count)])
    name, _, _, *pairs = manager.calls[2][2]  # type: ignore[index]
    assert (name, pairs[::2]) == ("a.scope", [f"/dev/char/195:{index}" for index in range(count)])


def refused(private: Path, *servers: object) -> str:
    with listening(private, *servers), pytest.raises(GpushimError) as caught:
        systemd.extend("docker-1a.scope", GPUS)
    return str(caught.value)


def test_an_error_is_named(private: Path) -> None:
    answer = refused(private, Manager(error="org.freedesktop.systemd1.NoSuchUnit"))
    assert answer == "SetUnitProperties: org.freedesktop.systemd1.NoSuchUnit"


def test_nobody_listens(private: Path) -> None:
    with pytest.raises(GpushimError, match=r"^No such file or directory$"):
        systemd.extend("a.scope", GPUS)


def message(kind: int = 2, body: bytes = b"", size: int = -1, order: bytes = b"l") -> bytes:
    head = order + bytes([kind, 0, 1]) + struct.pack("<III", len(body) if size < 0 else size, 9, 8)
    return head + b"\5\1u\0\1\0\0\0" + body


TEXT, AUTO = b"\1s\0\0\6\0\0\0strict\0", b"\1s\0\0\4\0\0\0auto\0"
RULES = b"\5a(ss)\0\0\0\0\0\0"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"REJECTED EXTERNAL\r\n", "{} does not accept this user"),
        (b"END", "the connection ended early"),
        (b"x" * (1 << 20) + b"xx", "an answer is too large"),
    ],
    ids=["rejected", "ends", "large"],
)
def test_neither_socket_takes_us(private: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, answer: str) -> None:
    monkeypatch.setattr(systemd, "SYSTEM", systemd.PRIVATE)
    assert refused(private, sent, sent) == answer.format(private)


OK = b"OK 0\r\n"
NO_MESSAGE = "the answer is not a D-Bus message in this machine's byte order, or too large"
FORM = "its answer about DevicePolicy or DeviceAllow has an unknown form"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (OK + b"lEND", "the connection ended early"),
        (OK + message(order=b"B"), NO_MESSAGE),
        (OK + message(size=1 << 21), NO_MESSAGE),
        (OK + b"\xff" * 64, NO_MESSAGE),
        (OK + message(3), "Get: an unknown error"),
        (OK + message(body=TEXT) + message(body=TEXT), FORM),
        (OK + message(body=RULES) + message(body=RULES), FORM),
        (OK + message(body=AUTO) + message(body=RULES[:-1]), FORM),
    ],
    ids=str,
)
def test_bad_answers(private: Path, sent: bytes, answer: str) -> None:
    assert refused(private, sent) == answer


@pytest.mark.parametrize("sent", [b"", b"OK 0", OK, OK + message(4)], ids=["nothing", "half", "none", "a signal"])
def test_no_answer_in_time(private: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(systemd, "DEADLINE", 0.1)
    monkeypatch.setattr(systemd, "SYSTEM", systemd.PRIVATE)
    before = time.monotonic()
    assert refused(private, sent, sent) in ("no answer in time", "Connection timed out")
    assert time.monotonic() - before < 5
