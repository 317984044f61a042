"""A settings file that is wholly gpushim's: its first line says so, and with what it was made.

If somebody has edited such a file, a copy stays of what is replaced or removed.
Out of scope: what is in it (each engine's module).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from gpushim.engines.settings import files, toml
from gpushim.engines.settings.files import Change
from gpushim.ground.errors import GpushimError

_HEADER = "# Made by `gpushim configure`; `gpushim configure {} --remove` takes it away."
_FIRST = re.compile(re.escape(_HEADER).replace(r"\{\}", "[a-z]+") + r"(?: ([0-9a-f]{16}))?\r?\n?")


def is_own(content: bytes | None) -> bool:
    """Return whether gpushim has made a file."""
    return bool(content and _FIRST.match(content.decode("utf-8", "replace")))


def is_edited(content: bytes) -> bool:
    """Return whether somebody has edited a file that gpushim has made."""
    text = content.decode("utf-8", "replace")
    match = _FIRST.match(text)
    return match is None or match[1] != _digest(text[match.end() :])


def data(path: str, content: bytes | None) -> dict[str, Any]:
    """Return what a file of gpushim's own says; {} if there is none.

    Raises:
        GpushimError: somebody else has made it.
    """
    if content is not None and not is_own(content):
        raise GpushimError(f"{path} is not gpushim's; give --config a name in the same directory that is free")
    return toml.parse(content or b"", path)


def put(path: str, engine: str, wished: dict[str, Any]) -> Change:
    """Return the change after which a file of gpushim's own says what is wished, and nothing else.

    One that somebody has edited stays as it is, as long as it says all that is wished.
    """
    old = files.read(path)
    if old is not None and is_edited(old) and _has(data(path, old), wished):
        return Change(path, old, old)
    body = toml.written(wished)
    new = f"{_HEADER.format(engine)} {_digest(body)}\n{body}".encode()
    return Change(path, old, new, _copy(old))


def remove(path: str) -> Change:
    """Return the change that removes a file of gpushim's own; a file of others stays."""
    old = files.read(path)
    return Change(path, old, None if is_own(old) else old, _copy(old))


def _copy(old: bytes | None) -> str:
    return files.KEPT if old is not None and is_own(old) and is_edited(old) else ""


def _has(there: object, wished: object) -> bool:
    """Return whether settings say all that is wished."""
    if isinstance(wished, dict):
        return isinstance(there, dict) and all(_has(there.get(key), value) for key, value in wished.items())
    return there == wished


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
