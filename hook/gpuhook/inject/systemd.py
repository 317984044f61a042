"""Add devices to those that systemd allows a container's unit.

A cgroup that is a systemd unit gets its rules from systemd again at each `systemctl daemon-reload` or change of
a property (`docker update`). Rules that systemd does not know are then gone, so it is told: SetUnitProperties
of org.freedesktop.systemd1(5), over D-Bus as the D-Bus specification lays it out.

By hand, for this takes 2 ms where `systemctl show` and `systemctl set-property` take 13, and systemctl answers
"success" without doing anything where the engine has another root than systemd. busctl needs a bus daemon, which a
host need not have: it does not speak to systemd's own socket.
"""

from __future__ import annotations

import posix
import time
from _socket import AF_UNIX, SOCK_STREAM, socket
from errno import ETIMEDOUT
from struct import pack, unpack_from

from gpushim.ground.errors import GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# systemd's own socket, which needs no bus daemon, and the system bus.
PRIVATE, SYSTEM = "/run/systemd/private", "/run/dbus/system_bus_socket"
DEADLINE = 0.3  # seconds for everything
MESSAGE_LIMIT = 1 << 20  # bytes
_NAME = "org.freedesktop.systemd1"
_RETURN, _ERROR = 2, 3  # types of messages
_PATH, _INTERFACE, _MEMBER, _DESTINATION, _SIGNATURE = 1, 2, 3, 6, 8  # header fields
_ERROR_NAME = b"\4\1s\0"  # how that field begins
_AUTO, _NO_RULES = b"\1s\0\0\4\0\0\0auto\0", b"\5a(ss)\0\0\0\0\0\0"  # answers to Get


def _put(out: bytearray, *values: int | str | bytes) -> None:
    """Append values: a number as UINT32, text as STRING, bytes as SIGNATURE."""
    for value in values:
        if isinstance(value, bytes):
            out += bytes([len(value)]) + value + b"\0"
            continue
        data = b"" if isinstance(value, int) else value.encode("utf-8", "surrogateescape") + b"\0"
        out += bytes(-len(out) % 4) + pack("<I", value if isinstance(value, int) else len(data) - 1) + data


def _pad(out: bytearray) -> None:
    """Append zeros up to where a structure may begin."""
    out += bytes(-len(out) % 8)


def _message(serial: int, destination: str, path: str, member: str, signature: bytes, body: bytes) -> bytes:
    """Write a method call in little endian order; `member` is interface and method with a dot between."""
    interface, _, method = member.rpartition(".")
    out = bytearray(b"l\1\0\1" + pack("<III", len(body), serial, 0))
    fields: list[tuple[int, bytes, str | bytes]] = [(_PATH, b"o", path), (_INTERFACE, b"s", interface)]
    fields += [(_MEMBER, b"s", method), (_DESTINATION, b"s", destination)]
    for code, form, value in [*fields, (_SIGNATURE, b"g", signature)] if signature else fields:
        _pad(out)
        out.append(code)
        _put(out, form, value)
    out[12:16] = pack("<I", len(out) - 16)
    _pad(out)
    return bytes(out) + body


def _properties(unit: str, numbers: Iterable[tuple[int, int]]) -> bytes:
    """Write the arguments of SetUnitProperties, `sba(sv)`: the unit, for this boot only, DeviceAllow as `a(ss)`.

    systemd appends to the list that the unit has.
    """
    out = bytearray()
    _put(out, unit, 1)
    start = _array(out)
    _put(out, "DeviceAllow", b"a(ss)")
    inner = _array(out)
    for major, minor in sorted(set(numbers)):
        _pad(out)
        _put(out, f"/dev/char/{major}:{minor}", "rw")
    for at in (inner, start):
        out[at - 4 : at] = pack("<I", len(out) - at - (-at % 8))
    return bytes(out)


def _array(out: bytearray) -> int:
    """Begin an array of structures; return where its length ends. The padding behind that does not count."""
    _put(out, 0)
    end = len(out)
    _pad(out)
    return end


class Bus:
    """A connection to systemd, which must be over at a time of time.monotonic().

    Raises:
        OSError: nobody listens there, or not in time.
        GpushimError: the listener does not speak D-Bus, or does not accept us.
    """

    __slots__ = ("buffer", "end", "serial", "socket")

    def __init__(self, path: str, end: float) -> None:
        self.socket, self.end, self.serial, self.buffer = socket(AF_UNIX, SOCK_STREAM), end, 0, b""
        try:
            self._hurry()
            self.socket.connect(path)
            # Both at once: a message that systemd reads together with BEGIN waits there for the next one.
            self._send(b"\0AUTH EXTERNAL %s\r\nBEGIN\r\n" % str(posix.geteuid()).encode().hex().encode())
            while b"\r\n" not in self.buffer:
                self._receive()
            answer, _, self.buffer = self.buffer.partition(b"\r\n")
            if not answer.startswith(b"OK "):
                raise GpushimError(f"{path} does not accept this user")
        except BaseException:
            self.socket.close()
            raise

    def _hurry(self) -> None:
        seconds = self.end - time.monotonic()
        if seconds <= 0:
            raise OSError(ETIMEDOUT, posix.strerror(ETIMEDOUT))
        self.socket.settimeout(seconds)

    def _send(self, data: bytes) -> None:
        self._hurry()
        self.socket.sendall(data)

    def _receive(self) -> None:
        self._hurry()
        data = self.socket.recv(1 << 16)
        self.buffer += data
        if not data or len(self.buffer) > MESSAGE_LIMIT:
            raise GpushimError("the connection ended early" if not data else "an answer is too large")

    def call(self, destination: str, path: str, member: str, signature: bytes = b"", body: bytes = b"") -> bytes:
        """Call a method and return the body of its answer, the only message of its type that comes meanwhile.

        Raises:
            OSError: no answer in time.
            GpushimError: the answer is an error, or no D-Bus message.
        """
        self.serial += 1
        self._send(_message(self.serial, destination, path, member, signature, body))
        kind = 0
        while kind not in (_RETURN, _ERROR):  # but a signal
            while (size := _size(self.buffer)) > len(self.buffer):
                self._receive()
            kind, answer, self.buffer = self.buffer[1], self.buffer[:size], self.buffer[size:]
        body_size, _, fields = unpack_from("<III", answer, 4)
        if kind == _RETURN:
            return answer[size - body_size :]
        name = answer[16 : 16 + fields].partition(_ERROR_NAME)[2][4:].partition(b"\0")[0].decode("utf-8", "replace")
        raise GpushimError(f"{member.rpartition('.')[2]}: {name or 'an unknown error'}")


def _size(data: bytes) -> int:
    """Return the length of the message that begins here; 16 while too little of it is there to tell."""
    if len(data) < 16:
        return 16
    body, _, fields = unpack_from("<III", data, 4)
    size: int = 16 + fields + (-fields % 8) + body
    if data[:1] != b"l" or size > MESSAGE_LIMIT:
        raise GpushimError("the answer is not a D-Bus message in this machine's byte order, or too large")
    return size


def _escaped(unit: str) -> str:
    """Write a unit's name as the last part of its object path (sd_bus_path_encode(3))."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    data = unit.encode("utf-8", "surrogateescape")
    first = 1 if data[:1].isdigit() else 0
    return "".join([f"_{byte:02x}" if at < first or byte not in plain else chr(byte) for at, byte in enumerate(data)])


def _restricts(bus: Bus, unit: str) -> bool:
    """Return whether a unit has device rules; to add one to a unit that has none would take everything else away."""
    path = f"/org/freedesktop/systemd1/unit/{_escaped(unit)}"
    interface = f"{_NAME}.{'Scope' if unit.endswith('.scope') else 'Service'}"
    answers = []
    for name in ("DevicePolicy", "DeviceAllow"):
        body = bytearray()
        _put(body, interface, name)
        answers.append(bus.call(_NAME, path, "org.freedesktop.DBus.Properties.Get", b"ss", bytes(body)))
    policy, rules = answers
    if policy[:3] != _AUTO[:3] or rules[:7] != _NO_RULES[:7] or len(rules) < len(_NO_RULES):
        raise GpushimError("its answer about DevicePolicy or DeviceAllow has an unknown form")
    return policy != _AUTO or rules[: len(_NO_RULES)] != _NO_RULES


def extend(unit: str, numbers: Iterable[tuple[int, int]]) -> None:
    """Allow a unit that has device rules some character devices until it ends or the machine reboots.

    Args:
        unit: its name, such as docker-0123.scope.
        numbers: majors and minors.

    Raises:
        GpushimError: systemd is not there, does not answer in time, or refuses.
    """
    end = time.monotonic() + DEADLINE
    try:
        try:
            bus = Bus(PRIVATE, end)
        except (OSError, GpushimError):
            bus = Bus(SYSTEM, end)
        try:
            if bus.socket.getpeername() == SYSTEM:
                bus.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus.Hello")
            if _restricts(bus, unit):
                member = f"{_NAME}.Manager.SetUnitProperties"
                bus.call(_NAME, "/org/freedesktop/systemd1", member, b"sba(sv)", _properties(unit, numbers))
        finally:
            bus.socket.close()
    except OSError as error:
        raise GpushimError(error.strerror or "no answer in time") from None
