"""Taking gpushim off a node: what is needed stays, and what fails can be tried again."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from gpuplugin.node import configured, host, owners, record, remains, uninstall
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


@pytest.mark.parametrize(("number", "words"), [(0, ""), (1, "their pods: d/c0\n"), (9, "d/c7 and 1 more\n")])
def test_claims_that_are_left_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, words: str
) -> None:
    monkeypatch.setattr("gpushim.containers.pods.kubelet_dir", lambda: str(tmp_path))
    claim = {"Namespace": "d", "PodUIDs": {}}
    device = {"Devices": [{"PoolName": "n", "DeviceName": "g", "CDIDeviceIDs": []}]}
    rows = [{**claim, "ClaimName": f"c{one}", "DriverState": {"gpu.nvidia.com": device}} for one in range(number)]
    rows.append({**claim, "ClaimName": "theirs", "DriverState": {"other.org": device}})
    (tmp_path / "dra_manager_state").write_text(json.dumps({"Data": json.dumps({"ClaimInfoStateList": rows})}))
    uninstall._tell_of_claims()
    said = capsys.readouterr().err
    assert (words in said, bool(said)) == (True, bool(number))
    (tmp_path / "dra_manager_state").write_text("{")
    uninstall._tell_of_claims()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("needed", [False, True])
def test_claims_are_named_whether_or_not_programs_can_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: bool
) -> None:
    """Once the engine's settings are away; that programs stay is no answer to who must end first."""
    does: list[str] = []

    def keep(*_: object) -> None:
        does.append("keep")
        if needed:
            raise GpushimError("containers still need them")

    monkeypatch.setattr(record, "PATH", str(tmp_path / "node.json"))
    record.Record({"/usr/bin/x": record.digest(b"x")}).save()
    for module, name in ((host, "check"), (host, "enter"), (remains, "functions")):
        monkeypatch.setattr(module, name, lambda *_: "")
    monkeypatch.setattr(host, "locked", contextlib.nullcontext)
    monkeypatch.setattr(owners, "package", lambda _: "")
    monkeypatch.setattr(configured, "take_back", lambda *_: does.append("take back"))
    monkeypatch.setattr(uninstall, "_tell_of_claims", lambda: does.append("tell"))
    monkeypatch.setattr(remains, "keep", keep)
    monkeypatch.setattr(uninstall, "_remove", lambda *_: does.append("remove"))
    with pytest.raises(GpushimError) if needed else contextlib.nullcontext():
        uninstall.uninstall("/host", "/payload", "/labels", True)
    assert does == ["take back", "tell", "keep", *["remove"] * (not needed)]
