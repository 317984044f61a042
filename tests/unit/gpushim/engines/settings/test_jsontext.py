"""JSON as text: what is accepted, and what edits leave alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.engines.settings import jsontext
from gpushim.ground.errors import GpushimError


def accepts(text: str) -> bool:
    try:
        jsontext.parse(text.encode(), "file")
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
    deepest = "[" * jsontext.DEPTH + "]" * jsontext.DEPTH
    assert accepts(f'{{"a": {deepest}}}')
    with pytest.raises(GpushimError, match="file, line 2: is nested too deeply; correct it first"):
        jsontext.parse(f'{{"a":\n[{deepest}]}}'.encode(), "file")


@pytest.mark.parametrize("mark", ["", jsontext.BOM])
def test_a_file_of_nothing_but_its_byte_order_mark(mark: str) -> None:
    text = jsontext.parse((mark + " \n").encode(), "file")
    assert (text, jsontext.get(text, ())) == (mark + " \n", {})
    assert jsontext.put(text, ("a",), 1) == mark + '{\n  "a": 1\n}\n'


@pytest.mark.parametrize(
    ("text", "keys", "result"),
    [
        ("", ("a",), '{\n  "a": 1\n}\n'),
        ("{}", ("a",), '{\n  "a": 1\n}'),
        ("{ \r\n }", ("a",), '{\r\n  "a": 1\r\n}'),
        ('{"b":2}', ("a",), '{"b":2, "a": 1}'),
        ('{"b":2,"c":3}', ("a",), '{"b":2,"c":3,"a": 1}'),
        ('{"b": {}}', ("b", "a"), '{"b": {"a": 1}}'),
        ('{\n   "b": {}\n}', ("b", "a"), '{\n   "b": {\n      "a": 1\n   }\n}'),
        ('{\n "b": {"x": {}}\n}', ("b", "a"), '{\n "b": {"x": {}, "a": 1}\n}'),
        ('{\n "b": null\n}', ("b", "a"), '{\n "b": {\n  "a": 1\n }\n}'),
        ('{\n\t"b": 2\n}', ("c", "a"), '{\n\t"b": 2,\n\t"c": {\n\t\t"a": 1\n\t}\n}'),
        ('{"a": [2, 3], "b": 2}', ("a",), '{"a": 1, "b": 2}'),
        ('{"b": 2\n}', ("a",), '{"b": 2, "a": 1\n}'),
    ],
)
def test_put(text: str, keys: tuple[str, ...], result: str) -> None:
    assert jsontext.put(text, keys, 1) == result


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
    assert jsontext.drop(text, keys) == result


def test_copy_keeps_how_a_value_is_written() -> None:
    assert jsontext.copy('{"a": 1, "b": 2}', ("a",), '{"a": [ 1E400,\n "\\u00e9" ]}') == (
        '{"a": [ 1E400,\n "\\u00e9" ], "b": 2}'
    )


def test_numbers_are_compared_as_they_are_written() -> None:
    assert jsontext.get('{"a": 1}', ()) != jsontext.get('{"a": "1"}', ())
    assert jsontext.get('{"a": 1.0}', ()) != jsontext.get('{"a": 1}', ())


@pytest.mark.parametrize("edit", ["put", "drop", "copy"])
def test_an_edit_that_says_anything_else_is_refused(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsontext, "_put", lambda text, keys, value: '{"a": 2}')
    monkeypatch.setattr(jsontext, "_cut", lambda text, owner, name: "{")
    calls = {
        "put": lambda: jsontext.put('{"theirs": 1}', ("a",), 2),
        "drop": lambda: jsontext.drop('{"theirs": 1, "a": 2}', ("a",)),
        "copy": lambda: jsontext.copy('{"theirs": 1}', ("a",), '{"a": 3}'),
    }
    with pytest.raises(GpushimError, match="a cannot be changed in this file without risk"):
        calls[edit]()
