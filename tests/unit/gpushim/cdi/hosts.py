"""Snapshots of hosts for the tests of CDI specs, and a small spec of somebody else's."""

from __future__ import annotations

import copy
from typing import Any

from unit.gpushim.decision.inventories import CAPS, gpu, snapshot

HOOK = "/usr/bin/gpushim-hook"
KIND = "nvidia.com/gpu"


def mixed(**changes: Any) -> Any:
    """Two whole GPUs, and a third with one MIG instance."""
    return {**copy.deepcopy(snapshot()), "source": "nvml", "imex": [3], **changes}


def apart() -> Any:
    """A driver container, nodes elsewhere, which only a group may use."""
    host = mixed(gpus=[gpu(0, 1, drm=["/dev/dri/card1"], links=["../card1::/dev/dri/by-path/pci-0-card"])], mig=[])
    host["driver"].update({"root": "/run/nvidia/driver", "dev-root": "/run/nvidia", "params": "/run/gpushim/params"})
    host["nodes"] = {path: [*numbers[:2], 0o660, 0, 44] for path, numbers in host["nodes"].items()}
    host["nodes"]["/dev/dri/card1"] = [226, 1, 0o660, 0, 27]
    return host


def wsl() -> Any:
    """WSL2: one node for all GPUs."""
    nodes = {"/dev/dxg": [10, 125, 0o666, 0, 0]}
    return mixed(platform="wsl", gpus=[gpu(0, 0, node="/dev/dxg", pci="")], mig=[], nodes=nodes, features={}, imex=[])


def proc() -> Any:
    """A host whose NVML is out of order: two GPUs without UUIDs are listed, of three, and nothing of MIG."""
    return mixed(source="proc", gpus=[gpu(0, 1, uuid=""), gpu(1, 2, uuid="")], mig=[])


def eight_by_seven(count: int = 8) -> Any:
    """Eight GPUs, or `count`, with seven MIG instances each."""
    host = mixed(gpus=[], mig=[])
    for index in range(count):
        uuid = f"GPU-{index:08d}-1111-1111-1111-111111111111"
        host["gpus"].append({**gpu(0, index, mig=True), "index": index, "uuid": uuid})
        for number in range(7):
            caps = [f"{CAPS}{100 * index + 10 * number + part}" for part in (3, 4)]
            host["nodes"] |= {path: [237, int(path[len(CAPS) :]), 0o444, 0, 0] for path in caps}
            facts = {"uuid": f"MIG-{index}-{number}", "legacy": "", "gi": number + 7, "ci": 0, "profile": "1g.5gb"}
            host["mig"].append({**facts, "gpu": index, "index": number, "nodes": caps})
        host["nodes"][f"/dev/nvidia{index}"] = [195, index, 0o666, 0, 0]
    return host


def foreign(**changes: Any) -> Any:
    """A spec of another vendor with one of each."""
    node = {"path": "/dev/x0", "hostPath": "/host/dev/x0", "type": "c", "major": 10, "minor": 1, "permissions": "rw"}
    mount = {"hostPath": "/host/lib/x.so", "containerPath": "/usr/lib/x.so", "options": ["ro", "bind"]}
    hook = {
        "hookName": "createContainer",
        "path": "/host/bin/x",
        "args": ["x", "--link", "/usr/lib/a::/usr/lib/b"],
        "env": ["A=b"],
    }
    edits = {"env": ["A=b"], "deviceNodes": [node], "mounts": [mount], "hooks": [hook]}
    device = {"name": "0", "containerEdits": edits}
    return copy.deepcopy({"cdiVersion": "0.5.0", "kind": "vendor.com/x", "devices": [device], **changes})


def mounted(edits: dict[str, Any]) -> dict[str, str]:
    """Return what the hooks of containerEdits mount: the place in the container of each path of the host."""
    args = [word for hook in edits.get("hooks", ()) for word in hook["args"]]
    values = [value for option, value in zip(args, args[1:]) if option in ("--mount", "--socket")]
    return dict(value.split("::") for value in values)
