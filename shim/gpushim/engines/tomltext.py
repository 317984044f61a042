"""TOML as text: edited so that comments, order and all that is not edited stay as they were written.

An edit is made where tomlscan.py says that things stand, in the first form that fits; then the text is parsed again.
It counts only if it says exactly what was there with the change, and has every comment. Out of scope: files; what the
settings mean.
"""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpushim.engines.tomlscan import Item, Scan, scan, written
from gpushim.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

Keys = tuple[str, ...]
_MISSING = object()


def parse(data: bytes, path: str) -> str:
    """Check that bytes are TOML, and decode them.

    Args:
        data: of the file.
        path: its name, for messages.

    Raises:
        GpushimError: they are not UTF-8 or not TOML, with the line, or begin with a byte order mark.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise GpushimError(f"{path}, line 1: begins with a byte order mark; save it as UTF-8 without one")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise GpushimError(f"{path}, line {line}: is not UTF-8; save it as UTF-8") from None
    try:
        _data(text)
        scan(text)
    except RecursionError:
        raise GpushimError(f"{path} is nested too deeply; correct it first") from None
    except ValueError as error:
        raise GpushimError(f"{path} is not TOML: {str(error)[:200]}; correct it first") from None
    return text


def get(text: str, keys: Keys, default: Any = None) -> Any:
    """Return a value as Python's data.

    Args:
        text: from `parse`.
        keys: names from the outermost table inwards; () for all.
        default: for a value that is not there.
    """
    value: Any = _data(text)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return value


def same(text: str, other: str) -> bool:
    """Say whether two texts say the same and have the same comments.

    Args:
        text: from `parse`.
        other: the same.
    """
    return _data(text) == _data(other) and comments(text) == comments(other)


def comments(text: str) -> Counter[str]:
    """Count the comments of a text.

    Args:
        text: from `parse`.
    """
    return Counter(text[start:end] for start, end in scan(text).comments)


def without_comment(text: str, comment: str) -> str:
    """Take out the lines of a comment of ours.

    Args:
        text: from `parse`.
        comment: with its sign, without a newline.
    """
    starts = [start for start, end in scan(text).comments if text[start:end] == comment]
    for start in reversed(starts):
        begin, end = _line(text, start)
        if not text[begin:start].strip():
            text = text[:begin] + text[end:]
    return text


def put(text: str, keys: Keys, value: Any) -> str:
    """Set a value; tables on the way to it are made.

    Args:
        text: from `parse`.
        keys: at least one.
        value: a string, boolean, integer, list of strings, or a dict of such for a table, with nothing else.

    Raises:
        GpushimError: something on the way is no table, or the text is of a form that cannot be edited safely.
    """
    if not isinstance(value, dict):
        return _put(text, keys, value, {keys: _rendered(value)})
    old = get(text, keys)
    if not isinstance(old, dict):
        return _put(drop(text, keys), keys, value, {(*keys, name): _rendered(each) for name, each in value.items()})
    for name in [name for name in old if name not in value]:
        text = drop(text, (*keys, name))
    for name, each in value.items():
        if old.get(name) != each:
            text = put(text, (*keys, name), each)
    return text


def copy(text: str, keys: Keys, source: str) -> str:
    """Set a value to the one of the same name in another text, as it is written there; comments stay.

    Args:
        text: from `parse`.
        keys: at least one.
        source: from `parse`, with such a value.

    Raises:
        GpushimError: the value is of a form that cannot be copied.
    """
    theirs = dict(_leaves(get(source, keys), keys))
    while True:
        above = {leaf[:length] for leaf in theirs for length in range(len(leaf))}
        ours = [leaf for leaf, now in _leaves(get(text, keys, {}), keys) if not (now == {} and leaf in above)]
        extra = [leaf for leaf in ours if leaf not in theirs]
        if not extra or get(text, keys, _MISSING) is _MISSING:
            break
        text = drop(text, extra[0])
    for leaf, value in theirs.items():
        now = get(text, leaf, _MISSING)
        if now != value:
            text = drop(text, leaf) if isinstance(now, dict) else text  # of which only tables without values are left
            text = _put(text, leaf, value, {} if value == {} else {leaf: _as_written(source, leaf, value)})
    return text


def drop(text: str, keys: Keys) -> str:
    """Take a value or table out; nothing happens if it is not there, and comments stay in any case.

    Args:
        text: from `parse`.
        keys: at least one.

    Raises:
        GpushimError: the text is of a form that cannot be edited safely.
    """
    if get(text, keys, _MISSING) is _MISSING:
        return text
    acceptable = [_without(_data(text), keys)]
    # A table without a header of its own ends with the last one below it.
    for length in range(len(keys) - 1, 0, -1):
        if _within(acceptable[-1], keys[:length]):
            break
        acceptable.append(_without(deepcopy(acceptable[-1]), keys[:length]))
    edited = _cut(text, keys)
    if not any(_says(edited, wanted, text) for wanted in acceptable):
        raise _risky(keys)
    return _without_idle_header(edited, keys[:-1])


def _put(text: str, keys: Keys, value: Any, pairs: dict[Keys, str]) -> str:
    """Set what is one value, or a table that is not there yet; `pairs` are the lines for it."""
    wanted = _data(text)
    _set(wanted, keys, value)
    found, table = scan(text), keys if isinstance(value, dict) else keys[:-1]
    for form in (_replaced, _in_section, _in_inline_table, _beside_dotted, _appended):
        edited = form(found, table, pairs)
        if _says(edited, wanted, text):
            return edited
    raise _risky(keys)


def _replaced(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    """Write another value in the place of one; comments within it get lines of their own."""
    text = found.text
    for keys, value in pairs.items():
        item = found.find(keys)
        if item:
            start, _ = _line(text, item.start)
            kept = _comments_within(found, item.value, item.end, text[start : item.start])
            return text[:start] + kept + text[start : item.value] + value + text[item.end :]
    return ""


def _in_section(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    """Add lines behind the last one below the table's header, or below none before the first."""
    text = found.text
    rows = [item for item in found.items if item.table == table]
    lines = [f"{written(keys[len(table) :])} = {value}" for keys, value in pairs.items()]
    if rows:
        return _below(text, rows[-1], lines)
    if table or not found.items:
        return ""
    start, _ = _line(text, found.items[0].start)
    while start and text[: start - 1].rpartition("\n")[2].lstrip().startswith("#"):
        start, _ = _line(text, start - 1)  # the comment above a header is about it
    newline = _newline(text)
    return text[:start] + newline.join([*lines, "", ""]) + text[start:]


def _in_inline_table(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    text, owner = found.text, None
    for length in range(1, len(table) + 1):
        item = found.find(table[:length])
        owner = item if item and item.members is not None else owner
    if not owner:
        return ""
    added = ", ".join(f"{written(keys[len(owner.path) :])} = {value}" for keys, value in pairs.items())
    if owner.members:
        end = owner.members[-1].end
        return f"{text[:end]}, {added}{text[end:]}"
    return f"{text[: owner.value]}{{{added}}}{text[owner.end :]}"


def _beside_dotted(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    """Add lines behind one whose dotted key makes the table, or one on the way to it."""
    best: tuple[int, Item] | None = None
    for item in found.items:
        shared = _shared(item.path, table)
        if shared > len(item.table) and item.table == table[: len(item.table)] and shared >= (best or (0,))[0]:
            best = shared, item
    if not best:
        return ""
    item = best[1]
    lines = [f"{written(keys[len(item.table) :])} = {value}" for keys, value in pairs.items()]
    return _below(found.text, item, lines)


def _appended(found: Scan, table: Keys, pairs: dict[Keys, str]) -> str:
    text, newline = found.text, _newline(found.text)
    lines = [f"{written(keys[len(table) :])} = {value}" for keys, value in pairs.items()]
    if table:
        lines.insert(0, f"[{written(table)}]")
    gap = "" if not text else newline if text.endswith("\n") else newline * 2
    return text + gap + newline.join(lines) + newline


def _below(text: str, item: Item, lines: list[str]) -> str:
    start, end = _line(text, item.start)[0], _line(text, item.end)[1]
    newline, indent = _newline(text), text[start : item.start]
    head = text[:end] if text[:end].endswith("\n") else text[:end] + newline
    return head + "".join(indent + line + newline for line in lines) + text[end:]


def _cut(text: str, keys: Keys) -> str:
    """Take out the lines of a value, or of a table and those below it, and the blank line before a header."""
    found = scan(text)
    for item in reversed(found.items):
        if item.path[: len(keys)] == keys:
            text = _without_lines(Scan(text, comments=found.comments), item)
        elif item.members and item.path == keys[: len(item.path)]:
            text = _cut_member(text, item, keys)
    return text


def _without_idle_header(text: str, table: Keys) -> str:
    """Take out a header below which nothing is left, if others make the same table."""
    section = [item for item in scan(text).items if item.table == table]
    if len(section) == 1 and section[0].is_header:
        edited = _without_lines(scan(text), section[0])
        return edited if _says(edited, _data(text), text) else text
    return text


def _without_lines(found: Scan, item: Item) -> str:
    text = found.text
    (start, _), (_, end) = _line(text, item.start), _line(text, item.end)
    kept = _comments_within(found, start, end, text[start : item.start])
    before = _line(text, start - 1)[0] if start else 0
    if item.is_header and not text[before:start].strip():
        start = before
    return text[:start] + kept + text[end:]


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
            return _cut(text, keys)
        if item.members and item.path == keys[: len(item.path)]:
            text = _cut_member(text, item, keys)
    return text


def _comments_within(found: Scan, start: int, end: int, indent: str) -> str:
    """Return the comments of a part of a text as lines of their own."""
    inside = [found.text[begin:close] for begin, close in found.comments if start <= begin < end]
    return "".join(f"{indent}{comment}{_newline(found.text)}" for comment in inside)


def _as_written(source: str, keys: Keys, value: Any) -> str:
    found = scan(source)
    item = found.find(keys)
    if item and not _comments_within(found, item.value, item.end, ""):
        return source[item.value : item.end]
    return _rendered(value)


def _rendered(value: Any) -> str:
    """Write a value as TOML has it, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written((name,))} = {_rendered(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_rendered, value)) + "]"
    if isinstance(value, (str, bool)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)  # a date, a number


def _line(text: str, place: int) -> tuple[int, int]:
    """Return where the line of a place begins, and where it ends, newline included."""
    return text.rfind("\n", 0, place) + 1, (text.find("\n", place) + 1) or len(text)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _shared(path: tuple[Any, ...], keys: Keys) -> int:
    """Count the names that two paths begin with together."""
    count = 0
    while count < min(len(path), len(keys)) and path[count] == keys[count]:
        count += 1
    return count


def _leaves(value: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    """List the values in a table that are no tables, and tables without any."""
    if not isinstance(value, dict) or not value:
        yield keys, value
        return
    for name, each in value.items():
        yield from _leaves(each, (*keys, name))


def _without(data: dict[str, Any], keys: Keys) -> dict[str, Any]:
    del _within(data, keys[:-1])[keys[-1]]
    return data


def _within(data: Any, keys: Keys) -> Any:
    for key in keys:
        data = data[key]
    return data


def _set(data: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise GpushimError(f"{'.'.join(keys)} cannot be set, because {key} is no table; correct the file first")
    data[keys[-1]] = value


def _risky(keys: Keys) -> GpushimError:
    return GpushimError(f"{'.'.join(keys)} cannot be changed in this file without risk; change it by hand")


def _says(edited: str, wanted: dict[str, Any], text: str) -> bool:
    """Check that an edited text says what it should and has the comments of the text that it was made of."""
    try:
        return _data(edited) == wanted and comments(edited) == comments(text)
    except ValueError:
        return False


class _Float(float):
    """A number that equals itself, as float's nan does not."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and repr(float(self)) == repr(float(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = float.__hash__


def _data(text: str) -> dict[str, Any]:
    data: dict[str, Any] = _parser().loads(text, parse_float=_Float)
    return data


def _parser() -> Any:
    """Return the parser: tomli knows TOML 1.1, which some engines read; Python's own does not yet."""
    for name in ("tomli", "tomllib"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise GpushimError("TOML cannot be read: Python's tomli is missing; install it", FAILED)
