"""Taking gpushim off a node: what is needed stays, and what fails can be tried again."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from gpuplugin.node import engine_settings, host, owners, payload, record, uninstall
from gpushim.ground.errors import GpushimError


def test_programs_stay_where_nothing_can_be_left_in_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    programs = record.Record(dict.fromkeys([*uninstall.PROGRAMS, "/usr/bin/gpushim"], ""))
    with pytest.raises(GpushimError, match=r"could not be written: .*; nothing was removed"):
        uninstall._leave_script(programs, "leave() { return 3; }\n")
    assert len(programs.files) == 3
    uninstall._leave_script(programs, "leave() { echo 'gpushim: it stays'; }\n")
    assert ([*programs.files], capsys.readouterr().out) == (["/usr/bin/gpushim"], "gpushim-node: it stays\n")


@pytest.mark.parametrize(("script", "seconds"), [("exit 3", 60.0), ("sleep 9", 0.1)])
def test_what_fails_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, seconds: float
) -> None:
    monkeypatch.setattr(record, "PATH", str(tmp_path / "node.json"))
    monkeypatch.setattr(uninstall, "SECONDS", seconds)
    monkeypatch.setattr(uninstall, "STEPS", script)
    (tmp_path / "x").write_text("x")
    record.Record({str(tmp_path / "x"): record.digest(b"x")}).save()
    with pytest.raises(GpushimError, match="some of gpushim's files could not be removed"):
        uninstall._remove_files(record.load(), "", str(tmp_path))
    monkeypatch.setattr(uninstall, "STEPS", "true")
    uninstall._remove_files(record.load(), "", str(tmp_path))
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
    uninstall._warn_of_claims()
    said = capsys.readouterr().err
    assert (words in said, bool(said)) == (True, bool(number))
    (tmp_path / "dra_manager_state").write_text("{")
    uninstall._warn_of_claims()
    assert capsys.readouterr().err == ""


def test_what_stays_is_there_before_the_programs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And claims are named whether or not it can be left; once the engine's settings are away."""
    does: list[str] = []
    monkeypatch.setattr(record, "PATH", str(tmp_path / "node.json"))
    record.Record({"/usr/bin/x": record.digest(b"x")}).save()
    for module, name in ((host, "check_root"), (host, "enter"), (payload, "read_shell")):
        monkeypatch.setattr(module, name, lambda *_: "")
    monkeypatch.setattr(host, "lock_node", contextlib.nullcontext)
    monkeypatch.setattr(owners, "find_package", lambda _: "")
    monkeypatch.setattr(engine_settings, "take_back", lambda *_: does.append("take back"))
    for name in ("warn_of_claims", "leave_script", "remove_files"):
        monkeypatch.setattr(uninstall, f"_{name}", lambda *_, name=name: does.append(name))
    uninstall.uninstall("/host", "/payload", "/labels", True)
    assert does == ["take back", "warn_of_claims", "leave_script", "remove_files"]
