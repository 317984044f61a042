"""Where things stand in a TOML text: headers, keys with their values, members of inline tables, comments.

Names count by what they mean, however they are written: `[a . "b"]` is a.b. Only a text that tomli takes may come
here, so this looks for ends and checks nothing. Out of scope: what values mean; edits (tomltext.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Union

from gpushim.engines.settings.textedit import TEXTS

Path = tuple[Union[str, int], ...]  # numbers count the elements of an array of tables

_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})|' + r"'''.*?'''(?:'{0,2})|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'", re.DOTALL
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ATOM = re.compile(r"[^\s,\]}#]+(?: \d[^\s,\]}#]*)?")  # a date and a time may have a space between them
_SPACE, _SPACE_AND_LINES = re.compile(r"[ \t]*"), re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"#[^\r\n]*")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
_LETTERS = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


@dataclass
class Item:
    """A header, or a key with its value: text[start:end], without indentation and the comment behind it.

    Attributes:
        path: of the table or value, from the root.
        table: path of the table that it is written in.
        start: where the header or the key begins.
        value: where the value begins; -1 for a header.
        end: where the header or the value ends.
        members: of an inline table; None for what is none.
    """

    path: Path
    table: Path
    start: int
    value: int = -1
    end: int = 0
    members: list[Item] | None = None

    @property
    def is_header(self) -> bool:
        """Say whether this is a header."""
        return self.value < 0


@dataclass
class Scan:
    """A text's items and comments, in their order.

    Attributes:
        items: headers, and keys with values; members of inline tables lie within their own.
        comments: where each begins and ends.
    """

    text: str
    items: list[Item] = field(default_factory=list)
    comments: list[tuple[int, int]] = field(default_factory=list)

    def find(self, path: Path) -> Item | None:
        """Find the key of a path, within inline tables too; no header."""
        pending = [item for item in self.items if not item.is_header]
        for item in pending:
            if item.path == path:
                return item
            if item.members and item.path == path[: len(item.path)]:
                pending += item.members
        return None


@lru_cache(maxsize=TEXTS)
def scan(text: str) -> Scan:
    """Find all that stands in a text that tomli takes; what is returned is not to be changed."""
    found = Scan(text)
    arrays: dict[Path, int] = {}
    table: Path = ()
    place = _skip(found, 0, lines=True)
    while place < len(text):
        if text[place] == "[":
            item = _header(text, place, arrays)
            table = item.path
        else:
            item = _pair(found, place, table)
        found.items.append(item)
        place = _skip(found, item.end, lines=True)
    return found


def _skip(found: Scan, place: int, *, lines: bool) -> int:
    """Go on behind space and, with lines, behind comments."""
    space = _SPACE_AND_LINES if lines else _SPACE
    while True:
        place = _end(space, found.text, place)
        if not lines or found.text[place : place + 1] != "#":
            return place
        found.comments.append((place, _end(_COMMENT, found.text, place)))
        place = found.comments[-1][1]


def _header(text: str, start: int, arrays: dict[Path, int]) -> Item:
    double = text.startswith("[[", start)
    names, place = _names(text, start + 1 + double)
    path: Path = ()
    for name in names[:-1]:
        path += (name,)
        if path in arrays:
            path += (arrays[path],)
    path += (names[-1],)
    if double:
        arrays[path] = arrays.get(path, -1) + 1
        path += (arrays[path],)
    return Item(path, path, start, end=place + 1 + double)


def _pair(found: Scan, start: int, table: Path) -> Item:
    names, place = _names(found.text, start)
    item = Item(table + names, table, start)
    item.value = _end(_SPACE, found.text, place + 1)
    item.end = _value(found, item.value, item)
    return item


def _names(text: str, place: int) -> tuple[tuple[str, ...], int]:
    """Read a key of one or more names; returns them, and where the sign behind them stands."""
    names: list[str] = []
    while True:
        place = _end(_SPACE, text, place)
        end = _end(_STRING if text[place] in "\"'" else _BARE, text, place)
        names.append(_name(text[place:end]))
        place = _end(_SPACE, text, end)
        if text[place] != ".":
            return tuple(names), place
        place += 1


def _name(written: str) -> str:
    if written[0] == "'":
        return written[1:-1]
    return _ESCAPE.sub(_unescaped, written[1:-1]) if written[0] == '"' else written


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code else _LETTERS.get(match[4], match[4])


def _value(found: Scan, place: int, owner: Item | None = None) -> int:
    """Find the end of a value; an inline table's members go to the owner."""
    text = found.text
    if text[place] in "\"'":
        return _end(_STRING, text, place)
    if text[place] not in "[{":
        return _end(_ATOM, text, place)
    closing = "]" if text[place] == "[" else "}"
    members: list[Item] = []
    place = _skip(found, place + 1, lines=True)
    while text[place] != closing:
        if closing == "]":
            place = _value(found, place)
        else:
            members.append(_pair(found, place, owner.path if owner else ()))
            place = members[-1].end
        place = _skip(found, place, lines=True)
        if text[place] == ",":
            place = _skip(found, place + 1, lines=True)
    if owner and closing == "}":
        owner.members = members
    return place + 1


def _end(pattern: re.Pattern[str], text: str, place: int) -> int:
    match = pattern.match(text, place)
    assert match is not None, (place, text[place : place + 20])
    return match.end()


def written(names: tuple[str, ...]) -> str:
    """Write names, at least one, as a key."""
    return ".".join(
        name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
        for name in names
    )
