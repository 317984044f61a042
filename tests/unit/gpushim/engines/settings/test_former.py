"""What gpushim wrote into a file of others before it had drop-in files, and its records beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.engines.settings import files, former, own
from gpushim.ground.errors import GpushimError

FIRST = "# theirs\nversion = 2\n[a]\nb = 1\n"
OURS = "[a.runtimes.nvidia]\npath = 'gpushim-runtime'\n"
MADE = FIRST.replace("b = 1", "b = 2") + OURS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file as it was left, with its records."""
    path = tmp_path / "config.toml"
    path.write_text(MADE)
    path.with_name("config.toml.before-gpushim").write_text(FIRST)
    path.with_name("config.toml.after-gpushim").write_text(MADE)
    return path


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (MADE, FIRST),
        (MADE.replace("version", "more = 3\nversion"), FIRST.replace("version", "more = 3\nversion")),
        (MADE.replace(OURS, ""), MADE.replace(OURS, "")),
    ],
    ids=["as it was left", "edited since", "taken out since"],
)
def test_a_removal_takes_back_what_was_written(now: str, expected: str, path: Path) -> None:
    path.write_text(now)
    files.apply(own.plan_removal(str(path)))
    assert {each.name: each.read_text() for each in path.parent.iterdir()} == {"config.toml": expected}


def test_lines_that_nobody_can_tell_apart(path: Path) -> None:
    path.write_text(MADE.replace("path", "mine = 1\npath"))
    with pytest.raises(GpushimError, match=r"take out by hand what diff .*before-gpushim .*after-gpushim shows"):
        own.plan_removal(str(path))


def test_a_file_that_it_made_goes(path: Path) -> None:
    path.with_name("config.toml.before-gpushim").unlink()
    files.apply(own.plan_removal(str(path)))
    assert [*path.parent.iterdir()] == []


def test_without_records_nothing_is_taken_back(path: Path) -> None:
    path.with_name("config.toml.after-gpushim").unlink()
    assert former.records(str(path)) == []
    assert former.without(str(path), MADE.encode()) == MADE.encode()
