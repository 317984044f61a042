"""`gpushim configure` as a program, killed at its calls, and written against meanwhile.

Each file is the old or the new one, whole, and the next run takes away what is left. What another writes until the
last look, which comes right before the rename, is not lost.
"""

from __future__ import annotations

import pytest

from e2e.configure_lab import LOOK, OLD, Lab
from e2e.faults import KILL, Call
from sample import LONG

SOME = 10_000 if LONG else 5  # of a command's calls


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


WORDS = pytest.mark.parametrize("words", ["configure", "remove"])


@WORDS
def test_killed_at_any_call(words: str, lab: Lab) -> None:
    command = getattr(lab, words)
    for call in some(lab.calls(command)):
        if lab.strike(command, call, KILL) is not None:
            assert lab.config.read_bytes() in (OLD, lab.new), call
            lab.ends()


@WORDS
def test_another_writes_until_the_last_look(words: str, lab: Lab) -> None:
    command, said = getattr(lab, words), ""
    made = lab.calls(command)
    last = max(place for place, call in enumerate(made) if call.name == "openat" and LOOK in call.words)
    for call in [*some(made[: last - 1]), made[last - 1]]:
        said += lab.interrupt(command, call, lab.replaced)
        assert b'"theirs"' in lab.config.read_bytes(), call
    assert "has been changed by somebody else meanwhile; try again" in said
    assert "Traceback" not in said


def some(made: list[Call]) -> list[Call]:
    """Take some calls, evenly, or all if there is time."""
    return made[:: max(len(made) // SOME, 1)]
