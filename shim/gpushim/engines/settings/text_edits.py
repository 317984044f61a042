"""Edits of a text by the places where things stand (syntax.py), each in one form; none is checked here.

Lines go and come whole, and comments stay: those of lines that go get lines of their own.
Out of scope: whether the result says what it should (text.py).
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushim.engines.settings.syntax import Item, Keys, Toml

SPACE = " \t\r\n"
_STEP = "  "  # of indentation, where a text shows none


def as_written(found: Toml, keys: Keys) -> str:
    """Return a value as it is written; "" if it stands in several places, or has comments within."""
    item = found.find(keys)
    if item and not _comments_within(found, item.value, item.end, ""):
        return found.text[item.value : item.end]
    return ""


def without_header(found: Toml, table: Keys) -> str:
    """Take out the header of a table if nothing is below it."""
    section = [item for item in found.items if item.table == table]
    alone = len(section) == 1 and section[0].value < 0
    return _without_lines(found, found.text, section[0]) if alone else found.text


def without_comment(found: Toml, comment: str) -> str:
    """Take out the lines of a comment, given with its sign, that stands alone in them."""
    text = found.text
    for place in [start for start, end in reversed(found.spans) if text[start:end] == comment]:
        start, end = _line(text, place)
        if not text[start:place].strip():
            text = text[:start] + text[end:]
    return text


def cut(found: Toml, keys: Keys) -> str:
    """Take out the lines of a value, or of a table and those below it, and the blank line before a header."""
    text = found.text
    for item in reversed(found.items):
        if keys and item.path[: len(keys)] == keys:
            text = _without_lines(found, text, item)
        elif item.members and item.path == keys[: len(item.path)]:
            text = _without_member(found, text, item, keys)
    return text


def _without_lines(found: Toml, text: str, item: Item) -> str:
    """Take out the lines of an item; `text` is that of the scan up to its end."""
    (start, _), (_, end) = _line(text, item.start), _line(text, item.end)
    comments = _comments_within(found, start, end, text[start : item.start])
    before = _line(text, start - 1)[0] if start else 0
    if item.value < 0 and not text[before:start].strip():
        start = before
    return text[:start] + comments + text[end:]


def _without_member(found: Toml, text: str, owner: Item, keys: Keys) -> str:
    members = owner.members or []
    for place in reversed(range(len(members))):
        item = members[place]
        if item.path[: len(keys)] == keys:
            if len(members) == 1:  # comments stay
                inner = text[owner.value + 1 : item.start] + text[item.end : owner.end - 1]
                return text[: owner.value] + f"{{{inner if '#' in inner else ''}}}" + text[owner.end :]
            if place:
                start, end = members[place - 1].end, item.end
            else:  # up to the next name, whose indentation is this one's
                start, end = item.start, members[1].start
            return cut(type(found)(text[:start] + text[end:]), keys)
        if item.members and item.path == keys[: len(item.path)]:
            return _without_member(found, text, item, keys)
    return text


def _replaced(found: Toml, keys: Keys, value: Any) -> str:
    """Write another value in the place of one; comments within it get lines of their own."""
    text, item = found.text, found.find(keys)
    if not item:
        return ""
    start, _ = _line(text, item.start)
    comments = _comments_within(found, item.value, item.end, text[start : item.start])
    changed = found.written(value, *_style(found, item))
    return text[:start] + comments + text[start : item.value] + changed + text[item.end :]


def _in_section(found: Toml, keys: Keys, value: Any) -> str:
    """Add a line behind the last of the table, be it of a header or of dotted keys; or before the first header."""
    text, table = found.text, keys[:-1]
    kin = [
        item
        for item in reversed(found.items)
        if item.table == table or _shared(item.path, table) > len(item.table) == _shared(item.table, table)
    ]
    if kin:
        item = max(kin, key=lambda item: _shared(item.path, table))
        start, end = _line(text, item.start)[0], _line(text, item.end)[1]
        head = text[:end] if text[:end].endswith("\n") else text[:end] + newline(text)
        added = found.pair(keys[len(item.table) :], value)
        return head + text[start : item.start] + added + newline(text) + text[end:]
    if table or not found.items:
        return ""
    start, _ = _line(text, found.items[0].start)
    while start and text[: start - 1].rpartition("\n")[2].lstrip().startswith("#"):
        start, _ = _line(text, start - 1)  # the comment above a header is about it
    return text[:start] + found.pair(keys, value) + newline(text) * 2 + text[start:]


def _in_inline_table(found: Toml, keys: Keys, value: Any) -> str:
    """Add a member behind the others of the innermost inline table, or object, on the way."""
    text, above = found.text, [found.find(keys[:length]) for length in range(len(keys))]
    owner = next((item for item in reversed(above) if item and item.members is not None), None)
    if not owner:
        return ""
    gap, step = _style(found, owner)
    names = keys[len(owner.path) :]
    if owner.members:
        last = owner.members[-1]
        inner = text[len(text[: last.start].rstrip(SPACE)) : last.start]
        if "\n" in inner:
            inner = gap = newline(text) + inner.rpartition("\n")[2]
        else:
            inner, gap = " " if len(owner.members) == 1 else inner, ""  # {"a": 1} becomes {"a": 1, "b": 2}
        return f"{text[: last.end]},{inner}{found.pair(names, value, gap, step)}{text[last.end :]}"
    if not gap and not owner.path:
        gap = newline(text)
    inner = gap + step if gap else ""
    added = found.pair(names, value, inner, step)
    return f"{text[: owner.value]}{{{inner}{added}{gap}}}{text[owner.end :]}"


def _appended(found: Toml, keys: Keys, value: Any) -> str:
    text, end = found.text, newline(found.text)
    gap = "" if not text else end if text.endswith("\n") else end * 2
    header = f"[{found.key(keys[:-1])}]{end}" if keys[1:] else ""
    return text + gap + header + found.pair(keys[-1:], value) + end


def _as_all(found: Toml, keys: Keys, value: Any) -> str:
    """Write an object where there is none yet."""
    text, end = found.text, newline(found.text)
    mark = text[: text.startswith("\ufeff")]  # of the byte order
    return f"{mark}{{{end}{_STEP}{found.pair(keys, value, end + _STEP, _STEP)}{end}}}{end}"


TOML = (_replaced, _in_section, _in_inline_table, _appended)
JSON = (_replaced, _in_inline_table, _as_all)


def _style(found: Toml, item: Item) -> tuple[str, str]:
    """Return how the line of a JSON value's end begins, newline included, and a step of indentation.

    The first is "" for text that is all on one line, as TOML's inline tables are.
    """
    root, text = found.find(()), found.text
    first = root.members[0] if root and root.members else None
    step = text[len(text[: first.start].rstrip(SPACE)) : first.start] if first else ""
    if "\n" not in step:
        return "", _STEP
    line = text[text.rfind("\n", 0, item.end) + 1 : item.end]
    return newline(text) + line[: len(line) - len(line.lstrip(" \t"))], step.rpartition("\n")[2] or _STEP


def _comments_within(found: Toml, start: int, end: int, indent: str) -> str:
    """Return the comments of a part of a text as lines of their own."""
    inside = [found.text[begin:close] for begin, close in found.spans if start <= begin < end]
    return "".join(f"{indent}{comment}{newline(found.text)}" for comment in inside)


def _line(text: str, place: int) -> tuple[int, int]:
    """Return where the line of a place begins, and where it ends, newline included."""
    return text.rfind("\n", 0, place) + 1, (text.find("\n", place) + 1) or len(text)


def _shared(path: tuple[Any, ...], keys: Keys) -> int:
    """Count the names that two paths begin with together."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(path, keys)))


def newline(text: str) -> str:
    """Return how the lines of a text end."""
    return "\r\n" if "\r\n" in text else "\n"
