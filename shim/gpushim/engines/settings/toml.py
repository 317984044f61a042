"""Settings in TOML: read strictly, merged as engines merge them, written whole, and one key of a file of others set.

Out of scope: which settings (each engine's module); files of gpushim's own (own.py).
"""

from __future__ import annotations

import glob
import json
import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings import files
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Mapping

BOM = "\ufeff"
_BARE = re.compile("[A-Za-z0-9_-]+")


def parse(data: bytes, path: str) -> dict[str, Any]:
    """Return what bytes say; `path` is their name for messages.

    Raises:
        GpushimError: they are not TOML, or not UTF-8.
    """
    text = decoded(data, path)
    if text.startswith(BOM):
        raise GpushimError(f"{path}, line {1}: begins with a byte order mark; save it as UTF-8 without one")
    try:
        return _loads(text)
    except RecursionError:
        raise GpushimError(f"{path} is nested too deeply; correct it first") from None
    except ValueError as error:
        raise GpushimError(f"{path} is not TOML: {str(error)[:200]}; correct it first") from None


def decoded(data: bytes, path: str) -> str:
    """Return a file's text; `path` is its name for messages.

    Raises:
        GpushimError: it is not UTF-8; the line is named.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise GpushimError(f"{path}, line {line}: is not UTF-8; save it as UTF-8") from None


def merged(paths: list[str], instead: Mapping[str, bytes | None] | None = None) -> dict[str, Any]:
    """Return what files say to an engine that merges them table by table, later ones last.

    Args:
        paths: files, and directories whose files are read in the order of their names; missing ones are skipped.
        instead: by path, what files are to become.

    Returns:
        all settings, without those of files that cannot be read, of which the engine itself will complain.
    """
    result: dict[str, Any] = {}
    for file in listed(paths, instead or {}):
        try:
            content = (instead or {})[file] if file in (instead or {}) else files.read(file)
            merge(result, parse(content or b"", file))
        except GpushimError:
            continue
    return result


def listed(paths: list[str], drafts: Mapping[str, object] | None = None) -> list[str]:
    """Return files in the order in which an engine reads them.

    Args:
        paths: files, and directories whose files are meant.
        drafts: files that are to be in these directories.
    """
    files_read: list[str] = []
    for path in paths:
        made = [file for file in drafts or {} if os.path.dirname(file) == path]
        if os.path.isdir(path) or made:
            files_read += sorted({*glob.glob(f"{glob.escape(path)}/*"), *made})
        else:
            files_read.append(path)
    return files_read


def table(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the table at these names, the outermost first; an empty one if there is no table."""
    value: Any = data
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def merge(into: dict[str, Any], added: dict[str, Any]) -> None:
    """Add settings to others, table by table."""
    for key, value in added.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def written(data: dict[str, Any], above: tuple[str, ...] = ()) -> str:
    """Return data as TOML: plain values, then tables, each with its header.

    Args:
        data: strings, booleans, numbers, dates, lists and tables.
        above: names of the tables that it is in.
    """
    plain = {key: value for key, value in data.items() if not isinstance(value, dict)}
    lines = [f"{_key(key)} = {value_text(value)}\n" for key, value in plain.items()]
    if above and (lines or not data):
        lines.insert(0, f"\n[{'.'.join(map(_key, above))}]\n")
    return "".join(lines) + "".join(
        written(value, (*above, key)) for key, value in data.items() if isinstance(value, dict)
    )


def value_text(value: Any) -> str:
    """Return a value as TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {value_text(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, (str, bool)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)  # a date, a number


def with_value(text: str, section: str, key: str, value: Any, path: str, comment: str = "") -> str:
    """Return TOML with one key set, and all other lines as they are.

    Args:
        section: the table at the top that has the key; "" for none.
        key: without a need for quotation marks.
        value: what it is to be; None to take the key's line out.
        path: of the file, for the message.
        comment: behind a line that is new.

    Raises:
        GpushimError: the text is of a form in which this cannot be done safely.
    """
    expected = _loads(text)
    owner = expected.setdefault(section, {}) if section else expected
    if value is None:
        owner.pop(key, None)
    else:
        owner[key] = value
    end = "\r\n" if "\r\n" in text else "\n"
    lines = [line + end for line in text.split(end)]
    lines[-1] = lines[-1][: -len(end)]
    first, last = _section(lines, section)
    lines_of_key = [number for number in range(first, last) if re.match(rf"\s*{key}\s*=", lines[number])]
    line = "" if value is None else f"{key} = {value_text(value)}"
    if lines_of_key:
        lines[lines_of_key[0]] = f"{line}{_comment(lines[lines_of_key[0]])}{end}" if line else ""
    elif section and not first:
        gap = end if text.endswith(end) else end * 2
        lines.append(f"{gap if text else ''}[{section}]{end}{line}{comment}{end}")
    else:
        version = [number + 1 for number in range(first, last) if re.match(r"version\s*=", lines[number])]
        lines.insert((version or [first])[0], f"{line}{comment}{end}")
    new = "".join(lines)
    try:
        if _loads(new) == expected:
            return new
    except ValueError:
        pass
    raise GpushimError(
        f"{section + '.' if section else ''}{key} cannot be changed in {path} without risk; do it by hand"
    )


def _section(lines: list[str], section: str) -> tuple[int, int]:
    """Return between which lines the keys of a table stand; (0, 0) if it has no header."""
    headers = [number for number, line in enumerate(lines) if re.match(r"\s*\[", line)] + [len(lines)]
    if not section:
        return 0, headers[0]
    for number, following in zip(headers, headers[1:]):
        if re.match(rf"\s*\[\s*{section}\s*\]", lines[number]):
            return number + 1, following
    return 0, 0


def _comment(line: str) -> str:
    pair = line.rstrip()
    for match in re.finditer(r"\s*#", pair):
        try:
            _loads(pair[: match.start()])
        except ValueError:
            continue
        return pair[match.start() :]
    return ""


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else value_text(name)


def _loads(text: str) -> dict[str, Any]:
    """Parse TOML: tomli knows TOML 1.1, which some engines read; Python's own does not yet."""
    for name in ("tomli", "tomllib"):
        try:
            parser = import_module(name)
        except ImportError:
            continue
        data: dict[str, Any] = parser.loads(text)
        return data
    raise GpushimError("TOML cannot be read: Python's tomli is missing; install it", FAILED)
