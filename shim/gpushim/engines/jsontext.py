"""JSON as text: read strictly, and edited so that all that is not edited stays as it was written.

Strictly means as Go's decoder does, which Docker uses, and without names that occur twice: Go takes the last of two
values but mixes two objects, so nobody can say what was meant. Out of scope: files; what the settings mean.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in all versions, missing in typeshed
from typing import Any

from gpushim.errors import GpushimError, quote

BOM = "\ufeff"
DEPTH = 100  # levels; keeps recursion far from Python's limit
_SPACE = re.compile(r"[ \t\r\n]*")
_ATOM = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_STEP = "  "  # of indentation, where the text shows none


@dataclass
class Node:
    """A value and where it stands: text[start:end].

    Attributes:
        members: of an object: name to (where the name starts, value); None for other values.
    """

    start: int
    end: int = 0
    members: dict[str, tuple[int, Node]] | None = None
    items: list[Node] = field(default_factory=list)


def parse(data: bytes, path: str) -> str:
    """Check that bytes are a JSON object, and decode them; text without anything but space is "".

    Args:
        data: of the file.
        path: its name, for messages.

    Raises:
        GpushimError: they are not UTF-8, or no JSON object, or a name occurs twice, with the line.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise GpushimError(f"{path}, line {line}: is not UTF-8; save it as UTF-8") from None
    if _blank(text):
        return text
    try:
        root = _root(text)
    except _Wrong as wrong:
        line = text.count("\n", 0, wrong.place) + 1
        raise GpushimError(f"{path}, line {line}: {wrong}; correct it first") from None
    if root.members is None:
        raise GpushimError(f"{path}, line 1: is {quote(text[root.start : root.end][:20])}, not an object")
    return text


def get(text: str, keys: tuple[str, ...], default: Any = None) -> Any:
    """Return a value as Python's data, numbers as tuples of their text, which may be of any length.

    Args:
        text: from `parse`.
        keys: names of members from the outermost object inwards; () for all.
        default: for a value that is not there.
    """
    node = _find(text, keys)
    if node is None:
        return default if keys else {}
    return json.loads(text[node.start : node.end], parse_int=_number, parse_float=_number)


def same(text: str, other: str) -> bool:
    """Say whether two texts say the same.

    Args:
        text: from `parse`.
        other: the same.
    """
    return bool(get(text, ()) == get(other, ()))


def comments(text: str) -> Counter[str]:
    """Count comments, of which JSON has none; tomltext has some."""
    return Counter()


def without_comment(text: str, comment: str) -> str:
    """Return the text, for JSON has no comments."""
    return text


def copy(text: str, keys: tuple[str, ...], source: str) -> str:
    """Set a value to the one of the same name in another text, as it is written there.

    Args:
        text: from `parse`.
        keys: at least one.
        source: from `parse`, with such a value.
    """
    wanted, other = _with(text, keys, get(source, keys)), _find(source, keys)
    assert other is not None, keys
    node = _find(text, keys)
    if node is None:
        text = put(text, keys, None)
        node = _find(text, keys)
    assert node is not None, keys
    return _checked(text[: node.start] + source[other.start : other.end] + text[node.end :], wanted, keys)


def put(text: str, keys: tuple[str, ...], value: object) -> str:
    """Set a value; objects on the way to it are made.

    Args:
        text: from `parse`.
        keys: at least one; those before the last name objects where they exist.
        value: Python's data.

    Returns:
        the text with this value, in the style of what stands around it.

    Raises:
        GpushimError: the text is of a form that cannot be edited safely.
    """
    wanted = _with(text, keys, json.loads(json.dumps(value), parse_int=_number, parse_float=_number))
    return _checked(_put(text, keys, value), wanted, keys)


def _put(text: str, keys: tuple[str, ...], value: object) -> str:
    if _blank(text):
        mark = BOM if text.startswith(BOM) else ""
        return mark + _rendered(_nested(keys, value), _newline(text), _STEP) + _newline(text)
    node, at = _root(text), 0
    while at < len(keys) and keys[at] in (node.members or {}):
        node, at = (node.members or {})[keys[at]][1], at + 1
    if at == len(keys):
        gap, step = _style(text, node)
        return text[: node.start] + _rendered(value, gap, step) + text[node.end :]
    return _inserted(text, node, keys[at], _nested(keys[at + 1 :], value))


def drop(text: str, keys: tuple[str, ...]) -> str:
    """Take a member out; nothing happens if it is not there.

    Args:
        text: from `parse`.
        keys: at least one.

    Raises:
        GpushimError: the text is of a form that cannot be edited safely.
    """
    owner = _find(text, keys[:-1])
    members = (owner and owner.members) or {}
    if owner is None or keys[-1] not in members:
        return text
    wanted = get(text, ())
    del _within(wanted, keys[:-1])[keys[-1]]
    return _checked(_cut(text, owner, members, keys), wanted, keys)


def _cut(text: str, owner: Node, members: dict[str, tuple[int, Node]], keys: tuple[str, ...]) -> str:
    names = list(members)
    place = names.index(keys[-1])
    if len(names) == 1:
        return text[: owner.start] + "{}" + text[owner.end :]
    if place == 0:  # up to the next name, whose indentation is this one's
        return text[: members[names[0]][0]] + text[members[names[1]][0] :]
    return text[: members[names[place - 1]][1].end] + text[members[names[place]][1].end :]


def _with(text: str, keys: tuple[str, ...], value: object) -> Any:
    """Return what a text is to say once a value is set; objects take the place of what is none on the way."""
    data = inner = get(text, ())
    for key in keys[:-1]:
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[keys[-1]] = value
    return data


def _within(data: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        data = data[key]
    return data


def _checked(edited: str, wanted: Any, keys: tuple[str, ...]) -> str:
    """Refuse an edit after which a text would say anything but what it should."""
    try:
        right = get(edited, ()) == wanted
    except (_Wrong, ValueError):
        right = False
    if not right:
        raise GpushimError(f"{'.'.join(keys)} cannot be changed in this file without risk; change it by hand")
    return edited


def _nested(keys: tuple[str, ...], value: object) -> object:
    for key in reversed(keys):
        value = {key: value}
    return value


def _inserted(text: str, owner: Node, key: str, value: object) -> str:
    """Add a member behind the others of an object."""
    gap, step = _style(text, owner)
    name = json.dumps(key)
    members = list((owner.members or {}).values())
    if members:
        start, end = members[-1][0], members[-1][1].end
        inner = text[_before(text, start) : start]
        if "\n" in inner:
            inner = _newline(text) + inner.rpartition("\n")[2]
            return f"{text[:end]},{inner}{name}: {_rendered(value, inner, step)}{text[end:]}"
        inner = " " if len(members) == 1 else inner  # {"a": 1} becomes {"a": 1, "b": 2}
        return f"{text[:end]},{inner}{name}: {_rendered(value, '', step)}{text[end:]}"
    if not gap and owner.start == _root(text).start:
        gap = _newline(text)
    inner = gap + step if gap else ""
    return f"{text[: owner.start]}{{{inner}{name}: {_rendered(value, inner, step)}{gap}}}{text[owner.end :]}"


def _style(text: str, node: Node) -> tuple[str, str]:
    """Return how the line begins that holds a value's end, newline included, and a step of indentation.

    The first is "" for text that is all on one line.
    """
    first = next(iter((_root(text).members or {}).values()), None)
    step = text[_before(text, first[0]) : first[0]] if first else ""
    if "\n" not in step:
        return "", _STEP
    line = text[text.rfind("\n", 0, node.end) + 1 : node.end]
    return _newline(text) + line[: len(line) - len(line.lstrip(" \t"))], step.rpartition("\n")[2] or _STEP


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _blank(text: str) -> bool:
    return not text.removeprefix(BOM).strip(" \t\r\n")


def _number(text: str) -> tuple[str]:
    return (text,)


def _before(text: str, place: int) -> int:
    """Return where the space before a place begins."""
    return len(text[:place].rstrip(" \t\r\n"))


def _rendered(value: object, gap: str, step: str) -> str:
    """Write a value; `gap` is the newline and indentation of its own line, "" for all on one line."""
    if not gap:
        return json.dumps(value)
    return json.dumps(value, indent=step).replace("\n", gap)


class _Wrong(Exception):  # noqa: N818, only of this file
    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


def _root(text: str) -> Node:
    node = _value(text, _skip(text, len(text) - len(text.removeprefix(BOM))), 0)
    end = _skip(text, node.end)
    if end < len(text):
        raise _Wrong(_unexpected(text, end, "the end"), end)
    return node


def _find(text: str, keys: tuple[str, ...]) -> Node | None:
    node = None if _blank(text) else _root(text)
    for key in keys:
        node = (node.members or {}).get(key, (0, None))[1] if node else None
    return node


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _value(text: str, place: int, depth: int) -> Node:
    opening = text[place : place + 1]
    if depth > DEPTH:
        raise _Wrong("is nested too deeply", place)
    if opening == "{":
        return _object(text, place, depth)
    if opening == "[":
        return _array(text, place, depth)
    if opening == '"':
        return Node(place, _string(text, place)[1])
    match = _ATOM.match(text, place)
    if not match:
        raise _Wrong(_unexpected(text, place), place)
    return Node(place, match.end())


def _object(text: str, start: int, depth: int) -> Node:
    members: dict[str, tuple[int, Node]] = {}
    place = _skip(text, start + 1)
    while text[place : place + 1] != "}":
        if members:
            place = _skip(text, _expect(text, place, ","))
        if text[place : place + 1] != '"':
            raise _Wrong(_unexpected(text, place, "a name in quotation marks"), place)
        name, end = _string(text, place)
        if name in members:
            raise _Wrong(f"the name {quote(name)} occurs twice in one object", place)
        node = _value(text, _skip(text, _expect(text, _skip(text, end), ":")), depth + 1)
        members[name] = (place, node)
        place = _skip(text, node.end)
    return Node(start, place + 1, members)


def _array(text: str, start: int, depth: int) -> Node:
    node = Node(start)
    place = _skip(text, start + 1)
    while text[place : place + 1] != "]":
        if node.items:
            place = _skip(text, _expect(text, place, ","))
        node.items.append(_value(text, place, depth + 1))
        place = _skip(text, node.items[-1].end)
    node.end = place + 1
    return node


def _string(text: str, place: int) -> tuple[str, int]:
    try:
        value, end = scanstring(text, place + 1, True)
    except ValueError as error:
        raise _Wrong(str(error).partition(":")[0].lower(), place) from None
    return value, end


def _expect(text: str, place: int, sign: str) -> int:
    if text[place : place + 1] != sign:
        raise _Wrong(_unexpected(text, place, sign), place)
    return place + 1


def _unexpected(text: str, place: int, wanted: str = "") -> str:
    found = text[place : place + 1]
    if text.startswith(("//", "/*", "#"), place):
        return "has a comment, which JSON does not know"
    if found in ("}", "]") and text[: _before(text, place)].endswith(","):
        return f"has a comma before {found}"
    if not found:
        return f"the file ends where {wanted or 'a value'} should be"
    return f"has {quote(found)} where {wanted or 'a value'} should be"
