"""What a real node's pods are shown as: `gpushim ps`, `gpushim explain --pod` and `gpushim doctor kubernetes`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.engines import run
from e2e.kube import NAME, Node
from e2e.plugins import Plugin, environment, gpu_node, plugin
from e2e.podgpus import GPU
from e2e.trees import TOP
from fakehost import Host

REQUEST = "NVIDIA_VISIBLE_DEVICES"
CHECKS = [f"kubernetes-{name}" for name in ("node", "kubelet", "device-plugin", "checkpoint", "strategy")]


@pytest.fixture(scope="module")
def node(gpu_host: Host, gpushim_env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[Node]:
    """A node of the simulated host."""
    with gpu_node(gpu_host, gpushim_env, debian_image, busybox_tree) as found:
        yield found


@pytest.fixture(scope="module")
def running(node: Node, gpushim_env: dict[str, str]) -> Iterator[Plugin]:
    """A plugin on it."""
    with plugin(node, gpushim_env) as found:
        found.offers()
        yield found


def gpushim(running: Plugin, *words: str) -> Any:
    """Run a command of gpushim's on the node, where containerd's state is; return the JSON that it prints."""
    env = [f"{key}={value}" for key, value in environment(running.env).items()]
    command = ["/usr/bin/env", *env, str(TOP / "bin" / "gpushim"), *words, "--format=json"]
    return json.loads(run([*running.node.place.prefix, *command], check=False).stdout)


def doctor(running: Plugin) -> dict[str, str]:
    """What `gpushim doctor kubernetes` says of the node: the gravest verdict of each check, and its fix."""
    found = gpushim(running, "doctor", "kubernetes", "--all")["findings"]
    told = {each["check"]: each for each in found if each["verdict"] != "skipped"}
    told.update({each["check"]: each for each in found if each["verdict"] in ("warning", "broken")})
    print({name: each["evidence"] for name, each in told.items() if name.startswith("kubernetes-")})
    return {name: f"{each['verdict']}: {each['fix']}" for name, each in told.items() if name in CHECKS}


def test_a_pod_is_named_and_explained(node: Node, running: Plugin, gpu_host: Host) -> None:
    """Beside one without a GPU, of which neither its container nor any sandbox is shown."""
    for name, limits in (("gpu", {GPU: 1}), ("none", {})):
        assert node.pod(name, limits).phase == "Running"
    state, (uuid,) = f"--state={node.engine.state}/runc/k8s.io", node.held("gpu")[GPU]
    (holder,) = gpushim(running, "ps", state)
    named = {"namespace": "default", "pod": f"gpu-{NAME}", "engine": "containerd (CRI)"}
    index = next(str(gpu.index) for gpu in gpu_host.gpus if gpu.uuid == uuid)
    assert holder.items() >= {**named, "name": "main"}.items()
    (found,) = gpushim(running, "explain", "--pod", f"default/gpu-{NAME}/main", state)
    assert found.items() >= {**named, "container": "main", "devices": [index]}.items()
    told = f"{REQUEST}={uuid}"
    assert found["told"] == [told]
    assert found["kubelet"] == [{"resource": GPU, "devices": [uuid], "answer": [f"variable {told}"]}]
    assert found["explain"]["refusal"] is None
    (other,) = gpushim(running, "explain", "--pod", f"default/none-{NAME}", state)
    assert (other["devices"], other["kubelet"]) == ([], [])


def test_the_doctor_follows_kubelet_and_the_plugin(node: Node, running: Plugin) -> None:
    """All is well; one of both is killed; what the fix says is done by hand, as no systemd runs here."""
    well = dict.fromkeys(CHECKS, "ok: ")
    assert doctor(running) == well
    node.stop(signal.SIGKILL)
    assert doctor(running)[CHECKS[1]] == "broken: start kubelet the way this host starts it"
    node.start()
    running.offers()
    assert doctor(running) == well
    running.stop(signal.SIGKILL)
    assert doctor(running)[CHECKS[2]].startswith("warning: delete the device plugin's pod")
    running.start()
    running.offers()
    assert doctor(running) == well
