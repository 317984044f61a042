"""JSON as text: what is accepted, and what edits leave alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.engines.settings import syntax, text_edits
from gpushim.engines.settings.syntax import BOM
from gpushim.engines.settings.text import Json
from gpushim.ground.errors import GpushimError


def accepts(text: str) -> bool:
    try:
        Json.parse(text.encode(), "file")
    except GpushimError:
        return False
    return True


def says(text: str) -> bool:
    """Whether Python's parser takes it for an object; it takes NaN too, and names that occur twice."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(pairs)
        return dict(pairs)

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        return isinstance(json.loads(text, object_pairs_hook=unique, parse_constant=refuse), dict)
    except ValueError:
        return False


tokens = st.sampled_from(
    [*'{}[]:,"\\ \n', '"a"', '"a":', "1", "-", ".5", "e3", "0", "true", "null", "NaN", "//", "{}", "\x00"]
)


@given(st.lists(tokens, max_size=9).map("".join))
def test_what_pythons_parser_takes_is_taken(text: str) -> None:
    for whole in (text, "{" + text + "}", '{"x":' + text + "}"):
        if whole.strip():
            assert accepts(whole) == says(whole)


@pytest.mark.parametrize("number", ["01", "-01", "00", "1.", ".5", "+1", "1e", "-", "0x1", "1_0"])
def test_numbers_that_go_does_not_take(number: str) -> None:
    assert accepts('{"a": 0.10e-1, "b": -0}')
    assert not accepts(f'{{"a": {number}}}')


def test_how_deep_a_file_may_be() -> None:
    deepest = "[" * syntax.DEPTH + "]" * syntax.DEPTH
    assert accepts(f'{{"a": {deepest}}}')
    with pytest.raises(GpushimError, match="file, line 2: is nested too deeply; correct it first"):
        Json.parse(f'{{"a":\n[{deepest}]}}'.encode(), "file")


@pytest.mark.parametrize("mark", ["", BOM])
def test_a_file_of_nothing_but_its_byte_order_mark(mark: str) -> None:
    text = Json.parse((mark + " \n").encode(), "file")
    assert (text.text, text.get()) == (mark + " \n", {})
    assert text.put(("a",), True).text == mark + '{\n  "a": true\n}\n'


@pytest.mark.parametrize(
    ("text", "keys", "result"),
    [
        ("", ("a",), '{\n  "a": true\n}\n'),
        ("{}", ("a",), '{\n  "a": true\n}'),
        ("{ \r\n }", ("a",), '{\r\n  "a": true\r\n}'),
        ('{"b":2}', ("a",), '{"b":2, "a": true}'),
        ('{"b":2,"c":3}', ("a",), '{"b":2,"c":3,"a": true}'),
        ('{"b": {}}', ("b", "a"), '{"b": {"a": true}}'),
        ('{\n   "b": {}\n}', ("b", "a"), '{\n   "b": {\n      "a": true\n   }\n}'),
        ('{\n "b": {"x": {}}\n}', ("b", "a"), '{\n "b": {"x": {}, "a": true}\n}'),
        ('{\n "b": null\n}', ("b", "a"), '{\n "b": {\n  "a": true\n }\n}'),
        ('{\n\t"b": 2\n}', ("c", "a"), '{\n\t"b": 2,\n\t"c": {\n\t\t"a": true\n\t}\n}'),
        ('{"a": [2, 3], "b": 2}', ("a",), '{"a": true, "b": 2}'),
        ('{"b": 2\n}', ("a",), '{"b": 2, "a": true\n}'),
    ],
)
def test_put(text: str, keys: tuple[str, ...], result: str) -> None:
    assert Json(text).put(keys, True).text == result


@pytest.mark.parametrize(
    ("text", "keys", "result"),
    [
        ('{"a": 1}', ("a",), "{}"),
        ('{\n  "a": 1,\n  "b": 2\n}', ("a",), '{\n  "b": 2\n}'),
        ('{\n  "a": 1,\n  "b": 2\n}', ("b",), '{\n  "a": 1\n}'),
        ('{"a": 1, "b": 2, "c": 3}', ("b",), '{"a": 1, "c": 3}'),
        ('{"x": {"a": 1}}', ("x", "a"), '{"x": {}}'),
        ('{"x": {"a": 1}}', ("y", "a"), '{"x": {"a": 1}}'),
        ('{"x": [1]}', ("x", "a"), '{"x": [1]}'),
    ],
)
def test_drop(text: str, keys: tuple[str, ...], result: str) -> None:
    assert Json(text).drop(keys).text == result


def test_copy_keeps_how_a_value_is_written() -> None:
    assert Json('{"a": 1, "b": 2}').copy(("a",), Json('{"a": [ 1E400,\n "\\u00e9" ]}')).text == (
        '{"a": [ 1E400,\n "\\u00e9" ], "b": 2}'
    )


def test_numbers_are_compared_as_they_are_written() -> None:
    assert Json('{"a": 1}').get() != Json('{"a": "1"}').get()
    assert Json('{"a": 1.0}').get() != Json('{"a": 1}').get()


@pytest.mark.parametrize("edit", ["put", "drop", "copy"])
def test_an_edit_that_says_anything_else_is_refused(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Json, "additions", (lambda found, keys, value: '{"a": "x"}',))
    monkeypatch.setattr(text_edits, "cut", lambda found, keys: "{")
    calls = {
        "put": lambda: Json('{"theirs": 1}').put(("a",), "x"),
        "drop": lambda: Json('{"theirs": 1, "a": 2}').drop(("a",)),
        "copy": lambda: Json('{"theirs": 1}').copy(("a",), Json('{"a": 3}')),
    }
    with pytest.raises(GpushimError, match="a cannot be changed in this file without risk"):
        calls[edit]()
