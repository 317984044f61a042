"""Checks of a Kubernetes node and, as far as a node can tell, of its cluster."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING

from gpushim.doctor import (
    Finding,
    Host,
    broken,
    check_containerd,
    check_crio,
    check_device_plugin,
    check_dra,
    check_kubelet,
    ok,
    restarting,
    skipped,
    text,
    then,
    warning,
)
from gpushim.engines.containerd import services
from gpushim.engines.processes import ask, units
from gpushim.engines.settings.setup import PROGRAM
from gpushim.ground import seen
from gpushim.paths import host_files, trust

if TYPE_CHECKING:
    from collections.abc import Iterator

KUBECONFIGS = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml", "/etc/rancher/rke2/rke2.yaml")
# What k3s writes its containerd's settings from at each start, and what those import.
TEMPLATES = ("config.toml.tmpl", "config-v3.toml.tmpl")
IMPORTED = ("config.toml.d/99-gpushim.toml", "config-v3.toml.d/99-gpushim.toml")
CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}


def runtime_class(host: Host) -> Iterator[Finding]:
    """Check that the cluster has a RuntimeClass for gpushim's handler."""
    if not os.path.isdir(host.kubelet):
        return
    program = host.program("kubectl", "k3s")
    path = next((path for path in KUBECONFIGS if os.path.exists(host.top + path)), "")
    if not program or not path:
        yield skipped("the cluster cannot be asked from here: kubectl get runtimeclass nvidia")
        return
    config = host.top + path
    culprit = _untrusted(config)
    if culprit:
        evidence = f"the cluster is not asked: users other than root can write to {culprit}, and {config} can name"
        yield skipped(f"{evidence} programs to execute; run kubectl get runtimeclass nvidia")
        return
    words = [program, *(["kubectl"] if program.endswith("/k3s") else []), f"--kubeconfig={config}"]
    answer = ask.program([*words, "--request-timeout=5s", "get", "runtimeclass", "-o", "json"])
    try:
        classes = {str(item["handler"]) for item in json.loads(answer.out)["items"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        yield skipped(f"the cluster does not answer: {answer.last}")
        return
    handlers = sorted({*check_containerd.handlers(host), *check_crio.handlers(host)}) or ["nvidia"]
    served = [name for name in handlers if name in classes]
    if served:
        yield ok(f"the cluster has a RuntimeClass with the handler {served[0]}")
    else:
        evidence = f"the cluster has no RuntimeClass with the handler {' or '.join(handlers)}"
        name = "nvidia" if "nvidia" in handlers else handlers[0]
        runtime_class = {**CLASS, "metadata": {"name": name}, "handler": name}
        yield warning(evidence, f"echo {shlex.quote(json.dumps(runtime_class))} | {shlex.join(words)} apply -f -")


def _untrusted(config: str) -> str:
    """Return the path by which others than root and this user could change or replace a kubeconfig, or ""."""
    return host_files.replaceable(config) or (config if trust.others_may(os.stat(config)) else "")


def template(host: Host) -> Iterator[Finding]:
    """Check that gpushim-runtime is in what k3s and rke2 write at each start."""
    for service in services.RANCHER:
        config = host.top + services.CONFIGS[service]
        if not seen.exists(config):
            continue
        folder = os.path.dirname(config)
        engine = next(
            (process for process in host.running("containerd") if process.host_path(process.config) == config), None
        )
        restart = units.fix("restart" if engine else "start", services.unit(service, host.top), engine, host.top)
        command = shlex.join(["gpushim", "configure", "containerd", f"--config={config}"])
        configure = restarting(command, restart) if engine else then(command, restart)
        imported = [f"{folder}/{name}" for name in IMPORTED if PROGRAM in text(f"{folder}/{name}")]
        templates = [f"{folder}/{name}" for name in TEMPLATES if PROGRAM in text(f"{folder}/{name}")] + imported
        is_configured = PROGRAM in text(config) or bool(imported)
        if templates and is_configured:
            yield ok(f"{templates[0]} has gpushim-runtime, and {config} too")
        elif templates:
            yield warning(f"{config} does not have what {templates[0]} says", restart)
        elif is_configured:
            evidence = f"{config} has gpushim-runtime, and no template: the next start writes it without"
            yield broken(evidence, configure)
        else:
            yield broken(f"{folder} does not know gpushim-runtime", configure)


CHECKS = {
    "kubernetes-node": check_kubelet.node,
    "kubernetes-kubelet": check_kubelet.listens,
    "kubernetes-device-plugin": check_device_plugin.registered,
    "kubernetes-checkpoint": check_kubelet.checkpoint,
    "kubernetes-strategy": check_device_plugin.strategy,
    **check_dra.CHECKS,
    "kubernetes-runtime-class": runtime_class,
    "kubernetes-template": template,
}
