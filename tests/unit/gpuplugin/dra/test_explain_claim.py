from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from gpuplugin import dra_cli
from gpuplugin.dra import explain_claim
from gpuplugin.dra.node_state import NodeState
from gpuplugin.dra.offered import devices
from gpuplugin.record import transitions
from gpuplugin.record.record_form import LOST
from gpushim.cdi.generate import output, publish
from gpushim.containers.kubelet import Claim
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record import rows
from unit.gpuplugin.snapshots import gpu, snapshot, uuid
from unit.gpushim.doctor.nodes import answering

HOST = snapshot([gpu(0), gpu(1)])
ROW: dict[str, Any] = {**rows.claim_device()}


@pytest.fixture(autouse=True)
def spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CDI spec that has one of the GPUs."""
    monkeypatch.setattr(output, "path_of", lambda _: "/spec.json")
    monkeypatch.setattr(publish, "saved", lambda _: {"devices": [{"name": uuid(0)}]})


def node(*held: Any, since: float = 5.0, **more: Any) -> NodeState:
    record = rows.record(claims={"u": rows.claim(*held, since=since)} if held else {})
    return NodeState(HOST, devices(HOST), {uuid(0): "0", uuid(1): "1"}, {}, record, [])._replace(**more)


def report(kubelet_dir: Path, *held: Any, **more: Any) -> dict[str, Any]:
    return explain_claim.report("d", "c", node(*held, **more), str(kubelet_dir))


def test_what_a_claim_has(tmp_path: Path) -> None:
    (one,) = report(tmp_path, ROW)["claims"]
    (device,) = one["devices"]
    assert device.pop("since")[:2] == "20"
    cdi = f"nvidia.com/gpu={uuid(0)}"
    assert [*device.values()] == ["r", uuid(0).lower(), "0", cdi, "", "healthy"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"lost": {"u": "NVML refuses: In use"}}, "NVML refuses: In use"),
        *((status, "which kubelet no longer knows") for status in ({}, {"lost": 5}, {"lost": {"u": 5}})),
    ],
)
def test_why_what_a_lost_claim_had_is_not_free(tmp_path: Path, status: Any, words: str) -> None:
    """Also of a part of a GPU, which taints nothing: by the driver, and where that does not say by the record."""
    share: Any = {"id": "s", "memory": 10240, "of": 40960, "limited": True, "threads": 100, "group": ""}
    record = rows.record(claims={"u": rows.claim({**ROW, "share": share}, state=LOST)})  # type: ignore[typeddict-item]
    others = report(tmp_path, ROW, status=status)["notes"]
    (note,) = (note for note in report(tmp_path, ROW, record=record, status=status)["notes"] if note not in others)
    assert words in note


@pytest.mark.parametrize(
    ("row", "more", "key", "words"),
    [
        ({}, {"why": {uuid(0): "XID 79"}}, "health", "XID 79"),
        ({}, {"watched": False}, "health", "not known"),
        ({}, {"offered": []}, "health", "this node does not offer it now"),
        ({"uuid": uuid(1)}, {}, "cdi", f"nvidia.com/gpu={uuid(1)} (not in /spec.json)"),
        ({}, {"since": 0.0}, "since", ""),
        ({"admin": True}, {}, "use", "only looks"),
        ({"strategy": "MPS", "threads": 50}, {}, "use", "strategy: MPS, threads: 50"),
    ],
)
def test_what_is_said_of_a_device(row: Any, more: Any, key: str, words: str, tmp_path: Path) -> None:
    ((device,),) = [one["devices"] for one in report(tmp_path, {**ROW, **row}, **more)["claims"]]
    assert device[key] == words


def state(folder: Path, driver: str) -> None:
    """Write what kubelet keeps of a claim."""
    device = {"PoolName": "n", "DeviceName": "gpu-0", "CDIDeviceIDs": ["x/y=z"]}
    entry = {
        "Namespace": "d",
        "ClaimName": "c",
        "PodUIDs": {"p": {}},
        "DriverState": {driver: {"Devices": [device]}},
    }
    (folder / "dra_manager_state").write_text(json.dumps({"Data": json.dumps({"ClaimInfoStateList": [entry]})}))


@pytest.mark.parametrize("recorded", [True, False])
def test_what_kubelet_has_of_another_driver(tmp_path: Path, recorded: bool) -> None:
    state(tmp_path, "other.example.com")
    claim = rows.claim(rows.claim_device(), driver="other.example.com")
    found = report(tmp_path, record=rows.record(claims={transitions.describe(claim): claim} if recorded else {}))
    assert not found["claims"]
    assert [*found["kubelet"][0].values()] == ["uid p", "", "other.example.com", "gpu-0", "x/y=z"]
    assert "gpushim's driver has given it nothing: kubelet has it of another" in found["notes"]


HAS = Claim("d", "c", "gpu.nvidia.com", "n", "gpu-0", ("x/y=z",), "pod", "main")
LISTED = [{**one._asdict(), "uids": []} for one in (HAS, HAS._replace(name="other"))]


@pytest.mark.parametrize(
    ("answer", "pod"),
    [
        ({"claims": LISTED}, "d/pod"),
        ({"claims": None}, "uid p"),
        ({"claims": [{"x": 1}]}, "uid p"),
        ({"error": "the driver does not understand"}, "uid p"),
    ],
)
def test_without_grpc_the_driver_says_who_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], pod: str
) -> None:
    """Else kubelet is not blamed, as it is where it does not answer."""
    state(tmp_path, "gpu.nvidia.com")
    silent = "kubelet does not say which containers have it: see gpushim ps"
    assert report(tmp_path, ROW)["notes"][-1].startswith(silent)
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.delattr("gpuplugin.kubelet.podresources", raising=False)
    monkeypatch.setitem(sys.modules, "gpuplugin.kubelet.podresources", None)
    with answering(tmp_path / "device-plugin.sock", json.dumps(answer).encode() + b"\n"):
        found = report(tmp_path, ROW)
    assert [row["pod"] for row in found["kubelet"]] == [pod]
    assert any(note.startswith("this Python has no grpcio") for note in found["notes"]) == (pod == "uid p")


def test_a_claim_that_its_driver_refuses(tmp_path: Path) -> None:
    """As its state says, which is asked for once."""
    status = {"refusals": [{"namespace": "d", "name": "c", "why": "no room"}]}
    assert report(tmp_path, ROW, status=status)["notes"][-1] == "its driver refuses it: no room"
    with pytest.raises(GpushimError, match="claim d/c has nothing on this node: its driver refuses it: no room"):
        report(tmp_path, status=status)


def test_an_unknown_claim(tmp_path: Path) -> None:
    words = "claim d/c has nothing on this node; kubectl --namespace d get resourceclaim c -o yaml says whether it is"
    with pytest.raises(GpushimError, match=words):
        report(tmp_path)


def test_a_command_to_be_pasted_is_whole(tmp_path: Path) -> None:
    name = "team-a-training-run-with-a-long-name-x7k2q-gpu-claim-of-pod-" + "0123456789" * 10
    command = f"kubectl --namespace d get resourceclaim {name} -o yaml"
    with pytest.raises(GpushimError, match=f"claim d/{name} has nothing on this node; {command} says"):
        explain_claim.report("d", name, node(), str(tmp_path))


def test_a_terminal_does_not_break_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpushim.cli.show.width", lambda **_: 40)
    monkeypatch.setattr(explain_claim, "present", lambda _: node(ROW))
    settings: Any = SimpleNamespace(values={"kubelet-dir": str(tmp_path)})
    explain_claim.tell("d/c", settings, "table")
    assert f"configs: {explain_claim.kubectl('d', 'c')}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["c", "/c", "d/", "a/b/c", "d/c;id", "d/$(id)", "d/c\x1b[2J", "d/c d", "-n/c", "d/C"]
)
def test_a_name_has_two_parts(name: str) -> None:
    with pytest.raises(GpushimError, match=r"names no claim; write NAMESPACE/NAME$"):
        CliRunner().invoke(dra_cli.command, [f"--explain-claim={name}"], catch_exceptions=False)
