"""What a machine has besides, if it is a node of Kubernetes: kubelet, containerd, an image, the device plugin."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e import cri, kube, programs, trees

FILES = Path(__file__).with_name("files-node")  # at their places


def prepare(root: Path) -> None:
    """Put them into a root filesystem."""
    shutil.copytree(FILES, root, symlinks=True, dirs_exist_ok=True)
    cri.network(root / "etc/cni/bin", root / "etc/cni/net.d")
    trees.image(root / "srv/rootfs", "box:local", ["/usr/bin/sleep", "1000000"]).rename(root / "srv/box.tar")
    _install_kubelet(root)
    subprocess.run([str(trees.TOP / "packaging/install"), str(root), "device-plugin"], check=True)


def _install_kubelet(root: Path) -> None:
    """Put kubelet there, if it is to be had, with its settings and the chart's pod of the plugin."""
    try:
        program = programs.path("kubelet")
    except pytest.skip.Exception as missing:
        print(f"without kubelet: {missing}", flush=True)
        return
    shutil.copy2(program, root / "usr/bin/kubelet")
    settings = {
        **kube.SETTINGS,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "staticPodPath": "/etc/kubernetes/manifests",
        "readOnlyPort": 10255,
    }
    (root / "etc/kubernetes").mkdir()
    (root / "etc/kubernetes/kubelet.json").write_text(json.dumps(settings))
    for chart in yaml.safe_load_all((trees.TOP / "packaging/kubernetes/gpushim.yaml").read_text()):
        if chart["kind"] == "DaemonSet" and chart["metadata"]["name"] == "gpushim-device-plugin":
            (root / "srv/plugin.json").write_text(json.dumps(chart["spec"]["template"]["spec"]))
