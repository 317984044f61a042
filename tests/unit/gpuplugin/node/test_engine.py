"""What is asked of the node's gpushim: when the engine is restarted, and what is passed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplugin.node import engine
from gpushim.engines.processes import running
from gpushim.engines.processes.running import Engine
from gpushim.ground import system
from gpushim.ground.errors import GpushimError

SCRIPT = """#!/bin/sh
echo "$@" >>{0}/calls
case "$*" in
  *--verify*) echo 'gpushim: containerd is not verified: it has no runtime nvidia' >&2; exit {1} ;;
  *--restart*) echo 'verified: containerd has the runtime nvidia' ;;
  *fails*) echo 'gpushim: warning: x' >&2; echo 'gpushim: config.toml is wrong' >&2; exit 15 ;;
  *) echo '{{"changes": [{{"done": "changed", "path": "/etc/x"}}], "notes": ["restart it"], "stays": {{}},'
     echo '"changed": {2}}}' ;;
esac
"""


def gpushim(folder: Path, monkeypatch: pytest.MonkeyPatch, knows: bool, changed: bool) -> None:
    (program := folder / "gpushim").write_text(SCRIPT.format(folder, 0 if knows else 1, str(changed).lower()))
    program.chmod(0o755)
    monkeypatch.setattr(engine, "PROGRAM", str(program))
    monkeypatch.setattr(engine, "TRIED", str(folder / "tried"))
    monkeypatch.setattr(running, "find", list)
    monkeypatch.setattr(system, "SYSTEMD", str(folder))


@pytest.mark.parametrize(
    ("restart", "knows", "changed", "restarted"),
    [
        (True, True, False, False),
        (True, True, True, True),
        (True, False, False, True),
        (False, False, True, False),
        (False, True, True, False),
    ],
)
def test_an_engine_is_restarted_only_if_it_has_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool, knows: bool, changed: bool, restarted: bool
) -> None:
    gpushim(tmp_path, monkeypatch, knows, changed)
    assert engine.configure(["containerd", "--cdi", "--force"], restart) == []
    first, asked, *more = (tmp_path / "calls").read_text().splitlines()
    assert (first, asked) == (
        "configure containerd --cdi --force --format=json",
        "configure containerd --cdi --verify",
    )
    assert more == ["configure containerd --cdi --force --restart --format=text"] * restarted


RESTARTS = """#!/bin/sh
case "$*" in
  *--restart*) echo restarted >>{0}/calls; echo 'gpushim: containerd is not verified' >&2; exit 1 ;;
  *--verify*) echo 'gpushim: containerd is not verified' >&2; exit 1 ;;
  *) echo '{{"changes": [], "notes": [], "stays": {{}}, "changed": false}}' ;;
esac
"""


def test_an_engine_that_does_not_come_to_know_it_is_restarted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpushim(tmp_path, monkeypatch, False, False)
    (tmp_path / "gpushim").write_text(RESTARTS.format(tmp_path))
    for said in (
        "failed on the node: containerd is not",
        *["was restarted once for this and is not restarted again"] * 2,
    ):
        with pytest.raises(GpushimError, match=said):
            engine.configure(["containerd"], True)
    assert (tmp_path / "calls").read_text() == "restarted\n"
    with pytest.raises(GpushimError, match="failed on the node"):
        engine.configure(["containerd", "--cdi"], True)  # which is another wish
    gpushim(tmp_path, monkeypatch, True, False)
    engine.configure(["containerd", "--cdi"], True)
    assert not (tmp_path / "tried").exists()


@pytest.mark.parametrize("there", [True, False])
def test_an_engine_that_is_not_systemds_is_left_to_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    """The container that installs has done its work; run again, it says the same."""
    gpushim(tmp_path, monkeypatch, False, False)
    monkeypatch.setattr(running, "find", lambda: [Engine("containerd", 7)])
    if not there:
        monkeypatch.setattr(system, "SYSTEMD", str(tmp_path / "none"))
    for _ in range(2):
        assert not engine.configure(["containerd"], True)
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith(
            "gpushim-node: note: systemd does not run containerd here, so do this on the node: restart "
        )
        assert said.endswith("containerd (process 7) the way it was started")
    assert "--restart" not in (tmp_path / "calls").read_text()
    assert not (tmp_path / "tried").exists()


def test_an_engine_that_does_not_run_is_not_started_by_what_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that of options that named a wrong one, or of a node that has another now."""
    gpushim(tmp_path, monkeypatch, False, True)
    monkeypatch.setattr(running, "find", lambda: [Engine("containerd", 7, unit="containerd.service")])
    for _ in range(2):
        assert engine.configure(["crio", "--remove"], True) == []
    assert "--restart" not in (tmp_path / "calls").read_text()
    assert "note: crio does not run here, so it is not restarted\n" in capsys.readouterr().err
    engine.configure(["containerd", "--remove"], True)
    assert "configure containerd --remove --restart" in (tmp_path / "calls").read_text()


def test_what_is_to_be_done_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpushim(tmp_path, monkeypatch, False, True)
    engine.configure(["containerd"], False)
    assert capsys.readouterr() == ("gpushim-node: changed /etc/x\n", "gpushim-node: note: restart it\n")


def test_what_stays_for_containers_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is no failure, whatever is asked of the engine."""
    gpushim(tmp_path, monkeypatch, True, False)
    script = (tmp_path / "gpushim").read_text()
    (tmp_path / "gpushim").write_text(script.replace('"stays": {}', '"stays": {"old": "old stays for x/y"}'))
    assert engine.configure(["crio", "--remove", "--only-needed"], True) == ["old"]
    assert capsys.readouterr().out == "gpushim-node: changed /etc/x\ngpushim-node: old stays for x/y\n"
    assert "--restart" not in (tmp_path / "calls").read_text()


def test_an_earlier_build_does_not_tell_what_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpushim(tmp_path, monkeypatch, True, False)
    script = (tmp_path / "gpushim").read_text()
    (tmp_path / "gpushim").write_text(script.replace(', "stays": {}', ""))
    assert engine.configure(["crio", "--remove"], False) == []


def test_a_refusal_is_passed_on_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpushim(tmp_path, monkeypatch, True, True)
    with pytest.raises(GpushimError) as told:
        engine.configure(["fails"], False)
    sentence = "gpushim configure fails failed on the node: config.toml is wrong"
    assert (str(told.value), told.value.exit_code) == (sentence, 15)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("containerd",), "containerd"),
        (("k3s", "containerd"), "containerd"),
        (("crio", "dockerd"), "crio"),
        (("dockerd", "containerd"), "neither containerd nor CRI-O runs"),  # which is that dockerd's own
        ((), "neither containerd nor CRI-O runs"),
        (("crio", "rke2"), "containerd and CRI-O both run"),
    ],
)
def test_the_engine_that_runs(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], found: str) -> None:
    parent = 10 if names[:1] == ("dockerd",) else 1
    processes = [Engine(name, 10 + place, parent if place else 1) for place, name in enumerate(names)]
    monkeypatch.setattr(running, "find", lambda: processes)
    if " " not in found:
        assert engine.find_running() == found
        return
    with pytest.raises(GpushimError, match=f"^{found} on this node; choose one with --engine"):
        engine.find_running()
