"""What `gpushim-dra-driver --check` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench import fragments

from gpuplugin.dra import dry_run
from gpuplugin.dra.cutting import OnDemand
from gpuplugin.health.health import Health
from gpuplugin.record.record_form import LOST
from gpuplugin.settings import settings, sharing
from gpuplugin.snapshot import node_snapshot, release
from gpushim.containers.kubelet import PODS_SOCKET
from gpushim.ground import system
from gpushim.ground.errors import CONFIG, GpushimError
from unit.gpuplugin.record import rows
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid
from unit.gpushim.doctor.nodes import bound

HOST = snapshot([gpu(0), gpu(1), gpu(2)])


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is the tests', and all devices are in the CDI spec."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr(node_snapshot, "current", lambda: HOST)
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(), ""))


def test_who_has_what(capsys: pytest.CaptureFixture[str]) -> None:
    claims = {
        "claim d/theirs of other.org": rows.claim(rows.claim_device(uuid(1)), name="theirs", driver="other.org"),
        "u": rows.claim(rows.claim_device(uuid(2)), name="ours"),
    }
    given = {f"nvidia.com/gpu {uuid(0)}": rows.allocation(pod="pod d/p")}
    rows.save(rows.record(allocations=given, claims=claims, boot=system.boot()))
    dry_run.tell(settings.resolve({}, {}, {}), lambda _: "")
    lines = capsys.readouterr().out.splitlines()
    assert any("2 of 3 can be given out" in line for line in lines)  # but for claims that only look
    devices = {line.split()[0]: line for line in lines if line.startswith("gpu-")}
    assert "pod d/p has it" in devices[uuid(0).lower()]
    for number, words in enumerate(("device plugin", "claim d/theirs of other.org", "claim d/ours")):
        assert words in devices[uuid(number).lower()]


def test_a_gpu_that_a_claim_has_left_as_it_is_not_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "mps/claim-12345678-1234-4234-8234-123456789012-0"
    place.mkdir(parents=True)
    (place / "compute-modes.json").write_text(json.dumps({uuid(1): 0}))
    dry_run.tell(settings.resolve({}, {}, {}), lambda _: "")
    said = capsys.readouterr().out
    assert "2 of 3 can be given out" in said
    lines = [line for line in said.splitlines() if "has not ended yet" in line]
    assert [line.split()[0] for line in lines] == [uuid(1).lower()]


def test_partitions_on_demand_have_a_line_for_each_profile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the driver would publish them: what overlaps a stranger's instance is not there."""
    host = snapshot([gpu(0, mig=True)], [mig(0, 0), mig(0, 3)])

    async def learn(node: OnDemand, *_: object) -> None:
        node._profiles = {uuid(0): fragments.profiles_of("A100-40")}

    monkeypatch.setattr(OnDemand, "learn", learn)
    monkeypatch.setattr(node_snapshot, "current", lambda: host)
    top = f"mig-{uuid(0).lower().removeprefix('gpu-')}-1g-5gb"
    part: Any = {**rows.claim_device(host["mig"][1]["uuid"], uuid(0)), "device": f"{top}-3"}
    rows.save(rows.record(claims={"u": rows.claim(part, name="ours")}, boot=system.boot()))
    lines = said(capsys, on_demand=["0"]).splitlines()
    (row,) = (line for line in lines if line.startswith(f"{top}-*, placements: 6 "))
    assert "claim d/ours (at 3)" in row
    patterns = [line.partition(",")[0] for line in lines if "-*, placements: " in line]
    assert len(patterns) == len({*patterns}) < 8
    assert any(line.startswith(host["mig"][0]["uuid"].lower()) for line in lines)
    assert not any("nothing is offered" in line for line in lines)


def test_who_has_parts_and_what_a_lost_claim_had(capsys: pytest.CaptureFixture[str]) -> None:
    share: Any = {"id": "s", "memory": 10240, "of": 40960, "limited": True, "threads": 100, "group": ""}
    part: Any = {**rows.claim_device(uuid(0)), "share": share}
    lost = rows.claim(rows.claim_device(uuid(1)), name="gone", state=LOST)
    claims = {"u": rows.claim(part, name="a"), "v": rows.claim(part, name="b"), "w": lost}
    rows.save(rows.record(claims=claims, boot=system.boot()))
    text = said(capsys)
    assert "claim d/a (10240 of 40960 MiB), claim d/b (10240 of 40960 MiB)" in text
    assert "2 of 3 can be given out" in text
    assert [line for line in text.splitlines() if line.startswith(uuid(1).lower()) and "a process still runs" in line]


def test_another_driver_is_named() -> None:
    with pytest.raises(GpushimError, match=r"^another driver gpu\.nvidia\.com listens at /k/x\.sock, so"):
        dry_run.tell(settings.resolve({}, {}, {}), lambda _: "/k/x.sock")


def test_what_is_held_is_no_less_given_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows.save(rows.record(claims={"u": rows.claim(rows.claim_device(uuid(1)))}))
    assert "can be given out, in 1 ResourceSlices; 1 of these held" in said(capsys)


def test_whether_there_is_another_driver_may_not_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    dry_run.tell(settings.resolve({}, {}, {}), lambda _: None)
    assert dry_run.UNASKED in capsys.readouterr().out


def test_a_kubelet_that_has_ended(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "pod-resources").mkdir()
    bound(tmp_path / PODS_SOCKET).close()
    assert "kubelet.sock: no kubelet runs" in said(capsys, kubelet_dir=str(tmp_path)).replace("\n  ", " ")
    with bound(tmp_path / PODS_SOCKET):
        assert "no kubelet runs" not in said(capsys, kubelet_dir=str(tmp_path)).replace("\n  ", " ")


def sick(number: int) -> None:
    """Have an XID of a GPU known, as by a driver that watches."""
    found = Health(f"{release.prepare()}/health.json")
    found.problems(HOST, system.clock())
    found.heard({"xid": 79, "gpu": uuid(number)}, system.clock())
    found.save(at_once=True)


def said(capsys: pytest.CaptureFixture[str], **values: Any) -> str:
    found = settings.resolve({}, {}, {})
    found.values.update({key.replace("_", "-"): value for key, value in values.items()})
    dry_run.tell(found, lambda _: "")
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("effect", "counted", "row", "note"),
    [("NoSchedule", 2, True, False), ("NoExecute", 2, True, False), ("None", 3, False, True)],
)
def test_what_is_unhealthy(
    capsys: pytest.CaptureFixture[str], effect: str, counted: int, row: bool, note: bool
) -> None:
    sick(1)
    found = said(capsys, taint_effect=effect)
    assert f"{counted} of 3 can be given out" in found
    lines = [line for line in found.splitlines() if line.startswith(f"{uuid(1).lower()}  1 ")]
    assert ["XID 79" in line for line in lines] == [row]
    assert (f"note: {uuid(1)} can be given out, as taint-effect is None: XID 79" in found) == note


@pytest.mark.parametrize("effect", ["NoSchedule", "None"])
def test_what_cannot_be_listed_is_not_given_out_whatever_the_effect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, effect: str
) -> None:
    sick(1)
    hangs = snapshot([gpu(0), gpu(1, problem="it hangs"), gpu(2)])
    monkeypatch.setattr(node_snapshot, "current", lambda: hangs)
    found = said(capsys, taint_effect=effect)
    assert "2 of 3 can be given out" in found
    assert [line for line in found.splitlines() if "XID 79" in line and line.endswith("; it hangs")]


def test_health_that_nobody_has_watched_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    words = "note: whether GPUs are healthy is not known: neither driver nor device plugin has watched them yet"
    assert words in said(capsys)
    sick(1)
    assert words not in said(capsys)


def test_exclude_that_leaves_out_and_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, exclude=["1", "9"])
    assert "note: left out by exclude or on-demand: 1\n" in found
    assert 'note: exclude or on-demand has "9", which this host does not have\n' in found
    assert "2 of 2 can be given out" in found


def test_on_demand_without_mig_mode_and_in_vain(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, on_demand=["1", "9"], exclude=["1", "9"])  # as settings have it
    assert "note: GPU 1 of on-demand is not in MIG mode, so it is given out whole; " in text
    assert f": nvidia-smi -i {uuid(1)} -mig 1\n" in text
    assert 'note: exclude or on-demand has "9", which this host does not have\n' in text
    assert "left out" not in text
    assert "3 of 3 can be given out" in text


def test_what_is_given_out_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    found = settings.resolve({}, {}, {})
    group = {"name": "gpu", "devices": [1], "replicas": 4}
    found.sharing = sharing.read({"timeSlicing": {"resources": [group]}}, "file", [])
    dry_run.tell(found, lambda _: "")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "in parts" in line)
    assert line.startswith(uuid(1).lower())
    assert "none, in parts (memoryLimit none)" in line


def test_a_kubeconfig_that_the_driver_does_not_take(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match="cannot be read: No such file or directory") as found:
        said(capsys, kubeconfig=str(tmp_path / "none"))
    assert found.value.exit_code == CONFIG
    assert "3 of 3 can be given out" in capsys.readouterr().out


def test_a_pod_does_not_see_the_hosts_kubeconfig(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(node_snapshot.POD, "10.0.0.1")
    assert "3 of 3 can be given out" in said(capsys, kubeconfig=str(tmp_path / "none"))
