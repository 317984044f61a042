from __future__ import annotations

from pathlib import Path

import pytest

from gpuplugin.dra.newest import NAME, Newest


def joined(folder: Path) -> Newest:
    found = Newest()
    found.join(str(folder))
    return found


def test_the_last_that_kubelet_took_speaks(tmp_path: Path) -> None:
    old, new = joined(tmp_path), joined(tmp_path)
    old.become()
    assert (old.is_it(), new.is_it()) == (True, False)
    new.become()
    assert (old.is_it(), new.is_it()) == (False, True)


def test_when_that_is_gone_the_other_speaks_again(tmp_path: Path) -> None:
    old, new = joined(tmp_path), joined(tmp_path)
    old.become()
    new.become()
    new.leave()
    assert old.is_it()


@pytest.mark.parametrize("text", [None, "", "x", "12345"])
def test_what_says_nothing_silences_nobody(tmp_path: Path, text: str | None) -> None:
    one = joined(tmp_path)
    if text is not None:
        (tmp_path / NAME).write_text(text)
    assert one.is_it()
