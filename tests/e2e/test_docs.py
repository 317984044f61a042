"""The commands of the pages about engines, line by line, where gpushim is installed; and the sessions are true."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import installed, lines, pages, trees, upstream
from e2e.cri import RefusedError
from e2e.installed import CONTAINERD, PODMAN, Machine
from e2e.manifests import by_variable, pod

DOCS = pages.TOP / "docs"
SUITE, NEWER = "trixie", "sid"


def work_through(machine: Machine, page: str, starts: int) -> None:
    """Run the lines of a page that are to be run, as lines.work_through."""
    lines.work_through(machine, pages.commands(DOCS / page), starts)


def doctors(machine: Machine, check: str) -> dict[str, str]:
    """Return what a check of doctor's says."""
    findings = json.loads(machine.run("gpushim doctor docker --format=json", check=False).stdout)["findings"]
    return next(found for found in findings if found["check"] == check)


def complains(machine: Machine, page: str, line: str, text: str) -> None:
    """Check that a line fails with the words that a page explains."""
    assert re.search(rf"(`|^## ){re.escape(text)}", (DOCS / page).read_text(), re.MULTILINE)
    done = machine.run(line.format(cgroup=machine.state.name), check=False)
    assert done.returncode
    assert text in done.stderr, done.stderr


def test_docker(debian_image: Path) -> None:
    """With gpushim's package alone: `configure docker` makes the name that --gpus needs."""
    with installed.machine(SUITE, compat=False) as machine:
        machine.restart("docker")
        machine.run(f"docker load --input={debian_image}; docker tag debian:local debian:latest")
        run = "docker run --rm {} debian true"
        complains(machine, "symptoms.md", run.format("--runtime=nvidia"), "unknown or invalid runtime name: nvidia")
        complains(
            machine, "symptoms.md", run.format("--device nvidia.com/gpu=0"), 'could not select device driver "cdi"'
        )
        work_through(machine, "docker.md", starts=5)
        machine.run("gpushim configure docker --cdi")
        machine.restart("docker")
        work_through(machine, "symptoms.md", starts=1)
        complains(machine, "symptoms.md", run.format("--device nvidia.com/gpu=9"), "unresolvable CDI devices")
        machine.run("gpushim configure docker --remove")
        assert json.loads(machine.run("cat /etc/docker/daemon.json").stdout) == {"features": {"cdi": True}}
        assert machine.run("ls /etc/docker /usr/local/bin").stdout.split() == [
            *("/etc/docker:", "daemon.json", "/usr/local/bin:")
        ]


def test_the_docker_of_today(debian_image: Path) -> None:
    """What it says without the name that --gpus needs, what doctor says of that, and that the fix is one."""
    run = "docker run --rm --gpus all debian nvidia-smi -L"
    with installed.machine(upstream.SUITE, lower=upstream.lower(upstream.DOCKER), compat=False) as machine:
        machine.restart("docker")
        machine.run(f"docker load --input={debian_image}; docker tag debian:local debian:latest")
        complains(machine, "symptoms.md", run, "failed to discover GPU vendor from CDI: no known GPU vendor found")
        machine.run("gpushim refresh")
        complains(machine, "symptoms.md", run, "AMD CDI spec not found")
        found = doctors(machine, "docker-hook")
        assert found["evidence"].startswith("nvidia-cdi-hook is in no directory of the PATH of dockerd")
        assert found["fix"].startswith("gpushim configure docker; then restart dockerd (process ")
        machine.run("gpushim configure docker")
        machine.restart("docker")
        assert doctors(machine, "docker-hook")["verdict"] == "ok"
        assert machine.run(run).stdout.count("GPU-") == len(machine.host.gpus)


def test_containerd(debian_image: Path) -> None:
    """The newer Debian's: the `ctr` of containerd 1.7 takes no CDI names."""
    with installed.machine(NEWER) as machine:
        machine.write("/etc/containerd/config.toml", CONTAINERD)
        machine.restart("containerd")
        machine.containerd.load(debian_image)
        work_through(machine, "containerd.md", starts=3)
        assert machine.run("cat /etc/containerd/config.toml").stdout == CONTAINERD


def test_podman_and_crio(debian_image: Path) -> None:
    with installed.machine(SUITE, view="v2") as machine:
        machine.write("/etc/containers/containers.conf", PODMAN)
        machine.run(f"podman load --input={debian_image}; podman tag localhost/debian:local localhost/debian:latest")
        run = "podman run --rm --cgroup-parent=/{{cgroup}} {} debian true"
        complains(machine, "podman.md", run.format("--runtime=nvidia"), 'default OCI runtime "nvidia" not found')
        complains(machine, "symptoms.md", run.format("--device nvidia.com/gpu=9"), "unresolvable CDI devices")
        work_through(machine, "podman.md", starts=3)
        machine.run("podman rm --all --force --time=0")
        left = machine.run("ls -R /etc/containers /etc/crio /usr/share/containers").stdout
        assert "gpushim" not in left


def by_mount(uuid: str) -> dict[str, Any]:
    folder = "/var/run/nvidia-container-devices"
    return {"env": {"NVIDIA_VISIBLE_DEVICES": folder}, "mounts": {"/dev/null": f"{folder}/{uuid}"}}


def by_field(uuid: str) -> dict[str, Any]:
    return {"cdi": (f"nvidia.com/gpu={uuid}",)}


def by_annotation(uuid: str) -> dict[str, Any]:
    return {"annotations": {"cdi.k8s.io/nvidia-device-plugin_x": f"nvidia.com/gpu={uuid}"}}


def test_device_plugin(debian_image: Path, busybox_tree: Path) -> None:
    """The page's commands on the node; then what each strategy of the device plugin gives a pod."""
    text = (DOCS / "device-plugin.md").read_text()
    both = text + (DOCS / "kubernetes.md").read_text()
    manifests = [yaml.safe_load(block.text) for block in pages.blocks(both) if block.info == "yaml"]
    handler = next(each["handler"] for each in manifests if each["kind"] == "RuntimeClass")
    name = next(each["metadata"]["name"] for each in manifests if each["kind"] == "RuntimeClass")
    assert next(each["spec"]["runtimeClassName"] for each in manifests if each["kind"] == "Pod") == name
    closed = next(block.text for block in pages.blocks(text) if 'profile = "multi-tenant"' in block.text)
    with installed.machine(SUITE) as machine:
        machine.write("/etc/containerd/config.toml", CONTAINERD)
        machine.restart("containerd")
        for archive in (debian_image, trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])):
            machine.containerd.load(archive)
        with pytest.raises(RefusedError, match='no runtime for "nvidia" is configured'):
            pod(machine, handler, by_variable("none"), ["true"])
        work_through(machine, "device-plugin.md", starts=0)
        for ask in (by_variable, by_field, by_annotation):
            sees(machine, handler, ask)
        machine.write("/etc/gpushim/config.toml", f'{closed}[driver]\nroot = "{machine.host.root}"\n')
        sees(machine, handler, by_mount)
        sees_none(machine, handler)


def sees(machine: Machine, handler: str, ask: Callable[[str], dict[str, Any]]) -> None:
    uuid = machine.host.gpus[1].uuid
    output = pod(machine, handler, ask(uuid), ["nvidia-smi", "-L"])
    assert re.findall(r"GPU-[0-9a-f-]+", output) == [uuid], ask


def sees_none(machine: Machine, handler: str) -> None:
    """The variable of an unprivileged container counts for nothing any more."""
    assert "nvidia" not in pod(machine, handler, {"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, ["ls", "/dev"])


def test_sessions() -> None:
    done = subprocess.run([pages.TOP / "tools" / "sessions", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
