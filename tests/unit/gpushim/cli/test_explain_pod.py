"""`gpushim explain --pod` and `gpushim ps` of a host with pods: what they print."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpushim.cli import main
from gpushim.containers import holders
from gpushim.inventory import present
from unit.gpushim.cli.commands import apart
from unit.gpushim.containers import checkpoints, machines, pod_machine
from unit.gpushim.containers.machines import Machine
from unit.gpushim.decision import inventories

FORGED = "c\x1b]0;t\x07\nok all is well"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A node with one pod, whose kubelet has a directory that config.toml names."""
    found = Machine(tmp_path)
    checkpoints.write(tmp_path, [pod_machine.ENTRY])
    (tmp_path / "config.toml").write_text(f'[device-plugin]\nkubelet-dir = "{tmp_path}"\n')
    monkeypatch.setattr("gpushim.ground.system.config_path", lambda: f"{tmp_path}/config.toml")
    monkeypatch.setattr(present, "anyhow", lambda _: inventories.snapshot(error=None))
    containers = holders.containers
    monkeypatch.setattr(
        holders, "containers", lambda notes, *_: containers(notes, [str(found.states)], str(found.proc))
    )
    pod_machine.box(found, "a", "NVIDIA_VISIBLE_DEVICES=0")
    return found


def said(*words: str, code: int = 0) -> str:
    result = apart().invoke(main, words)
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.mark.usefixtures("machine")
def test_a_table_for_people() -> None:
    out = said("explain", "--pod", "ns/p")
    assert "ns/p/c\n" in out
    assert "GPUs 0, by spec" in out
    assert "told by    NVIDIA_VISIBLE_DEVICES=0" in out
    assert "nvidia.com/gpu  GPU-1    variable A=b" in out
    assert "GPU 0, asked for as" in out


@pytest.mark.usefixtures("machine")
def test_json() -> None:
    (found,) = json.loads(said("explain", "--pod", "ns/p/c", "--format=json"))
    assert (found["pod"], found["devices"], found["explain"]["source"]) == ("p", ["0"], "env NVIDIA_VISIBLE_DEVICES")


@pytest.mark.parametrize("text", ["p", "a/b/c/d", "ns/\x1b"])
def test_what_names_no_pod(text: str) -> None:
    assert said("explain", "--pod", text, code=2) == ""


def test_what_would_be_refused_now_is_said_and_exits_so(machine: Machine) -> None:
    pod_machine.box(machine, "b", "NVIDIA_VISIBLE_DEVICES=9", container="d")
    out = said("explain", "--pod", "ns/p", code=10)
    assert "ns/p/c\n" in out
    assert "ns/p/d\n" in out


def test_nothing_speaks_to_the_terminal(machine: Machine) -> None:
    pod_machine.box(machine, "b", f"NVIDIA_VISIBLE_DEVICES={FORGED}", container=FORGED, uid=FORGED)
    pod_machine.box(machine, "c", container=f"x{FORGED}", pid=99)
    entry = {**pod_machine.ENTRY, "PodUID": FORGED, "ContainerName": FORGED, "ResourceName": FORGED}
    checkpoints.write(machine.folder, [entry])
    for words in (["explain", "--pod", "ns/p"], ["ps"], ["ps", "--format=csv"], ["ps", "--format=json"]):
        result = apart().invoke(main, words)
        assert not {"\x1b", "\x07"} & {*result.output, *result.stderr}
        assert not any(line.startswith("ok all") for line in result.output.splitlines())


@pytest.mark.parametrize("pods", [True, False])
def test_ps_has_columns_for_pods_where_there_are_some(machine: Machine, pods: bool) -> None:
    if not pods:
        (machine.states / "a" / "state.json").unlink()
    machine.runc("b", machines.given("/dev/nvidia1", annotations={"nerdctl/name": "web"}), machine.process())
    head = said("ps").splitlines()[0].split()
    assert head == ["CONTAINER", *(["NAMESPACE", "POD"] if pods else []), "NAME", "ENGINE", "PID", "DEVICES", "HOW"]
    rows = [*csv.DictReader(io.StringIO(said("ps", "--format=csv")))]
    both: list[dict[str, Any]] = [*rows, *json.loads(said("ps", "--format=json"))]
    named = {(row.get("NAMESPACE", row.get("namespace")), row.get("POD", row.get("pod"))) for row in both}
    assert named == ({("ns", "p"), ("", "")} if pods else {("", "")})
    assert {row.get("NAME", row.get("name")) for row in both} == ({"c", "web"} if pods else {"web"})
