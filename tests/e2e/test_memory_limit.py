"""A limit of GPU memory is in force at the container's first instruction, whoever makes the container.

The driver's own limits, by the simulated NVML; the kernel's controller dmem is in tests/machine alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fakehost
from e2e.leftovers import until
from e2e.limited import GIB, SECONDS, Scene
from e2e.limited import scene as scene
from gpuplugin.allocation import memory_limits
from gpuplugin.settings.resources import Device, Share
from gpuplugin.settings.sharing import TIME_SLICING


def stands(done: subprocess.CompletedProcess[str], gpu: fakehost.Gpu, size: int) -> bool:
    """Return whether the container saw this limit of its own cgroup, and no other."""
    told, _, cgroups = done.stdout.partition("\n\n")
    (path,) = [line.partition("::")[2] for line in cgroups.splitlines() if line.startswith("0::")]
    return told.split() == [gpu.uuid, f"/sys/fs/cgroup{path}", str(size)]


@pytest.mark.parametrize("way", ["shim", "hook", "CDI"])
def test_the_limit_stands_at_the_first_instruction(scene: Scene, way: str) -> None:
    done = scene.start(way, "NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=8Gi")
    assert done.returncode == 0, done.stderr
    assert stands(done, scene.host.gpus[0], 8 * GIB), done.stdout


def test_ps_shows_what_a_container_uses_and_may_use(scene: Scene) -> None:
    used, gpus = scene.limits.with_name("memory-used"), scene.host.gpus
    scene.bundle.ask("NVIDIA_VISIBLE_DEVICES=0,1", "GPUSHIM_MEMORY_LIMIT=1=8Gi", args=["sleep", "1000"])
    with scene.bundle.created():
        (row,) = scene.ps()
        assert row["memory"] == [
            {"device": "0", "used": 0, "limit": None},
            {"device": "1", "used": 0, "limit": 8 * GIB},
        ]
        used.write_text(f"{gpus[1].uuid} /sys/fs/cgroup{row['cgroup']} {3 * GIB}\n")
        assert scene.ps()[0]["memory"][1]["used"] == 3 * GIB
        assert "1: 3072 of 8192 MiB" in scene.call("ps", "--state", scene.state).stdout
    scene.bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=["sleep", "1000"])
    with scene.bundle.created():
        assert "MEMORY" not in scene.call("ps", "--state", scene.state).stdout


def test_ps_lists_containers_while_nvml_hangs(scene: Scene) -> None:
    scene.bundle.ask("NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=8Gi", args=["sleep", "1000"])
    with scene.bundle.created():
        scene.host.behave(hang=True)
        listing = scene.call("ps", "--state", scene.state)
    assert scene.bundle.id in listing.stdout
    assert listing.stderr == "note: limits of GPU memory are not known: NVML has not answered for 5 s\n"


@pytest.mark.parametrize("way", ["shim", "hook", "CDI"])
def test_an_image_asks_for_more_than_its_administrator_allows(scene: Scene, way: str) -> None:
    scene.refresh('[requests]\nmemory-limit-most = "4Gi"\n')
    done = scene.start(way, "NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=30Gi")
    assert done.returncode == 0, done.stderr
    assert stands(done, scene.host.gpus[0], 4 * GIB), done.stdout
    scene.limits.write_text("")
    assert stands(scene.start(way, "NVIDIA_VISIBLE_DEVICES=0"), scene.host.gpus[0], 4 * GIB)


def test_by_cdi_what_lies_over_a_gpus_node_lifts_no_limit(scene: Scene, tmp_path: Path) -> None:
    """As a volume of an image: the rule that lets the GPU be opened is there all the same."""
    gpu = scene.host.gpus[0]
    (tmp_path / "volume").mkdir()
    volume = {"destination": f"/dev/nvidia{gpu.minor}", "source": str(tmp_path / "volume"), "type": "bind"}
    scene.bundle.plain["mounts"].append({**volume, "options": ["rbind"]})
    done = scene.start("CDI", "NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=8Gi")
    assert done.returncode == 0, done.stderr
    assert stands(done, gpu, 8 * GIB), done.stdout


@pytest.mark.parametrize("way", ["shim", "hook", "CDI"])
def test_a_share_of_the_device_plugins_is_limited_whatever_the_pod_says(
    scene: Scene, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = scene.host.gpus[0]
    monkeypatch.setenv("GPUSHIM_STATE", scene.bundle.env["GPUSHIM_STATE"])
    share = Share(TIME_SLICING, memory=2048)
    for mount in memory_limits.mounts([Device("a", gpu.uuid, "0", 0, share=share)]):
        bind = {"destination": mount["container_path"], "source": mount["host_path"], "type": "bind"}
        scene.bundle.plain["mounts"].append({**bind, "options": ["rbind", "ro"]})
    done = scene.start(way, "NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=30Gi")
    assert done.returncode == 0, done.stderr
    assert stands(done, gpu, 2 * GIB), done.stdout


@pytest.mark.parametrize("config", ["", 'memory-limit-most = "8Gi"\n'])
def test_by_cdi_without_a_snapshot_a_limit_that_is_only_wanted_refuses_nobody(scene: Scene, config: str) -> None:
    sentence = "the container's GPU memory is limited, and no snapshot tells how"
    for wanted in (True, False):
        scene.settle(f"[requests]\n{config}" + 'memory-limits = "wanted"\n' * wanted)
        Path(scene.bundle.env["GPUSHIM_STATE"], "inventory.json").write_text("{}")
        done = scene.start("CDI", "NVIDIA_VISIBLE_DEVICES=0", *["GPUSHIM_MEMORY_LIMIT=8Gi"] * (not config))
        assert (done.returncode == 0, "0::" in done.stdout) == (wanted, wanted)
        assert scene.log().count(sentence) == 2 - wanted
    assert scene.limits.read_text() == ""


@pytest.mark.parametrize("way", ["shim", "hook", "CDI"])
def test_a_hook_that_is_killed_before_it_has_read_the_limit_starts_nothing(scene: Scene, way: str) -> None:
    """Between the set and the read: what NVML was told may be in force, and nobody knows."""
    waits, asked = (
        scene.limits.with_name("memory-limits-wait"),
        ("NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=8Gi"),
    )
    waits.touch()
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(scene.start, way, *asked)
        assert until(lambda: bool(scene.limits.read_text()), SECONDS)
        child = scene.child()
        hook = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(hook, signal.SIGKILL)
        assert until(lambda: not Path(f"/proc/{hook}").exists(), SECONDS)  # crun 1.8 may miss one of two ends at once
        os.kill(child, signal.SIGKILL)
        done = start.result()
    assert done.returncode != 0
    assert "0::" not in done.stdout
    waits.unlink()
    scene.limits.write_text("")
    done = scene.start(way, *asked)
    assert done.returncode == 0, done.stderr
    assert stands(done, scene.host.gpus[0], 8 * GIB), done.stdout


def test_a_container_that_may_write_its_cgroup_lifts_no_limit(scene: Scene) -> None:
    """Root in a cgroup namespace, who goes into a cgroup of its own below that which has the limit."""
    cgroups = {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw", "nosuid"]}
    spec = scene.bundle.plain
    spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] != "/sys/fs/cgroup"] + [cgroups]
    spec["linux"]["namespaces"].append({"type": "cgroup"})
    own = "mkdir /sys/fs/cgroup/own && echo 0 >/sys/fs/cgroup/own/cgroup.procs; exec sleep 1000"
    scene.bundle.ask("NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=8Gi", args=["/bin/sh", "-c", own])
    with scene.bundle.created():
        scene.bundle.call("start", scene.bundle.id)
        assert until(lambda: scene.ps()[0]["cgroup"].endswith("/own"), SECONDS), scene.ps()
        (row,) = scene.ps()
        assert row["memory"] == [{"device": "0", "used": 0, "limit": 8 * GIB}]
        limits = scene.limits.read_text().split()
        assert limits == [scene.host.gpus[0].uuid, f"/sys/fs/cgroup{row['cgroup'][: -len('/own')]}", str(8 * GIB)]


@pytest.mark.parametrize("way", ["shim", "hook", "CDI"])
def test_a_limit_that_is_not_in_force_refuses_the_container(scene: Scene, way: str) -> None:
    scene.limits.with_name("memory-limits-lost").touch()
    done = scene.start(way, "NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=8Gi")
    assert done.returncode != 0
    assert "0::" not in done.stdout
    sentence = "the limit of the container's GPU memory is not in force: NVML keeps"
    assert scene.log().count(sentence) == 1
    scene.refresh('[requests]\nmemory-limits = "wanted"\n')
    done = scene.start(way, "NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=8Gi")
    assert done.returncode == 0, done.stderr
    assert scene.log().count(sentence) == 2
