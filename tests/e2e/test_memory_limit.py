"""A limit of GPU memory is in force at the container's first instruction, whoever makes the container.

The driver's own limits, by the simulated NVML; the kernel's controller dmem is in tests/machine alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import engines, leftovers, views
from e2e.bundles import Bundle
from e2e.cdihooks import run
from e2e.leftovers import until
from e2e.standalone import alone
from e2e.trees import TOP
from e2e.views import CRUN
from e2e.witness import RUNC, settings
from gpuplugin.allocation import memory_limits
from gpuplugin.settings.resources import Device, Share
from gpuplugin.settings.sharing import TIME_SLICING

GIB = 1 << 30
SECONDS = 30.0
SEEN = "/seen"  # where a container sees what the driver was told
# The container's first process: its own cgroup, and the limits that stand when it starts.
LOOK = ["/bin/sh", "-c", f"cat {SEEN}/memory-limits; echo; cat /proc/self/cgroup"]


class Scene:
    """A host with driver 615 and one bundle."""

    def __init__(self, host: fakehost.Host, bundle: Bundle, low: str) -> None:
        self.host, self.bundle, self.low = host, bundle, low
        self.limits = Path(host.root, "usr/lib/fakehost/memory-limits")
        self.limits.touch()
        self._config = ""
        mount = {"destination": SEEN, "source": str(self.limits.parent), "type": "bind", "options": ["bind", "ro"]}
        bundle.plain["mounts"].append(mount)
        bundle.plain["process"]["user"] = {"uid": 0, "gid": 0}

    def refresh(self, more: str = "") -> None:
        config = Path(self.bundle.env["GPUSHIM_CONFIG"])
        config.write_text(config.read_text() + more)
        engines.run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **self.bundle.env})

    def settle(self, text: str) -> None:
        """Refresh with this in config.toml, and no more than it had at first."""
        config = Path(self.bundle.env["GPUSHIM_CONFIG"])
        self._config = self._config or config.read_text()
        config.write_text(self._config)
        self.refresh(text)

    def log(self) -> str:
        return Path(self.bundle.env["GPUSHIM_CONFIG"]).with_name("gpushim.log").read_text()

    def child(self) -> int:
        """Return the process that the hook has for this host's NVML."""
        (pid,) = leftovers.processes(Path(self.host.root), "gpuhook.nvml_limits")
        return pid

    @property
    def state(self) -> str:
        """Where the low-level runtime keeps containers."""
        return f"{self.bundle.directory}/state"

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call gpushim where the containers are."""
        env = {"PATH": engines.SYSTEM_PATH, **self.bundle.env}
        command = [*self.bundle.prefix, str(TOP / "bin" / "gpushim"), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    def ps(self) -> Any:
        return json.loads(self.call("ps", "--format", "json", "--state", self.state).stdout)

    def start(self, way: str, *env: str) -> subprocess.CompletedProcess[str]:
        if way == "shim":
            self.bundle.ask(*env, args=LOOK)
            return self.bundle.call("run", "--bundle", str(self.bundle.directory), self.bundle.id, check=False)
        if way == "hook":
            alone(self.bundle, *env, args=LOOK)
        else:
            self.bundle.ask(*env, args=LOOK, **self.injected())
        return run(self.bundle, self.low, check=False)

    def injected(self) -> dict[str, Any]:
        """What an engine takes from the CDI spec for the device 0: nodes, their rules and hooks."""
        spec = json.loads(Path(self.bundle.env["GPUSHIM_STATE"], "cdi/nvidia.com-gpu.json").read_text())
        (device,) = [entry for entry in spec["devices"] if entry["name"] == "0"]
        edits = [spec["containerEdits"], device["containerEdits"]]
        nodes = [{**node, "permissions": None} for edit in edits for node in edit.get("deviceNodes", ())]
        variables = [f"{name}={value}" for name, value in self.bundle.env.items()]
        hooks = [{**hook, "env": [*hook["env"], *variables]} for edit in edits for hook in edit.get("hooks", ())]
        linux = json.loads(json.dumps(self.bundle.plain["linux"]))
        for node in nodes:
            del node["permissions"]
            node.pop("hostPath", None)
            rule = {"allow": True, "type": "c", "major": node["major"], "minor": node["minor"], "access": "rw"}
            linux["resources"]["devices"].append(rule)
        linux["devices"] = nodes
        for hook in hooks:
            del hook["hookName"]
        return {"linux": linux, "hooks": {"prestart": hooks}}


@pytest.fixture(params=[RUNC, CRUN], ids=["runc", "crun"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, debian_root: Path) -> Iterator[Scene]:
    cache = str(TOP / ".cache" / "fakehost")
    host = fakehost.build(str(tmp_path / "host"), 2, driver="615.71", compile_cache=cache)
    (tmp_path / "settings").mkdir()
    low = str(views.low_level(("v2", request.param), tmp_path))
    env = settings(tmp_path / "settings", host.root, low)
    with views.view("v2") as prefix:
        made = Scene(host, Bundle(tmp_path / "bundle", debian_root, env, prefix), low)
        made.refresh()
        yield made


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
