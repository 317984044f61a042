"""What edits of a settings file's text have in common, be it JSON or TOML. Out of scope: either's grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = 8  # that are kept as they were parsed: of a file, its records, and the steps of an edit
Keys = tuple[str, ...]  # names from the outermost table, or object, inwards


def decoded(data: bytes, path: str) -> str:
    """Decode a file; `path` is its name for messages.

    Raises:
        GpushimError: it is not UTF-8; the line is named.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise GpushimError(f"{path}, line {line}: is not UTF-8; save it as UTF-8") from None


def newline(text: str) -> str:
    """Return how the lines of a text end."""
    return "\r\n" if "\r\n" in text else "\n"


def within(data: Any, keys: Keys) -> Any:
    """Return a value of parsed data, which is there."""
    for key in keys:
        data = data[key]
    return data


def leaves(value: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    """List the values in parsed data that are no tables, and the tables without any, each with its keys."""
    if not isinstance(value, dict) or not value:
        yield keys, value
        return
    for name, each in value.items():
        yield from leaves(each, (*keys, name))


def risky(keys: Keys) -> GpushimError:
    """Return the error of an edit after which a text would say anything but what it should."""
    return GpushimError(f"{'.'.join(keys)} cannot be changed in this file without risk; change it by hand")
