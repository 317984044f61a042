"""TOML as text: edited so that comments, order and all that is not edited stay as they were written.

A new table is appended as text; anything else is tomlkit's work. Either way the result is parsed again and compared
with what it should say. Out of scope: files; what the settings mean.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from gpushim.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


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
    except RecursionError:
        raise GpushimError(f"{path} is nested too deeply; correct it first") from None
    except ValueError as error:
        raise GpushimError(f"{path} is not TOML: {str(error)[:200]}; correct it first") from None
    return text


def get(text: str, keys: tuple[str, ...], default: Any = None) -> Any:
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


def put(text: str, keys: tuple[str, ...], value: Any) -> str:
    """Set a value; tables on the way to it are made.

    Args:
        text: from `parse`.
        keys: at least one.
        value: a string, boolean, integer, list of strings, or a dict of such for a table.

    Raises:
        GpushimError: something on the way is no table, or the text is of a form that cannot be edited safely.
    """
    wanted = _data(text)
    _set(wanted, keys, value)
    if get(text, keys if isinstance(value, dict) else keys[:-1]) is None:
        appended = _appended(text, keys, value)
        if _says(appended, wanted):
            return appended
    document = _document(text)
    try:
        _set(document, keys, value)
    except (ValueError, TypeError):
        raise _risky(keys) from None
    return _checked(_crlf(document.as_string(), text), wanted, keys)


def copy(text: str, keys: tuple[str, ...], source: str) -> str:
    """Replace a value by the one of the same name in another text.

    Args:
        text: from `parse`, with such a value.
        keys: at least one.
        source: from `parse`, with such a value.
    """
    return put(drop(text, keys), keys, get(source, keys))


def drop(text: str, keys: tuple[str, ...]) -> str:
    """Take a value or table out; nothing happens if it is not there.

    Args:
        text: from `parse`.
        keys: at least one.
    """
    if get(text, keys) is None:
        return text
    acceptable = [_without(_data(text), keys)]
    # A table without a header of its own ends with the last one below it.
    for length in range(len(keys) - 1, 0, -1):
        if _within(acceptable[-1], keys[:length]):
            break
        acceptable.append(_without(deepcopy(acceptable[-1]), keys[:length]))
    for edit in (_cut, _deleted):
        edited = edit(text, keys)
        if any(_says(edited, wanted) for wanted in acceptable):
            return edited
    raise _risky(keys)


def _cut(text: str, keys: tuple[str, ...]) -> str:
    """Take out the lines of a table and of those below it, but no comment behind them: it is about what follows.

    tomlkit would take such a comment for a part of the table.
    """
    name = ".".join(map(_key, keys))
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    place = 0
    while place < len(lines):
        if not lines[place].lstrip().startswith((f"[{name}]", f"[{name}.")):
            place += 1
            continue
        end = place + 1
        while end < len(lines) and not lines[end].lstrip().startswith("["):
            end += 1
        while end > place + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1
        start = place - 1 if place and not lines[place - 1].strip() else place
        del lines[start:end]
        place = start
    return "".join(lines)


def _deleted(text: str, keys: tuple[str, ...]) -> str:
    document = _document(text)
    del _within(document, keys[:-1])[keys[-1]]
    return _crlf(document.as_string(), text)


def _without(data: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    del _within(data, keys[:-1])[keys[-1]]
    return data


def _within(data: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        data = data[key]
    return data


def _set(data: MutableMapping[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        if key not in data:
            data[key] = _table_within(data)
        data = data[key]
        if not hasattr(data, "keys"):
            raise GpushimError(f"{'.'.join(keys)} cannot be set, because {key} is no table; correct the file first")
    data[keys[-1]] = value


def _table_within(owner: object) -> Any:
    tomlkit = _tomlkit()
    if type(owner) is dict:
        return {}
    return tomlkit.inline_table() if isinstance(owner, tomlkit.items.InlineTable) else tomlkit.table()


def _appended(text: str, keys: tuple[str, ...], value: Any) -> str:
    table, members = (keys, value) if isinstance(value, dict) else (keys[:-1], {keys[-1]: value})
    lines = [f"{_key(name)} = {json.dumps(member, ensure_ascii=False)}" for name, member in members.items()]
    if table:
        lines.insert(0, f"[{'.'.join(map(_key, table))}]")
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else newline if text.endswith("\n") else newline * 2
    return text + gap + newline.join(lines) + newline


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _crlf(edited: str, text: str) -> str:
    return re.sub("(?<!\r)\n", "\r\n", edited) if "\r\n" in text else edited


def _checked(edited: str, wanted: dict[str, Any], keys: tuple[str, ...]) -> str:
    if not _says(edited, wanted):
        raise _risky(keys)
    return edited


def _risky(keys: tuple[str, ...]) -> GpushimError:
    return GpushimError(f"{'.'.join(keys)} cannot be changed in this file without risk; change it by hand")


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return _data(text) == wanted
    except ValueError:
        return False


def _data(text: str) -> dict[str, Any]:
    data: dict[str, Any] = _document(text).unwrap()
    return data


def _document(text: str) -> Any:
    tomlkit = _tomlkit()
    try:
        return tomlkit.parse(text)
    except tomlkit.exceptions.TOMLKitError as error:  # not all of them are ValueErrors
        raise ValueError(str(error)) from None


def _tomlkit() -> Any:
    try:
        import tomlkit
    except ImportError:
        raise GpushimError("TOML cannot be edited: Python's tomlkit is missing; install it", FAILED) from None
    return tomlkit
