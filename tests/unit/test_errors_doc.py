"""docs/errors.md has a row for each refusal of the source, by words of it that never vary, and none that is gone."""

from __future__ import annotations

import ast
import errno
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuhook import prestart
from gpushim.create import ahead, create
from gpushim.doctor import check_state
from gpushim.ground import errors

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs/errors.md").read_text()
# A row: a code, sentences with one cause, and that with its fix.
ROW = re.compile(r"^\| (\d+) \| (`.*?`(?:<br>`.*?`)*) \| ([^|]+) \|$", re.MULTILINE)
LAUNCHER = (TOP / "shim/gpushim/launcher").read_text() + (TOP / "packaging/removed").read_text()
ERRORS = ("GpushimError", "OutdatedError", "_NobodyError")
SOURCES = [path for root in ("shim", "hook", "plugin") for path in sorted((TOP / root).rglob("*.py"))]


@functools.cache  # not on import, which each worker of each run does
def nodes() -> list[tuple[Path, ast.AST]]:
    """Return all nodes of the source, each with its file."""
    return [(path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]


def text(node: ast.AST) -> str:
    """Return a text of the source, with "..." for what varies."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp):
        return text(node.left) + text(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text, node.values))
    return "..."


def words(sentence: str) -> str:
    """Return the longest of a sentence's parts that do not vary."""
    return max(re.split(r"\.\.\.", sentence), key=len).strip()


def parts(sentence: str) -> list[str]:
    """Return the parts of what is wrong that do not vary, of two words or more if there are such."""
    found = [part.strip() for part in re.split(r"\.\.\.|[:,(]", sentence.partition(";")[0])]
    return [part for part in found if " " in part] or [part for part in found if part]


def sentences(page: str) -> list[tuple[int, str]]:
    """Return the sentences of a page's rows, each with its code."""
    found = [(int(code), cell) for code, cells, _ in ROW.findall(page) for cell in cells.split("<br>")]
    return [(code, cell.strip("`").strip().replace("\\|", "|")) for code, cell in found]


def raised() -> Iterator[tuple[int | None, str, str]]:
    """What GpushimError is raised with where the source says it there: the code if it is a name, words, the place."""
    for path, node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
            name = ast.unparse(node.args[1]) if len(node.args) > 1 else "FAILED"
            yield getattr(errors, name, None), text(node.args[0]), f"{path.relative_to(TOP)}:{node.lineno}"
    for code, sentence in re.findall(r"\|\| fail (\d+) '([^']*)'", LAUNCHER):
        yield int(code), sentence, "launcher"
    for sentence in re.findall(r"\{ log '([^']*)'", LAUNCHER):
        yield 127, sentence, "launcher"
    for sentence in re.findall(r"echo 'gpushim-hook: ([^']*)' >&2\nexit 1\n", ahead.SCRIPT):
        yield errors.FAILED, sentence, "the hook's shell"


ROWS = sentences(PAGE)


def test_no_refusal_is_missing() -> None:
    found = [*raised()]
    assert len(found) > 200
    for code, sentence, place in found:
        rows = [row for number, row in ROWS if code in (None, number)]
        # A row may leave the end of a sentence out.
        told = parts(sentence)  # none if it comes from elsewhere
        assert not told or any(told[0] in row and words(row) in sentence for row in rows), (place, code, sentence)


def test_doctor_sends_nobody_here_for_what_is_not_here() -> None:
    calls = [node for _, node in nodes() if isinstance(node, ast.Call) and ast.unparse(node.func) == "notes.append"]
    noted = [text(node.args[0]) for node in calls]
    assert any("there is no ld.so.cache" in note for note in noted)
    for note in noted:
        named = "errors.md" in check_state.fix_of_note(note)
        assert not named or any(words(row) in note for _, row in ROWS), note


def test_no_row_is_stale() -> None:
    kinds = (ast.Constant, ast.JoinedStr, ast.BinOp)
    told = "\n".join({text(node) for _, node in nodes() if isinstance(node, kinds)})
    assert [row for _, row in ROWS if words(row) not in told + LAUNCHER] == []


def test_each_sentence_is_there_once() -> None:
    assert len(ROW.findall(PAGE)) == len(re.findall(r"^\| \d", PAGE, re.MULTILINE))
    for section in PAGE.split("\n## "):
        cells = sentences(section)
        assert len(cells) == len(set(cells))
    assert all(len(re.findall("[A-Za-z]+", row)) >= 1 for _, row in ROWS)
    assert all(len(re.findall("`+", cells)) % 2 == 0 for _, cells, _ in ROW.findall(PAGE))


def test_no_sentence_has_words_that_engines_look_for() -> None:
    for sentence in [row for _, row in ROWS] + [one[1] for one in raised()]:
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
