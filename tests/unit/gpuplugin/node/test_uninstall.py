"""Taking gpushim off a node: what is needed stays, and what fails can be tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplugin.node import install, record, remains, uninstall
from gpushim.engines.processes import monitors
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


def test_what_tells_which_settings_are_meant() -> None:
    words = ["containerd", "--config=/etc/x", "--runtime-name=gpu", "--set-as-default", "--cdi"]
    assert install.named(words) == ["containerd", "--config=/etc/x", "--runtime-name=gpu"]


@pytest.mark.parametrize(("name", "looks"), [("crio", 3), ("containerd", 0)])
def test_containers_that_end_just_then_may_do_so(monkeypatch: pytest.MonkeyPatch, name: str, looks: int) -> None:
    """CRI-O keeps its handler for them; who stays does not keep this waiting for ever."""
    left = [["a"], ["a"], []]
    monkeypatch.setattr(monitors, "calling", lambda _: left.pop(0))
    monkeypatch.setattr(uninstall, "POLL", 0.01)
    uninstall._let_end(name)
    assert len(left) == 3 - looks
    monkeypatch.setattr(monitors, "calling", lambda _: ["a"])
    monkeypatch.setattr(uninstall, "LET_END", 0.05)
    uninstall._let_end(name)
