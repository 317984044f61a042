"""A file of gpushim's own: what is written, when it is made anew, and what somebody wrote into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.engines.settings import files, former, own
from gpushim.ground.errors import GpushimError

WISHED = {"a": {"b": "c"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is there."""
    files.apply([own.plan_content(f"{tmp_path}/x.conf", "crio", WISHED)])
    return tmp_path / "x.conf"


def test_it_says_whose_it_is_and_how_it_goes(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# Made by `gpushim configure`; `gpushim configure crio --remove` takes it away.")
    assert own.data(str(path), path.read_bytes()) == WISHED


def test_it_is_as_wished_and_no_more(path: Path) -> None:
    assert own.plan_content(str(path), "crio", WISHED).new == path.read_bytes()
    files.apply([own.plan_content(str(path), "crio", {"d": 1})])
    assert own.data(str(path), path.read_bytes()) == {"d": 1}
    files.apply(own.plan_removal(str(path)))
    assert [*path.parent.iterdir()] == []


def test_an_edit_stays_while_all_that_is_wished_is_there(path: Path) -> None:
    path.write_text(path.read_text() + "more = 1\n")
    assert own.plan_content(str(path), "crio", WISHED).new == path.read_bytes()
    for change in (own.plan_content(str(path), "crio", {"d": 1}), own.plan_removal(str(path))[0]):
        assert change.copy == files.EDITED


@pytest.mark.parametrize("content", [b"", b"# mine\n", b"\n# Made by `gpushim configure`"])
def test_a_file_of_others_is_not_touched(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(GpushimError, match="is not gpushim's; give --config a name"):
        own.data(str(path), content)
    (change,) = own.plan_removal(str(path))
    assert (change.new, change.copy) == (content, "")


@pytest.mark.parametrize("edited", [False, True])
def test_one_of_an_earlier_gpushim_is_known_by_its_record(edited: bool, path: Path) -> None:
    path.write_text("# Made by `gpushim configure`; `gpushim configure crio --remove` takes it away.\n[a]\nb = 1\n")
    path.with_name(path.name + former.AFTER).write_bytes(path.read_bytes())
    if edited:
        path.write_text(path.read_text() + "# mine\n")
    files.apply(own.plan_removal(str(path)))
    assert [each.name for each in path.parent.iterdir()] == ["x.conf.kept-gpushim"] * edited
