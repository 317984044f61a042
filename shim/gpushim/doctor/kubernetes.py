"""Checks of what a Kubernetes node and its cluster need, as far as a node can tell.

Out of scope: containerd's settings (containerd.py), which `gpushim doctor kubernetes` checks as well.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from gpushim import seen
from gpushim.doctor import Finding, Host, ask, broken, listing, ok, skipped, text, warning
from gpushim.engines import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGINS = "/var/lib/kubelet/device-plugins"
KUBECONFIGS = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml", "/etc/rancher/rke2/rke2.yaml")
RANCHER = ("/var/lib/rancher/k3s", "/var/lib/rancher/rke2")
TEMPLATES = (
    "config.toml.tmpl",
    "config-v3.toml.tmpl",
)  # from which k3s writes its containerd's settings at each start


def node(host: Host) -> Iterator[Finding]:
    """Check that this is a node."""
    if os.path.isdir(f"{host.top}/var/lib/kubelet"):
        yield ok("kubelet has been here")
    elif "kubernetes" in host.named:
        yield broken(f"there is no {host.top}/var/lib/kubelet: this is no node", "run this on a node of the cluster")
    else:
        yield skipped("this is no node of Kubernetes")


def device_plugin(host: Host) -> Iterator[Finding]:
    """Check that a device plugin for GPUs has registered."""
    folder = f"{host.top}{PLUGINS}"
    if not seen.exists(folder):
        return
    names = [path for path in listing(folder) if stat.S_ISSOCK(os.lstat(path).st_mode)]
    found = [path for path in names if any(word in os.path.basename(path) for word in ("nvidia", "gpu"))]
    if not found:
        yield warning(
            f"no device plugin for GPUs has a socket in {folder}: pods cannot ask for nvidia.com/gpu",
            "kubectl get pods -A | grep device-plugin; install NVIDIA's k8s-device-plugin",
        )
    elif not any(ask.listens(path) for path in found):
        yield warning(f"nobody listens on {found[0]}", "kubectl rollout restart the device plugin's daemon set")
    else:
        yield ok("a device plugin for GPUs listens")


def runtime_class(host: Host) -> Iterator[Finding]:
    """Check that the cluster has a RuntimeClass of our handler."""
    program = host.program("kubectl", "k3s")
    config = next((f"{host.top}{path}" for path in KUBECONFIGS if os.path.exists(f"{host.top}{path}")), "")
    if not os.path.isdir(f"{host.top}/var/lib/kubelet"):
        return
    if not program or not config:
        yield skipped("the cluster cannot be asked from here: kubectl get runtimeclass nvidia")
        return
    words = [program, *(["kubectl"] if program.endswith("/k3s") else []), f"--kubeconfig={config}"]
    answer = ask.program([*words, "--request-timeout=5s", "get", "runtimeclass", "-o", "json"])
    try:
        items = json.loads(answer.out)["items"]
        handlers = [str(item["handler"]) for item in items]
    except (ValueError, KeyError, TypeError):
        yield skipped(f"the cluster does not answer: {answer.last}")
        return
    if "nvidia" in handlers:
        yield ok("the cluster has a RuntimeClass with the handler nvidia")
    else:
        yield warning(
            "the cluster has no RuntimeClass with the handler nvidia", "kubectl apply one; docs/kubernetes.md"
        )


def template(host: Host) -> Iterator[Finding]:
    """Check that the settings which k3s and rke2 write anew at each start keep our runtime."""
    for top in RANCHER:
        folder = f"{host.top}{top}/agent/etc/containerd"
        if not seen.exists(f"{folder}/config.toml"):
            continue
        templates = [f"{folder}/{name}" for name in TEMPLATES if PROGRAM in text(f"{folder}/{name}")]
        here = PROGRAM in text(f"{folder}/config.toml")
        if templates and here:
            yield ok(f"{templates[0]} has gpushim-runtime, and {folder}/config.toml too")
        elif templates:
            yield warning(
                f"{folder}/config.toml does not have what {templates[0]} says",
                f"systemctl restart {os.path.basename(top)}",
            )
        elif here:
            yield broken(
                f"{folder}/config.toml has gpushim-runtime, and no template: the next start writes it without",
                "gpushim configure containerd, which writes the template",
            )
        else:
            yield broken(f"{folder} does not know gpushim-runtime", "gpushim configure containerd")
