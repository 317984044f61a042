"""What a plugin in a pod asks for: what counts as a request, when it is served, and which units are started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpushim.ground import system
from gpushim.inventory import ensure
from gpushim.refresh import plugin_requests

UNIT, OTHER = "gpushim-mps@some-group.0.service", "gpushim-mps@b.service"


class State:
    """A state directory, and systemctl beside it.

    Args:
        path: of it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path / plugin_requests.NAME
        self.file.parent.mkdir()
        self.snapshot = path / ensure.SNAPSHOT
        self.snapshot.touch()
        os.utime(self.snapshot, (1000, 1000))

    def ask(self, what: Any) -> bool:
        self.file.write_text(what if isinstance(what, str) else json.dumps(what))
        return plugin_requests.serve(str(self.path))

    @property
    def started(self) -> str:
        path = self.path / "started"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    script = tmp_path / "systemctl"
    script.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/started\n')
    script.chmod(0o755)
    monkeypatch.setattr(plugin_requests, "SYSTEMCTL", str(script))
    monkeypatch.setattr(system, "SYSTEMD", str(tmp_path))
    return State(tmp_path)


@pytest.mark.parametrize(
    ("asked", "listing", "started"),
    [
        ({"refresh": True, "units": []}, True, ""),
        ({"refresh": False, "units": [UNIT]}, False, f"start --no-block {UNIT}\n"),
        ({"refresh": True, "units": [UNIT, OTHER]}, True, f"start --no-block {UNIT} {OTHER}\n"),
        ({"units": [UNIT]}, False, f"start --no-block {UNIT}\n"),
        ({"refresh": True}, True, ""),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_done(state: State, asked: Any, listing: bool, started: str) -> None:
    assert state.ask(asked) == listing
    assert state.started == started


@pytest.mark.parametrize(
    "asked",
    [
        "", "[]", "{", "{}", "null", '{"refresh": 1}', '{"refresh": "true"}', '{"units": "a"}', '{"units": [1]}',
        {"refresh": True, "units": ["sshd.service"]}, {"refresh": True, "units": [UNIT, "gpushim-mps@A.service"]},
        {"refresh": True, "units": ["gpushim-mps@a b.service"]}, {"refresh": True, "units": [UNIT + "\n"]},
        {"refresh": True, "units": ["gpushim-mps@" + "a" * 65 + ".service"]},
        {"refresh": True, "units": [f"gpushim-mps@{number}.service" for number in range(257)]},
        {"refresh": True, "more": "x" * plugin_requests.LIMIT},
    ],
)  # fmt: skip
def test_what_is_no_request_is_ignored_whole_with_one_warning(
    state: State, asked: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert not state.ask(asked)
    assert state.started == ""
    (said,) = caplog.messages
    assert said.startswith(f"{state.file} is ignored: ")


@pytest.mark.parametrize("step", [-86400, -3600, 0, 3600, 86400])
@pytest.mark.parametrize(("later", "served"), [(-1.0, False), (1.0, True)])
def test_the_clock_since_boot_says_which_is_newer(state: State, step: int, later: float, served: bool) -> None:
    looked = system.clock() - 10
    state.snapshot.write_text(json.dumps({"looked": looked, "stamp": {"boot": system.boot()}}))
    state.file.write_text(json.dumps({"refresh": True, "boot": system.boot(), "at": looked + later}))
    then = state.snapshot.stat().st_mtime + step
    os.utime(state.file, (then, then))
    assert plugin_requests.serve(str(state.path)) == served


@pytest.mark.parametrize(
    ("boot", "ahead", "other", "served"),
    [("x", 0.0, "", False), (None, 60.0, "", False), (None, 0.0, "x", True), (None, 0.0, "", True)],
    ids=["another boot's", "of a time to come", "another boot's snapshot", "well"],
)
def test_what_is_of_no_time_is_not_asked_for(
    state: State, boot: str | None, ahead: float, other: str, served: bool
) -> None:
    last = {"looked": 1e12 if other else 0.0, "stamp": {"boot": other or system.boot()}}
    state.snapshot.write_text(json.dumps(last))
    at = system.clock() + ahead - 1e-3
    state.file.write_text(json.dumps({"refresh": True, "boot": boot or system.boot(), "at": at}))
    assert plugin_requests.serve(str(state.path)) == served


def test_it_is_served_once(state: State) -> None:
    """A snapshot that is newer has been made for it."""
    assert state.ask({"refresh": True})
    os.utime(state.snapshot)
    assert not plugin_requests.serve(str(state.path))
    state.snapshot.unlink()
    assert plugin_requests.serve(str(state.path))


@pytest.mark.parametrize("spoil", ["file", "folder", "link", "mode", "none"])
def test_only_root_can_ask(state: State, tmp_path: Path, spoil: str) -> None:
    state.file.write_text('{"refresh": true}')
    if spoil == "file":
        os.chown(state.file, 1000, 0)
    elif spoil == "folder":
        os.chown(state.file.parent, 1000, 0)
    elif spoil == "mode":
        state.file.chmod(0o666)
    else:
        state.file.rename(tmp_path / "elsewhere")
        if spoil == "link":
            state.file.symlink_to(tmp_path / "elsewhere")
    assert not plugin_requests.serve(str(state.path))


def test_units_that_cannot_be_started_are_said(
    state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path(plugin_requests.SYSTEMCTL).write_text("#!/bin/sh\necho Unit not found. >&2\nexit 5\n")
    assert state.ask({"refresh": True, "units": [UNIT]})
    monkeypatch.setattr(plugin_requests, "SYSTEMCTL", "/gone")
    assert state.ask({"refresh": True, "units": [UNIT]})
    assert caplog.messages[0] == f"{UNIT} cannot be started: Unit not found."
    assert caplog.messages[1].startswith(f"{UNIT} cannot be started: [Errno 2]")
    monkeypatch.setattr(system, "SYSTEMD", "/gone")
    assert state.ask({"refresh": True, "units": [UNIT]})
    assert caplog.messages[2] == f"{UNIT}: systemd does not run here; have your init run what they run"
