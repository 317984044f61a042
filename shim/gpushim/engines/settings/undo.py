"""What --remove takes back: what gpushim added, and nothing that somebody else wrote.

The file as it is now counts. The records of files.py only tell which values were there before and which settings are
gpushim's; where the file of before says the same as what is left, it comes back as it was.
Out of scope: reading and replacing files (files.py); which settings gpushim makes (each engine's own module).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings import records
from gpushim.engines.settings.textedit import Keys, leaves
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

MISSING = object()


@dataclass(frozen=True)
class Setting:
    """A setting that gpushim may have made.

    Attributes:
        keys: where it is.
        certain: whether its value itself shows that it is gpushim's, such as the path of gpushim-runtime. Others
            count only beside a certain one, and where the records say so.
    """

    keys: Keys
    certain: bool = False


@dataclass(frozen=True)
class Undone:
    """A file without gpushim's settings.

    Attributes:
        content: None if there is to be no file, because gpushim made it and nothing else is in it.
        lost: settings that somebody else wrote into an entry of gpushim's, with which they go.
    """

    content: bytes | None
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """What one engine's files are like.

    Attributes:
        form: jsontext or tomltext.
        settings: lists those of a text that may be gpushim's.
        comment: that gpushim puts into files it makes.
        idle: names at the top that are nothing by themselves in such a file.
        runtimes: where the runtimes are.
        default: where the name of the default one is; no engine starts with one that is nowhere.
        others: names of the runtimes that the engine has beside those of the file.
    """

    form: ModuleType
    settings: Callable[[str], list[Setting]]
    comment: str = ""
    idle: frozenset[str] = frozenset()
    runtimes: Keys = ()
    default: Keys = ()
    others: frozenset[str] = frozenset()


def undone(kind: Kind, path: str, current: bytes | None) -> Undone:
    """Work out a file without gpushim's settings, from what it is now (None: there is none) and its records.

    Raises:
        GpushimError: the file is not of this format, or cannot be edited.
    """
    if current is None:
        return Undone(None)
    form, text = kind.form, kind.form.parse(current, path)
    before, after = records.before(path), records.after(path)
    old, made = _parsed(form, before), _parsed(form, after)
    old = old and _edited(kind, old, None, None)
    left = _without_default(kind, text, _edited(kind, text, old, made), old)
    ours = kind.comment and kind.form.without_comment(text, kind.comment) != text
    if left == text and not (ours and _is_idle(kind, text)):
        return Undone(current)
    for name in kind.idle if set(form.get(left, ())) <= kind.idle else ():
        if _at(form, old, (name,)) is MISSING and _at(form, made, (name,)) == _at(form, left, (name,)):
            left = form.drop(left, (name,))
    lost = tuple(".".join(keys) for keys in _lost(form, text, left, made))
    if before is None and (after is not None or ours) and _is_idle(kind, left):
        return Undone(None, lost)
    if before is not None and old is not None and current == after and form.same(left, old):
        return Undone(old.encode(), lost)
    return Undone((form.without_comment(left, kind.comment) if ours else left).encode(), lost)


def _without_default(kind: Kind, text: str, left: str, old: str | None) -> str:
    """Take out a default, whatever it was before, whose entry is gone: with gpushim's, or by its writer since."""
    had, was, has = (
        {*table} if isinstance(table := _at(kind.form, each, kind.runtimes), dict) else set()
        for each in (text, old, left)
    )
    name = _at(kind.form, left, kind.default) if left != text else MISSING
    if isinstance(name, str) and name in (had | was) - has - kind.others:
        return _dropped(kind.form, left, kind.default, old)
    return left


def _parsed(form: ModuleType, record: bytes | None) -> str | None:
    """Read a record; one that is damaged says nothing."""
    try:
        text: str | None = None if record is None else form.parse(record, "")
    except GpushimError:
        return None
    return text


def _edited(kind: Kind, text: str, old: str | None, made: str | None) -> str:
    """Take gpushim's settings out of a text; `old` and `made` are those of the records, None where not known."""
    settings = kind.settings(text)
    if not any(setting.certain for setting in settings):
        return text  # whatever it says, it is not gpushim's
    for setting in settings:
        now, then, was = (_at(kind.form, each, setting.keys) for each in (text, old, made))
        if now is not MISSING and now != then and (setting.certain or now == was):
            text = _taken_out(kind, text, setting, old, made)
    return text


def _taken_out(kind: Kind, text: str, setting: Setting, old: str | None, made: str | None) -> str:
    """Give a setting the value from before; objects that were made for it alone go too."""
    form, keys = kind.form, setting.keys
    now, then, was = (_at(form, each, keys) for each in (text, old, made))
    if old is not None and then is not MISSING:
        if now != was and all(isinstance(each, dict) for each in (now, then, was)):
            edited = _merged(form, text, keys, old, str(made))
            if setting not in kind.settings(edited):
                return edited
        copied: str = form.copy(text, keys, old)
        return copied
    return _dropped(form, text, keys, old)


def _dropped(form: ModuleType, text: str, keys: Keys, old: str | None) -> str:
    text = form.drop(text, keys)
    for length in range(len(keys) - 1, 0, -1):
        if _at(form, text, keys[:length]) not in ({}, MISSING):
            break
        then = _at(form, old, keys[:length])
        if isinstance(then, dict):
            break
        if not then and old is not None:  # a value that means none, such as null
            return str(form.copy(text, keys[:length], old))
        text = form.drop(text, keys[:length])
    return text


def _merged(form: ModuleType, text: str, keys: Keys, old: str, made: str) -> str:
    """Give back each value of an entry that gpushim changed, unless somebody has changed it since."""
    names = {leaf for each in (old, made) for leaf, _ in leaves(form.get(each, keys), keys)}
    for leaf in sorted(names):
        now, then, was = (_at(form, each, leaf) for each in (text, old, made))
        if now == was and was != then and then is MISSING:
            text = _dropped(form, text, leaf, old)
        elif now == was and was != then and not isinstance(then, dict):
            text = form.copy(text, leaf, old)
    return text


def _lost(form: ModuleType, text: str, left: str, made: str | None) -> Iterator[Keys]:
    """List the values that are gone and that gpushim did not write."""
    for keys, value in leaves(form.get(text, ()), ()):
        if value != {} and _at(form, left, keys) != value and _at(form, made, keys) != value:
            yield keys


def _is_idle(kind: Kind, text: str) -> bool:
    """Say whether nothing is left in a file but what gpushim puts into each that it makes."""
    form = kind.form
    rest = form.without_comment(text, kind.comment)
    return set(form.get(rest, ())) <= kind.idle and not form.comments(rest)


def _at(form: ModuleType, text: str | None, keys: Keys) -> Any:
    return MISSING if text is None else form.get(text, keys, MISSING)
