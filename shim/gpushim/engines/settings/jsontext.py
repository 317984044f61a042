"""JSON as text: read strictly, and edited so that all that is not edited stays as it was written.

Strictly means as Go's decoder does, which Docker uses, and without names that occur twice: Go takes the last of two
values but mixes two objects, so nobody can say what was meant. By hand, because Python's decoder tells neither where
a value stands nor which of two names is the second; what it writes again has other blanks, escapes and numbers.
Out of scope: files; what the settings mean.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in all versions, missing in typeshed
from typing import Any, NamedTuple

from gpushim.engines.settings.textedit import TEXTS, Keys, decoded, newline, risky, within
from gpushim.ground.errors import GpushimError, quote

BOM = "\ufeff"
DEPTH = 100  # levels; keeps recursion far from Python's limit
_SPACE = re.compile(r"[ \t\r\n]*")
_ATOM = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_STEP = "  "  # of indentation, where the text shows none


class Node(NamedTuple):
    """A value, text[start:end]: an object's members by their names, and where the name of a member begins."""

    start: int
    end: int
    members: dict[str, Node] = {}  # noqa: RUF012 - never changed
    name: int = 0


def parse(data: bytes, path: str) -> str:
    """Check that bytes are a JSON object, and decode them; a text of nothing but space is taken too.

    Raises:
        GpushimError: they are not UTF-8, or no JSON object, or a name occurs twice, with the line.
    """
    text = decoded(data, path)
    try:
        root = None if _blank(text) else _root(text)
    except _Wrong as wrong:
        line = text.count("\n", 0, wrong.place) + 1
        raise GpushimError(f"{path}, line {line}: {wrong}; correct it first") from None
    if root and text[root.start] != "{":
        raise GpushimError(f"{path}, line 1: is {quote(text[root.start : root.end][:20])}, not an object")
    return text


def get(text: str, keys: Keys, default: Any = None) -> Any:
    """Return a value of a text from `parse` as Python's data; numbers, of any length, become tuples of their text.

    Args:
        text: from `parse`.
        keys: names of members from the outermost object inwards; () for all.
        default: for a value that is not there.
    """
    node = _find(text, keys)
    if node is None:
        return default if keys else {}
    return _data(text[node.start : node.end])


def same(text: str, other: str) -> bool:
    """Say whether two texts, each from `parse`, say the same."""
    return bool(get(text, ()) == get(other, ()))


def comments(text: str) -> Counter[str]:
    """Count comments, of which JSON has none; tomltext has some."""
    return Counter()


def without_comment(text: str, comment: str) -> str:
    """Return the text, for JSON has no comments."""
    return text


def put(text: str, keys: Keys, value: object) -> str:
    """Set a value, in the style of what stands around it; objects on the way to it are made.

    Raises:
        GpushimError: the text is of a form that cannot be edited safely.
    """
    return _checked(_put(text, keys, value), _with(text, keys, _data(json.dumps(value))), keys)


def copy(text: str, keys: Keys, source: str) -> str:
    """Set a value as `put` does, to the one of the same name in another text, as it is written there."""
    edited = _put(text, keys, None)
    node, other = _find(edited, keys), _find(source, keys)
    assert node, keys
    assert other, keys
    edited = edited[: node.start] + source[other.start : other.end] + edited[node.end :]
    return _checked(edited, _with(text, keys, get(source, keys)), keys)


def drop(text: str, keys: Keys) -> str:
    """Take a member out, with the errors of `put`; nothing happens if it is not there."""
    owner = _find(text, keys[:-1])
    if owner is None or keys[-1] not in owner.members:
        return text
    expected = get(text, ())
    del within(expected, keys[:-1])[keys[-1]]
    return _checked(_cut(text, owner, keys[-1]), expected, keys)


def _put(text: str, keys: Keys, value: object) -> str:
    if _blank(text):
        mark = BOM if text.startswith(BOM) else ""
        return mark + _rendered(_nested(keys, value), newline(text), _STEP) + newline(text)
    node, at = _root(text), 0
    while at < len(keys) and keys[at] in node.members:
        node, at = node.members[keys[at]], at + 1
    if at == len(keys):
        return text[: node.start] + _rendered(value, *_style(text, node)) + text[node.end :]
    return _inserted(text, node, keys[at], _nested(keys[at + 1 :], value))


def _cut(text: str, owner: Node, name: str) -> str:
    members, place = list(owner.members.values()), list(owner.members).index(name)
    if len(members) == 1:
        return text[: owner.start] + "{}" + text[owner.end :]
    if place == 0:  # up to the next name, whose indentation is this one's
        return text[: members[0].name] + text[members[1].name :]
    return text[: members[place - 1].end] + text[members[place].end :]


def _with(text: str, keys: Keys, value: object) -> Any:
    """Return what a text is to say once a value is set; objects take the place of what is none on the way."""
    data = inner = get(text, ())
    for key in keys[:-1]:
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[keys[-1]] = value
    return data


def _checked(edited: str, expected: Any, keys: Keys) -> str:
    """Refuse an edit after which a text would say anything but what it should."""
    try:
        if get(edited, ()) == expected:
            return edited
    except (_Wrong, ValueError):
        pass
    raise risky(keys)


def _nested(keys: Keys, value: object) -> object:
    for key in reversed(keys):
        value = {key: value}
    return value


def _inserted(text: str, owner: Node, key: str, value: object) -> str:
    """Add a member behind the others of an object."""
    gap, step = _style(text, owner)
    name = json.dumps(key)
    if owner.members:
        last = list(owner.members.values())[-1]
        inner = text[_before(text, last.name) : last.name]
        if "\n" in inner:
            inner = gap = newline(text) + inner.rpartition("\n")[2]
        else:
            inner, gap = " " if len(owner.members) == 1 else inner, ""  # {"a": 1} becomes {"a": 1, "b": 2}
        return f"{text[: last.end]},{inner}{name}: {_rendered(value, gap, step)}{text[last.end :]}"
    if not gap and owner.start == _root(text).start:
        gap = newline(text)
    inner = gap + step if gap else ""
    return f"{text[: owner.start]}{{{inner}{name}: {_rendered(value, inner, step)}{gap}}}{text[owner.end :]}"


def _style(text: str, node: Node) -> tuple[str, str]:
    """Return how the line of a value's end begins, newline included, and a step of indentation.

    The first is "" for text that is all on one line.
    """
    first = next(iter(_root(text).members.values()), None)
    step = text[_before(text, first.name) : first.name] if first else ""
    if "\n" not in step:
        return "", _STEP
    line = text[text.rfind("\n", 0, node.end) + 1 : node.end]
    return newline(text) + line[: len(line) - len(line.lstrip(" \t"))], step.rpartition("\n")[2] or _STEP


def _blank(text: str) -> bool:
    return not text.removeprefix(BOM).strip(" \t\r\n")


def _data(text: str) -> Any:
    return json.loads(text, parse_int=lambda number: (number,), parse_float=lambda number: (number,))


def _before(text: str, place: int) -> int:
    """Return where the space before a place begins."""
    return len(text[:place].rstrip(" \t\r\n"))


def _rendered(value: object, gap: str, step: str) -> str:
    """Write a value; `gap` is the newline and indentation of its own line, "" for all on one line."""
    return json.dumps(value, indent=step).replace("\n", gap) if gap else json.dumps(value)


class _Wrong(Exception):  # noqa: N818, only of this file
    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


@lru_cache(maxsize=TEXTS)
def _root(text: str) -> Node:
    node = _value(text, _skip(text, len(text) - len(text.removeprefix(BOM))), 0)
    end = _skip(text, node.end)
    if end < len(text):
        raise _Wrong(_unexpected(text, end, "the end"), end)
    return node


def _find(text: str, keys: Keys) -> Node | None:
    node = None if _blank(text) else _root(text)
    for key in keys:
        node = node and node.members.get(key)
    return node


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _value(text: str, place: int, depth: int) -> Node:
    if depth > DEPTH:
        raise _Wrong("is nested too deeply", place)
    opening = text[place : place + 1]
    if opening in ("{", "["):
        return _collection(text, place, depth)
    if opening == '"':
        return Node(place, _string(text, place)[1])
    if match := _ATOM.match(text, place):
        return Node(place, match.end())
    raise _Wrong(_unexpected(text, place), place)


def _collection(text: str, start: int, depth: int) -> Node:
    members: dict[str, Node] = {}
    is_object = text[start] == "{"
    place = first = _skip(text, start + 1)
    while text[place : place + 1] != ("}" if is_object else "]"):
        if place > first:
            place = _skip(text, _expect(text, place, ","))
        name, begin = "", place
        if is_object:
            _expect(text, begin, '"', "a name in quotation marks")
            name, place = _string(text, begin)
            if name in members:
                raise _Wrong(f"the name {quote(name)} occurs twice in one object", begin)
            place = _skip(text, _expect(text, _skip(text, place), ":"))
        node = _value(text, place, depth + 1)
        if is_object:
            members[name] = node._replace(name=begin)
        place = _skip(text, node.end)
    return Node(start, place + 1, members)


def _string(text: str, place: int) -> tuple[str, int]:
    try:
        value, end = scanstring(text, place + 1, True)
    except ValueError as error:
        raise _Wrong(str(error).partition(":")[0].lower(), place) from None
    return value, end


def _expect(text: str, place: int, sign: str, expected: str = "") -> int:
    if text[place : place + 1] != sign:
        raise _Wrong(_unexpected(text, place, expected or sign), place)
    return place + 1


def _unexpected(text: str, place: int, expected: str = "") -> str:
    found = text[place : place + 1]
    if text.startswith(("//", "/*", "#"), place):
        return "has a comment, which JSON does not know"
    if found in ("}", "]") and text[: _before(text, place)].endswith(","):
        return f"has a comma before {found}"
    if not found:
        return f"the file ends where {expected or 'a value'} should be"
    return f"has {quote(found)} where {expected or 'a value'} should be"
