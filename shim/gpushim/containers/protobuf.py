"""Protocol buffers: messages as plain dicts, by tables of field numbers.

A table maps a message's name to its fields, by number: (name, type, repeated). A type is "string", "bool", "int32",
"int64", "map" (of strings to strings) or another message's name. What protobuf's own parser accepts is accepted, what
it refuses is refused, and unknown fields are skipped; tests hold the two together (protobuf's wire format,
https://protobuf.dev/programming-guides/encoding). Only the number of fields is limited: 2 bytes may be a message,
which is 400 here. Generated code of one protoc, and protobuf's factories, do not work with both the protobuf of
Debian 12 and today's. Packed numbers and floats are not supported: no message here has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Field = tuple[str, str, bool]
Tables = Mapping[str, Mapping[int, Field]]

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
BITS = {"bool": 64, "int32": 32, "int64": 64}
DEEPEST = 100  # groups in groups, as protobuf has it
MOST = 300_000  # fields; kubelet's longest list has some 60 000 devices with four of them each
_ENTRY: Mapping[int, Field] = {1: ("key", "string", False), 2: ("value", "string", False)}
_EMPTY = {"string": "", "bool": False, "int32": 0, "int64": 0}


class WireError(ValueError):
    """Bytes that are no message."""


def encode(tables: Tables, name: str, message: Mapping[str, Any]) -> bytes:
    """Encode a message of a table; absent members have their type's empty value.

    Raises:
        KeyError: the message has a member that the table does not name.
    """
    numbers = {field[0]: number for number, field in tables[name].items()}
    parts = []
    for key, value in message.items():
        number = numbers[key]
        _, kind, repeated = tables[name][number]
        if kind == "map":
            entries = (
                (_text(1, key) if key else b"") + (_text(2, text) if text else b"") for key, text in value.items()
            )
            parts += [lengthy(number, entry) for entry in entries]
        elif kind == "string":
            parts += [_text(number, text) for text in (value if repeated else [value] if value else ())]
        elif kind in BITS:
            parts += [_varint(number << 3 | VARINT) + _varint(int(value) & (1 << 64) - 1)] if value else []
        else:
            parts += [lengthy(number, encode(tables, kind, member)) for member in (value if repeated else [value])]
    return b"".join(parts)


def decode(tables: Tables, name: str, data: bytes) -> dict[str, Any]:
    """Decode a message of a table: all its members by name; a message that is not there is None.

    Raises:
        WireError: these are not its bytes, or it has too many fields.
    """
    return _merge(tables, name, data, _empty(tables, name), iter(range(MOST)))


def _empty(tables: Tables, name: str) -> dict[str, Any]:
    return {
        field: {} if kind == "map" else [] if repeated else _EMPTY.get(kind)
        for field, kind, repeated in tables[name].values()
    }


def _merge(tables: Tables, name: str, data: bytes, message: dict[str, Any], budget: Iterator[int]) -> dict[str, Any]:
    """Add fields to a message; `budget` has one item for each field that there may still be."""
    for number, wire, value in _fields(data, budget):
        field, kind, repeated = tables[name].get(number, ("", "", False))
        if wire != (VARINT if kind in BITS else BYTES) or not field:
            continue  # unknown, or not of this type: both are unknown to protobuf
        if kind == "map":
            entry = {"key": "", "value": ""}
            _merge({"": _ENTRY}, "", value, entry, budget)
            message[field][entry["key"]] = entry["value"]
        elif kind in BITS:
            message[field] = _number(kind, value)
        elif kind == "string":
            if repeated:
                message[field].append(_string(value))
            else:
                message[field] = _string(value)
        elif repeated:
            message[field].append(_merge(tables, kind, value, _empty(tables, kind), budget))
        else:
            message[field] = _merge(tables, kind, value, message[field] or _empty(tables, kind), budget)
    return message


def _fields(data: bytes, budget: Iterator[int]) -> Iterator[tuple[int, int, Any]]:
    """Decode fields one after the other: number, wire type, value; fields in groups are left out."""
    position, groups = 0, []
    while position < len(data):
        if next(budget, None) is None:
            raise WireError(f"there are more than {MOST} fields")
        tag, position = _read(data, position, 32)
        number, wire = tag >> 3, tag & 7
        value: Any = None
        if not number:
            raise WireError("a field has the number 0")
        if wire == VARINT:
            value, position = _read(data, position)
        elif wire == GROUP:
            groups.append(number)
            if len(groups) > DEEPEST:
                raise WireError("groups are nested too deep")
        elif wire == GROUP_END:
            if not groups or groups.pop() != number:
                raise WireError("a group ends that did not begin")
        elif wire in (BYTES, FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            if wire == BYTES:
                size, position = _read(data, position, 32)
            value, position = data[position : position + size], position + size
            if position > len(data):
                raise WireError("it ends within a field")
        else:
            raise WireError(f"there is no wire type {wire}")
        if not groups and wire != GROUP_END:
            yield number, wire, value
    if groups:
        raise WireError("a group does not end")


def _read(data: bytes, position: int, bits: int = 64) -> tuple[int, int]:
    """Decode a variable-length number of at most `bits` bits; returns it and its end."""
    value = shift = 0
    while True:
        if position >= len(data):
            raise WireError("it ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
        if shift >= 70:
            raise WireError("a number is longer than 64 bits")
    if bits == 32 and value >> 32:
        raise WireError("a tag or a length is longer than 32 bits")
    return value & (1 << 64) - 1, position


def _number(kind: str, value: int) -> int | bool:
    if kind == "bool":
        return value != 0
    bits = BITS[kind]
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _string(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise WireError("a string is not UTF-8") from None


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def _text(number: int, text: str) -> bytes:
    return lengthy(number, text.encode())


def lengthy(number: int, data: bytes) -> bytes:
    """Encode a field that has a string's or a message's bytes."""
    return _varint(number << 3 | BYTES) + _varint(len(data)) + data
