"""TOML as text: what edits leave alone, and which they refuse."""

from __future__ import annotations

import pytest
import tomlkit

from gpushim.engines.settings import tomledit, tomltext
from gpushim.ground.errors import GpushimError

TABLE = ("engine", "runtimes")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", "[engine.runtimes]\nours = 1\n"),
        ("# c\nx = 1\n", "# c\nx = 1\n\n[engine.runtimes]\nours = 1\n"),
        ("x = 1", "x = 1\n\n[engine.runtimes]\nours = 1\n"),
        ("[engine]\r\nx = 1\r\n", "[engine]\r\nx = 1\r\n\r\n[engine.runtimes]\r\nours = 1\r\n"),
        ("[engine.runtimes] # c\na = 2 # d\n\n[z]\n", "[engine.runtimes] # c\na = 2 # d\nours = 1\n\n[z]\n"),
        ("[engine.runtimes]\r\na = 2\r\n", "[engine.runtimes]\r\na = 2\r\nours = 1\r\n"),
        ("[engine]\nruntimes = {a = 2}\n", "[engine]\nruntimes = {a = 2, ours = 1}\n"),
    ],
)
def test_put(text: str, result: str) -> None:
    assert tomltext.put(text, (*TABLE, "ours"), 1) == result


@pytest.mark.parametrize(
    "text",
    ["engine.runtimes.a = 2\n", "[engine]\nruntimes.a = 2\n", "engine = {x = 1}\n", '["engine"."runtimes"]\na = 2\n'],
)
def test_put_into_tables_of_every_form(text: str) -> None:
    edited = tomltext.put(text, (*TABLE, "ours"), 1)
    expected = tomlkit.parse(text).unwrap()
    expected["engine"].setdefault("runtimes", {})["ours"] = 1
    assert tomlkit.parse(edited).unwrap() == expected


@pytest.mark.parametrize("text", ["engine = 1\n", "[[engine]]\n", '[engine]\nruntimes = ["a"]\n'])
def test_put_where_no_table_is(text: str) -> None:
    with pytest.raises(GpushimError, match=r"engine\.runtimes\.ours cannot be set, because \w+ is no table"):
        tomltext.put(text, (*TABLE, "ours"), 1)


def test_names_that_need_quotation_marks() -> None:
    assert tomltext.put("", ("a.b", "c"), "x") == '["a.b"]\nc = "x"\n'


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("[z]\n\n[a.b] # ours\nx = 1 # ours\n\n# theirs\n[y]\n", "[z]\n# ours\n# ours\n\n# theirs\n[y]\n"),
        ("[a.b]\nx = 1\n[a.b.c]\ny = 2\n# theirs\n", "# theirs\n"),
        ("[a]\n\n[a.b]\nx = [\n  [1],\n]\n[y]\n", "[a]\n[y]\n"),
        ("# [a.b]\r\n[a.b]\r\nx = 1\r\n", "# [a.b]\r\n"),
        ("[a]\nb = {x = 1}\n", "[a]\n"),
        ("a.b.x = 1\nz = 1\n", "z = 1\n"),
    ],
)
def test_drop_of_a_table(text: str, left: str) -> None:
    assert tomltext.drop(text, ("a", "b")) == left


def test_drop_leaves_comments() -> None:
    assert tomltext.drop("[a] # one\nx = 1 # two\ny = 2 # three\n", ("a", "x")) == "[a] # one\n# two\ny = 2 # three\n"
    assert tomltext.drop("x = 1\n", ("a", "x")) == "x = 1\n"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xef\xbb\xbfx = 1", "line 1: begins with a byte order mark"),
        (b"x = 1\ny = '\xff'", "line 2: is not UTF-8"),
        (b"x = 1\nx = 2\n", "is not TOML"),
        (b"x = ", "is not TOML"),
        (b"x = " + b"[" * 100000, "nested (too deeply|more than)"),
    ],
)
def test_what_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(GpushimError, match=f"^file.*{sentence}"):
        tomltext.parse(data, "file")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('[a ."b"] # theirs\nx = 1\n# theirs too\n[y]\n', "# theirs\n# theirs too\n[y]\n"),
        ("[ 'a' . b ]\nx = '''\n[a.b]\n# no comment\n'''\n[y]\n", "[y]\n"),
        ("[a.b]\nx = 1\n[y]\n[a.b.c]\nz = 1\n", "[y]\n"),
        ("[a.b]\nx = 1\n[[a.b.c]]\nz = 1\n[[a.b.c]]\n[y]\n", "[y]\n"),
        ("a = {b = {x = 1}, c = 2}\n", "a = {c = 2}\n"),
        ('a . "b" . x = [\n  1, # theirs\n]\n"a".c = 1\n', '# theirs\n"a".c = 1\n'),
        ("[a]\nc = 1\n[a.b] # one\nx = [ # two\n] # three\n", "[a]\nc = 1\n# one\n# two\n# three\n"),
    ],
)
def test_drop_of_a_table_in_any_spelling(text: str, left: str) -> None:
    assert tomltext.drop(text, ("a", "b")) == left


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("[a.b]\nx = 1\n[c]\n[a.d]\n", "[a.b]\nx = 1\nn = 2\n[c]\n[a.d]\n"),
        ("[[z]]\n[z.a]\n[[z]]\n[z.a]\n", "[[z]]\n[z.a]\n[[z]]\n[z.a]\n\n[a.b]\nn = 2\n"),
        ("a.b = { x = 1 } # theirs\n", "a.b = { x = 1, n = 2 } # theirs\n"),
        ("a = {}\n", "a = {b.n = 2}\n"),
        ('[ "a" . \'b\' ]\n  "n"\t= 1 # theirs\n', '[ "a" . \'b\' ]\n  "n"\t= 2 # theirs\n'),
        ("[a.b]\nn = [ # theirs\n  1]\n", "[a.b]\n# theirs\nn = 2\n"),
    ],
)
def test_put_where_others_spell_it_their_way(text: str, result: str) -> None:
    assert tomltext.put(text, ("a", "b", "n"), 2) == result


def test_put_at_the_root_before_the_first_header_and_its_comment() -> None:
    assert tomltext.put("# file\n\n# about a\n[a]\n", ("n",), 1) == "# file\n\nn = 1\n\n# about a\n[a]\n"


def test_copy_writes_as_the_source_does() -> None:
    source = "[a]\nx = 0x1F\ny = 'theirs'\nz = 1979-05-27\n"
    assert (
        tomltext.copy("[a]\ny = 1 # c\nw = 2\n", ("a",), source)
        == "[a]\ny = 'theirs' # c\nx = 0x1F\nz = 1979-05-27\n"
    )


@pytest.mark.parametrize("source", ["a.b = {}\n", "[a]\nb={}\n", "[a.b]\n"])
@pytest.mark.parametrize("text", ["a.b = [1]\n", "[a]\nb = [1]\n", "[a.b]\nc = 1\n", "", "x = 1\n"])
def test_copy_of_a_table_without_values(text: str, source: str) -> None:
    assert tomltext.get(tomltext.copy(text, ("a", "b"), source), ("a",)) == {"b": {}}


def test_copy_of_what_stands_in_several_places() -> None:
    source = "[[a.x]]\nn = nan\nt = [ # c\n 07:32:00, 1979-05-27 07:32:00Z]\n[a.x.y]\n'' = true\n[[a.x]]\n"
    edited = tomltext.copy("[a]\n", ("a",), source)
    assert edited == ('[a]\nx = [{n = nan, t = [07:32:00, 1979-05-27T07:32:00+00:00], y = {"" = true}}, {}]\n')


def test_an_edit_that_says_anything_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomledit, "_below", lambda text, item, lines: text.replace("theirs = 1", lines[0]))
    monkeypatch.setattr(tomledit, "_appended", lambda found, table, pairs: "")
    with pytest.raises(GpushimError, match=r"a\.b cannot be changed in this file without risk"):
        tomltext.put("[a]\ntheirs = 1\n", ("a", "b"), 2)
