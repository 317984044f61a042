"""Taking gpushim off a node: what is needed stays, and what fails can be tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplugin.node import record, remains, uninstall
from gpushim.ground.errors import GpushimError


@pytest.mark.parametrize(
    ("shell", "sentence"),
    [
        (
            "recorded() { echo a b; }; keep_stub() { :; }; ",
            "2 containers still .* no runc or crun",
        ),
        ("recorded() { :; }; keep_stub() { exit 3; }; ", "cannot be found out"),
    ],
)
def test_programs_that_are_needed_and_cannot_be_replaced_stay(shell: str, sentence: str) -> None:
    with pytest.raises(GpushimError, match=sentence):
        remains.keep(f"STUB=/none\n{shell}", record.Record({"/x/removed": ""}))
    remains.keep("STUB=/\nrecorded() { echo a; }; keep_stub() { :; }; ", record.Record())


@pytest.mark.parametrize(("script", "seconds"), [("exit 3", 60.0), ("sleep 9", 0.1)])
def test_what_fails_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, seconds: float
) -> None:
    monkeypatch.setattr(record, "PATH", str(tmp_path / "node.json"))
    monkeypatch.setattr(uninstall, "SECONDS", seconds)
    monkeypatch.setattr(uninstall, "STEPS", script)
    (tmp_path / "x").write_text("x")
    record.Record({str(tmp_path / "x"): record.digest(b"x")}).save()
    with pytest.raises(GpushimError, match="not all that gpushim has written could be removed"):
        uninstall._remove(record.load(), "", str(tmp_path))
    monkeypatch.setattr(uninstall, "STEPS", "true")
    uninstall._remove(record.load(), "", str(tmp_path))
    assert not tmp_path.exists()
