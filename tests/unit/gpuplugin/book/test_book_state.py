"""What is said of the book."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.book import book, book_state
from gpuplugin.book.book import Book
from gpuplugin.book.page import fresh
from gpushim.ground import system
from unit.gpuplugin.book.test_book import ENTRY, GIVEN

BOOK = "The book of who has what, {}, is "


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr(book, "PATIENCE", 0.1)
    found = Book()
    found.prepare()
    return found


def page(**more: Any) -> Any:
    gpus = {name: {"divisions": {name: ENTRY}, "entries": {}} for name in ("GPU-0", "GPU-1")}
    return {**fresh(system.boot() or "", ""), "gpus": gpus, **more}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not there: nothing was given out yet."),
        ("{", "damaged: its 1 bytes are no book, or half of one; gpushim-device-plugin puts it aside, and goes by "),
        (page(), "of this boot; devices given out: 0, of 0 of its 2 GPUs."),
        (page(unknown="x"), "of this boot; devices given out: 0, of 0 of its 2 GPUs; not all is known, for x."),
        (page(boot="b"), "of an earlier boot: it has how 2 GPUs were given out, and nobody has one."),
    ],
)
def test_its_state(shared: Book, text: Any, said: str) -> None:
    if text is not None:
        Path(shared.path).write_text(text if isinstance(text, str) else json.dumps(text) + "\n")
    assert book_state.summary(shared).startswith(BOOK.format(shared.path) + said)


def test_who_has_something_is_counted(shared: Book) -> None:
    with shared.locked():
        shared.write(page())
    shared.give(GIVEN)
    assert "devices given out: 1, of 1 of its 2 GPUs." in book_state.summary(Book())


def test_one_of_a_newer_version(shared: Book) -> None:
    Path(shared.path).write_text('{"form": 9}\n')
    assert "is written by a newer version of gpushim" in book_state.summary(shared)


def test_a_lock_that_is_kept_is_said(shared: Book) -> None:
    with shared.locked():
        shared.write(page())
        said = book_state.summary(Book())
    assert said.endswith(f"held by a process that hangs; fuser {book.folder()}/{book.LOCK} names it.")
    assert "Its lock" not in book_state.summary(Book())
