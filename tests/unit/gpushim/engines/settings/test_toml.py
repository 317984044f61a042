"""Settings in TOML: read, written whole, and one key of a file of others set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from gpushim.engines.settings import toml
from gpushim.ground.errors import GpushimError

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), TEXTS, st.lists(TEXTS, max_size=3))
TREES = st.recursive(
    st.dictionaries(TEXTS, VALUES, max_size=3),
    lambda inner: st.dictionaries(TEXTS, st.one_of(VALUES, inner), max_size=3),
)


@given(data=TREES)
def test_what_is_written_is_read_again_by_others_too(data: dict[str, Any]) -> None:
    text = toml.written(data)
    assert toml.parse(text.encode(), "x") == tomlkit.parse(text).unwrap() == data


@pytest.mark.parametrize(
    ("text", "section", "expected"),
    [
        ("", "", "key = 2\n"),
        ("# c\nversion = 2 # v\n[t]\n", "", "# c\nversion = 2 # v\nkey = 2\n[t]\n"),
        ("# c\n[t]\nkey = 1\n", "", "key = 2\n# c\n[t]\nkey = 1\n"),
        ("key = '#' # why\r\n[t]\r\n", "", "key = 2 # why\r\n[t]\r\n"),
        ("", "t", "[t]\nkey = 2\n"),
        ("[s]\nkey = 1", "t", "[s]\nkey = 1\n\n[t]\nkey = 2\n"),
        ("[s]\nkey = 1\n[t] # c\n# d\n", "t", "[s]\nkey = 1\n[t] # c\nkey = 2\n# d\n"),
        ("[t]\n  key = 1\n[s]\nkey = 1\n", "t", "[t]\nkey = 2\n[s]\nkey = 1\n"),
    ],
)
def test_one_key_is_set_and_all_other_lines_stay(text: str, section: str, expected: str) -> None:
    assert toml.with_value(text, section, "key", 2, "x") == expected


def test_a_key_is_taken_out_with_its_line() -> None:
    assert toml.with_value("a = 1\nkey = 2\n[t]\n", "", "key", None, "x") == "a = 1\n[t]\n"


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("key = [\n1, # c\n]\n", ""),
        ("'key' = 1\n", ""),
        ("t = {key = 1}\n", "t"),
        ("t.key = 1\n", "t"),
        ('a = """\nkey = 1\n"""\n', ""),
    ],
)
def test_what_cannot_be_set_safely_is_refused(text: str, section: str) -> None:
    with pytest.raises(GpushimError, match="key cannot be changed in x without risk; do it by hand"):
        toml.with_value(text, section, "key", 2, "x")


def test_files_are_merged_table_by_table(tmp_path: Path) -> None:
    folder = tmp_path / "x.d"
    folder.mkdir()
    (folder / "2").write_text("[a]\nb = 2\n")
    (folder / "1").write_text("[a]\nb = 1\nc = 1\n")
    (folder / "3").write_text("broken")
    read = [str(tmp_path / "none"), str(folder)]
    assert toml.merged(read) == {"a": {"b": 2, "c": 1}}
    assert toml.merged(read, {f"{folder}/2": None, f"{folder}/0": b"d = 1"}) == {"a": {"b": 1, "c": 1}, "d": 1}
