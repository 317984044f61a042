"""containerd as Kubernetes drives it: CRI, and a runtime handler whose BinaryName is the shim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import cri
from e2e.engines import Containerd
from e2e.expect import INSIDE, PROBE, probe, refuses, sees_exactly, sees_nothing
from e2e.witness import Witness
from fakehost import Host

IMAGE = "docker.io/library/debian:local"
SLEEP = ["sleep", "1000"]
MOUNTS = {PROBE: INSIDE}


@pytest.fixture
def client(containerd: Containerd) -> Iterator[cri.Client]:
    """A connection that removes its pods."""
    with containerd.cri() as connected:
        yield connected


@pytest.fixture
def pod(client: cri.Client) -> str:
    """A pod under the shim; its sandbox container, which asks for nothing, went through it too."""
    return client.run_pod("nvidia")


def started(client: cri.Client, pod: str, wanted: str) -> str:
    env = {"NVIDIA_VISIBLE_DEVICES": wanted}
    container = client.create(pod, IMAGE, SLEEP, env=env, mounts=MOUNTS)
    client.start(container)
    return container


@pytest.mark.parametrize(("wanted", "indices"), [("0,2", [0, 2]), ("1", [1]), ("all", [0, 1, 2])])
def test_a_container_gets_the_gpus_asked_for(
    client: cri.Client, pod: str, gpu_host: Host, wanted: str, indices: list[int]
) -> None:
    output = client.execute(started(client, pod, wanted), *probe(gpu_host, indices))
    sees_exactly(output, gpu_host, indices)


def test_containers_of_one_pod_get_their_own_gpus(client: cri.Client, pod: str, gpu_host: Host) -> None:
    containers = {index: started(client, pod, str(index)) for index in (0, 1)}
    for index, container in containers.items():
        sees_exactly(client.execute(container, *probe(gpu_host, [index])), gpu_host, [index])


def test_update_keeps_the_gpus(client: cri.Client, pod: str, gpu_host: Host) -> None:
    container = started(client, pod, "0,2")
    client.update(container, cpu_shares=512)
    sees_exactly(client.execute(container, *probe(gpu_host, [0, 2])), gpu_host, [0, 2])


def test_an_unknown_gpu_is_refused_in_the_calls_details(client: cri.Client, pod: str, gpu_host: Host) -> None:
    with pytest.raises(cri.RefusedError) as refused:
        started(client, pod, "7")
    refuses(str(refused.value), gpu_host, "7")


def test_no_gpu_is_seen_without_a_request(client: cri.Client, pod: str, gpu_host: Host) -> None:
    container = client.create(pod, IMAGE, SLEEP, mounts=MOUNTS)
    client.start(container)
    sees_nothing(client.execute(container, *probe(gpu_host, [])))


def test_config_json_without_a_request_is_not_touched(client: cri.Client, witness: Witness) -> None:
    pod = client.run_pod("witnessed")
    container = client.create(pod, IMAGE, ["true"])
    client.start(container)
    for name in (pod, container):
        before, after = witness.copies(name)
        assert after == before


def test_the_probe_as_the_containers_own_command(client: cri.Client, pod: str, gpu_host: Host) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": "0,2"}
    container = client.create(pod, IMAGE, probe(gpu_host, [0, 2]), env=env, mounts=MOUNTS)
    client.start(container)
    sees_exactly(client.output(container), gpu_host, [0, 2])
