"""What pods get through the device plugin: real kubelet, containerd 2, gpushim-runtime, and runc with CDI.

Each case has a plugin with settings of its own and one pod. Kubelet decides at once what a pod gets, so the plugins
follow each other while the pods come up; each test looks at its pod from inside, in pod-resources and in kubelet's
checkpoint.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import programs, trees
from e2e.engines import SYSTEM_PATH, run
from e2e.expect import CONTROL_NODES, GPU_MAJOR, MODESET_NODE
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import gpu_node, plugin
from e2e.witness import settings
from fakehost import Host, tree
from fakehost.gpus import ci_cap, gi_cap
from gpuplugin.kubelet.v1beta1 import reader

GPU, LARGE, SMALL = "nvidia.com/gpu", "nvidia.com/mig-3g.20gb", "nvidia.com/mig-1g.5gb"
PAIR, BOTH = "nvidia.com/gpu.pair", {GPU: 1, LARGE: 1}
NEIGHBOURS = {"nvidia-fs0": (510, 0), "gdrdrv": (511, 0), "infiniband/uverbs0": (231, 192)}
MODESET, INDEX = (MODESET_NODE,), "--device-id-strategy=index"
FEATURES = ("--gds-enabled", "--mofed-enabled", "--gdrcopy-enabled", "--imex-channel-ids=0")
FEATURE_NODES = (*(f"/dev/{name}" for name in NEIGHBOURS), "/dev/nvidia-caps-imex-channels/channel0")
SHARED: dict[str, Any] = {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2}]}}
STRICT = {"timeSlicing": {"failRequestsGreaterThanOne": True, **SHARED["timeSlicing"]}}
GROUP = {"name": "gpu", "devices": [0, 1], "rename": "gpu.pair", "replicas": 2, "distinct": True, "policy": "packed"}


@dataclass
class Case:
    """A plugin's settings and a pod.

    Attributes:
        name: of the pod; "runc..." is made by runc alone.
        flags: of the plugin.
        limits: what the pod asks for.
        answer: what kubelet gets for each resource, by the fields of its API.
        nodes: what it gets besides the devices' nodes and those of all GPUs.
        sharing: in the plugin's configuration file.
        bare: it has the nodes, and nothing of the driver.
    """

    name: str
    flags: tuple[str, ...]
    limits: dict[str, int]
    answer: str = ""
    nodes: tuple[str, ...] = ()
    sharing: dict[str, Any] = field(default_factory=dict)
    bare: bool = False


def by(ways: str) -> str:
    """Return the flag that says how containers are told their devices."""
    return f"--device-list-strategy={ways}"


CASES = (
    Case("distinct", (), {PAIR: 2}, "envs", sharing={"timeSlicing": {"resources": [GROUP]}}),
    Case("envvar", (), {GPU: 2}, "envs"),
    Case("envvar-index-mig", (INDEX,), {SMALL: 2}, "envs"),
    Case("mounts", (by("volume-mounts"),), BOTH, "envs mounts"),
    Case("mounts-features", (by("volume-mounts"), *FEATURES), {GPU: 1}, "envs mounts", FEATURE_NODES),
    Case("annotations", (by("cdi-annotations"),), BOTH, "annotations", MODESET),
    Case("runc-annotations", (by("cdi-annotations"),), BOTH, "annotations", MODESET),
    Case("cri", (by("cdi-cri"),), BOTH, "cdi_devices", MODESET),
    Case("runc-cri", (by("cdi-cri"),), BOTH, "cdi_devices", MODESET),
    Case("runc-cri-index", (by("cdi-cri"), INDEX), {GPU: 1, SMALL: 1}, "cdi_devices", MODESET),
    Case("runc-features", (by("cdi-cri"), *FEATURES), {GPU: 1}, "envs cdi_devices", (*MODESET, *FEATURE_NODES)),
    Case("cri-mounts", (by("cdi-cri,volume-mounts"),), BOTH, "envs mounts cdi_devices", MODESET),
    Case("runc-all", (by("envvar,cdi-annotations,cdi-cri"),), BOTH, "envs annotations cdi_devices", MODESET),
    Case("specs", ("--pass-device-specs",), {GPU: 1}, "envs devices", MODESET),
    Case("runc-specs", ("--pass-device-specs",), {GPU: 1}, "envs devices", MODESET, bare=True),
    Case("packed", ("--shared-devices-allocation-policy=packed",), {GPU: 2}, "envs", sharing=SHARED),
    Case("spread", ("--shared-devices-allocation-policy=distributed",), {GPU: 2}, "envs", sharing=SHARED),
    Case("shared", (), {GPU: 2}, sharing=STRICT),
    Case("too-many", (), {GPU: 99}),
    Case("one", (), BOTH),
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Thirty-four GPUs, the last nine of them divided."""
    divided, cache = {index: ["3g.20gb", "1g.5gb"] for index in range(25, 34)}, trees.TOP / ".cache" / "fakehost"
    root = tmp_path_factory.mktemp("allocate") / "root"
    host = fakehost.build(str(root), 34, mig=divided, imex=1, compile_cache=str(cache))
    for name, (major, minor) in NEIGHBOURS.items():
        tree.make_node(host.node(name), major, minor, 0o666, 0, 0)
    return host


@pytest.fixture(scope="module")
def env(host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings by which the shim takes requests by mounts, as volume-mounts wants them, and a snapshot."""
    programs.path("kubelet")
    env = settings(tmp_path_factory.mktemp("settings"), host.root)
    with open(env["GPUSHIM_CONFIG"], "a", encoding="utf-8") as config:
        config.write("[requests]\naccept-volume-mounts = true\n")
    run([str(trees.TOP / "bin" / "gpushim"), "refresh"], env={"PATH": SYSTEM_PATH, **env})
    return env


@pytest.fixture(scope="module")
def node(host: Host, env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[Node]:
    """A node that has decided about all pods."""
    with gpu_node(host, env, debian_image, busybox_tree) as found:
        for case in CASES:
            decide(found, env, case)
            found.wait(CASES[0].name)  # or containerd unpacks the image for many pods at once
        yield found


def decide(node: Node, env: dict[str, str], case: Case) -> None:
    """Let kubelet decide what a pod gets."""
    file = node.work / f"{case.name}.yaml"
    file.write_text(json.dumps({"version": "v1", "sharing": case.sharing}))
    flags = ("--mig-strategy=mixed", *case.flags, *([f"--config-file={file}"] if case.sharing else []))
    node.alone()
    with plugin(node, env, *flags, name=case.name) as running:
        for resource in case.limits:
            running.offers(resource)
        if case.sharing:  # while kubelet is young, what may be somebody's is given out in the way before
            assert until(lambda: all("::" in str(node.allocatable(name)) for name in case.limits), 60), running.said()
        node.create(case.name, case.limits)
        assert until(lambda: bool(node.held(case.name)) or refused(node, case.name), 30), running.said()
        assert running.stop() == 0


def refused(node: Node, name: str) -> bool:
    """Return whether kubelet has refused a pod."""
    pod = node.status(name)
    return pod is not None and pod.phase == "Failed"


def entries(node: Node, held: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Return the answers that kubelet has noted for exactly these devices."""
    found = []
    for entry in node.checkpoint()[1]:
        ids = [name for names in entry["DeviceIDs"].values() for name in names]
        if sorted(held.get(entry["ResourceName"], [])) == sorted(ids):
            found.append(reader("ContainerAllocateResponse")(base64.b64decode(entry["AllocResp"])))
    return found


def expected(host: Host, uuids: set[str]) -> tuple[set[str], list[str], list[str]]:
    """Return the devices' nodes, the MIG instances' and GPUs' UUIDs, and MAJOR:MINOR of all that is not theirs."""
    nodes, shown, others = set(CONTROL_NODES), [], []
    for gpu in host.gpus:
        migs = [mig for mig in gpu.mig if mig.uuid in uuids]
        if gpu.uuid in uuids or migs:
            shown.append(gpu.uuid)
            nodes.add(f"/dev/nvidia{gpu.minor}")
        else:
            others.append(f"{GPU_MAJOR}:{gpu.minor}")
        for mig in gpu.mig:
            caps = (gi_cap(gpu.minor, mig.gi), ci_cap(gpu.minor, mig.gi, mig.ci))
            if mig in migs:
                shown.append(mig.uuid)
                nodes |= {f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps}
            else:
                others += [f"{host.majors['nvidia-caps']}:{cap}" for cap in caps]
    return nodes, shown, others


@pytest.mark.parametrize("case", CASES[:-3], ids=lambda case: case.name)
def test_a_pod_has_what_kubelet_gave_it(node: Node, host: Host, case: Case) -> None:
    held = node.held(case.name)
    assert {name: len(ids) for name, ids in held.items()} == case.limits, node.status(case.name)
    pod = node.wait(case.name)
    assert pod.container, pod
    noted = entries(node, held)
    fields = [sorted(key for key, value in one.items() if value) for one in noted]
    assert fields == [sorted(case.answer.split())] * len(case.limits)
    uuids = {one.partition("::")[0] for ids in held.values() for one in ids}
    assert all((one in str(noted)) == (INDEX not in case.flags) for one in uuids)
    assert "::" not in str(noted)  # ids of replicas stay outside of containers
    nodes, shown, others = expected(host, uuids)
    report = json.loads(node.run(pod.container, ["python3", "/probe.py", *others]))
    assert set(report["nodes"]) == nodes | set(case.nodes)
    assert set(report["nodes"].values()) == {"ENXIO"}
    assert set(report["made"].values()) == {"EPERM"}
    if case.bare:
        assert "loads" not in report["libraries"].values()
    else:
        assert set(report["libraries"].values()) == {"loads"}
        every = [name for gpu in host.gpus for name in (gpu.uuid, *(mig.uuid for mig in gpu.mig))]
        assert [name for name in every if name in report["nvidia-smi"]] == shown


@pytest.mark.parametrize(
    ("name", "resource", "gpus"), [("packed", GPU, 1), ("spread", GPU, 2), ("distinct", PAIR, 2)]
)
def test_replicas_are_packed_on_one_gpu_or_spread(node: Node, name: str, resource: str, gpus: int) -> None:
    assert len({one.partition("::")[0] for one in node.held(name)[resource]}) == gpus


def test_with_a_variable_alone_a_container_gets_one_of_two_resources(node: Node, host: Host) -> None:
    assert "gets the devices of one: device-list-strategy is envvar" in (node.work / "one.log").read_text()
    pod = node.wait("one")
    assert pod.container, pod
    report = json.loads(node.run(pod.container, ["python3", "/probe.py"]))
    every = [name for gpu in host.gpus for name in (gpu.uuid, *(mig.uuid for mig in gpu.mig))]
    shown = [name for name in every if name in report["nvidia-smi"]]
    assert shown in [expected(host, set(ids))[1] for ids in node.held("one").values()]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("too-many", "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"),
        (
            "shared",
            "a container asks for 2 of nvidia.com/gpu, which is shared, and failRequestsGreaterThanOne is true",
        ),
    ],
)
def test_a_refusal_is_in_the_pods_status(node: Node, name: str, why: str) -> None:
    pod = node.wait(name)
    assert pod.phase == "Failed"
    assert why in pod.why
    assert node.held(name) == {}
