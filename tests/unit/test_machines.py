"""What `tests/machine/run` says before it boots anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from machine import __main__ as command
from machine.machines import MACHINES


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run", *words])
    return command.main()


def test_help_lists_every_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--help")
    said = capsys.readouterr().out
    assert [name for name in MACHINES if f"  {name} " not in said] == []


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "selinux-8")
    assert "no machine selinux-8; there are machine, selinux-9, selinux-10" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["selinux-9", "selinux-10"])
def test_without_its_policy_a_machine_is_skipped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSHIM_SELINUX", str(tmp_path))
    assert run(monkeypatch, name) == 0
    assert f"{name}: skipped: there is no {tmp_path}/policy-c" in capsys.readouterr().out
