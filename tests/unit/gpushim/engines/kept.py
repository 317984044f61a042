"""What CRI-O keeps of pods and their containers, made up.

Out of scope: what is in a container.
"""

from __future__ import annotations

import json
from pathlib import Path


def pod(storage: Path, name: str, handler: str, containers: int = 1, more: dict[str, str] | None = None) -> None:
    """Write down a pod.

    Args:
        storage: where CRI-O keeps them.
        name: of the pod.
        handler: that it names, or "".
        containers: how many it has.
        more: annotations of the pod's own container.
    """
    own = {"ContainerType": "sandbox", "RuntimeHandler": handler}
    known = {"io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.name": name, "spoofed.crio.io": "true"}
    container(storage, name, name, **own, **{**known, **(more or {})})
    for number in range(containers):
        container(storage, f"{name}-{number}", name, ContainerType="container")


def container(storage: Path, identity: str, pod: str, **notes: str) -> None:
    """Write down a container of a pod."""
    marks = {key if "." in key else f"io.kubernetes.cri-o.{key}": value for key, value in notes.items()}
    found = {"io.container.manager": "cri-o", "io.kubernetes.cri-o.SandboxID": pod, **marks}
    path = storage / "overlay-containers" / identity / "userdata/config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"ociVersion": "1.0.0", "annotations": found}))
