"""A real kubelet, in its own domain, with containerd: the device plugin's unit on the host, and the chart's pod."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from machine.trials import kubelet
from machine.trials.looks import GIVEN, LOOK, OTHER, SELINUX, looked
from machine.trials.rows import case, note, run, sh, until

GPU = "nvidia.com/gpu"
IDLE = "sleep 12345678"
PLUGIN = "gpushim-device-plugin.service"
TYPE = "spc_t" if SELINUX else ""  # as values.yaml has it
PROGRAMS = "docker.io/library/plugin:local"
IMAGES = ("box", "plugin")  # archives of them
PROC = "/srv/gpus/proc"  # the simulated host's kernel
SERVER = {"name": "KUBERNETES_SERVICE_HOST", "value": "10.250.0.1"}  # which kubelet adds where there is an API server


def consumer(name: str, giver: str) -> None:
    """Run a pod with a GPU, and look."""
    script = f"({LOOK}) 2>&1; echo the end; exec {IDLE}"
    box = {
        "name": "main",
        "image": kubelet.IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/sh", "-c", script],
    }
    kubelet.make_pod(name, {"containers": [box | {"resources": {"limits": {GPU: "1"}}}]})
    if not until(lambda: "the end" in kubelet.read_log(name)):
        note(f"{name} has not run", kubelet.read_log("plugin") + run("journalctl", "--unit=kubelet", "--lines=60"))
    said = kubelet.read_log(name)
    given, other = (GIVEN, OTHER) if GIVEN[1] in said else (OTHER, GIVEN)  # kubelet chooses
    looked(f"a pod with a GPU of {giver}", said, given=given, other=other)
    kubelet.remove_pod(name, IDLE)


def started() -> None:
    """Start kubelet, and wait until it takes plugins."""
    up, said = kubelet.start(IMAGES)
    label = sh("ps -eo label,args | grep '[k]ubelet --config'; ls -dZ /var/lib/kubelet/device-plugins/*")
    case("kubelet: in its domain", up and (":kubelet_t:" in label or not SELINUX), said + label + kubelet.journal())
    note("kubelet", label)


def on_the_host() -> None:
    """The plugin's unit, as packages have it."""
    run("systemctl", "start", PLUGIN)
    until(lambda: len(kubelet.list_devices(GPU)) > 0, 120)
    said = run("journalctl", "--output=cat", f"--unit={PLUGIN}", "--no-pager", "--lines=30")
    case("the plugin's unit: kubelet has the GPUs", len(kubelet.list_devices(GPU)) > 0, said + kubelet.journal())
    note("its domain", sh("ps -eo label,args | grep '[g]pushim-device-plugin'"))
    consumer("consumer-unit", "the unit")
    run("systemctl", "stop", PLUGIN)


def chart() -> dict[str, Any]:
    """Return the chart's pod of the plugin as one that needs no API server."""
    spec: dict[str, Any] = copy.deepcopy(json.loads(Path("/srv/plugin.json").read_text()))
    for name in ("affinity", "nodeSelector", "priorityClassName", "runtimeClassName", "serviceAccountName"):
        spec.pop(name, None)
    (box,) = spec["containers"]
    for name in ("livenessProbe", "readinessProbe", "ports"):  # its network is one without anything in it
        box.pop(name, None)
    box |= {"image": PROGRAMS, "imagePullPolicy": "Never"}
    box["env"].append(SERVER)
    box["volumeMounts"].append({"name": "proc", "mountPath": PROC, "readOnly": True})
    spec["volumes"].append({"name": "proc", "hostPath": {"path": PROC}})
    if TYPE:
        spec["securityContext"] = {"seLinuxOptions": {"type": TYPE}}
    return spec


def in_a_pod() -> None:
    """The plugin as the chart has it, beside a refresh that the node keeps up."""
    run("systemd-run", "--unit=keep", "/usr/bin/gpushim", "refresh", "--keep")
    run("systemctl", "stop", "kubelet.service")
    kubelet.CHECKPOINT.unlink(missing_ok=True)
    kubelet.make_pod("plugin", chart())
    run("systemctl", "start", "kubelet.service")
    serves = until(lambda: len(kubelet.list_devices(GPU)) > 0)
    case("the chart's pod: kubelet has the GPUs", serves, kubelet.read_log("plugin") + kubelet.journal())
    consumer("consumer-pod", "the chart's pod")
    kubelet.remove_pod("plugin", "gpushim-device-plugin")
    run("systemctl", "stop", "keep")


def kubernetes() -> None:
    """All of it, where there is a kubelet."""
    if not kubelet.PROGRAM.exists():
        note("kubernetes", "skipped: tools/setup.sh test builds a kubelet")
        return
    started()
    on_the_host()
    in_a_pod()
    run("systemctl", "stop", "kubelet.service")
