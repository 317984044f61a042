"""Tell systemd which devices a container's unit may use.

A cgroup that is a systemd unit gets its rules from systemd again at each `systemctl daemon-reload` or change of
a property (`docker update`). Rules that systemd does not know are then gone, so it is told: SetUnitProperties
of org.freedesktop.systemd1(5), over D-Bus as the D-Bus specification lays it out.

Out of scope: rules of the cgroup itself (devices.py). Not for the hot path: a socket; some milliseconds.
"""

from __future__ import annotations

import posix
import time
from _socket import AF_UNIX, SOCK_STREAM, socket
from errno import ETIMEDOUT
from struct import error as StructError  # noqa: N812 # an exception by its nature
from struct import pack, unpack_from

from gpushim.errors import GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# systemd's own socket, which needs no bus daemon, and the system bus.
PRIVATE, SYSTEM = "/run/systemd/private", "/run/dbus/system_bus_socket"
DEADLINE = 0.3  # seconds for everything
MESSAGE_LIMIT = 1 << 20  # bytes
_NAME = "org.freedesktop.systemd1"
_RETURN, _ERROR = 2, 3  # types of messages
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_TO, _DESTINATION, _SIGNATURE = 1, 2, 3, 4, 5, 6, 8  # of fields


def _pad(out: bytearray, size: int) -> None:
    out += bytes(-len(out) % size)


def _number(out: bytearray, value: int) -> None:
    _pad(out, 4)
    out += pack("<I", value)


def _text(out: bytearray, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    _number(out, len(data))
    out += data + b"\0"


def _signature(out: bytearray, text: str) -> None:
    out.append(len(text))
    out += text.encode("ascii") + b"\0"


def message(serial: int, destination: str, path: str, member: str, signature: str, body: bytes) -> bytes:
    """Write a method call.

    Args:
        serial: its number, not 0.
        destination: the bus name it is for.
        path: of the object.
        member: interface and method with a dot between.
        signature: of the body.
        body: the arguments, marshalled.

    Returns:
        the message in little endian order.
    """
    interface, _, method = member.rpartition(".")
    out = bytearray(b"l\1\0\1" + pack("<III", len(body), serial, 0))
    fields = ((_PATH, "o", path), (_INTERFACE, "s", interface), (_MEMBER, "s", method))
    for code, form, value in (*fields, (_DESTINATION, "s", destination)):
        _pad(out, 8)
        out.append(code)
        _signature(out, form)
        _text(out, value)
    if signature:
        _pad(out, 8)
        out.append(_SIGNATURE)
        _signature(out, "g")
        _signature(out, signature)
    out[12:16] = pack("<I", len(out) - 16)
    _pad(out, 8)
    return bytes(out) + body


def properties(unit: str, numbers: Iterable[tuple[int, int]]) -> bytes:
    """Write the arguments of SetUnitProperties, `sba(sv)`: the unit, for this boot only, DeviceAllow as `a(ss)`.

    systemd appends to the list that the unit has.
    """
    out = bytearray()
    _text(out, unit)
    _number(out, 1)
    start = _array(out)
    _text(out, "DeviceAllow")
    _signature(out, "a(ss)")
    inner = _array(out)
    for major, minor in sorted(set(numbers)):
        _pad(out, 8)
        _text(out, f"/dev/char/{major}:{minor}")
        _text(out, "rw")
    for at in (inner, start):
        out[at - 4 : at] = pack("<I", len(out) - at - (-at % 8))
    return bytes(out)


def _array(out: bytearray) -> int:
    """Begin an array of structures; return where its length ends. The padding behind that does not count."""
    _number(out, 0)
    end = len(out)
    _pad(out, 8)
    return end


class Bus:
    """A connection to systemd.

    Args:
        path: of the socket.
        end: time.monotonic() at which everything must be over.

    Raises:
        OSError: nobody listens there, or not in time.
        GpushimError: whoever listens does not speak D-Bus, or does not accept us.
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
        left = self.end - time.monotonic()
        if left <= 0:
            raise OSError(ETIMEDOUT, posix.strerror(ETIMEDOUT))
        self.socket.settimeout(left)

    def _send(self, data: bytes) -> None:
        self._hurry()
        self.socket.sendall(data)

    def _receive(self) -> None:
        self._hurry()
        data = self.socket.recv(1 << 16)
        self.buffer += data
        if not data or len(self.buffer) > MESSAGE_LIMIT:
            raise GpushimError("the connection ended early" if not data else "an answer is too large")

    def call(self, destination: str, path: str, member: str, signature: str, body: bytes) -> bytes:
        """Call a method and return the body of its answer.

        Raises:
            OSError: no answer in time.
            GpushimError: the answer is an error, or no D-Bus message.
        """
        self.serial += 1
        self._send(message(self.serial, destination, path, member, signature, body))
        while True:
            while (size := _size(self.buffer)) > len(self.buffer):
                self._receive()
            kind, fields, answer = parse(self.buffer[:size])
            self.buffer = self.buffer[size:]
            if fields.get(_REPLY_TO) != self.serial:
                continue  # a signal
            if kind == _RETURN:
                return answer
            raise GpushimError(f"{member.rpartition('.')[2]}: {fields.get(_ERROR_NAME, 'an unknown error')}")


def _size(data: bytes) -> int:
    """Return the length of the message that begins here, as far as that can be said."""
    if len(data) < 16:
        return 16
    body, _, fields = unpack_from("<III", data, 4)
    size: int = 16 + fields + (-fields % 8) + body
    if data[:1] != b"l" or size > MESSAGE_LIMIT:
        raise GpushimError("the answer is no D-Bus message in this machine's byte order, or too large")
    return size


def parse(data: bytes) -> tuple[int, dict[int, str | int], bytes]:
    """Take a message apart.

    Args:
        data: the whole message, little endian.

    Returns:
        its type, its header fields, its body.

    Raises:
        GpushimError: it is none.
    """
    fields: dict[int, str | int] = {}
    try:
        at, end = 16, 16 + unpack_from("<I", data, 12)[0]
        while at < end:
            at += -at % 8
            code, form = data[at], data[at + 1 : at + 4]
            at += 4
            if form == b"\1g\0":
                fields[code] = _string(data, at, 1)
                at += 2 + data[at]
                continue
            at += -at % 4
            (number,) = unpack_from("<I", data, at)
            at += 4
            fields[code] = number
            if form in (b"\1s\0", b"\1o\0"):
                fields[code] = _string(data, at - 4, 4)
                at += number + 1
            elif form != b"\1u\0":
                raise GpushimError("the answer has an unknown header field")
    except (StructError, IndexError):
        raise GpushimError("the answer is no D-Bus message") from None
    return data[1], fields, data[end + (-end % 8) :]


def _string(data: bytes, at: int, width: int) -> str:
    length = data[at] if width == 1 else unpack_from("<I", data, at)[0]
    text = data[at + width : at + width + length]
    if len(text) < length:
        raise IndexError
    return str(text, "utf-8", "replace")


def _escaped(unit: str) -> str:
    """Write a unit's name as the last part of its object path (sd_bus_path_encode(3))."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    data = unit.encode("utf-8", "surrogateescape")
    first = 1 if data[:1].isdigit() else 0
    return "".join([f"_{byte:02x}" if at < first or byte not in plain else chr(byte) for at, byte in enumerate(data)])


def _restricts(bus: Bus, unit: str) -> bool:
    """Tell whether a unit has device rules; to add one to a unit that has none would take everything else away."""
    path = f"/org/freedesktop/systemd1/unit/{_escaped(unit)}"
    interface = f"{_NAME}.{'Scope' if unit.endswith('.scope') else 'Service'}"
    answers = []
    for name in ("DevicePolicy", "DeviceAllow"):
        body = bytearray()
        _text(body, interface)
        _text(body, name)
        answers.append(bus.call(_NAME, path, "org.freedesktop.DBus.Properties.Get", "ss", bytes(body)))
    policy, rules = answers
    try:
        if policy[:3] != b"\1s\0" or rules[:7] != b"\5a(ss)\0":
            raise IndexError
        return _string(policy, 4, 4) != "auto" or unpack_from("<I", rules, 8)[0] > 0
    except (StructError, IndexError):
        raise GpushimError("its answer about DevicePolicy or DeviceAllow has an unknown form") from None


def extend(unit: str, numbers: Iterable[tuple[int, int]]) -> None:
    """Let a unit that has device rules use some character devices until it ends or the machine reboots.

    Args:
        unit: its name, such as docker-0123.scope.
        numbers: majors and minors.

    Raises:
        GpushimError: systemd is not there, does not answer in time, or does not want to.
    """
    end = time.monotonic() + DEADLINE
    try:
        try:
            bus = Bus(PRIVATE, end)
        except (OSError, GpushimError):
            bus = Bus(SYSTEM, end)
        try:
            if bus.socket.getpeername() == SYSTEM:
                bus.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus.Hello", "", b"")
            if _restricts(bus, unit):
                member = f"{_NAME}.Manager.SetUnitProperties"
                bus.call(_NAME, "/org/freedesktop/systemd1", member, "sba(sv)", properties(unit, numbers))
        finally:
            bus.socket.close()
    except OSError as error:
        raise GpushimError(error.strerror or "no answer in time") from None
