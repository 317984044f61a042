from __future__ import annotations

from pathlib import Path

import pytest

from gpuplugin.dra.newest import LOCK, NAME, Newest
from gpuplugin.processes.instances import Instances, anyone


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
    new._instances.leave()
    assert old.is_it()


@pytest.mark.parametrize("text", [None, "", "x", "12345"])
def test_what_says_nothing_silences_nobody(tmp_path: Path, text: str | None) -> None:
    one = joined(tmp_path)
    if text is not None:
        (tmp_path / NAME).write_text(text)
    assert one.is_it()


def test_whether_one_runs(tmp_path: Path) -> None:
    assert not anyone(str(tmp_path), name=LOCK)
    assert not (tmp_path / LOCK).exists()
    one = joined(tmp_path)
    assert anyone(str(tmp_path), name=LOCK)
    one._instances.leave()
    assert not anyone(str(tmp_path), name=LOCK)


def test_who_looks_is_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands that look at a time do not take each other for the driver."""
    joined(tmp_path)._instances.leave()
    look, seen = Instances.others, list[bool]()

    def beside(one: Instances, resource: str = "") -> bool:
        monkeypatch.setattr(Instances, "others", look)
        seen.append(anyone(str(tmp_path), name=LOCK))
        return look(one, resource)

    monkeypatch.setattr(Instances, "others", beside)
    assert not anyone(str(tmp_path), name=LOCK)
    assert seen == [False]
