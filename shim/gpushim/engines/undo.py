"""What --remove takes back: what gpushim added, and nothing that somebody else wrote since.

Three texts decide: what the file was before gpushim, what gpushim made of it, and what it is now.
Out of scope: reading and replacing files (files.py); which settings gpushim makes (docker.py and its neighbours).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushim.engines import files

if TYPE_CHECKING:
    from types import ModuleType

MISSING = object()


@dataclass(frozen=True)
class Setting:
    """A setting that gpushim may have made.

    Attributes:
        keys: where it is.
        certain: whether its value itself shows that it is gpushim's, such as the path of gpushim-runtime; others
            count only where the records say so.
    """

    keys: tuple[str, ...]
    certain: bool = False


def undone(form: ModuleType, path: str, current: bytes, settings: list[Setting]) -> bytes | None:
    """Work out a file without gpushim's settings.

    Args:
        form: jsontext or tomltext.
        path: of the file, whose records files.py kept.
        current: what it is now.
        settings: that gpushim may have made.

    Returns:
        the bytes from before gpushim if nothing else differs from them, else the current ones without what gpushim
        added; None if the file is to go, because gpushim made it and nothing else is in it.

    Raises:
        GpushimError: the file or a record is not of this format.
    """
    before, after = files.before(path), files.after(path)
    if after is not None and current == after:
        return before
    text: str = form.parse(current, path)
    old: str = form.parse(before or b"", path + files.BEFORE)
    made: str | None = None if after is None else form.parse(after, path + files.AFTER)
    for setting in settings:
        if _added(form, setting, text, old, made):
            text = _taken_out(form, setting.keys, text, old)
    if text.encode() == current:
        return current  # also where the file was never gpushim's and says nothing
    if form.get(text, ()) == form.get(old, ()):
        return before
    return text.encode()


def _added(form: ModuleType, setting: Setting, text: str, old: str, made: str | None) -> bool:
    """Say whether gpushim made a setting as it stands now."""
    now, then = (form.get(each, setting.keys, MISSING) for each in (text, old))
    if now is MISSING or now == then:
        return False
    if setting.certain or made is None:
        return setting.certain
    return bool(form.get(made, setting.keys, MISSING) == now)  # else its owner has changed it since


def _taken_out(form: ModuleType, keys: tuple[str, ...], text: str, old: str) -> str:
    """Give a setting the value from before; objects that were made for it alone go too."""
    if form.get(old, keys, MISSING) is not MISSING:
        copied: str = form.copy(text, keys, old)
        return copied
    text = form.drop(text, keys)
    for length in range(len(keys) - 1, 0, -1):
        then = form.get(old, keys[:length], MISSING)
        if form.get(text, keys[:length], {}) != {} or then == {}:
            break
        text = form.drop(text, keys[:length]) if then is MISSING else form.copy(text, keys[:length], old)
    return text
