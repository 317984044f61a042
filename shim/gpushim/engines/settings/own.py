"""A settings file that is wholly gpushim's: its first line says so, and with what it was made.

If somebody has edited such a file, a copy stays of what is replaced or removed.
Out of scope: what is in it (each engine's module).
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings import files, former, toml
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import check_default
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Collection

_HEADER = "# Made by `gpushim configure`; `gpushim configure {} --remove` takes it away."
_FIRST = re.compile(re.escape(_HEADER).replace(r"\{\}", "[a-z]+") + r"(?: ([0-9a-f]{16}))?\r?\n?")


def is_own(content: bytes | None) -> bool:
    """Return whether gpushim has made a file."""
    return bool(content and _FIRST.match(content.decode("utf-8", "replace")))


def data(path: str, content: bytes | None) -> dict[str, Any]:
    """Return what a file of gpushim's own says; {} if there is none.

    Raises:
        GpushimError: somebody else has made it.
    """
    if content is not None and not is_own(content):
        raise GpushimError(f"{path} is not gpushim's; give --config a name in the same directory that is free")
    return toml.parse(content or b"", path)


def plan_content(path: str, engine_name: str, wished: dict[str, Any]) -> Change:
    """Return the change after which a file of gpushim's own says what is wished, and nothing else.

    One that somebody has edited stays as it is, as long as it says all that is wished.
    """
    old = files.read(path)
    if old is not None and _is_edited(path, old) and _has(data(path, old), wished):
        return Change(path, old, old)
    body = toml.written(wished)
    new = f"{_HEADER.format(engine_name)} {digest(body)}\n{body}".encode()
    return Change(path, old, new, _copy(path, old))


def plan_removal(path: str) -> list[Change]:
    """Return the changes that remove a file of gpushim's own, or what an earlier gpushim wrote into one of others."""
    old = files.read(path)
    new = None if is_own(old) else former.without(path, old)
    return [Change(path, old, new, _copy(path, old)), *former.records(path)]


def check_left(
    title: str, read: list[str], changes: list[Change], default: tuple[str, ...], stock: Collection[str]
) -> None:
    """Refuse what `check_default` does, for an engine that merges its files.

    Args:
        title: the engine's name, for the sentence.
        read: files and directories that it reads.
        changes: that take gpushim out.
        default: the key of the default runtime's name, beside the table `runtimes`.
        stock: runtimes that it has by itself.
    """
    drafts = {change.path: change.new for change in changes}
    *above, key = default
    had, has = (toml.table(toml.merged(read, instead), *above, "runtimes") for instead in ({}, drafts))
    defaults = [(path, toml.table(toml.merged([path], drafts), *above).get(key)) for path in toml.listed(read)]
    check_default(title, key, [pair for pair in defaults if pair[1] is not None], {*had} - {*has} - {*stock})


def digest(text: str) -> str:
    """Return by what an edit of a text is seen."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _copy(path: str, old: bytes | None) -> str:
    return files.EDITED if old is not None and _is_edited(path, old) else ""


def _is_edited(path: str, content: bytes) -> bool:
    text = content.decode("utf-8", "replace")
    match = _FIRST.match(text)
    if match and not match[1]:
        return content != files.read(files.copy_path(path, former.AFTER))
    return match is not None and match[1] != digest(text[match.end() :])


def _has(actual: object, wished: object) -> bool:
    if isinstance(wished, dict):
        return isinstance(actual, dict) and all(_has(actual.get(key), value) for key, value in wished.items())
    return actual == wished
