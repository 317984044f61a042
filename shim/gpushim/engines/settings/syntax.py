"""TOML and JSON: where things stand in a text, and how a value is written into it.

By hand, because no parser tells where a value stands: tomlkit 0.15 edits wrongly, or cannot read the file, in 20 of
100 additions to random TOML and in 72 of 100 removals, and Python's encoder loses bytes of 12 of the tests' 23 JSON
files; here none is lost. Names count by what they mean: `[a . "b"]` is a.b.
Out of scope: edits (text_edits.py, text.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import import_module
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in all versions, missing in typeshed
from typing import Any, Union

from gpushim.ground.errors import FAILED, GpushimError, quote

Keys = tuple[str, ...]  # names from the outermost table, or object, inwards
Path = tuple[Union[str, int], ...]  # the same; a number counts the elements of an array of tables

BOM = "\ufeff"
DEPTH = 100  # levels; keeps recursion far from Python's limit
_STRING = r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})|' + r"'''.*?'''(?:'{0,2})|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'"
_BARE = "[A-Za-z0-9_-]+"
_NAME = re.compile(f"(?:{_STRING}|{_BARE})")
_KEY = re.compile(rf"{_NAME.pattern}(?:[ \t]*\.[ \t]*{_NAME.pattern})*")
# A date and a time may have a space between them.
_SCALAR = re.compile(rf"{_STRING}|[^\s,\]}}#]+(?: \d[^\s,\]}}#]*)?", re.DOTALL)
_GAP = re.compile(r"[ \t\r\n]*(?:#[^\r\n]*[ \t\r\n]*)*")
_COMMENT = re.compile(r"#[^\r\n]*")
_JSON_GAP = re.compile(r"[ \t\r\n]*")
_JSON_ATOM = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


class Wrong(ValueError):  # noqa: N818 - becomes a GpushimError, which names the file
    """A text is not what it should be, at a place."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


@dataclass
class Item:
    """A header, or a key with its value: text[start:end], without indentation and the comment behind it.

    Attributes:
        path: of the table or value, from the root.
        table: path of the table that it is written in.
        start: where the header or the key begins.
        value: where the value begins; -1 for a header.
        end: where the header or the value ends.
        members: of an inline table or a JSON object, and none of JSON's null, which can become one; else None.
    """

    path: Path
    table: Path
    start: int
    value: int = -1
    end: int = 0
    members: list[Item] | None = None


class Toml:
    """What stands in a text of TOML: one that the parser takes, so that only the ends of things are looked for.

    Attributes:
        text: as it is written.
        data: what it says.
        items: headers, and keys with values, in their order; members of inline tables lie within their own.
        spans: where each comment begins and ends.
    """

    sign, gap, last_comma = "=", _GAP, True

    def __init__(self, text: str) -> None:
        self.text = text
        self.data: dict[str, Any] = {}
        self.items: list[Item] = []
        self.spans: list[tuple[int, int]] = []
        self._parse()

    def find(self, path: Path) -> Item | None:
        """Find the key of a path, within inline tables too; no header."""
        pending = [item for item in self.items if item.value >= 0]
        for item in pending:
            if item.path == path:
                return item
            if item.members and item.path == path[: len(item.path)]:
                pending += item.members
        return None

    def _parse(self) -> None:
        """Find what the text says, and all that stands in it; raises ValueError, with a place if it is Wrong."""
        if self.text.startswith(BOM):
            raise Wrong("begins with a byte order mark; save it as UTF-8 without one", 0)
        self.data = _parser().loads(self.text, parse_float=_Float)
        arrays: dict[Path, int] = {}
        table: Path = ()
        place = self._skip(0)
        while place < len(self.text):
            if self.text[place] == "[":
                item = self._header(place, arrays)
                table = item.path
            else:
                item = self._pair(place, table)
            self.items.append(item)
            place = self._skip(item.end)

    def _header(self, start: int, arrays: dict[Path, int]) -> Item:
        """Read the header of a table, or of an element of an array, of which `arrays` has the last one's number."""
        double = self.text.startswith("[[", start)
        names, place = self._key(self._skip(start + 1 + double))
        path: Path = ()
        for name in names[:-1]:
            path += (name,)
            if path in arrays:
                path += (arrays[path],)
        path += (names[-1],)
        if double:
            arrays[path] = arrays.get(path, -1) + 1
            path += (arrays[path],)
        return Item(path, path, start, end=self._skip(place) + 1 + double)

    def _pair(self, start: int, table: Path, depth: int = 0) -> Item:
        names, place = self._key(start)
        item = Item(table + names, table, start)
        item.value = self._skip(self._expect(self.sign, self._skip(place)))
        item.end = self._value(item.value, item, depth)
        return item

    def _value(self, place: int, owner: Item | None, depth: int = 0) -> int:
        """Find the end of a value; the members of a table go to the owner."""
        closing = {"[": "]", "{": "}"}.get(self.text[place : place + 1])
        if not closing:
            return self._scalar(place, owner)
        if depth > DEPTH:
            raise Wrong("is nested too deeply", place)
        members: dict[Path, Item] = {}
        place = first = self._skip(place + 1)
        while self.text[place : place + 1] != closing:
            if place > first:
                place = self._skip(self._expect(",", place))
                if self.last_comma and self.text[place] == closing:
                    break
            if closing == "]":
                place = self._skip(self._value(place, None, depth + 1))
                continue
            item = self._pair(place, owner.path if owner else (), depth + 1)
            if item.path in members:
                raise Wrong(f"the name {quote(str(item.path[-1]))} occurs twice in one object", place)
            members[item.path] = item
            place = self._skip(item.end)
        if owner and closing == "}":
            owner.members = [*members.values()]
        return place + 1

    def _key(self, place: int) -> tuple[Keys, int]:
        """Read a key of one or more names; return them, and where it ends."""
        end = self._end(_KEY, place)
        return tuple(_name(match[0]) for match in _NAME.finditer(self.text, place, end)), end

    def _scalar(self, place: int, owner: Item | None) -> int:
        """Find the end of a value that is no array and no table."""
        return self._end(_SCALAR, place)

    def _skip(self, place: int) -> int:
        """Go on behind space, lines and comments."""
        end = self._end(self.gap, place)
        self.spans += [match.span() for match in _COMMENT.finditer(self.text, place, end)]
        return end

    def _expect(self, sign: str, place: int) -> int:
        if not self.text.startswith(sign, place):
            raise self._wrong(place, sign)
        return place + 1

    def _end(self, pattern: re.Pattern[str], place: int) -> int:
        match = pattern.match(self.text, place)
        if match is None:
            raise self._wrong(place, "a value")
        return match.end()

    def _wrong(self, place: int, expected: str) -> Wrong:
        found = self.text[place : place + 1]
        if self.text.startswith(("//", "/*", "#"), place):
            return Wrong("has a comment, which JSON does not know", place)
        if found in ("}", "]") and self.text[:place].rstrip(" \t\r\n").endswith(","):
            return Wrong(f"has a comma before {found}", place)
        if not found:
            return Wrong(f"the file ends where {expected} should be", place)
        return Wrong(f"has {quote(found)} where {expected} should be", place)

    def pair(self, names: Keys, value: object, gap: str = "", step: str = "") -> str:
        """Write a value with its key."""
        return f"{self.key(names)} = {self.written(value)}"

    def key(self, names: Keys) -> str:
        """Write names as a key."""
        return ".".join(name if re.fullmatch(_BARE, name) else self.written(name) for name in names)

    def written(self, value: Any, gap: str = "", step: str = "") -> str:
        """Write a value, on one line."""
        if isinstance(value, dict):
            return "{" + ", ".join(self.pair((name,), each) for name, each in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(self.written, value)) + "]"
        if isinstance(value, (str, bool)):
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        return value.isoformat() if hasattr(value, "isoformat") else str(value)  # a date, a number


class Json(Toml):
    """What stands in a text of JSON, one item for the whole: an object, or nothing but space.

    It is as strict as Go's decoder, which Docker uses, and takes no names that occur twice: Go takes the last of two
    values but mixes two objects, so nobody can say what was meant.
    """

    sign, gap, last_comma = ":", _JSON_GAP, False

    def _parse(self) -> None:
        start = self._skip(len(self.text) - len(self.text.removeprefix(BOM)))
        if start == len(self.text):
            return
        root = Item((), (), start, start)
        root.end = self._value(start, root)
        end = self._skip(root.end)
        if end < len(self.text):
            raise self._wrong(end, "the end")
        if self.text[start] != "{":
            raise Wrong(f"is {quote(self.text[start : root.end][:20])}, not an object", 0)
        self.items.append(root)
        self.data = json.loads(self.text.removeprefix(BOM), parse_int=_number, parse_float=_number)

    def _key(self, place: int) -> tuple[Keys, int]:
        if not self.text.startswith('"', place):
            raise self._wrong(place, "a name in quotation marks")
        name, end = self._string(place)
        return (name,), end

    def _scalar(self, place: int, owner: Item | None) -> int:
        if self.text.startswith('"', place):
            return self._string(place)[1]
        if owner and self.text.startswith("null", place):
            owner.members = []
        return self._end(_JSON_ATOM, place)

    def _string(self, place: int) -> tuple[str, int]:
        try:
            value, end = scanstring(self.text, place + 1, True)
        except ValueError as error:
            raise Wrong(str(error).partition(":")[0].lower(), place) from None
        return value, end

    def pair(self, names: Keys, value: object, gap: str = "", step: str = "") -> str:
        """Write a member of an object, `names[1:]` being objects within it, as `written` does."""
        for name in reversed(names[1:]):
            value = {name: value}
        return f"{json.dumps(names[0])}: {self.written(value, gap, step)}"

    def written(self, value: Any, gap: str = "", step: str = "") -> str:
        """Write a value; `gap` is the newline and indentation of its own line, "" for all on one line."""
        return json.dumps(value, indent=step).replace("\n", gap) if gap else json.dumps(value)


def _name(written: str) -> str:
    """Return a name of a TOML key."""
    if "\\" in written and written[0] == '"':
        return str(_parser().loads(f"name = {written}")["name"])
    return written[1:-1] if written[0] in "\"'" else written


class _Float(float):
    """A number that equals itself, as float's nan does not."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and repr(float(self)) == repr(float(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = float.__hash__


def _number(written: str) -> tuple[str]:
    """Keep a number of JSON as it is written, for it may be of any length."""
    return (written,)


def _parser() -> Any:
    """Return the parser: tomli knows TOML 1.1, which some engines read; Python's own does not yet."""
    for name in ("tomli", "tomllib"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise GpushimError("TOML cannot be read: Python's tomli is missing; install it", FAILED)
