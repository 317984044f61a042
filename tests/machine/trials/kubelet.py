"""A real kubelet with containerd: its start, pods by files, what it has of plugins and what containers have said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from machine.trials.rows import case, run, sh, until

KUBELET = Path("/var/lib/kubelet")
PROGRAM = Path("/usr/bin/kubelet")
CHECKPOINT = KUBELET / "device-plugins/kubelet_internal_checkpoint"
MANIFESTS = Path("/etc/kubernetes/manifests")
IMAGE = "docker.io/library/box:local"


def start(images: tuple[str, ...]) -> tuple[bool, str]:
    """Start kubelet with images of archives; return whether it takes plugins, and what was said."""
    said = "".join(run("ctr", "--namespace=k8s.io", "images", "import", f"/srv/{name}.tar") for name in images)
    said += run("gpushim", "configure", "containerd", "--set-as-default", "--restart")
    said += sh("mkdir -p /var/lib/kubelet /etc/kubernetes/manifests")
    said += sh("if command -v restorecon; then restorecon -R /var/lib/kubelet; fi")
    said += run("systemctl", "start", "kubelet.service")
    return until(lambda: (KUBELET / "device-plugins/kubelet.sock").exists(), 200), said


def list_devices(resource: str) -> list[str]:
    """List the devices of a resource that kubelet has from a plugin."""
    try:
        devices = json.loads(CHECKPOINT.read_text())["Data"]["RegisteredDevices"] or {}
    except (OSError, ValueError, KeyError):
        return []
    return list(devices.get(resource, ()))


def read_log(pod: str) -> str:
    """Return what a pod's containers have said."""
    return sh(f"cat /var/log/pods/*_{pod}-*/*/*.log 2>&1 | cut -d' ' -f4- | tail -n 40")


def make_pod(name: str, spec: dict[str, Any]) -> None:
    """Ask kubelet for a pod."""
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
    MANIFESTS.mkdir(parents=True, exist_ok=True)
    fresh = MANIFESTS / f".{name}"
    fresh.write_text(json.dumps(manifest))
    fresh.rename(MANIFESTS / f"{name}.json")


def container(script: str, resource: str) -> dict[str, Any]:
    """Return a container that runs a script, and has one of a resource."""
    words = {"image": IMAGE, "imagePullPolicy": "Never", "command": ["/usr/bin/sh", "-c", script]}
    return {"name": "main", **words, "resources": {"limits": {resource: "1"}}}


def remove_pod(name: str, command: str) -> None:
    """Remove a pod, and wait until its process is gone."""
    (MANIFESTS / f"{name}.json").unlink()
    case(f"{name} ends", until(lambda: command not in run("ps", "-eo", "args")))


def journal() -> str:
    """Return the end of what kubelet has said."""
    return run("journalctl", "--unit=kubelet", "--output=cat", "--no-pager", "--lines=20")
