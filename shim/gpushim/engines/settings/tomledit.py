"""Edits of a TOML text by the places where things stand (tomlscan.py), each in one form; none is checked here.

Lines go and come whole, and comments stay: those of lines that go get lines of their own. Each text must be one that
tomli takes. Out of scope: whether the result says what it should (tomltext.py).
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings.textedit import Keys, newline
from gpushim.engines.settings.tomlscan import Item, Scan, scan, written

if TYPE_CHECKING:
    from collections.abc import Iterator


def additions(text: str, table: Keys, pairs: dict[Keys, str]) -> Iterator[str]:
    """Write values into a text, in each form that might do, the best first.

    Args:
        text: to be edited.
        table: that gets the values.
        pairs: each value as it is to be written, by its whole key; {} makes the table alone.
    """
    found = scan(text)
    for form in (_replaced, _in_section, _in_inline_table, _beside_dotted, _appended):
        yield form(found, table, pairs)


def without_header(text: str, table: Keys) -> str:
    """Take out the header of a table if nothing is below it."""
    found = scan(text)
    section = [item for item in found.items if item.table == table]
    return _without_lines(found, section[0]) if len(section) == 1 and section[0].is_header else text


def without_comment(text: str, comment: str) -> str:
    """Take out the lines of a comment, given with its sign, that stands alone in them."""
    starts = [start for start, end in scan(text).comments if text[start:end] == comment]
    for place in reversed(starts):
        start, end = _line(text, place)
        if not text[start:place].strip():
            text = text[:start] + text[end:]
    return text


def as_written(text: str, keys: Keys) -> str:
    """Return a value as it is written; "" if it stands in several places, or has comments within."""
    found = scan(text)
    item = found.find(keys)
    if item and not _comments_within(found, item.value, item.end, ""):
        return text[item.value : item.end]
    return ""


def cut(text: str, keys: Keys) -> str:
    """Take out the lines of a value, or of a table and those below it, and the blank line before a header."""
    found = scan(text)
    for item in reversed(found.items):
        if item.path[: len(keys)] == keys:
            text = _without_lines(Scan(text, comments=found.comments), item)
        elif item.members and item.path == keys[: len(item.path)]:
            text = _cut_member(text, item, keys)
    return text


def _replaced(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    """Write another value in the place of one; comments within it get lines of their own."""
    text = found.text
    for keys, value in pairs.items():
        item = found.find(keys)
        if item:
            start, _ = _line(text, item.start)
            comments = _comments_within(found, item.value, item.end, text[start : item.start])
            return text[:start] + comments + text[start : item.value] + value + text[item.end :]
    return ""


def _in_section(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    """Add lines behind the last one below the table's header, or below none before the first."""
    text = found.text
    rows = [item for item in found.items if item.table == table]
    lines = _lines(table, pairs)
    if rows:
        return _below(text, rows[-1], lines)
    if table or not found.items:
        return ""
    start, _ = _line(text, found.items[0].start)
    while start and text[: start - 1].rpartition("\n")[2].lstrip().startswith("#"):
        start, _ = _line(text, start - 1)  # the comment above a header is about it
    return text[:start] + newline(text).join([*lines, "", ""]) + text[start:]


def _in_inline_table(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    text, above = found.text, [found.find(table[:length]) for length in range(1, len(table) + 1)]
    owner = next((item for item in reversed(above) if item and item.members is not None), None)
    if not owner:
        return ""
    added = ", ".join(_lines(owner.path, pairs))
    if owner.members:
        end = owner.members[-1].end
        return f"{text[:end]}, {added}{text[end:]}"
    return f"{text[: owner.value]}{{{added}}}{text[owner.end :]}"


def _beside_dotted(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    """Add lines behind one whose dotted key makes the table, or one on the way to it."""
    beside = [
        item
        for item in reversed(found.items)
        if item.table == table[: len(item.table)] and _shared(item.path, table) > len(item.table)
    ]
    if not beside:
        return ""
    item = max(beside, key=lambda item: _shared(item.path, table))
    return _below(found.text, item, _lines(item.table, pairs))


def _appended(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    text, end = found.text, newline(found.text)
    gap = "" if not text else end if text.endswith("\n") else end * 2
    header = [f"[{written(table)}]"] if table else []
    return text + gap + end.join(header + _lines(table, pairs)) + end


def _lines(table: tuple[Any, ...], pairs: dict[Keys, str]) -> list[str]:
    """Write values with their keys as they are within a table."""
    return [f"{written(keys[len(table) :])} = {value}" for keys, value in pairs.items()]


def _below(text: str, item: Item, lines: list[str]) -> str:
    start, end = _line(text, item.start)[0], _line(text, item.end)[1]
    head = text[:end] if text[:end].endswith("\n") else text[:end] + newline(text)
    return head + "".join(text[start : item.start] + line + newline(text) for line in lines) + text[end:]


def _without_lines(found: Scan, item: Item) -> str:
    text = found.text
    (start, _), (_, end) = _line(text, item.start), _line(text, item.end)
    comments = _comments_within(found, start, end, text[start : item.start])
    before = _line(text, start - 1)[0] if start else 0
    if item.is_header and not text[before:start].strip():
        start = before
    return text[:start] + comments + text[end:]


def _cut_member(text: str, owner: Item, keys: Keys) -> str:
    members = owner.members or []
    for place in reversed(range(len(members))):
        item = members[place]
        if item.path[: len(keys)] == keys:
            if place:
                start, end = members[place - 1].end, item.end
            else:
                start, end = item.start, members[1].start if len(members) > 1 else item.end
            text = text[:start] + text[end:]
            return cut(text, keys)
        if item.members and item.path == keys[: len(item.path)]:
            text = _cut_member(text, item, keys)
    return text


def _comments_within(found: Scan, start: int, end: int, indent: str) -> str:
    """Return the comments of a part of a text as lines of their own."""
    inside = [found.text[begin:close] for begin, close in found.comments if start <= begin < end]
    return "".join(f"{indent}{comment}{newline(found.text)}" for comment in inside)


def _line(text: str, place: int) -> tuple[int, int]:
    """Return where the line of a place begins, and where it ends, newline included."""
    return text.rfind("\n", 0, place) + 1, (text.find("\n", place) + 1) or len(text)


def _shared(path: tuple[Any, ...], keys: Keys) -> int:
    """Count the names that two paths begin with together."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(path, keys)))
