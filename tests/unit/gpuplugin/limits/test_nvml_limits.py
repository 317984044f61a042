"""Limits of a GPU's memory that the kernel enforces: whose they are, and the program that sets them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpuplugin.limits import nvml_limits
from gpuplugin.limits.nvml_limits import Limit
from gpuplugin.settings.resources import Device, Share
from gpuplugin.settings.sharing import MPS
from unit.gpuplugin import watched
from unit.gpuplugin.snapshots import uuid

BOX = "c" * 64
TOP = Path(__file__).parents[4]
PODS = f"kubepods.slice/kubepods-burstable.slice/cri-containerd-{BOX}.scope"


def device(name: str, number: int, memory: int | None) -> Device:
    return Device(name, uuid(number), str(number), number, share=Share(MPS, False, False, "", "gpu", memory, 25))


GPU = "nvidia.com/gpu"
PARTS = [device("a", 0, 1000), device("b", 0, 2000), device("c", 1, 500), device("d", 2, None)]
DEVICES = {(GPU, one.id): one for one in [*PARTS, Device("whole", uuid(3), "3", 3)]}
DEVICES["nvidia.com/other", "a"] = device("a", 0, 50)


def row(*ids: str, resource: str = GPU) -> dict[str, Any]:
    return {"namespace": "default", "pod": "one", "container": "main", "resource": resource, "devices": [*ids]}


def holder(name: str = "default/one/main", pid: int = 7) -> dict[str, Any]:
    return {"name": name, "pid": pid, "id": BOX}


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ("a", [(0, 1000)]),
        ("ab", [(0, 3000)]),
        ("ac", [(0, 1000), (1, 500)]),
        ("ad", [(0, 1000)]),
        ("dx", []),
        (["whole"], []),
    ],
)
def test_a_container_may_have_the_sum_of_its_parts(ids: str, found: list[tuple[int, int]]) -> None:
    said = nvml_limits.expected([row(*ids)], DEVICES, [holder()], lambda pid, name: f"/cgroup/{pid}")
    assert said == {"default/one/main": [Limit(uuid(gpu), "/cgroup/7", mib) for gpu, mib in found]}


def test_ids_are_those_of_their_resource() -> None:
    rows = [row("a"), row("a", resource="nvidia.com/other")]
    said = nvml_limits.expected(rows, DEVICES, [holder()], lambda pid, name: "/cgroup")
    assert said == {"default/one/main": [Limit(uuid(0), "/cgroup", 1050)]}


@pytest.mark.parametrize(
    "holders",
    [[], [holder("default/two/main")], [holder(), holder(pid=8)], [holder(pid=0)]],
    ids=["none", "another", "two", "no cgroup"],
)
def test_who_is_not_known_for_sure_gets_no_limit(holders: list[dict[str, Any]]) -> None:
    assert nvml_limits.expected([row("a")], DEVICES, holders, lambda pid, name: f"/cgroup/{pid}" if pid else "") == {}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (f"0::/{PODS}\n", PODS),
        (f"0::/{PODS}/made/by/itself\n", PODS),
        (f"0::/system.slice/docker-{BOX}.scope\n", ""),
        ("0::/kubepods.slice/x\n", ""),
        (f"0::/../{PODS}\n", ""),
        (f"4:memory:/{PODS}\n0::/{PODS}\n", ""),
        (f"1:name=systemd:/{PODS}\n", ""),
        ("", ""),
    ],
)
def test_cgroups_are_those_of_kubelet(text: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    for folder in (PODS, f"{PODS}/made/by/itself", f"system.slice/docker-{BOX}.scope", "kubepods.slice/x"):
        (tmp_path / "cgroup" / folder).mkdir(parents=True, exist_ok=True)
    found = nvml_limits.cgroup_of(7, BOX, str(tmp_path), f"{tmp_path}/cgroup")
    assert found == (f"{tmp_path}/cgroup/{path}" if path else "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_a_cgroup_that_a_user_made_is_not_kubelets(tmp_path: Path) -> None:
    own = f"user.slice/user@1000.service/{PODS}"
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"0::/{own}\n")
    (tmp_path / "cgroup" / own).mkdir(parents=True)
    assert nvml_limits.cgroup_of(7, BOX, str(tmp_path), f"{tmp_path}/cgroup")
    os.chown(tmp_path / "cgroup/user.slice/user@1000.service", 1000, 1000)
    assert not nvml_limits.cgroup_of(7, BOX, str(tmp_path), f"{tmp_path}/cgroup")


def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, rows: list[dict[str, Any]], v2: bool = True
) -> list[dict[str, Any]]:
    """Run the program on a simulated host, its cgroups a directory."""
    host = fakehost.build(str(tmp_path / "host"), 1, driver=driver, compile_cache=str(TOP / ".cache" / "fakehost"))
    (tmp_path / "cgroup").mkdir()
    if v2:
        (tmp_path / "cgroup/cgroup.controllers").touch()
    monkeypatch.setattr(nvml_limits, "CGROUPS", f"{tmp_path}/cgroup")
    words = nvml_limits.command(watched.snapshot(host))
    told = "".join(json.dumps({"gpu": host.gpus[0].uuid, **row}) + "\n" for row in rows)
    done = subprocess.run(words, input=told, capture_output=True, text=True, check=False, timeout=30)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line for line in lines if not line.keys() & {"asks", "alive"}] or [{"error": done.stderr}]


def test_the_program_sets_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"cgroup": str(tmp_path), "mib": 1024}, {"cgroup": f"{tmp_path}/none", "mib": 1}]
    can, done, failed = program(tmp_path, monkeypatch, "615.10", rows)
    assert (can["can"], done["error"], failed["error"]) == (True, "", "Invalid Argument")
    line = (tmp_path / "host/usr/lib/fakehost/memory-limits").read_text().split()
    assert line == [done["gpu"], str(tmp_path), str(1024 << 20)]


@pytest.mark.parametrize(
    ("driver", "v2", "why"), [("535.183.01", True, "driver 615"), ("615.10", False, "cgroup v2")]
)
def test_it_says_why_there_are_no_limits(
    driver: str, v2: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (said,) = program(tmp_path, monkeypatch, driver, [{"cgroup": "/", "mib": 1}], v2)
    assert said["can"] is False
    assert why in said["why"]
    assert nvml_limits.unlikely(driver) == said["why"]  # what --check says, without NVML


def test_without_nvml_a_new_driver_may_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").touch()
    monkeypatch.setattr(nvml_limits, "CGROUPS", str(tmp_path))
    assert nvml_limits.unlikely("615.10") == ""
