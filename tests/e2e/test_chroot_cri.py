"""containerd 1.7 and 2 of two Debians through CRI: CDI by annotation and by field, and the shim as BinaryName."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import chroots, cri, trees
from e2e.allocated import DEVICES, FOLDER, KIND, plugin_spec
from e2e.cdihooks import NAMES
from e2e.engines import Containerd, containerd
from e2e.expect import INSIDE, OWNERS, PROBE, probe, sees_by_cdi, sees_exactly, sees_in_a_user_namespace, sees_nothing
from e2e.views import CRUN
from e2e.witness import Witness
from fakehost import Host

IMAGE = "docker.io/library/debian:local"
SLEEP = ["sleep", "1000"]
MOUNTS = {PROBE: INSIDE}
ANNOTATION = "cdi.k8s.io/nvidia-device-plugin_pod"
LOW_LEVEL = ("runc", "crun")
SHIMS = ("nvidia", "nvidia-crun")


# In another order than test_chroot_docker.py has them: side by side, each of the two builds one.
@pytest.fixture(scope="module", params=chroots.SUITES[::-1])
def engine(
    request: pytest.FixtureRequest,
    gpu_host: Host,
    gpushim_env: dict[str, str],
    cdi_dir: Path,
    debian_image: Path,
    busybox_tree: Path,
    witness: Witness,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Containerd]:
    """A containerd that knows our CDI spec and our runtime."""
    over_crun = chroots.shim(tmp_path_factory.mktemp("over-crun"), gpu_host.root, CRUN)
    runtime = trees.TOP / "bin" / "gpushim-runtime"
    handlers = {"nvidia": runtime, "nvidia-crun": over_crun, "crun": Path(CRUN), "witnessed": witness.front}
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    # Of the machine's layouts this is the one in which CRI, runc and crun all work.
    with chroots.entered(request.param, Path(gpu_host.root), view="v1") as place:
        chroots.publish(place.prefix, cdi_dir)
        options: dict[str, Any] = {"env": gpushim_env, "prefix": place.prefix, "cdi": True}
        with containerd(handlers, pause="docker.io/library/pause:local", **options) as engine:
            for archive in (debian_image, pause):
                engine.load(archive, ("k8s.io",))
            yield engine


@pytest.fixture
def client(engine: Containerd) -> Iterator[cri.Client]:
    """A connection that removes its pods."""
    with engine.cri() as connected:
        yield connected


def by_annotation(names: list[str]) -> dict[str, Any]:
    return {"annotations": {ANNOTATION: ",".join(names)}}


def by_field(names: list[str]) -> dict[str, Any]:
    return {"cdi": tuple(names)}


def by_both(names: list[str]) -> dict[str, Any]:
    """A device plugin may use both ways; each device is injected once."""
    return {**by_annotation(names), **by_field(names)}


def look(client: cri.Client, handler: str, host: Host, indices: list[int], **asked: Any) -> str:
    """Run a container in a pod of its own that looks for the host's GPUs; returns its report."""
    container = client.create(client.run_pod(handler), IMAGE, SLEEP, **{"mounts": MOUNTS, **asked})
    client.start(container)
    return client.execute(container, *probe(host, indices))


@pytest.mark.parametrize(("way", "handler"), [(by_annotation, "crun"), (by_field, "runc"), (by_both, "runc")])
def test_a_cdi_device_gives_its_gpus(client: cri.Client, gpu_host: Host, way: Any, handler: str) -> None:
    names = ["nvidia.com/gpu=0", "nvidia.com/gpu=2"]
    sees_by_cdi(look(client, handler, gpu_host, [0, 2], **way(names)), gpu_host, [0, 2])


@pytest.fixture
def publish(cdi_dir: Path) -> Iterator[Callable[[object], int]]:
    """Writes a device plugin's CDI spec beside our own; gone afterwards."""
    path = cdi_dir / "k8s.device-plugin.nvidia.com-gpu.json"
    yield lambda spec: path.write_text(json.dumps(spec))
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("program", NAMES)
def test_a_plugins_own_spec_with_the_device_list_mount_beside_it(
    client: cri.Client, gpu_host: Host, cdi_dir: Path, publish: Callable[[object], int], program: str
) -> None:
    """Of which nothing may come twice."""
    publish(plugin_spec(cdi_dir, gpu_host, program))
    names = [f"{KIND}={gpu_host.gpus[index].uuid}" for index in (0, 2)]
    sees_by_cdi(look(client, "nvidia", gpu_host, [0, 2], **by_field(names)), gpu_host, [0, 2])
    mounts = {Path("/dev/null"): f"{FOLDER}/{gpu_host.gpus[2].uuid}"}
    asked = {"env": {DEVICES: FOLDER}, "mounts": {**MOUNTS, **mounts}, **by_field(names[1:])}
    sees_by_cdi(look(client, "nvidia", gpu_host, [2], **asked), gpu_host, [2])


@pytest.mark.parametrize("handler", LOW_LEVEL)
def test_update_keeps_the_gpus(client: cri.Client, gpu_host: Host, handler: str) -> None:
    container = client.create(client.run_pod(handler), IMAGE, SLEEP, mounts=MOUNTS, **by_field(["nvidia.com/gpu=1"]))
    client.start(container)
    client.update(container, cpu_shares=512)
    sees_by_cdi(client.execute(container, *probe(gpu_host, [1])), gpu_host, [1])


@pytest.mark.parametrize(("way", "handler"), [(by_annotation, "nvidia"), (by_field, "nvidia-crun")])
def test_our_runtime_adds_nothing_to_a_cdi_device(client: cri.Client, gpu_host: Host, way: Any, handler: str) -> None:
    sees_by_cdi(look(client, handler, gpu_host, [1], **way(["nvidia.com/gpu=1"])), gpu_host, [1])


def test_config_json_with_a_cdi_device_is_not_touched(client: cri.Client, witness: Witness) -> None:
    container = client.create(client.run_pod("witnessed"), IMAGE, ["true"], **by_field(["nvidia.com/gpu=1"]))
    client.start(container)
    before, after = witness.copies(container)
    assert b"NVIDIA_VISIBLE_DEVICES=void" in before.content
    assert after == before


@pytest.mark.parametrize(
    ("wanted", "indices", "handler"), [("0,2", [0, 2], "nvidia"), ("all", [0, 1, 2], "nvidia-crun")]
)
def test_our_runtime_gives_the_gpus_asked_for(
    client: cri.Client, gpu_host: Host, wanted: str, indices: list[int], handler: str
) -> None:
    output = look(client, handler, gpu_host, indices, env={"NVIDIA_VISIBLE_DEVICES": wanted})
    sees_exactly(output, gpu_host, indices)


@pytest.mark.parametrize("handler", SHIMS)
def test_update_keeps_what_our_runtime_gave(client: cri.Client, gpu_host: Host, handler: str) -> None:
    """The engine sends its own device rules, which have no GPU; crun would put them in the place of all others."""
    container = client.create(
        client.run_pod(handler), IMAGE, SLEEP, mounts=MOUNTS, env={"NVIDIA_VISIBLE_DEVICES": "0,2"}
    )
    client.start(container)
    client.update(container, cpu_shares=512)
    sees_exactly(client.execute(container, *probe(gpu_host, [0, 2])), gpu_host, [0, 2])


@pytest.mark.parametrize("handler", ["runc", "nvidia"])
def test_no_gpu_is_seen_without_a_request(client: cri.Client, gpu_host: Host, handler: str) -> None:
    sees_nothing(look(client, handler, gpu_host, []))


# containerd 2 has images mapped to a pod's ids; 1.7 copies them for it.
@pytest.mark.parametrize("engine", ["sid"], indirect=True)
@pytest.mark.parametrize(
    ("asked", "handler"),
    [
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "1"}}, "nvidia"),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "1"}}, "nvidia-crun"),
        (by_field(["nvidia.com/gpu=1"]), "crun"),
    ],
)
def test_a_pod_with_a_user_namespace(client: cri.Client, gpu_host: Host, asked: dict[str, Any], handler: str) -> None:
    """hostUsers: false, and volumes mapped to its ids."""
    container = client.create(client.run_pod(handler, first=100000), IMAGE, SLEEP, mounts=MOUNTS, **asked)
    client.start(container)
    sees_in_a_user_namespace(client.execute(container, "python3", INSIDE), gpu_host, [1])
    assert set(client.execute(container, *OWNERS).split()) == {"0"}
