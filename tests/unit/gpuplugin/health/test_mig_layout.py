"""The MIG layout that a file names: when the node is asked for what, and which devices wait."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.health import mig_layout
from gpuplugin.health.mig_layout import MigLayout
from gpuplugin.record import record_form
from gpushim.ground import system
from gpushim.mig import cut_request
from gpushim.paths import lock
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

SNAPSHOT = snapshot([gpu(0, mig=True), gpu(1, mig=True)], [mig(0, 0), mig(1, 0)])


class Node:
    """A state directory in which the node's part is the test's."""

    def __init__(self, top: Path) -> None:
        self.state, self.file, self.layout = top / "state", top / "name", MigLayout()
        (self.state / "device-plugin").mkdir(parents=True)
        (top / "mig.yaml").write_text("")
        self.values: dict[str, Any] = {"mig-layout-file": str(self.file), "on-demand": []}
        self.snapshot: Any = {**SNAPSHOT, "looked": system.clock() + 1000.0}
        self.record = record_form.fresh(system.boot() or "", "")

    def asked(self) -> Any:
        path = self.state / "device-plugin/mig.json"
        return json.loads(path.read_text()) if path.exists() else None

    def answer(self, problem: str = "", **gpus: str) -> None:
        content = {
            "request": self.asked(),
            "problem": problem,
            "gpus": {uuid(int(k[1:])): v for k, v in gpus.items()},
        }
        (self.state / "mig.json").write_text(json.dumps(content))

    def look(self) -> tuple[list[str], str]:
        """Look once; return what is unhealthy, and the state."""
        if self.layout.look(self.values, self.snapshot):
            self.layout.free(self.values, self.snapshot, self.record)
        return sorted(self.layout.reasons), mig_layout.tell_state(str(self.file))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GPUSHIM_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(mig_layout, "AGAIN", 0.0)
    monkeypatch.setattr(mig_layout, "SETTLED", 0.0)
    found = Node(tmp_path)
    found.file.write_text("night\n")
    return found


WAITING = sorted([uuid(0), SNAPSHOT["mig"][0]["uuid"]])


def test_without_a_name_nothing_is_asked(node: Node) -> None:
    for text in ("", None):
        node.file.unlink(missing_ok=True) if text is None else node.file.write_text(text)
        assert (node.look(), node.asked()) == (([], ""), None)


def test_a_gpu_waits_until_nobody_has_it_and_others_do_not(node: Node) -> None:
    assert node.look() == ([], "pending")
    assert (node.asked()["layout"], node.asked()["free"]) == ("night", [])
    node.answer(g0="")
    node.record["gpus"][uuid(0)] = {"divisions": {}, "allocations": {"r 0": {}}}  # type: ignore[typeddict-item]
    for _ in range(3):
        assert node.look() == (WAITING, "pending")
        assert node.asked()["free"] == []
    node.record["gpus"].clear()
    assert node.look() == (WAITING, "pending")
    assert node.asked()["free"] == [uuid(0)]
    node.answer()
    assert node.look() == ([], "success")


def test_what_was_there_before_a_gpu_was_cut_is_nobodys(node: Node) -> None:
    """The snapshot is read before the answer, which is written after a newer one."""
    node.look()
    node.answer(g0="")
    node.look()
    node.look()
    node.answer()
    node.snapshot["looked"] = node.asked()["at"] - 1.0
    assert node.look() == (WAITING, "success")
    node.snapshot["looked"] += 2.0
    assert node.look() == ([], "success")


def test_a_gpu_is_cut_only_when_fronts_know_that_it_waits(node: Node) -> None:
    """Also of another process, which has had the plan."""
    node.look()
    node.answer(g0="")
    for _ in range(2):
        node.layout = MigLayout()
        assert node.look() == (WAITING, "pending")
        assert node.asked()["free"] == []
    node.look()
    assert node.asked()["free"] == [uuid(0)]


def test_what_a_claim_has_is_not_cut_and_what_an_administrator_sees_is(node: Node) -> None:
    device = {"gpu": uuid(0), "uuid": SNAPSHOT["mig"][0]["uuid"], "admin": False}
    node.record["claims"]["uid"] = {"devices": [device]}  # type: ignore[typeddict-item]
    node.look()
    node.answer(g0="", g1="")
    node.look()
    node.look()
    assert node.asked()["free"] == [uuid(1)]
    device["admin"] = True
    node.look()
    assert node.asked()["free"] == sorted([uuid(0), uuid(1)])


def test_an_instance_that_a_boot_has_taken_is_made_again_though_a_claim_had_it(node: Node) -> None:
    device = {"gpu": uuid(0), "uuid": SNAPSHOT["mig"][0]["uuid"], "admin": False}
    node.record["claims"]["uid"] = {"devices": [device]}  # type: ignore[typeddict-item]
    node.snapshot = {**node.snapshot, "mig": []}
    node.look()
    node.answer(g0="")
    node.look()
    node.look()
    assert node.asked()["free"] == [uuid(0)]


def test_nothing_is_cut_while_nobody_knows_who_has_what(node: Node) -> None:
    node.look()
    node.answer(g0="")
    known, host = node.record, node.snapshot
    for record, more in (
        (None, {}),
        (record_form.fresh(system.boot() or "", "allocations.json is damaged"), {}),
        (known, {"source": "proc"}),
        (known, {"error": {"sentence": "NVML does not answer", "code": 12}}),
    ):
        node.record, node.snapshot = record, {**host, **more}  # type: ignore[assignment]
        for _ in range(3):
            assert node.look() == (WAITING, "pending")
        assert node.asked()["free"] == []


def test_what_fails_makes_nothing_unhealthy_and_is_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.look()
    node.answer("none of them is night")
    assert node.look() == node.look() == ([], "failed")
    node.answer(g0="it cannot be changed")
    assert node.look() == node.look() == ([], "failed")
    assert caplog.messages == ["MIG layout night: none of them is night", "MIG layout night: it cannot be changed"]


def test_a_name_that_is_taken_away_changes_nothing(node: Node) -> None:
    node.look()
    node.answer(g0="")
    node.look()
    node.file.write_text("")
    assert (node.look(), node.asked()) == (([], ""), None)


@pytest.mark.parametrize("name", ["day", "night"])
def test_another_name_or_another_file_is_planned_anew(node: Node, name: str) -> None:
    node.look()
    node.answer("none of them is night")
    node.look()
    node.file.write_text(name)
    (node.state.parent / "mig.yaml").write_text("version: v1\n")
    assert node.look() == ([], "pending")
    assert (node.asked()["layout"], node.asked()["free"]) == (name, [])


def test_gpus_that_are_cut_on_demand_are_told_to_the_node(node: Node) -> None:
    node.values["on-demand"] = ["1"]
    node.look()
    assert node.asked()["partitions"] == [uuid(1)]


def test_a_file_that_is_not_one_word_is_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.file.write_text("by night")
    assert node.look() == node.look() == ([], "failed")
    assert len([text for text in caplog.messages if "is not one word" in text]) == 1
    assert node.asked() is None


def test_a_request_that_cannot_be_written_is_told(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    os.rmdir(node.state / "device-plugin")
    assert node.look() == ([], "pending")
    assert "mig.json cannot be written" in caplog.text


def test_what_kubelet_was_answered_just_before_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mig_layout, "SETTLED", 1000.0)
    node.look()
    node.answer(g0="")
    for _ in range(3):
        assert node.look() == (WAITING, "pending")
    assert node.asked()["free"] == []


@pytest.mark.parametrize("is_other", [False, True])
@pytest.mark.parametrize("name", ["", "day"])
def test_what_is_taken_back_is_nobodys_while_the_node_may_still_cut_it(node: Node, name: str, is_other: bool) -> None:
    """Also of another process, which finds the request only."""
    node.look()
    node.answer(g0="")
    node.look()
    node.look()
    assert node.asked()["free"] == [uuid(0)]
    node.layout = MigLayout() if is_other else node.layout
    node.file.write_text(name)
    with lock.held(str(node.state / cut_request.LOCK)):
        assert node.look()[0] == node.look()[0] == WAITING
        assert node.asked() is None
    assert node.look()[0] == []
    assert name == "" or (node.asked()["layout"], node.asked()["free"]) == (name, [])


def test_a_name_that_comes_again_is_planned_anew(node: Node) -> None:
    node.look()
    node.answer("none of them is night")
    assert node.look() == ([], "failed")
    node.file.write_text("")
    node.look()
    node.file.write_text("night")
    assert node.look() == ([], "pending")
    assert node.asked()["layout"] == "night"


def test_what_cannot_be_cut_is_asked_for_no_more(node: Node) -> None:
    node.look()
    node.answer(g0="", g1="")
    node.look()
    node.look()
    node.answer(g0="it cannot be changed", g1="")
    node.record["gpus"][uuid(1)] = {"divisions": {}, "allocations": {"r 0": {}}}  # type: ignore[typeddict-item]
    assert uuid(0) not in node.look()[0]
    assert node.asked() is None
