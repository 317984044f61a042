"""The file: root's alone, one writer at a time, and nothing that is damaged says that a GPU is free."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import resource
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpuplugin.book import book
from gpuplugin.book.book import Book
from gpuplugin.book.by_device import LISTED, Given
from gpuplugin.book.page import fresh
from gpuplugin.kubelet import cgroups
from gpushim.ground import system
from gpushim.ground.errors import GpushimError

ENTRY = {"parts": {"gpu": {"count": 1, "numbered": False, "share": None}}, "owner": 1, "place": ""}
GIVEN = [Given("GPU-0", "gpu", "GPU-0", ("", "gpu"))]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    page = fresh(system.boot() or "", "")
    page["gpus"] = {"GPU-0": {"divisions": {"GPU-0": ENTRY}, "entries": {}}}  # type: ignore[dict-item]
    shared = Book()
    shared.prepare()
    with shared.locked():
        shared.write(page)
    return Path(shared.path)


def test_what_is_given_is_there_for_the_next_process(path: Path) -> None:
    Book().give(GIVEN)
    page = Book().read()
    assert page
    assert [*page["gpus"]["GPU-0"]["entries"]] == ["gpu GPU-0"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("running", [True, False])
def test_what_kubelet_takes_for_free_is_not_given_while_a_process_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    """Nobody has asked kubelet yet since it has forgotten the pod, as after a deletion by force."""
    monkeypatch.setattr(cgroups, "running", lambda uids: uids if running else frozenset())
    Book().give(GIVEN)
    shared = Book()
    with shared.locked() as page:
        assert page is not None
        page["gpus"]["GPU-0"]["entries"]["gpu GPU-0"].update({"source": LISTED, "to": "pod d/x", "uid": "u"})
        shared.write(page)
    with pytest.raises(GpushimError, match=r"pod d/x has it") if running else contextlib.nullcontext():
        shared.give(GIVEN)


@pytest.mark.parametrize("size", [0, 1, 40, -3])
def test_a_torn_one_says_nothing(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    assert Book().read() is None
    assert Book().damaged
    with pytest.raises(GpushimError, match=r"is missing or damaged"):
        Book().give(GIVEN)


def test_a_gift_that_is_torn_was_told_to_nobody_and_is_left_out(path: Path) -> None:
    without = len(path.read_bytes())
    Book().give(GIVEN)
    given = path.read_bytes()
    for size in range(without, len(given)):
        path.write_bytes(given[:size])
        page = Book().read()
        assert page is not None
        assert not page["gpus"]["GPU-0"]["entries"]
        Book().give(GIVEN)  # behind it nothing would be read
        page = Book().read()
        assert page is not None
        assert [*page["gpus"]["GPU-0"]["entries"]] == ["gpu GPU-0"]


@pytest.mark.parametrize("end", [b'{"GPU-1":{}}\n', b'{"GPU-0":{"gpu GPU-0":{}}}\n', b"[]\n", b"\n"])
def test_a_gift_that_is_none_makes_all_of_it_say_nothing(path: Path, end: bytes) -> None:
    Book().give(GIVEN)
    with path.open("ab") as file:
        file.write(end)
    assert Book().damaged


def test_what_a_loss_of_power_has_torn_is_of_an_earlier_boot(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with path.open("ab") as file:
        file.write(b'[1, "GPU-1')
    monkeypatch.setattr(system, "boot", lambda: "another")
    found = Book().read()
    assert found is not None
    assert found["gpus"]


def test_a_moment_without_descriptors_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, shared = path.read_bytes(), Book()
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", Mock(side_effect=OSError(errno.ENFILE, "Too many open files in system")))
        with pytest.raises(GpushimError, match="cannot be read now: Too many open files"):
            shared.read()
    assert shared.read()
    assert not shared.damaged
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(path.name)] == [path.name]
    assert path.read_bytes() == before


def test_a_gift_is_added_to_the_same_file_and_others_see_it(path: Path) -> None:
    before, other = path.stat(), Book()
    assert other.read()
    Book().give(GIVEN)
    page = other.read()
    assert page
    assert page["gpus"]["GPU-0"]["entries"]
    assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("more", [0, 900])
def test_the_file_does_not_grow_with_each_gift(path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(book, "MORE", more)
    shared = Book()
    for _ in range(30):
        shared.give(GIVEN)
        assert len(path.read_bytes().splitlines()) <= 1 + more // 100
        assert Book().read() == shared.read()


def test_without_room_nothing_is_given_and_the_file_stays(path: Path) -> None:
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(GpushimError, match=r"cannot be written"):
            Book().give(GIVEN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before


def test_a_newer_form_is_left_alone(path: Path) -> None:
    path.write_text(json.dumps({"form": 2}))
    with pytest.raises(GpushimError, match=r"by a newer version"):
        Book().read()


def test_who_keeps_the_lock_is_not_waited_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "PATIENCE", 0.05)
    other = Book()
    with (
        other.locked(),
        pytest.raises(GpushimError, match=r"book.lock is held by process .* for more than"),
    ):
        Book().give(GIVEN)
    Book().give(GIVEN)


DIVISION, ENTRY_OF = "gpus GPU-0 divisions GPU-0", "gpus GPU-0 entries gpu|GPU-0"
EDITED: list[tuple[str, Any]] = [
    ("kubelet", []),
    ("kubelet", "x"),
    ("kubelet", ["x", math.nan]),
    ("turn", 1.5),
    ("gpus GPU-0", []),
    (f"{DIVISION} owner", 1.5),
    (f"{DIVISION} owner", -1),
    (f"{DIVISION} owner", 1 << 70),
    (f"{DIVISION} parts gpu", {"count": 1, "share": None}),
    (f"{DIVISION} parts gpu count", 1.5),
    (f"{DIVISION} parts gpu count", 1 << 40),
    (f"{DIVISION} parts gpu share", {"kind": []}),
    (f"{DIVISION} parts gpu share", {"kind": "mps", "memory": "8Gi"}),
    (f"{DIVISION} parts gpu share", {"kind": "mps", "of": 1}),
    (f"{ENTRY_OF} division", ["mps"]),
    (f"{ENTRY_OF} division", ""),
    (f"{ENTRY_OF} time", math.inf),
]


@pytest.mark.parametrize(("place", "value"), EDITED)
def test_one_that_somebody_edited_says_nothing(path: Path, place: str, value: Any) -> None:
    Book().give(GIVEN)
    page = Book().read()
    table: Any = page
    *above, last = place.split()
    for key in above:
        table = table[key.replace("|", " ")]
    table[last] = value
    path.write_text(json.dumps(page) + "\n")
    assert Book().damaged


@pytest.mark.parametrize("data", [b"", b'{"form": 1', b"x\n", b"\xff"])
def test_what_is_damaged_is_put_aside_and_said_once(
    path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(data)
    shared, aside = Book(), path.with_name("book.json.damaged")
    for _ in range(2):
        with shared.locked():
            shared.write(fresh("b", "it is damaged"))
        assert aside.read_bytes() == data
    assert Book().read() == fresh("b", "it is damaged")
    [said] = caplog.messages
    assert said.startswith(
        f"{path} is damaged: its {len(data)} bytes are no book, or half of one. It is put aside ({aside})"
    )
    assert "given out when kubelet has run for a while" in said


def test_what_cannot_be_put_aside_is_replaced_all_the_same(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"x")
    path.with_name("book.json.damaged").mkdir()
    shared = Book()
    with shared.locked():
        shared.write(fresh("b", ""))
    assert Book().read()
    assert "is put aside (nowhere, for Is a directory)" in caplog.text


BOOK = "The book of who has what, {}, is "


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr(book, "PATIENCE", 0.1)
    found = Book()
    found.prepare()
    return found


def page_of(**more: Any) -> Any:
    gpus = {name: {"divisions": {name: ENTRY}, "entries": {}} for name in ("GPU-0", "GPU-1")}
    return {**fresh(system.boot() or "", ""), "gpus": gpus, **more}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not there: nothing was given out yet."),
        ("{", "damaged: its 1 bytes are no book, or half of one; gpushim-device-plugin puts it aside, and goes by "),
        (page_of(), "of this boot; devices given out: none."),
        (page_of(unknown="x"), "of this boot; devices given out: none; not all is known, for x."),
        (page_of(boot="b"), "of an earlier boot: it has how 2 GPUs were given out, and nobody has one."),
    ],
)
def test_its_state(shared: Book, text: Any, said: str) -> None:
    if text is not None:
        Path(shared.path).write_text(text if isinstance(text, str) else json.dumps(text) + "\n")
    assert book.summary(shared).startswith(BOOK.format(shared.path) + said)


def test_who_has_something_is_counted(shared: Book) -> None:
    with shared.locked():
        shared.write(page_of())
    shared.give(GIVEN)
    assert "devices given out: 1, of 1 GPUs." in book.summary(Book())


def test_one_of_a_newer_version(shared: Book) -> None:
    Path(shared.path).write_text('{"form": 9}\n')
    assert "is written by a newer version of gpushim" in book.summary(shared)


def test_a_lock_that_is_kept_is_said(shared: Book) -> None:
    with shared.locked():
        shared.write(page_of())
        said = book.summary(Book())
    assert said.endswith(f"held by a process that hangs; fuser {book.folder()}/{book.LOCK} names it.")
    assert "Its lock" not in book.summary(Book())
