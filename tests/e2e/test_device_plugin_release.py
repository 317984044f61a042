"""The GPUs of a node with a real kubelet are let go and taken again, and the plugin tells its state meanwhile."""

from __future__ import annotations

import glob
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.engines import SYSTEM_PATH
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import SECONDS, Plugin, gpu_node, plugin
from e2e.podgpus import GPU, gpus
from e2e.trees import TOP
from fakehost import Host

SOON = 5.0  # seconds


@pytest.fixture(scope="module")
def node(gpu_host: Host, gpushim_env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[Node]:
    """A node of the simulated host, with a pod that has a GPU."""
    with gpu_node(gpu_host, gpushim_env, debian_image, busybox_tree) as found:
        yield found


@pytest.fixture
def one(node: Node, gpushim_env: dict[str, str], gpu_host: Host) -> Iterator[Plugin]:
    """The plugin, whose children have NVML open."""
    with plugin(node, gpushim_env) as found:
        found.offers(ids={gpu.uuid for gpu in gpu_host.gpus})
        assert until(lambda: len(opened(gpu_host)) == 2, SECONDS), found.said()
        yield found


def opened(host: Host) -> set[str]:
    """The processes that have the simulated host's NVML, or a node of its GPUs, open."""
    found = set()
    for process in glob.glob("/proc/[0-9]*"):
        try:
            paths = Path(process, "maps").read_text().split() + [
                os.readlink(fd) for fd in glob.glob(f"{process}/fd/*")
            ]
        except OSError:
            continue
        if any(path.startswith(host.root) and ("libnvidia-ml" in path or "/dev/nvidia" in path) for path in paths):
            found.add(process)
    return found


def ask(env: dict[str, str], *words: str) -> str:
    """Run `gpushim device-plugin`."""
    command = [str(TOP / "bin" / "gpushim"), "device-plugin", *words]
    done = subprocess.run(command, env={"PATH": SYSTEM_PATH, **env}, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_released_and_taken(node: Node, one: Plugin, gpu_host: Host, gpushim_env: dict[str, str]) -> None:
    node.pod("holder", {GPU: 1})
    _, (held,) = gpus(node, gpu_host, "holder")
    table = ask(gpushim_env, "status")
    print(table)
    assert [held, "1", "1", "healthy"] in [line.split()[2:6] for line in table.splitlines()]
    assert any(line.split()[:1] == ["default"] and "holder-" in line for line in table.splitlines())
    (pod,) = json.loads(ask(gpushim_env, "status", "--format=json"))["pods"]
    assert (pod["pod"].rpartition("-")[0], pod["devices"]) == ("holder", [held])

    said = ask(gpushim_env, "release")
    assert not opened(gpu_host)  # at the answer, not some time after it
    assert held in said
    assert until(lambda: not node.allocatable(), SOON)
    assert "released by gpushim device-plugin release" in ask(gpushim_env, "status")
    gpu_host.update()  # as a driver that changes: nothing is opened because of it
    assert not until(lambda: bool(opened(gpu_host)), 3)

    ask(gpushim_env, "take")
    assert until(lambda: len(node.allocatable()) == len(gpu_host.gpus) and len(opened(gpu_host)) == 2, SOON)
    assert gpus(node, gpu_host, "holder")[1] == [held]
