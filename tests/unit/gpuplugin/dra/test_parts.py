"""Parts of a device for several claims: what is published, what is recorded, and how containers are limited."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.allocation import memory_limits
from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.dra import offered, shared, spec
from gpuplugin.dra.claim import allocated, is_here
from gpuplugin.dra.offered import Parts
from gpuplugin.record import grants, record_form, transitions
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.settings import settings, sharing
from gpushim.cdi.generate import output, publish
from gpushim.containers import kubelet
from gpushim.containers.kubelet import OWN_DRIVER, Claim
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.dra.claimed_node import NODE, Node
from unit.gpuplugin.dra.claimed_node import node as node
from unit.gpuplugin.record.rows import allocation, claim, claim_device, record
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

HOST = snapshot([gpu(0), gpu(1)])
DIVIDED = snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)])
IDS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(5)]
ALL = 40960
MPS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}


def said(strategy: str = "none", **kinds: list[dict[str, Any]]) -> settings.Settings:
    """Return settings with groups of sharing."""
    found = settings.resolve({}, {}, {"mig-strategy": strategy}, "")
    found.sharing = sharing.read({kind: {"resources": rows} for kind, rows in kinds.items()}, "f", [])
    return found


def limits(host: Any, found: settings.Settings) -> dict[str, str]:
    """Return who limits claims to their parts, by UUID of what is given out in parts."""
    policy = {**host["policy"], "cdi": {"kind": "nvidia.com/gpu", "output-directory": "/nowhere"}}
    devices, *_ = spec.devices(host | {"policy": policy}, found)
    return {
        one.uuid: one.body["attributes"]["memoryLimit"]["string"]
        for one in devices
        if one.body.get("allowMultipleAllocations")
    }


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose driver keeps limits."""
    monkeypatch.setattr(memory_limits, "missing", lambda _: "")


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("strategy", ["none", "mixed"])
def test_devices_of_a_time_slicing_group_are_given_out_in_parts(strategy: str) -> None:
    rows = [{"name": "gpu", "replicas": 2, "devices": [0]}, {"name": "mig-1g.5gb", "replicas": 2}]
    assert limits(DIVIDED, said(strategy, timeSlicing=rows)) == {uuid(0): "container", uuid(16, "MIG"): "none"}


@pytest.mark.usefixtures("kept")
def test_others_stay_whole() -> None:
    """As those of an MPS daemon that has limits of its own, so that a claim might get less than it consumes."""
    assert limits(HOST, said()) == {}
    by_mps, by_time = ([{"name": "gpu", "replicas": 2, "devices": [number]}] for number in (0, 1))
    by_mps[0]["rename"] = "gpu.mps"
    assert limits(HOST, said(mps=by_mps, timeSlicing=by_time)) == {uuid(1): "container"}


@pytest.mark.parametrize(
    ("row", "is_shared"),
    [
        ({"replicas": 1}, True),
        ({"replicas": 2, "memory": "40Gi", "threads": 100}, True),
        ({"replicas": 1, "threads": 50}, False),
        ({"replicas": 1, "memory": "20Gi"}, False),
        ({"slices": [{"name": "gpu.all", "memory": "40Gi", "threads": 100}]}, False),
    ],
)
def test_an_mps_daemon_without_limits_serves_claims(row: dict[str, Any], is_shared: bool) -> None:
    """Where the driver keeps no limit, by the client's own."""
    found = said(mps=[{"name": "gpu", "devices": [0], **row}])
    assert limits(HOST, found) == ({uuid(0): "process"} if is_shared else {})


def test_a_driver_that_keeps_no_limit_says_so() -> None:
    assert limits(HOST, said(timeSlicing=[{"name": "gpu", "replicas": 2}])) == {uuid(0): "none", uuid(1): "none"}


def result(number: int, memory: Any = "10Gi", **more: Any) -> dict[str, Any]:
    row = {"request": "r", "driver": OWN_DRIVER, "pool": NODE, "device": "gpu-0", "shareID": IDS[number]}
    return {**row, "consumedCapacity": {"memory": memory, "threads": "25", "copyEngines": "0"}, **more}


def body(*results: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"uid": "u"}, "status": {"allocation": {"devices": {"results": [*results]}}}}


ASKED = {"namespace": "d", "name": "c", "uid": "u"}


def test_a_result_has_its_part() -> None:
    (one,) = allocated(ASKED, body(result(0, "1536Mi")), NODE).results
    assert (one.share, one.memory, one.threads) == (IDS[0], 1536, 25)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"consumedCapacity": value}
            for value in ({}, None, {"memory": "1Gi"}, {"memory": "1Gi", "threads": "101"})
        ),
        *({"shareID": value} for value in ("../x", 3, "")),
    ],
)
def test_a_part_that_nobody_can_tell_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(GpushimError, match="claim d/c is malformed"):
        allocated(ASKED, body(result(0, **wrong)), NODE)


def test_a_claim_with_another_part_of_the_same_device_has_what_it_had_no_more() -> None:
    had = {"devices": [{"device": "gpu-0", "share": {"id": IDS[0]}}]}
    assert is_here(had, body(result(0)), NODE)
    assert not is_here(had, body(result(1)), NODE)
    assert not is_here(had, body(result(0, shareID=None)), NODE)


def part(number: int, memory: int, **more: Any) -> record_form.Claim:
    """Return a recorded claim with a part of the first GPU."""
    share: Any = {"id": IDS[number], "memory": memory, "of": ALL, "limited": True, "threads": 0, "group": ""}
    return claim({**claim_device(), "share": share}, name=f"c{number}", **more)


def granted(*parts: record_form.Claim, **allocations: Any) -> record_form.Record:
    found = record(**allocations)
    for number, one in enumerate(parts):
        found = grants.grant_claim(found, f"u{number}", one)
    return found


def test_parts_are_granted_until_there_is_no_memory_left() -> None:
    four = granted(*(part(number, ALL // 4) for number in range(4)))
    assert len(four["claims"]) == 4
    with pytest.raises(GpushimError, match=r"cannot have GPU-0.*: its claims would have 40976 MiB, and"):
        grants.grant_claim(four, "u4", part(4, 16))
    again = grants.grant_claim(four, "u3", part(3, ALL // 4))  # the same claim, once more
    assert again["claims"].keys() == four["claims"].keys()


def test_two_parts_of_one_claim_count_both() -> None:
    halves = [part(number, ALL // 2)["devices"][0] for number in range(3)]
    assert granted(claim(*halves[:2]))
    with pytest.raises(GpushimError, match="would have 61440 MiB"):
        granted(claim(*halves))


WHOLE: dict[str, tuple[Any, Any]] = {
    "a part after the whole": (claim(claim_device()), part(0, 16)),
    "the whole after a part": (part(0, 16), claim(claim_device())),
    "an instance after a part": (part(0, 16), claim(claim_device(uuid(0, "MIG"), uuid(0), "1/0"))),
}


@pytest.mark.parametrize("pair", WHOLE.values(), ids=WHOLE)
def test_a_whole_device_excludes_parts(pair: tuple[record_form.Claim, record_form.Claim]) -> None:
    with pytest.raises(GpushimError, match="delete that claim, or the pods that have it"):
        granted(*pair)


def test_what_a_pod_has_by_the_device_plugin_is_given_to_no_part() -> None:
    with pytest.raises(GpushimError, match="pod d/a has it"):
        granted(part(0, 16), allocations={"nvidia.com/gpu a": allocation()})


def test_the_record_keeps_parts_and_refuses_what_is_none() -> None:
    text = json.dumps(granted(part(0, 16)))
    assert record_form.parse(json.loads(text), [], "boot")["claims"]["u0"] == part(0, 16)
    for key, value in (("memory", -1), ("of", "x"), ("limited", 1), ("id", None), ("threads", None), ("group", 1)):
        found = json.loads(text)
        found["claims"]["u0"]["devices"][0]["share"][key] = value
        with pytest.raises((TypeError, ValueError)):
            record_form.parse(found, [], "boot")


@pytest.fixture
def parted(node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    """A node whose first GPU is given out in parts."""
    monkeypatch.setattr(output, "default_directory", lambda: str(tmp_path / "cdi"))
    share_by(node, Parts("container"))
    return node


def share_by(node: Node, parts: Parts) -> None:
    found = offered.devices(HOST, parts={uuid(0): parts})
    names = {f"gpu-{number}": one._replace(name=f"gpu-{number}") for number, one in enumerate(found)}
    node.offer = node.offer._replace(devices=names)


def specs(tmp_path: Path) -> dict[str, str]:
    """Return which file of a limit a name of claims' CDI specs has mounted."""
    return {
        f"{found['kind']}={device['name']}": Path(device["containerEdits"]["mounts"][0]["hostPath"]).name
        for path in (tmp_path / "cdi").glob("gpushim-claim-*.json")
        for found in [publish.saved(str(path))]
        if found
        for device in found["devices"]
    }


def take(node: Node, number: int, memory: str = "16Gi", threads: str = "0") -> Any:
    """Have a claim with a part of the first GPU prepared; return its only device, or why it has none."""
    node.claims[IDS[number]] = ("gpu-0",)
    node.more = {"shareID": IDS[number], "consumedCapacity": {"memory": memory, "threads": threads}}
    answer = asyncio.run(node.prepare(IDS[number]))
    return answer if isinstance(answer, str) else answer[0]


def test_each_part_has_a_limit_of_its_own_and_ends_alone(parted: Node, tmp_path: Path) -> None:
    for number in range(2):
        one = take(parted, number)
        name = f"gpushim/claim=share-{IDS[number]}"
        assert (one["share_id"], one["cdi_device_ids"]) == (IDS[number], [f"nvidia.com/gpu={uuid(0)}", name])
    limit = f"{uuid(0)}={16 << 30}"
    assert specs(tmp_path) == {f"gpushim/claim=share-{IDS[number]}": limit for number in range(2)}
    assert (tmp_path / "limits" / limit).exists()
    assert "its claims would have 49152 MiB, and it has 40960 MiB" in take(parted, 2)
    asyncio.run(parted.unprepare(IDS[0]))
    assert parted.recorded == [IDS[1]]
    assert specs(tmp_path) == {f"gpushim/claim=share-{IDS[1]}": limit}
    assert take(parted, 2)["device_name"] == "gpu-0"


def test_a_claim_gets_no_other_part_while_a_process_has_the_one_before(parted: Node) -> None:
    """Which may be larger: as one with a name of its own, which the scheduler has allocated anew."""
    parted.users = ["hangs"]
    assert take(parted, 0)["share_id"] == IDS[0]
    parted.running, parted.users = {"hangs"}, ["second"]
    assert take(parted, 0)["share_id"] == IDS[0]
    parted.more = {"shareID": IDS[1], "consumedCapacity": {"memory": "1Gi", "threads": "0"}}
    assert isinstance(asyncio.run(parted.prepare(IDS[0])), str)
    parted.running = set()
    assert asyncio.run(parted.prepare(IDS[0]))[0]["share_id"] == IDS[1]


def test_a_part_of_what_is_not_shared_any_more_is_refused(parted: Node) -> None:
    """Its limit would be nobody's."""
    del parted.offer.devices["gpu-0"].body["allowMultipleAllocations"]
    assert "is shared no more; make claim and pod again" in take(parted, 0)
    assert parted.recorded == []


def test_a_lost_part_taints_nothing_of_others(parted: Node) -> None:
    parted.users = ["hangs"]
    take(parted, 0)
    parted.driver._lose([IDS[0]])
    assert transitions.find_lost_claims(parted.record) == {}
    assert "its claims would have" in take(parted, 1, "40Gi")


@pytest.mark.parametrize(("uid", "has_part"), [(IDS[0], True), ("", False)])
def test_claims_with_parts_do_not_block_one_another_after_their_record_was_lost(
    parted: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uid: str, has_part: bool
) -> None:
    """kubelet knows whose GPU it is, and the API server which part; of a claim with an unknown uid it is all."""
    take(parted, 0)
    Path(parted.file.path).unlink()
    vars(parted.file).update(vars(AllocationsFile()))  # as another process has it
    names = (f"nvidia.com/gpu={uuid(0)}",)
    entry = Claim("d", IDS[0], OWN_DRIVER, NODE, "gpu-0", names, uids=frozenset({"p"}), uid=uid)
    monkeypatch.setattr(kubelet, "claims", lambda _: [entry])
    monkeypatch.setattr(kubelet, "claim_uids", lambda _: frozenset({uid}))
    answer = take(parted, 1)
    assert (not isinstance(answer, str)) == has_part, answer
    (adopted,) = (row for row in parted.record["claims"].values() if row["name"] == IDS[0])
    assert [row.get("share", {}).get("memory") for row in adopted["devices"]] == [16384 if has_part else None]
    assert isinstance(take(parted, 2, "40Gi"), str)
    asyncio.run(parted.driver._sharing.look())
    assert specs(tmp_path).keys() == {f"gpushim/claim=share-{IDS[1]}"} & {f"gpushim/claim=share-{IDS[has_part]}"}
    assert take(parted, 0)["share_id"]  # it is its own


def test_a_claim_with_all_of_it_has_no_limit_and_nobody_beside_it(parted: Node, tmp_path: Path) -> None:
    assert take(parted, 0, "40Gi")["cdi_device_ids"] == [f"nvidia.com/gpu={uuid(0)}"]
    assert specs(tmp_path) == {}
    assert "would have 57344 MiB" in take(parted, 1)


def test_a_limit_is_written_again_after_a_boot(parted: Node, tmp_path: Path) -> None:
    take(parted, 0)
    before = specs(tmp_path)
    for path in ((tmp_path / "cdi").glob("*"), (tmp_path / "limits").glob("*")):
        for file in path:
            file.unlink()
    asyncio.run(parted.driver._sharing.look())
    assert specs(tmp_path) == before
    assert [*(tmp_path / "limits").glob("*")]


@pytest.mark.parametrize(("memory", "refused"), [("16Gi", True), ("40Gi", False)])
def test_a_config_that_changes_a_gpu_is_for_who_has_all_of_it(
    parted: Node, memory: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted.configs = [{"opaque": {"driver": OWN_DRIVER, "parameters": MPS}}]
    monkeypatch.setattr(shared, "need_programs", lambda *_: None)
    monkeypatch.setattr("gpuplugin.dra.shared._describe_unserved", lambda _: "")
    answer = take(parted, 0, memory)
    assert ("has 16384 MiB of gpu-0, and a config that changes it" in answer) == refused


@pytest.mark.parametrize(
    ("limit", "memory", "own"),
    [
        ("process", "16Gi", f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={uuid(0)}=16384M"),
        ("process", "40Gi", ""),
        ("container", "16Gi", ""),
    ],
)
def test_parts_by_mps_are_clients_of_the_groups_daemon(
    parted: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, memory: str, own: str
) -> None:
    """Whose memory the driver limits where it can; else its processes are told."""
    share_by(parted, Parts(limit, "gpu.mps"))
    group = MpsGroup("gpu.mps", (MpsGpu(uuid(0), 0, ALL),), ALL, 100, False)
    needed: list[str] = []
    monkeypatch.setattr(parted.driver._sharing, "_daemons", lambda: [group])
    monkeypatch.setattr("gpuplugin.mps.mps.Units.need", lambda _, names: needed.extend(names))
    monkeypatch.setattr(
        "gpuplugin.dra.shared._describe_unserved", lambda groups: "" if needed or not groups else "starts"
    )
    monkeypatch.setattr(shared, "time", SimpleNamespace(monotonic=lambda: parted.now))
    name = f"gpushim/claim=share-{IDS[0]}"
    assert take(parted, 0, memory, "25")["cdi_device_ids"] == [f"nvidia.com/gpu={uuid(0)}", name]
    assert needed == ["gpu.mps"]
    (path,) = (tmp_path / "cdi").glob("gpushim-claim-*.json")
    (device,) = json.loads(path.read_text())["devices"]
    variables = ["CUDA_MPS_PIPE_DIRECTORY=/run/gpushim/mps/gpu.mps/pipe", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"]
    assert device["containerEdits"]["env"] == [*variables, *filter(None, [own])]
    sources = [mount["hostPath"] for mount in device["containerEdits"]["mounts"]]
    assert [source.startswith(f"{tmp_path}/mps/gpu.mps/") for source in sources[:2]] == [True, True]
    assert sources[2:] == [f"{tmp_path}/limits/{uuid(0)}={16 << 30}"] * (limit == "container")


@pytest.mark.parametrize("others", ["a config", "another part in the request"])
def test_what_a_client_of_a_groups_daemon_cannot_have(parted: Node, others: str) -> None:
    share_by(parted, Parts("process", "gpu.mps"))
    if others == "a config":
        parted.configs = [{"opaque": {"driver": OWN_DRIVER, "parameters": MPS}}]
        assert "and a config that changes it for other claims" in take(parted, 0, "40Gi", "100")
        return
    parted.claims[IDS[0]] = ("gpu-0", "gpu-0")
    parted.more = {"shareID": IDS[0], "consumedCapacity": {"memory": "16Gi", "threads": "50"}}
    assert 'has several parts of GPUs that MPS shares in the request "r"' in asyncio.run(parted.prepare(IDS[0]))
