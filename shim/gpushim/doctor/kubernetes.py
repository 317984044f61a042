"""Checks of what a Kubernetes node and its cluster need, as far as a node can tell.

Out of scope: containerd's settings (check_containerd.py), which `gpushim doctor kubernetes` checks as well.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from typing import TYPE_CHECKING

from gpushim import seen
from gpushim.doctor import KUBELET, Finding, Host, broken, listing, ok, restarting, skipped, text, then, warning
from gpushim.engines import PROGRAM, ask, units
from gpushim.engines.containerd import services

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGINS = f"{KUBELET}/device-plugins"
KUBECONFIGS = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml", "/etc/rancher/rke2/rke2.yaml")
# What k3s writes its containerd's settings from at each start, and what those import.
TEMPLATES = ("config.toml.tmpl", "config-v3.toml.tmpl")
IMPORTED = ("config.toml.d/99-gpushim.toml", "config-v3.toml.d/99-gpushim.toml")
CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}


def node(host: Host) -> Iterator[Finding]:
    """Check that this is a node."""
    if os.path.isdir(host.top + KUBELET):
        yield ok(f"this is a Kubernetes node: {host.top}{KUBELET} is there")
    elif "kubernetes" in host.named:
        yield broken(f"there is no {host.top}{KUBELET}: this is no node", "run this on a node of the cluster")
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
            "install gpushim-device-plugin or NVIDIA's k8s-device-plugin; `kubectl get pods -A -o wide` says whether "
            "one of NVIDIA's runs on this node",
        )
    elif not any(ask.listens(path) for path in found):
        told = f"nobody listens on {found[0]}: the device plugin that made it has ended"
        fix = "delete the device plugin's pod on this node with kubectl: its daemon set makes another"
        ours = os.path.basename(found[0]).startswith("gpushim-")
        yield warning(told, "systemctl restart gpushim-device-plugin" if ours else fix)
    else:
        yield ok("a device plugin for GPUs listens")


def runtime_class(host: Host) -> Iterator[Finding]:
    """Check that the cluster has a RuntimeClass for gpushim's handler."""
    program = host.program("kubectl", "k3s")
    config = next((f"{host.top}{path}" for path in KUBECONFIGS if os.path.exists(f"{host.top}{path}")), "")
    if not os.path.isdir(host.top + KUBELET):
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
        told = "the cluster has no RuntimeClass with the handler nvidia"
        yield warning(told, f"echo '{json.dumps(CLASS)}' | {shlex.join(words)} apply -f -")


def template(host: Host) -> Iterator[Finding]:
    """Check that the settings which k3s and rke2 write anew at each start keep gpushim-runtime."""
    for service in services.RANCHER:
        config = host.top + services.CONFIGS[service]
        if not seen.exists(config):
            continue
        folder = os.path.dirname(config)
        engine = next((each for each in host.running("containerd") if each.seen(each.config) == config), None)
        again = units.fix("restart" if engine else "start", services.unit(service, host.top), engine, host.top)
        command = shlex.join(["gpushim", "configure", "containerd", f"--config={config}"])
        configure = restarting(command, again) if engine else then(command, again)
        imported = [f"{folder}/{name}" for name in IMPORTED if PROGRAM in text(f"{folder}/{name}")]
        templates = [f"{folder}/{name}" for name in TEMPLATES if PROGRAM in text(f"{folder}/{name}")] + imported
        here = PROGRAM in text(config) or bool(imported)
        if templates and here:
            yield ok(f"{templates[0]} has gpushim-runtime, and {config} too")
        elif templates:
            yield warning(f"{config} does not have what {templates[0]} says", again)
        elif here:
            told = f"{config} has gpushim-runtime, and no template: the next start writes it without"
            yield broken(told, configure)
        else:
            yield broken(f"{folder} does not know gpushim-runtime", configure)


CHECKS = {
    "kubernetes-node": node,
    "kubernetes-device-plugin": device_plugin,
    "kubernetes-runtime-class": runtime_class,
    "kubernetes-template": template,
}
