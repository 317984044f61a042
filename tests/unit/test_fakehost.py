"""The simulated GPU host as the real nvidia-ml-py sees it. Needs root and gcc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fakehost import Host, build, ci_cap, gi_cap
from fakehost.client import ask

pytestmark = pytest.mark.slow


def uuids(seen: Any) -> list[str]:
    return [gpu["uuid"] for gpu in seen["gpus"]]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return build(str(tmp_path / "h"), 3)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_client_lists_every_gpu(tmp_path: Path, count: int) -> None:
    made = build(str(tmp_path / "h"), count)
    seen = ask(made)
    assert (seen["driver"], seen["nvml"], seen["cuda"]) == ("535.183.01", "12.535.183.01", 12020)
    assert [gpu["index"] for gpu in seen["gpus"]] == list(range(count))
    assert [gpu["minor"] for gpu in seen["gpus"]] == [gpu.minor for gpu in made.gpus]
    assert all(gpu["minor"] != gpu["index"] for gpu in seen["gpus"])
    assert all(gpu["index_by_uuid_and_bus"] == [gpu["index"]] * 2 for gpu in seen["gpus"])
    assert [gpu["bus"] for gpu in seen["gpus"]] == [gpu.nvml_bus_id for gpu in made.gpus]
    assert len(set(uuids(seen))) == count


def test_gpu_is_as_described(tmp_path: Path) -> None:
    gpu = {
        "minor": 5,
        "uuid": "GPU-00000000-1111-2222-3333-444444444444",
        "pci": "0001:3b:00.0",
        "model": "NVIDIA GeForce RTX 4090",
        "brand": "geforce",
        "arch": "8.9",
        "memory": 24564,
        "device_id": 0x2684,
        "mig_mode": None,
    }
    (seen,) = ask(build(str(tmp_path / "h"), [gpu], driver="550.54.14", cuda="12.4"))["gpus"]
    assert seen == {
        "index": 0,
        "index_by_uuid_and_bus": [0, 0],
        "minor": 5,
        "uuid": "GPU-00000000-1111-2222-3333-444444444444",
        "name": "NVIDIA GeForce RTX 4090",
        "bus": "00000001:3B:00.0",
        "legacy_bus": "0001:3B:00.0",
        "device": 0x268410DE,
        "brand": 5,
        "arch": [8, 9],
        "memory": [24564 << 20, 24564 << 20],
        "mig_mode": None,
        "migs": [],
    }


def test_mig_devices(tmp_path: Path) -> None:
    devices = ["3g.20gb", "3g.20gb", (9, 1, "1c.2g.10gb", "MIG-one")]
    made = build(str(tmp_path / "h"), 2, mig={1: devices})
    plain, divided = ask(made)["gpus"]
    assert (plain["mig_mode"], plain["migs"], divided["mig_mode"]) == ([0, 0], [], [1, 1])
    assert [(mig["gi"], mig["ci"], mig["slices"], mig["memory"]) for mig in divided["migs"]] == [
        (1, 0, 3, 20480),
        (2, 0, 3, 20480),
        (9, 1, 2, 10240),
    ]
    assert divided["migs"][2]["uuid"] == "MIG-one"
    assert divided["migs"][2]["name"] == "NVIDIA A100-SXM4-40GB MIG 1c.2g.10gb"
    assert {(mig["is_mig"], mig["parent"]) for mig in divided["migs"]} == {(1, divided["uuid"])}


@pytest.mark.parametrize("level", ["gi", "ci"])
def test_mig_device_needs_both_capability_nodes(tmp_path: Path, level: str) -> None:
    made = build(str(tmp_path / "h"), 1, mig=True)
    (gpu,), (first, *others) = made.gpus, made.gpus[0].mig
    minor = gi_cap(gpu.minor, first.gi) if level == "gi" else ci_cap(gpu.minor, first.gi, first.ci)
    made.remove_node(f"nvidia-caps/nvidia-cap{minor}")
    (seen,) = ask(made)["gpus"]
    assert [(mig["index"], mig["uuid"]) for mig in seen["migs"]] == [(0, others[0].uuid), (1, others[1].uuid)]


@pytest.mark.parametrize("container", [False, True])
def test_missing_node_hides_its_gpu(host: Host, container: bool) -> None:
    host.remove_node(f"nvidia{host.gpus[0].minor}")
    seen = ask(host, container=container)
    assert uuids(seen) == [gpu.uuid for gpu in host.gpus[1:]]
    assert [gpu["index"] for gpu in seen["gpus"]] == [0, 1]


@pytest.mark.parametrize("kind", ["file", "major", "minor", "link"])
def test_wrong_node_hides_its_gpu(host: Host, kind: str) -> None:
    path = host.node(f"nvidia{host.gpus[1].minor}")
    os.unlink(path)
    if kind == "file":
        Path(path).touch()
    elif kind == "link":
        os.symlink("nowhere", path)
    else:
        os.mknod(path, 0o020666, os.makedev(*((508, host.gpus[1].minor) if kind == "major" else (195, 77))))
    assert uuids(ask(host)) == [host.gpus[0].uuid, host.gpus[2].uuid]


def test_unprivileged_user_sees_the_nodes_he_may_open(host: Host) -> None:
    os.chmod(host.node(f"nvidia{host.gpus[2].minor}"), 0o600)
    seen = ask(host, container=True, uid=65534)
    assert uuids(seen) == [gpu.uuid for gpu in host.gpus[:2]]


def test_owner_and_mode_of_nodes(tmp_path: Path) -> None:
    made = build(str(tmp_path / "h"), 1, node_mode=0o660, node_gid=44)
    found = os.stat(made.node("nvidia1"))
    assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o660, 0, 44)
    assert ask(made, container=True, uid=65534)["error"] == 4


@pytest.mark.parametrize("container", [False, True])
def test_no_control_node_means_no_driver(host: Host, container: bool) -> None:
    host.remove_node("nvidiactl")
    assert ask(host, container=container) == {"error": 9, "text": "Driver Not Loaded"}


def test_conf_is_plain_text_and_only_the_hosts(host: Host) -> None:
    with open(host.conf, "a", encoding="utf-8") as file:
        file.write("# by hand\n\nfail=12\n")
    assert ask(host)["error"] == 12
    assert uuids(ask(host, container=True)) == [gpu.uuid for gpu in host.gpus]


@pytest.mark.parametrize("line", ["gpu = 9 minor=x", "fail_gpu = 7 15", "mig = 8 gi=1", "colour = red", "fail = no"])
def test_unreadable_line_of_conf_is_not_overlooked(host: Host, line: str) -> None:
    with open(host.conf, "a", encoding="utf-8") as file:
        file.write(line + "\n")
    assert ask(host)["error"] == 999
