"""What --remove takes back: what gpushim added, and nothing that somebody else wrote.

The file as it is now counts. The records of files.py only tell which values were there before and which settings are
gpushim's; where the file of before says the same as what is left, it comes back as it was.
Out of scope: replacing files (files.py); which settings gpushim makes (each engine's own module).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings import files, records
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.syntax import Keys
from gpushim.engines.settings.text import MISSING, Text
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator


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
class Kind:
    """What one engine's files are like.

    Attributes:
        form: Json or Toml.
        ours: says whether an entry of `runtimes` is gpushim-runtime.
        runtimes: where the runtimes are.
        default: where the name of the default one is; no engine starts with one that is nowhere.
        more: lists settings that may be gpushim's beside these, by the names of its runtimes.
        comment: that gpushim puts into files it makes.
        idle: names at the top that are nothing by themselves in such a file.
        others: names of the runtimes that the engine has beside those of the file.
        spared: names of gpushim's runtimes that stay; with "" the default does, too.
    """

    form: type[Text]
    ours: Callable[[Any], bool]
    runtimes: Keys
    default: Keys
    more: Callable[[Text, list[str]], list[Setting]] = lambda text, names: []
    comment: str = ""
    idle: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()

    def settings(self, text: Text) -> list[Setting]:
        """List the settings of a text that may be gpushim's."""
        runtimes = text.get(self.runtimes)
        names = [name for name, entry in runtimes.items() if self.ours(entry)] if isinstance(runtimes, dict) else []
        found = [Setting((*self.runtimes, name), certain=True) for name in names if name not in self.spared]
        default = [] if "" in self.spared else [Setting(self.default, certain=text.get(self.default) in names)]
        return [*found, *default, *self.more(text, names)]


def take_out(kind: Kind, path: str) -> Change:
    """Work out a file without gpushim's settings, from what it is now and its records.

    One that gpushim made goes when nothing else is in it. Where runtimes of gpushim's are spared, the records stay.

    Raises:
        GpushimError: the file is not of this format, or cannot be read or edited.
    """
    current = files.read(path)
    if current is None:
        return Change(path, None, None)
    text = kind.form.parse(current, path)
    before, after = records.before(path), records.after(path)
    old, made = (_parsed(kind, record) for record in (before, after))
    old = old and _edited(kind, old, None, None)
    left = _without_default(kind, text, _edited(kind, text, old, made), old)
    ours = kind.comment in text.comments
    if left.text == text.text and not (kind.spared or (ours and _is_idle(kind, text))):
        return Change(path, current, current)
    for name in kind.idle if set(left.data) <= kind.idle else ():
        if _at(old, (name,)) is MISSING and _at(made, (name,)) == _at(left, (name,)):
            left = left.drop((name,))
    lost = tuple(".".join(keys) for keys in _lost(text, left, made))
    if kind.spared and any(setting.certain for setting in replace(kind, spared=frozenset()).settings(left)):
        return Change(path, current, left.encode(), before=before, lost=lost, partly=True)
    if before is None and (after is not None or ours) and _is_idle(kind, left):
        return Change(path, current, None, lost=lost)
    if before is not None and old is not None and current == after and left.same(old):
        return Change(path, current, old.encode(), lost=lost)
    return Change(path, current, left.without_comment(kind.comment).encode(), lost=lost)


def _without_default(kind: Kind, text: Text, left: Text, old: Text | None) -> Text:
    """Take out a default, whatever it was before, whose entry is gone: with gpushim's, or by its writer since."""
    had, was, has = (
        {*table} if isinstance(table := _at(each, kind.runtimes), dict) else set() for each in (text, old, left)
    )
    name = _at(left, kind.default) if left.text != text.text else MISSING
    if isinstance(name, str) and name in (had | was) - has - kind.others:
        return _dropped(left, kind.default, old)
    return left


def _parsed(kind: Kind, record: bytes | None) -> Text | None:
    """Read a record; one that is damaged says nothing."""
    try:
        return None if record is None else kind.form.parse(record, "")
    except GpushimError:
        return None


def _edited(kind: Kind, text: Text, old: Text | None, made: Text | None) -> Text:
    """Take gpushim's settings out of a text; `old` and `made` are those of the records, None where not known."""
    settings = kind.settings(text)
    if not any(setting.certain for setting in settings):
        return text  # whatever it says, it is not gpushim's
    for setting in settings:
        now, then, was = (_at(each, setting.keys) for each in (text, old, made))
        if now is not MISSING and now != then and (setting.certain or now == was):
            text = _taken_out(kind, text, setting, old, made)
    return text


def _taken_out(kind: Kind, text: Text, setting: Setting, old: Text | None, made: Text | None) -> Text:
    """Give a setting the value from before; objects that were made for it alone go too."""
    keys = setting.keys
    now, then, was = (_at(each, keys) for each in (text, old, made))
    if old is None or then is MISSING:
        return _dropped(text, keys, old)
    if now != was and all(isinstance(each, dict) for each in (now, then, was)):
        edited = _merged(text, keys, old, made)
        if setting not in kind.settings(edited):
            return edited
    return text.copy(keys, old)


def _dropped(text: Text, keys: Keys, old: Text | None) -> Text:
    text = text.drop(keys)
    for length in range(len(keys) - 1, 0, -1):
        if text.get(keys[:length], {}) != {}:
            break
        then = _at(old, keys[:length])
        if isinstance(then, dict):
            break
        if not then and old is not None:  # a value that means none, such as null
            return text.copy(keys[:length], old)
        text = text.drop(keys[:length])
    return text


def _merged(text: Text, keys: Keys, old: Text, made: Text | None) -> Text:
    """Give back each value of an entry that gpushim changed, unless somebody has changed it since."""
    names = {leaf for each in (old, made) if each for leaf, _ in _leaves(each.get(keys), keys)}
    for leaf in sorted(names):
        now, then, was = (_at(each, leaf) for each in (text, old, made))
        if now == was and was != then and then is MISSING:
            text = _dropped(text, leaf, old)
        elif now == was and was != then and not isinstance(then, dict):
            text = text.copy(leaf, old)
    return text


def _lost(text: Text, left: Text, made: Text | None) -> Iterator[Keys]:
    """List the values that are gone and that gpushim did not write."""
    for keys, value in _leaves(text.data, ()):
        if value != {} and _at(left, keys) != value and _at(made, keys) != value:
            yield keys


def _is_idle(kind: Kind, text: Text) -> bool:
    """Say whether nothing is left in a file but what gpushim puts into each that it makes."""
    return set(text.data) <= kind.idle and set(text.comments) <= {kind.comment}


def _at(text: Text | None, keys: Keys) -> Any:
    return MISSING if text is None else text.get(keys, MISSING)


def _leaves(value: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    """List the values in parsed data that are no tables, and the tables without any, each with its keys."""
    if not isinstance(value, dict) or not value:
        yield keys, value
        return
    for name, each in value.items():
        yield from _leaves(each, (*keys, name))
