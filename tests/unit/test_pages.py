"""tools/pages: what pages say of the code is made from its tables; `tools/test lint` asks whether it is fresh."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

import page_errors
import page_settings
import pages
from gpuhook import prestart
from gpushim.config import policy
from gpushim.create import create
from gpushim.ground import errors


def test_a_part_is_made_and_the_rest_stays() -> None:
    text = "# A\n<!-- made: b -->\nold\n<!-- end -->\nby hand\n"
    assert pages.made(text, {"b": lambda: "new"}) == "# A\n<!-- made: b -->\n\nnew\n\n<!-- end -->\nby hand\n"


@pytest.mark.parametrize(
    "text", ["by hand\n", 2 * "<!-- made: b -->\n<!-- end -->\n", "<!-- made: c -->\n<!-- end -->"]
)
def test_a_page_has_its_parts_each_once(text: str) -> None:
    with pytest.raises(ValueError, match="must have the parts b"):
        pages.made(text, {"b": str})


def test_what_is_not_fresh_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "TOP", tmp_path)
    monkeypatch.setattr(pages, "PARTS", {"page.md": {"b": lambda: "new"}})
    monkeypatch.setattr(pages, "FILES", {"whole": str.upper})
    (tmp_path / "page.md").write_text("<!-- made: b -->\nold\n<!-- end -->\n")
    (tmp_path / "whole").write_text("X")
    assert pages.main(["--check"]) == 1
    assert "page.md; run tools/pages" in capsys.readouterr().err
    assert (pages.main([]), pages.main(["--check"])) == (0, 0)


def test_every_exit_code_has_a_meaning() -> None:
    names = {name for name, number in vars(errors).items() if name.isupper() and type(number) is int} - {"LONGEST"}
    assert {getattr(errors, name) for name in names} == page_errors.meanings().keys()


def test_refusals_are_found_in_every_language() -> None:
    listed = page_errors.sentences()
    for sentence in ("which this host does not have", "neither runc nor crun is installed", "is on a volume"):
        assert sentence in listed


def test_a_refusal_stands_under_each_code_that_it_can_have() -> None:
    parts = dict(part.split("\n", 1) for part in page_errors.sentences().split("### ")[1:])
    codes = [code for code, listed in parts.items() if "which is no size of GPU memory" in listed]
    assert codes == [str(errors.REQUEST), str(errors.CONFIG)]
    assert [code for code, listed in parts.items() if "has the device" in listed] == ["10", "12"]


def test_a_sentence_ends_where_it_is_whole() -> None:
    listed = page_errors.sentences().splitlines()
    assert "... is not UTF-8 at byte ..." in listed
    assert "the low-level runtime ... cannot be executed" in listed
    assert [line for line in listed if line.endswith((" but", " a", " is not", " to", " at"))] == []


def test_no_sentence_has_words_that_engines_look_for() -> None:
    for sentence in page_errors.sentences().splitlines():
        assert errors.for_engines(sentence) == sentence


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT])
def test_what_the_kernel_says_is_said_to_engines_in_other_words(
    number: int, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sentence = f"/a cannot be read: {os.strerror(number)}; {os.strerror(number).lower()}"
    create.complain(sentence, str(tmp_path / "log"), "json")
    prestart.say(sentence)
    for said in (*capfd.readouterr().err.splitlines(), (tmp_path / "log").read_text()):
        assert "/a cannot be read: " in said
        assert os.strerror(number).lower() not in said.lower()


def test_every_key_is_in_the_tables_of_settings() -> None:
    keys = {key for rule in policy.schema()["properties"].values() for key in rule["properties"]}
    assert {*re.findall(r"^- `([a-z-]+) = ", page_settings.keys(), re.MULTILINE)} == keys
