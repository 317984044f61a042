"""CRI-O 1.36 in both views of the cgroups: our handler, CDI by field and annotation, pods' annotations, the hook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import cri, crio, podman, trees
from e2e.crio import Crio
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_exactly, sees_nothing
from fakehost import Host

IMAGE = "localhost/debian:local"
ASKING = "localhost/asking:local"
SLEEP = ["sleep", "1000"]
MOUNTS = {PROBE: INSIDE}
ANNOTATION = "cdi.k8s.io/nvidia-device-plugin_pod"


@pytest.fixture(scope="module")
def stores(podman_images: Path, busybox_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Stores of images, of containers and of pods."""
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    return [podman_images, podman.store(tmp_path_factory.mktemp("pause") / "images", pause)]


@pytest.fixture(scope="module", params=["v1", "v2"])
def engine(request: pytest.FixtureRequest, gpu_host: Host, stores: list[Path]) -> Iterator[Crio]:
    """A CRI-O that `gpushim configure` has made known to it, and its hook too."""
    with crio.entered(gpu_host, stores, request.param) as engine:
        engine.gpushim("refresh")
        engine.gpushim("configure", "crio")
        with engine.running():
            yield engine


@pytest.fixture
def client(engine: Crio) -> Iterator[cri.Client]:
    """A connection that removes its pods."""
    with engine.cri() as connected:
        yield connected


def look(client: cri.Client, host: Host, indices: list[int], pod: str, **asked: Any) -> str:
    """Run a container in a pod that looks for the host's GPUs; returns its report."""
    container = client.create(pod, IMAGE, SLEEP, mounts=MOUNTS, **asked)
    client.start(container)
    return client.execute(container, *probe(host, indices))


@pytest.mark.parametrize(("wanted", "indices"), [("0,2", [0, 2]), ("all", [0, 1, 2])])
def test_our_runtime_gives_the_gpus_asked_for(
    client: cri.Client, gpu_host: Host, wanted: str, indices: list[int]
) -> None:
    report = look(client, gpu_host, indices, client.run_pod("nvidia"), env={"NVIDIA_VISIBLE_DEVICES": wanted})
    sees_exactly(report, gpu_host, indices)


@pytest.mark.parametrize("handler", ["", "runc", "nvidia"])
@pytest.mark.parametrize("asked", [{"cdi": ("nvidia.com/gpu=1",)}, {"annotations": {ANNOTATION: "nvidia.com/gpu=1"}}])
def test_a_cdi_device_gives_its_gpu(client: cri.Client, gpu_host: Host, asked: Any, handler: str) -> None:
    sees_by_cdi(look(client, gpu_host, [1], client.run_pod(handler), **asked), gpu_host, [1])


@pytest.mark.parametrize("handler", ["", "runc", "nvidia"])
def test_no_gpu_is_seen_without_a_request(client: cri.Client, gpu_host: Host, handler: str) -> None:
    sees_nothing(look(client, gpu_host, [], client.run_pod(handler)))
