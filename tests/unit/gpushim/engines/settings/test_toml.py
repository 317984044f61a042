"""TOML as text: what edits leave alone, and which they refuse."""

from __future__ import annotations

import pytest
import tomlkit

from gpushim.engines.settings.text import Toml
from gpushim.ground.errors import GpushimError

TABLE = ("engine", "runtimes")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", "[engine.runtimes]\nours = 1\n"),
        ("# c\nx = nan\n", "# c\nx = nan\n\n[engine.runtimes]\nours = 1\n"),
        ("x = 1", "x = 1\n\n[engine.runtimes]\nours = 1\n"),
        ("[engine]\r\nx = 1\r\n", "[engine]\r\nx = 1\r\n\r\n[engine.runtimes]\r\nours = 1\r\n"),
        ("[engine.runtimes] # c\na = 2 # d\n\n[z]\n", "[engine.runtimes] # c\na = 2 # d\nours = 1\n\n[z]\n"),
        ("[engine.runtimes]\r\na = 2\r\n", "[engine.runtimes]\r\na = 2\r\nours = 1\r\n"),
        ("engine.runtimes.a = 2\nengine.x = 1\n", "engine.runtimes.a = 2\nengine.runtimes.ours = 1\nengine.x = 1\n"),
        ("[engine]\nruntimes = {a = 2}\n", "[engine]\nruntimes = {a = 2, ours = 1}\n"),
    ],
)
def test_put(text: str, result: str) -> None:
    assert Toml(text).put((*TABLE, "ours"), 1).text == result


@pytest.mark.parametrize(
    "text",
    ["engine.runtimes.a = 2\n", "[engine]\nruntimes.a = 2\n", "engine = {x = 1}\n", '["engine"."runtimes"]\na = 2\n'],
)
def test_put_into_tables_of_every_form(text: str) -> None:
    edited = Toml(text).put((*TABLE, "ours"), 1).text
    expected = tomlkit.parse(text).unwrap()
    expected["engine"].setdefault("runtimes", {})["ours"] = 1
    assert tomlkit.parse(edited).unwrap() == expected


@pytest.mark.parametrize("text", ["engine = 1\n", "[[engine]]\n", '[engine]\nruntimes = ["a"]\n'])
def test_put_where_no_table_is(text: str) -> None:
    with pytest.raises(GpushimError, match=r"engine\.runtimes\.ours cannot be set, because \w+ is not a table"):
        Toml(text).put((*TABLE, "ours"), 1)


def test_names_that_need_quotation_marks() -> None:
    assert Toml("").put(("a.b", "c"), "x").text == '["a.b"]\nc = "x"\n'


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("[z]\n\n[a.b] # ours\nx = 1 # ours\n\n# theirs\n[y]\n", "[z]\n# ours\n# ours\n\n# theirs\n[y]\n"),
        ("[a.b]\nx = 1\n[a.b.c]\ny = 2\n# theirs\n", "# theirs\n"),
        ("[a]\n\n[a.b]\nx = [\n  [1],\n]\n[y]\n", "[a]\n[y]\n"),
        ("# [a.b]\r\n[a.b]\r\nx = 1\r\n", "# [a.b]\r\n"),
        ("[a]\nb = {x = 1}\n", "[a]\n"),
        ("a.b.x = 1\nz = 1\n", "z = 1\n"),
        ('[a ."b"] # theirs\nx = 1\n# theirs too\n[y]\n', "# theirs\n# theirs too\n[y]\n"),
        ('["\\u0061"."\\u0062"]\nx = 1\n[y]\n', "[y]\n"),
        ("[ 'a' . b ]\nx = '''\n[a.b]\n# no comment\n'''\n[y]\n", "[y]\n"),
        ("[a.b]\nx = 1\n[y]\n[a.b.c]\nz = 1\n", "[y]\n"),
        ("[a.b]\nx = 1\n[[a.b.c]]\nz = 1\n[[a.b.c]]\n[y]\n", "[y]\n"),
        ("a = {b = {x = 1}, c = 2}\n", "a = {c = 2}\n"),
        ('a . "b" . x = [\n  1, # theirs\n]\n"a".c = 1\n', '# theirs\n"a".c = 1\n'),
        ("[a]\nc = 1\n[a.b] # one\nx = [ # two\n] # three\n", "[a]\nc = 1\n# one\n# two\n# three\n"),
    ],
)
def test_drop_of_a_table(text: str, left: str) -> None:
    assert Toml(text).drop(("a", "b")).text == left


def test_drop_leaves_comments() -> None:
    assert (
        Toml("[a] # one\nx = 1 # two\ny = 2 # three\n").drop(("a", "x")).text == "[a] # one\n# two\ny = 2 # three\n"
    )
    assert Toml("x = 1\n").drop(("a", "x")).text == "x = 1\n"


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
        Toml.parse(data, "file")


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
    assert Toml(text).put(("a", "b", "n"), 2).text == result


def test_put_at_the_root_before_the_first_header_and_its_comment() -> None:
    assert Toml("# file\n\n# about a\n[a]\n").put(("n",), 1).text == "# file\n\nn = 1\n\n# about a\n[a]\n"


def test_copy_writes_as_the_source_does() -> None:
    source = "[a]\nx = 0x1F\ny = 'theirs'\nz = 1979-05-27\n"
    assert (
        Toml("[a]\ny = 1 # c\nw = 2\n").copy(("a",), Toml(source)).text
        == "[a]\ny = 'theirs' # c\nx = 0x1F\nz = 1979-05-27\n"
    )


@pytest.mark.parametrize("source", ["a.b = {}\n", "[a]\nb={}\n", "[a.b]\n"])
@pytest.mark.parametrize("text", ["a.b = [1]\n", "[a]\nb = [1]\n", "[a.b]\nc = 1\n", "", "x = 1\n"])
def test_copy_of_a_table_without_values(text: str, source: str) -> None:
    assert Toml(text).copy(("a", "b"), Toml(source)).get(("a",)) == {"b": {}}


def test_copy_of_what_stands_in_several_places() -> None:
    source = "[[a.x]]\nn = nan\nt = [ # c\n 07:32:00, 1979-05-27 07:32:00Z]\n[a.x.y]\n'' = true\n[[a.x]]\n"
    edited = Toml("[a]\n").copy(("a",), Toml(source)).text
    assert edited == ('[a]\nx = [{n = nan, t = [07:32:00, 1979-05-27T07:32:00+00:00], y = {"" = true}}, {}]\n')


@pytest.mark.parametrize(
    "edited", ["[a]\ntheirs = 1\nb = 2\nc = 3\n", "[a]\nb = 2\n", "[a]\ntheirs = 1\n# c\nb = 2\n", "["]
)
def test_an_edit_that_says_anything_else_is_refused(edited: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toml, "additions", (lambda found, keys, value: edited,))
    with pytest.raises(GpushimError, match=r"a\.b cannot be changed in this file without risk"):
        Toml("[a]\ntheirs = 1\n").put(("a", "b"), 2)
