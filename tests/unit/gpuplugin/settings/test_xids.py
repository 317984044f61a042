"""Which XIDs count, and how the two variables change that."""

from __future__ import annotations

import pytest

from gpuplugin.health import reason
from gpuplugin.settings import xids

IGNORED = (13, 31, 43, 45, 68, 109)  # by NVIDIA's device plugin


def choose(disable: str = "", enable: str = "") -> xids.Choice:
    return xids.choose(disable, enable, [])


@pytest.mark.parametrize("xid", IGNORED)
def test_xids_that_the_reference_ignores_do_not_count(xid: int) -> None:
    assert not choose().counts(xid)


@pytest.mark.parametrize(
    ("xid", "ends"),
    [
        (94, xids.TIME),
        (48, xids.ACTION),
        (64, xids.ACTION),
        (79, xids.ACTION),
        (95, xids.ACTION),
        (120, xids.ACTION),
        (119, xids.AGAIN),
        (140, xids.AGAIN),
        (9999, xids.ACTION),
    ],
)
def test_counting_xids_end_as_the_catalog_says(xid: int, ends: str) -> None:
    assert choose().counts(xid)
    assert xids.verdict(xid).ends == ends


def test_each_verdict_names_what_it_means() -> None:
    for verdict in xids.TABLE.values():
        assert verdict.meaning
        assert verdict.cure in reason.CURES
        assert not verdict.meaning.endswith(".")


@pytest.mark.parametrize(
    ("disable", "enable", "counting"),
    [
        ("", "", {48, 79, 94}),
        ("48", "", {79, 94}),
        (" 48 ,79,", "", {94}),
        ("all", "", set()),
        ("xids", "", set()),
        ("ALL", "", set()),
        ("48,all", "", set()),
        ("all", "79", {79}),
        ("xids", "79,94", {79, 94}),
        ("79", "79", {48, 79, 94}),
        ("", "13", {13, 48, 79, 94}),
        ("all", "all", {48, 79, 94}),
        ("xids", "xids", {48, 79, 94}),
        ("xids,48", "all", {79, 94}),
        ("all", "xids", set()),
    ],
)
def test_lists_of_xids(disable: str, enable: str, counting: set[int]) -> None:
    choice = choose(disable, enable)
    assert {xid for xid in (13, 31, 48, 79, 94) if choice.counts(xid)} == counting


@pytest.mark.parametrize(
    ("disable", "enable", "checks"),
    [
        ("", "", True),
        ("xids", "", True),
        ("48", "", True),
        ("all", "", False),
        ("all", "79", False),
        ("all", "all", 1),
    ],
)
def test_other_checks_are_done_unless_all_are_disabled(disable: str, enable: str, checks: bool) -> None:
    assert choose(disable, enable).checks == checks


@pytest.mark.parametrize("word", ["x", "-1", "0", "7 9", "0x4f", "4294967296", "9" * 5000, "\u0667", "7_9", "\x1b"])
def test_a_malformed_word_gives_a_note_and_does_nothing(word: str) -> None:
    notes: list[str] = []
    assert xids.choose(f"{word},48", word, notes) == choose("48")
    assert len(notes) == 2
    assert notes[0].startswith("DP_DISABLE_HEALTHCHECKS has ")
    assert all(len(note) < 250 and note.isprintable() for note in notes)


@pytest.mark.parametrize(
    ("disable", "enable", "said"),
    [
        ("all", "", ["all health checks are off, and GPUs that fail may be given out"]),
        ("XIDS", "79", ["XIDs are ignored, and GPUs that fail may be given out, except for XID 79"]),
        ("all", "all", []),
        ("79", "", []),
    ],
)
def test_that_checks_are_off_is_said(disable: str, enable: str, said: list[str]) -> None:
    notes: list[str] = []
    xids.choose(disable, enable, notes)
    assert notes == [f"DP_DISABLE_HEALTHCHECKS: {each}" for each in said]
