"""What `tests/machine/run` says before it boots anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from machine import __main__ as command
from machine import policies
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
    assert "no machine selinux-8; there are machine, selinux, selinux-debian" in capsys.readouterr().err


@pytest.mark.parametrize("copied", ["", "etc/selinux/targeted/contexts", "usr/share/containers/selinux"])
def test_without_a_policy_of_red_hats_its_machine_is_skipped(
    copied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is named, or what is named has no policy."""
    (tmp_path / copied).mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("GPUSHIM_SELINUX", str(tmp_path) if copied else "")
    assert run(monkeypatch, "selinux") == 0
    assert "selinux: skipped: GPUSHIM_SELINUX names no directory with etc/selinux/targeted" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["targeted", "default"])
def test_a_policy_is_enforced_from_the_boot(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red Hat's and Debian's have names of their own."""
    host, root = tmp_path / "host", tmp_path / "root"
    for path in (f"etc/selinux/{kind}/policy/policy.33", "usr/share/containers/selinux/contexts"):
        (host / path).parent.mkdir(parents=True)
        (host / path).write_text(path)
    monkeypatch.setenv("GPUSHIM_SELINUX", str(host))
    assert policies.install(root, policies.of_a_host()) == root / "etc/selinux" / kind
    assert (root / "usr/share/containers/selinux/contexts").is_file()
    assert (root / "etc/selinux/config").read_text() == f"SELINUX=enforcing\nSELINUXTYPE={kind}\n"
