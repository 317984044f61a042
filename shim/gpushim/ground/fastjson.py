"""JSON for the create and hook paths: CPython's C scanner and encoder, without importing `json`.

Importing `json` costs about as much as starting Python (it imports `re`); its C half does not. Where that half is
missing, `json` itself is used; tests compare both.
"""

from __future__ import annotations

from gpushim.ground.errors import BUNDLE, GpushimError, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable


class _Number:
    """A number whose text Python would not write back the same: 1e3, -0, 1e400."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class _Met(Exception):  # noqa: N818 - a signal through the C half, not an error: an odd number, or a key twice
    pass


def _float(text: str) -> object:
    value = float(text)
    return value if repr(value) == text else _Number(text)


def _int(text: str) -> object:
    return _Number(text) if text == "-0" else int(text)


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        keys: set[str] = set()
        raise _Met(next(key for key, _ in pairs if key in keys or keys.add(key)))  # type: ignore[func-returns-value]
    return members


def _default(value: object) -> object:
    if isinstance(value, _Number):
        raise _Met
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


class _Context:
    strict = True
    object_hook = None
    object_pairs_hook: Any = staticmethod(_members)
    parse_float: Any = staticmethod(_float)
    parse_int: Callable[[str], object] = int
    parse_constant = staticmethod(_constant)


class _OwnContext(_Context):
    object_pairs_hook = None
    parse_float = float


class _MinusZeroContext(_Context):
    # int() forgets the sign of -0, and a Python function called for each integer is slow.
    parse_int = staticmethod(_int)


try:
    from _json import encode_basestring_ascii as _quote
    from _json import make_encoder, make_scanner
except ImportError:  # not CPython, or a build without its C accelerators
    import json
    from json.encoder import py_encode_basestring_ascii as _quote

    def _scan(text: str, context: Any) -> Any:
        parsers = {"parse_float": _float, "parse_int": context.parse_int, "parse_constant": _constant}
        return json.JSONDecoder(**parsers, object_pairs_hook=context.object_pairs_hook).raw_decode(text)

    def _encode(value: object) -> Iterable[str]:
        return json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_default).iterencode(value)

else:
    _encoder = make_encoder(None, _default, _quote, None, ":", ",", False, False, False)

    def _scan(text: str, context: Any) -> Any:
        return make_scanner(context)(text, 0)

    def _encode(value: object) -> Iterable[str]:
        return _encoder(value, 0)  # type: ignore[no-any-return]


def loads(data: bytes, name: str = "config.json", is_own: bool = False) -> Any:
    """Parse one JSON document.

    Args:
        data: the document, UTF-8.
        name: of the document for messages, usually a path.
        is_own: gpushim wrote it: skip the search for duplicate keys and odd numbers, half of the time.

    Returns:
        plain data; a number that Python would spell differently becomes an object that `dumps` writes as it was.

    Raises:
        GpushimError: it is not UTF-8, not JSON (RFC 8259: no NaN, nothing after the value), nested too deeply, or has
            a key twice in an object, of which readers take the first or the last, and runc both.
    """
    try:
        text = str(data, "utf-8").strip(" \t\r\n")
        value, end = _scan(text, _OwnContext if is_own else _MinusZeroContext if b"-0" in data else _Context)
    except UnicodeDecodeError as error:
        raise GpushimError(f"{name} is not UTF-8 at byte {error.start}", BUNDLE) from None
    except RecursionError:
        raise GpushimError(f"{name} is nested too deeply", BUNDLE) from None
    except _Met as error:
        raise GpushimError(f'{name} has the key "{quote(str(error))}" twice in one object', BUNDLE) from None
    except (ValueError, StopIteration, SystemError):
        # SystemError: the C scanner of Python < 3.13 looks up its exception in json.decoder, which is not there.
        raise GpushimError(f"{name} is not valid JSON: {_complaint(text)}", BUNDLE) from None
    if end != len(text):
        raise GpushimError(f"{name} is not valid JSON: something follows the value at character {end}", BUNDLE)
    return value


def _complaint(text: str) -> str:
    from json import loads as slow_loads  # 7 ms, only for an invalid document

    try:
        slow_loads(text, parse_constant=_constant)
    except ValueError as error:
        return str(error)
    except RecursionError:  # the slow reader needs more of the stack
        return "it is nested too deeply"
    return "the fast reader refused it"


def dumps(value: object) -> str:
    """Return a value as compact ASCII JSON without a newline; numbers that `loads` kept are written as they were.

    Raises:
        GpushimError: it is nested too deeply; reading goes deeper than writing numbers that `loads` kept.
    """
    try:
        try:
            return "".join(_encode(value))
        except _Met:
            return _spell(value)
    except RecursionError:
        raise GpushimError("config.json is nested too deeply", BUNDLE) from None


def _spell(value: object) -> str:
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(_quote(key) + ":" + _spell(item) for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spell, value)) + "]"
    return "".join(_encode(value))
