"""Different sharing for different GPUs of a node: real kubelet, containerd 2 and gpushim-runtime.

The pods are made one after another, since what is left for one is what those before it have.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

import fakehost
from e2e import trees
from e2e.expect import sees_exactly
from e2e.kube import Node
from e2e.plugins import plugin
from fakehost import Host

DEV, PAIR, WHOLE = "nvidia.com/gpu.dev", "nvidia.com/gpu.pair", "nvidia.com/gpu"
GROUPS = [
    {"name": "gpu", "devices": [0], "rename": "gpu.dev", "replicas": 2, "failRequestsGreaterThanOne": True},
    {"name": "gpu", "devices": ["*H100*"], "rename": "gpu.pair", "replicas": 3, "distinct": True, "policy": "packed"},
]
# In order. Packed, the two that want one slice have those that are left of one GPU; the last finds two on the other.
PODS = {"greedy": {DEV: 2}, "dev": {DEV: 1}, "pair": {PAIR: 2}, "a": {PAIR: 1}, "b": {PAIR: 1}, "late": {PAIR: 2}}
SECRETS = "tr '\\0' '\\n' < /proc/1/environ; cat /proc/self/mountinfo; ls -R /var/run /dev"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Four GPUs, two of another model."""
    gpus = [{}, {"model": "NVIDIA H100 PCIe"}, {"model": "NVIDIA H100 PCIe"}, {}]
    cache = trees.TOP / ".cache" / "fakehost"
    return fakehost.build(str(tmp_path_factory.mktemp("sharing") / "root"), gpus, compile_cache=str(cache))


@pytest.fixture(scope="module")
def node(host: Host, env: dict[str, str], node: Node) -> Iterator[Node]:
    """A node with groups, on which kubelet has decided about all pods."""
    file = node.work / "groups.yaml"
    file.write_text(json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": GROUPS}}}))
    with plugin(node, env, f"--config-file={file}") as running:
        running.offers(DEV, {f"{host.gpus[0].uuid}::{number}" for number in range(2)})
        running.offers(PAIR, {f"{gpu.uuid}::{number}" for gpu in host.gpus[1:3] for number in range(3)})
        running.offers(WHOLE, {host.gpus[3].uuid})
        for name, limits in PODS.items():
            node.pod(name, limits)
        yield node


def held(node: Node, host: Host, name: str) -> list[int]:
    """The indices of the GPUs that a pod has replicas of."""
    ids = [one for ids in node.held(name).values() for one in ids]
    return sorted(gpu.index for gpu in host.gpus for one in ids if one.startswith(f"{gpu.uuid}::"))


def test_a_slice_is_of_the_gpu_that_its_group_has(node: Node, host: Host) -> None:
    assert held(node, host, "dev") == [0]
    container = node.wait("dev").container
    sees_exactly(node.look(container, host, [0]), host, [0])


def test_two_slices_are_of_two_gpus(node: Node, host: Host) -> None:
    assert held(node, host, "pair") == [1, 2]
    container = node.wait("pair").container
    sees_exactly(node.look(container, host, [1, 2]), host, [1, 2])


def test_two_slices_where_one_gpu_has_some_are_refused(node: Node, host: Host) -> None:
    one, other = held(node, host, "a"), held(node, host, "b")
    assert one == other
    (left,) = {1, 2} - {*one}
    pod = node.wait("late")
    assert pod.phase == "Failed"
    said = "each on another GPU or MIG instance (distinct is true), and 2 of those that kubelet has chosen are on "
    assert said + host.gpus[left].uuid in pod.why
    assert node.held("late") == {}


def test_two_slices_of_a_group_that_gives_one_are_refused(node: Node) -> None:
    pod = node.wait("greedy")
    assert pod.phase == "Failed"
    assert f"asks for 2 of {DEV}, which is shared, and failRequestsGreaterThanOne is true" in pod.why


@pytest.mark.parametrize("name", ["dev", "pair"])
def test_ids_of_replicas_stay_outside_of_containers(node: Node, host: Host, name: str) -> None:
    inside = node.run(node.wait(name).container, ["sh", "-c", SECRETS])
    ids = [one for ids in node.held(name).values() for one in ids]
    assert all(one.partition("::")[0] in inside for one in ids)
    assert not [one for one in ids if one in inside]
    assert all(b"::" not in base64.b64decode(entry["AllocResp"]) for entry in node.checkpoint()[1])
