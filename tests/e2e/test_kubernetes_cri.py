"""What a runtime must make of Kubernetes' allocations, second part: engines and how they call it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import cri
from e2e.allocated import (
    DEVICES,
    FOLDER,
    KIND,
    Answer,
    cdi_annotations,
    envvar,
    on,
    plugin_spec,
    untouched,
    uuids,
    write,
)
from e2e.bundles import RUNTIME, Bundle
from e2e.cdihooks import NAMES
from e2e.engines import Containerd
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_exactly
from e2e.test_chroot_cri import client as client
from e2e.test_chroot_cri import engine as engine
from e2e.test_runc import PURE_V1_PREFIX
from e2e.views import view
from e2e.witness import RUNC, Witness
from fakehost import Host

IMAGE = "docker.io/library/debian:local"
MOUNTS = {PROBE: INSIDE}


@pytest.fixture
def publish(cdi_dir: Path) -> Iterator[Callable[[object], int]]:
    """Writes the plugin's CDI spec beside our own; gone afterwards."""
    path = cdi_dir / "k8s.device-plugin.nvidia.com-gpu.json"
    yield lambda spec: path.write_text(json.dumps(spec))
    path.unlink(missing_ok=True)


def cri_look(client: cri.Client, handler: str, host: Host, indices: list[int], **asked: Any) -> str:
    """Run a container in a pod of its own, as kubelet does; returns the probe's report."""
    asked["mounts"] = {**MOUNTS, **asked.get("mounts", {})}
    container = client.create(client.run_pod(handler), IMAGE, ["sleep", "1000"], **asked)
    client.start(container)
    return client.execute(container, *probe(host, indices))


@pytest.mark.parametrize("program", NAMES)
def test_r_cri(
    client: cri.Client, gpu_host: Host, cdi_dir: Path, publish: Callable[[object], int], program: str
) -> None:
    """Several GPUs by the field; and with the device-list mount beside it, of which nothing may come twice."""
    publish(plugin_spec(cdi_dir, gpu_host, program))
    names = tuple(f"{KIND}={uuid}" for uuid in uuids(gpu_host, 0, 2))
    sees_by_cdi(cri_look(client, "nvidia", gpu_host, [0, 2], cdi=names), gpu_host, [0, 2])
    mounted = {"env": {DEVICES: FOLDER}, "mounts": {Path("/dev/null"): f"{FOLDER}/{gpu_host.gpus[2].uuid}"}}
    sees_by_cdi(cri_look(client, "nvidia", gpu_host, [2], cdi=names[1:], **mounted), gpu_host, [2])


def test_r_cri_config_is_untouched(
    client: cri.Client, gpu_host: Host, cdi_dir: Path, publish: Callable[[object], int], witness: Witness
) -> None:
    publish(plugin_spec(cdi_dir, gpu_host))
    device = f"{KIND}={gpu_host.gpus[1].uuid}"
    container = client.create(client.run_pod("witnessed"), IMAGE, ["true"], cdi=(device,))
    client.start(container)
    before, after = witness.copies(container)
    assert b"nvidia-ctk" in before.content
    assert after == before


def test_r_ann_through_containerd(
    containerd: Containerd, gpu_host: Host, cdi_dir: Path, publish: Callable[[object], int]
) -> None:
    """containerd 1.6 knows no CDI: it lets the annotations through."""
    publish(plugin_spec(cdi_dir, gpu_host))
    with containerd.cri() as old:
        answer = cdi_annotations(*uuids(gpu_host, 0, 2))
        output = cri_look(old, "nvidia", gpu_host, [0, 2], annotations=answer.annotations)
    sees_by_cdi(output, gpu_host, [0, 2])


@pytest.mark.parametrize(("layout", "resources"), [("hybrid", {"cpu": {"shares": 512}}), ("v2", {})])
def test_r_cgroup(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, layout: str, resources: object
) -> None:
    """CPUManager and the vertical autoscaler change running containers, which is `runc update`."""
    change = tmp_path / "resources.json"
    change.write_text(json.dumps(resources))
    with view(layout) as prefix:
        bundle = Bundle(tmp_path / "bundle", debian_root, gpushim_env, prefix)
        write(bundle, envvar(*uuids(gpu_host, 0, 2)), ["sleep", "1000"])
        with bundle.created():
            bundle.call("start", bundle.id)
            bundle.call("update", "--resources", str(change), bundle.id)
            output = bundle.call("exec", bundle.id, *probe(gpu_host, [0, 2])).stdout
    sees_exactly(output, gpu_host, [0, 2])


def test_r_sandbox(containerd: Containerd, witness: Witness) -> None:
    with containerd.cri() as client:
        before, after = witness.copies(client.run_pod("witnessed"))
    assert after == before


def test_r_sandbox_in_the_shell(bundle: Bundle, tmp_path: Path) -> None:
    """Nor does anyone look for the driver: the shell asks grep, and becomes runc."""
    trace = tmp_path / "trace"
    bundle.prefix = ("/usr/bin/strace", "-f", "-e", "trace=execve,open,openat", "-o", str(trace))
    write(bundle, Answer(), ["true"])
    untouched(bundle)
    lines = trace.read_text().splitlines()
    executed = [line.split('"')[1] for line in lines if " execve(" in line]
    assert executed[:3] == [str(RUNTIME), "/usr/bin/grep", RUNC]
    assert not [line for line in lines if "python" in line or "libnvidia" in line or "inventory.json" in line]


@pytest.mark.parametrize(
    ("names", "first"),
    [(["crun", "runc"], "crun"), (["crun-is-not-here", "runc"], "runc")],
)
def test_r_crio(debian_root: Path, tmp_path: Path, gpu_host: Host, names: list[str], first: str) -> None:
    """conmon's words, but for a systemd that is not here; crun needs a cgroup layout that runc knows too."""
    bundle = on(gpu_host, debian_root, tmp_path)
    bundle.prefix = PURE_V1_PREFIX
    config = Path(bundle.env["GPUSHIM_CONFIG"])
    config.write_text(config.read_text().replace(json.dumps([RUNC]), json.dumps(names)))
    assert bundle.call("--version").stdout.startswith(f"{first} ")
    write(bundle, envvar(*uuids(gpu_host, 1)), ["sleep", "1000"])
    pid = bundle.directory / "pid"
    bundle.call("--log-format=json", "create", "--bundle", str(bundle.directory), "--pid-file", str(pid), bundle.id)
    try:
        assert os.path.exists(f"/proc/{pid.read_text()}")
        bundle.call("start", bundle.id)
        sees_exactly(bundle.call("exec", bundle.id, *probe(gpu_host, [1])).stdout, gpu_host, [1])
    finally:
        bundle.call("delete", "--force", bundle.id)
