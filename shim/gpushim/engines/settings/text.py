"""Settings as text, TOML or JSON: read strictly, and edited so that all that is not edited stays as it was written.

An edit is tried in several forms (text_edits.py). The first counts after which the text, read again, says exactly
what was there with the change, and has every comment.
Out of scope: either's grammar (syntax.py); files; what settings mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any

from gpushim.engines.settings import syntax, text_edits
from gpushim.engines.settings.syntax import Keys, Wrong
from gpushim.ground.errors import GpushimError

MISSING = object()
TEXTS = 8  # that are kept as they were parsed: of a file, its records, and the steps of an edit


class Text(syntax.Toml):
    """A text; it never changes, and edits return another one."""

    additions: tuple[Callable[[Any, Keys, Any], str], ...]  # forms in which a value may be written, the best first

    @classmethod
    def parse(cls, data: bytes, path: str) -> Text:
        """Check that bytes are of this language; `path` is their name for messages.

        Raises:
            GpushimError: they are not, or not UTF-8, with the line.
        """
        try:
            return cls._read(decoded(data, path))
        except RecursionError:
            raise GpushimError(f"{path} is nested too deeply; correct it first") from None
        except Wrong as wrong:
            line = data.decode().count("\n", 0, wrong.place) + 1
            raise GpushimError(f"{path}, line {line}: {wrong}; correct it first") from None
        except ValueError as error:
            raise GpushimError(f"{path} is not TOML: {str(error)[:200]}; correct it first") from None

    @classmethod
    def _read(cls, text: str) -> Text:
        form: Callable[[str], Text] = cls
        return _cached(form, text)

    def encode(self) -> bytes:
        """Return the bytes for a file."""
        return self.text.encode()

    def get(self, keys: Keys = (), default: Any = None) -> Any:
        """Return a value as Python's data, `default` if it is not there; by default all."""
        value: Any = self.data
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                return default
            value = value[key]
        return deepcopy(value)  # as `data` is not to be changed

    def same(self, other: Text) -> bool:
        """Say whether two texts say the same and have the same comments."""
        return self.data == other.data and self.comments == other.comments

    @property
    def comments(self) -> Counter[str]:
        """The comments, with their signs, counted."""
        return Counter(self.text[start:end] for start, end in self.spans)

    def put(self, keys: Keys, value: Any, source: Text | None = None) -> Text:
        """Set a value; tables on the way to it are made, and what has its value already stays as it is written.

        Args:
            keys: at least one.
            value: a string, boolean, list of strings, or a dict of these; in TOML a number too.
            source: a text that has the value, which is written as it is there.

        Raises:
            GpushimError: something on the way is no table, or the text is of a form that cannot be edited safely.
        """
        if self.get(keys, MISSING) == value:
            return self
        written = text_edits.as_written(source, keys) if source else ""
        if isinstance(value, dict) and value and not written:
            return self._put_table(keys, value, source)
        text = self.drop(keys) if source and not self.find(keys) else self  # what is in several places
        edited = text._added(keys, "" if written else value)
        item = edited and written and edited.find(keys)
        if edited and item:
            spelled = edited.text[: item.value] + written + edited.text[item.end :]
            edited = text._checked(spelled, text._with(keys, value))
        if not edited or edited.get(keys) != value:
            raise _risky(keys)
        return edited

    def copy(self, keys: Keys, source: Text) -> Text:
        """Set a value as `put` does, to the one of the same name in another text."""
        return self.put(keys, source.get(keys), source)

    def drop(self, keys: Keys) -> Text:
        """Take a value or table out; nothing happens if it is not there, and comments stay in any case.

        Raises:
            GpushimError: the text is of a form that cannot be edited safely.
        """
        if self.get(keys, MISSING) is MISSING:
            return self
        acceptable = [_without(self.get(), keys)]
        # A table without a header of its own ends with the last one below it.
        for length in range(len(keys) - 1, 0, -1):
            if _within(acceptable[-1], keys[:length]):
                break
            acceptable.append(_without(deepcopy(acceptable[-1]), keys[:length]))
        edited = self._checked(text_edits.cut(self, keys), *acceptable)
        if not edited:
            raise _risky(keys)
        # If others make the same table.
        return edited._checked(text_edits.without_header(edited, keys[:-1]), edited.data) or edited

    def without_comment(self, comment: str) -> Text:
        """Take out the lines of a comment, given with its sign, that stands alone in them."""
        return self._read(text_edits.without_comment(self, comment))

    def _added(self, keys: Keys, value: Any) -> Text | None:
        expected = self._with(keys, value)
        texts = (self._checked(add(self, keys, value), expected) for add in self.additions)
        return next((text for text in texts if text), None)

    def _with(self, keys: Keys, value: Any) -> dict[str, Any]:
        """Return what this text is to say once a value is set."""
        data: dict[str, Any] = self.get()
        inner = data
        for key in keys[:-1]:
            if inner.get(key) is None:
                inner[key] = {}
            inner = inner[key]
            if not isinstance(inner, dict):
                raise GpushimError(
                    f"{'.'.join(keys)} cannot be set, because {key} is not a table; correct the file first"
                )
        inner[keys[-1]] = value
        return data

    def _put_table(self, keys: Keys, value: dict[str, Any], source: Text | None) -> Text:
        text, old = self, self.get(keys)
        if not isinstance(old, dict):
            text, old = self if old is None else self.drop(keys), {}
        for name, each in value.items():
            text = text.put((*keys, name), each, source)
        for name in old:
            text = text if name in value else text.drop((*keys, name))
        return text

    def _checked(self, edited: str, *expected: dict[str, Any]) -> Text | None:
        """Read an edited text; None unless it says what it should and has the comments of this one."""
        try:
            text = self._read(edited)
        except ValueError:
            return None
        return text if text.data in expected and text.comments == self.comments else None


class Toml(Text):
    """A text in TOML."""

    additions = text_edits.TOML


class Json(syntax.Json, Text):
    """A text in JSON."""

    additions = text_edits.JSON


@lru_cache(maxsize=TEXTS)
def _cached(form: Callable[[str], Text], text: str) -> Text:
    return form(text)


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


def _within(data: Any, keys: Keys) -> Any:
    for key in keys:
        data = data[key]
    return data


def _without(data: dict[str, Any], keys: Keys) -> dict[str, Any]:
    del _within(data, keys[:-1])[keys[-1]]
    return data


def _risky(keys: Keys) -> GpushimError:
    return GpushimError(f"{'.'.join(keys)} cannot be changed in this file without risk; change it by hand")
