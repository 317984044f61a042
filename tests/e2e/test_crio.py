"""CRI-O in both views of the cgroups: our handler, CDI by field and annotation, pods' annotations, the hook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import cri, crio, podman, trees
from e2e.crio import Crio
from e2e.engines import READY_SECONDS
from e2e.expect import INSIDE, OWNERS, PROBE, probe, sees_by_cdi, sees_exactly, sees_in_a_user_namespace, sees_nothing
from e2e.leftovers import until
from fakehost import Host

IMAGE = "localhost/debian:local"
# It ends when it is told to: CRI-O lets a pod's containers take as long as the call that stops it may take.
SLEEP = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]
MOUNTS = {PROBE: INSIDE}
HOOK_FILE = "/usr/share/containers/oci/hooks.d/99-gpushim.json"
ANNOTATION = "cdi.k8s.io/nvidia-device-plugin_pod"
FIELD, ANNOTATED = {"cdi": ("nvidia.com/gpu=1",)}, {"annotations": {ANNOTATION: "nvidia.com/gpu=1"}}


@pytest.fixture(scope="module")
def stores(podman_images: Path, busybox_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Stores of images, of containers and of pods."""
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    return [podman_images, podman.store(tmp_path_factory.mktemp("pause") / "images", pause)]


@pytest.fixture(scope="module", params=["v1", "v2"])
def engine(request: pytest.FixtureRequest, gpu_host: Host, stores: list[Path]) -> Iterator[Crio]:
    """A CRI-O with our handler and our hook, and what they say done."""
    with crio.entered(gpu_host, stores, request.param) as engine:
        engine.gpushim("refresh")
        engine.hands_over(engine.gpushim("configure", "crio", "--hooks").stderr)
        with engine.running():
            yield engine


@pytest.fixture
def client(engine: Crio) -> Iterator[cri.Client]:
    """A connection that removes its pods."""
    with engine.cri() as connected:
        yield connected


def started(client: cri.Client, pod: str, **asked: Any) -> str:
    """Start a container in a pod; returns its id."""
    container = client.create(pod, IMAGE, SLEEP, mounts=MOUNTS, **asked)
    client.start(container)
    return container


def look(client: cri.Client, host: Host, indices: list[int], pod: str, **asked: Any) -> str:
    """Run a container in a pod that looks for the host's GPUs; returns its report."""
    return client.execute(started(client, pod, **asked), *probe(host, indices))


def test_it_knows_our_handler(engine: Crio) -> None:
    assert engine.gpushim("configure", "crio", "--verify").stdout == "verified: CRI-O has the runtime nvidia\n"


def test_doctor(engine: Crio, client: cri.Client) -> None:
    """All is well; then the hook's program is gone, containers start without their GPUs, and the fix helps."""
    assert [found["verdict"] for found in engine.doctor()] == ["ok"] * 4
    text = engine.sh('cat "$1"', HOOK_FILE).stdout
    engine.sh('printf %s "$1" >"$2"', text.replace(str(trees.TOP / "bin"), "/gone"), HOOK_FILE)
    assert until(lambda: not hooked(client), READY_SECONDS)  # CRI-O watches the directory
    (found,) = [found for found in engine.doctor() if found["verdict"] != "ok"]
    assert (found["check"], "without their GPUs" in found["evidence"]) == ("crio-hooks", True)
    engine.gpushim(*found["fix"].split()[1:])
    assert {found["verdict"] for found in engine.doctor()} == {"ok"}
    assert until(lambda: hooked(client), READY_SECONDS)


def test_a_pod_is_named_and_explained(engine: Crio, client: cri.Client) -> None:
    """By what CRI-O itself writes, as no kubelet has given labels; the pod's sandbox has no GPU, and is not shown."""
    pod = client.run_pod("nvidia", {"io.podman.annotations.x": "y", "io.kubernetes.cri.sandbox-name": "other"})
    started(client, pod, env={"NVIDIA_VISIBLE_DEVICES": "0"})
    (holder,) = json.loads(engine.gpushim("ps", "--format=json").stdout)
    assert (holder["engine"], holder["namespace"], holder["devices"]) == ("cri-o", "default", ["0"])
    assert (holder["pod"].startswith("pod-"), holder["name"].startswith("c")) == (True, True)
    name = f"default/{holder['pod']}/{holder['name']}"
    (found,) = json.loads(engine.gpushim("explain", "--pod", name, "--format=json").stdout)
    assert (found["id"], found["devices"], found["told"]) == (holder["id"], ["0"], ["NVIDIA_VISIBLE_DEVICES=0"])
    assert found["kubelet"] is None
    gone = engine.gpushim("explain", "--pod", "default/other", check=False)
    assert (gone.returncode, "default/other has no running container on this node" in gone.stderr) == (1, True)


def hooked(client: cri.Client) -> bool:
    """Return whether a container that runc runs and that asks for a GPU has one."""
    container = started(client, client.run_pod("runc"), env={"NVIDIA_VISIBLE_DEVICES": "0"})
    return "nvidiactl" in client.execute(container, "ls", "/dev")


def test_without_configuration_and_refresh_a_runtime_is_found(engine: Crio) -> None:
    """In /usr/libexec/crio, by the launcher."""
    script = "GPUSHIM_CONFIG=/none GPUSHIM_STATE=/none exec /usr/bin/gpushim-runtime --version"
    assert engine.sh(script).stdout.startswith("runc version ")


@pytest.mark.parametrize(
    ("wanted", "indices", "handler"),
    [("0,2", [0, 2], "nvidia"), ("all", [0, 1, 2], ""), ("0,2", [0, 2], "runc")],  # the latter two by the hook
)
def test_a_container_gets_the_gpus_asked_for(
    client: cri.Client, gpu_host: Host, wanted: str, indices: list[int], handler: str
) -> None:
    report = look(client, gpu_host, indices, client.run_pod(handler), env={"NVIDIA_VISIBLE_DEVICES": wanted})
    sees_exactly(report, gpu_host, indices)


def test_our_handler_runs_what_the_default_runtime_is(engine: Crio, client: cri.Client, gpu_host: Host) -> None:
    """crun, whose file of a container's state has another name than runc's."""
    container = started(client, client.run_pod("nvidia"), env={"NVIDIA_VISIBLE_DEVICES": "1"})
    assert "status" in engine.sh('ls "/run/crun/$1"', container).stdout.split()
    if engine.view == "v1":  # in the other one, this machine has no controller of the CPU
        client.update(container, cpu_shares=512)
    sees_exactly(client.execute(container, *probe(gpu_host, [1])), gpu_host, [1])


@pytest.mark.parametrize(("asked", "handler"), [(FIELD, ""), (FIELD, "nvidia"), (ANNOTATED, "runc")])
def test_a_cdi_device_gives_its_gpu(client: cri.Client, gpu_host: Host, asked: Any, handler: str) -> None:
    sees_by_cdi(look(client, gpu_host, [1], client.run_pod(handler), **asked), gpu_host, [1])


@pytest.mark.parametrize("handler", ["", "nvidia"])
def test_no_gpu_is_seen_without_a_request(client: cri.Client, gpu_host: Host, handler: str) -> None:
    sees_nothing(look(client, gpu_host, [], client.run_pod(handler)))


def test_a_pods_annotation_names_a_device(client: cri.Client, gpu_host: Host) -> None:
    """CRI-O hands it on to the runtime and injects nothing; our handler does as for a container's own annotation."""
    asked = {ANNOTATION: "nvidia.com/gpu=1"}
    sees_exactly(look(client, gpu_host, [1], client.run_pod("nvidia", asked)), gpu_host, [1])


def test_a_pods_annotation_of_another_maker_is_refused(client: cri.Client) -> None:
    pod = client.run_pod("nvidia", {ANNOTATION: "example.com/other=1"})
    with pytest.raises(cri.RefusedError, match=r"foreign-kinds does not have example\.com/other"):
        client.create(pod, IMAGE, SLEEP)


def test_a_pods_annotation_is_no_variable(client: cri.Client, gpu_host: Host) -> None:
    sees_nothing(look(client, gpu_host, [], client.run_pod("nvidia", {"NVIDIA_VISIBLE_DEVICES": "all"})))


def test_a_pods_annotation_brings_nothing_where_annotations_may_not(
    engine: Crio, client: cri.Client, gpu_host: Host
) -> None:
    with engine.settings("[requests]\naccept-annotations-when-unprivileged = false"):
        sees_nothing(look(client, gpu_host, [], client.run_pod("nvidia", {ANNOTATION: "nvidia.com/gpu=all"})))


@pytest.mark.parametrize(("asked", "handler"), [({"env": {"NVIDIA_VISIBLE_DEVICES": "1"}}, "nvidia"), (FIELD, "")])
def test_a_pod_with_a_user_namespace(client: cri.Client, gpu_host: Host, asked: Any, handler: str) -> None:
    """Whose crun binds nodes for it, and then says in the hook's state that the bundle is /."""
    container = started(client, client.run_pod(handler, first=100000), **asked)
    sees_in_a_user_namespace(client.execute(container, "python3", INSIDE), gpu_host, [1])
    assert set(client.execute(container, *OWNERS).split()) == {"0"}


def test_the_doctor_leads_from_nothing_to_a_handler(gpu_host: Host, stores: list[Path]) -> None:
    with crio.entered(gpu_host, stores, "v2") as engine:
        with engine.running():
            (found,) = [found for found in engine.doctor() if found["verdict"] == "broken"]
            command, _, restart = found["fix"].partition("; then restart crio (process ")
            assert restart.endswith(") the way it was started")
            engine.gpushim(*command.split()[1:])
            (found,) = [found for found in engine.doctor() if found["verdict"] == "broken"]
            assert found["fix"].endswith(restart)
        with engine.running():
            (found,) = [found for found in engine.doctor() if found["verdict"] == "warning"]
            engine.hands_over(found["fix"])
            assert {found["verdict"] for found in engine.doctor()} == {"ok", "skipped"}  # there is no hook
