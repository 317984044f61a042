"""Checkpoints of kubelet, and what they consist of."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from gpushim.containers import kubelet


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def pair(first: str, second: str = "") -> bytes:
    return field(1, first.encode()) + (field(2, second.encode()) if second else b"")


ANSWER = b"".join(
    (
        field(1, pair("A", "b")),
        field(2, pair("/c", "/h") + b"\x18\x01"),  # read_only, a number
        field(3, pair("/dev/x", "/dev/y")),
        field(4, pair("k", "v")),
        field(5, pair("nvidia.com/gpu=0")),
    )
)
ENTRY = {
    "PodUID": "u",
    "ContainerName": "c",
    "ResourceName": "nvidia.com/gpu",
    "DeviceIDs": {"-1": ["GPU-1"], "0": ["GPU-2"]},
    "AllocResp": base64.b64encode(ANSWER).decode(),
}


def write(folder: Path, entries: Any = None, registered: Any = None, text: str | None = None) -> str:
    """Write a checkpoint; return kubelet's directory."""
    path = folder / kubelet.PLUGINS / kubelet.CHECKPOINT
    path.parent.mkdir(exist_ok=True)
    data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
    path.write_text(json.dumps({"Data": data, "Checksum": 1}) if text is None else text)
    return str(folder)


# As pkg/kubelet/cm/dra/state of Kubernetes writes it.
CLAIM = {
    "ClaimUID": "k",
    "ClaimName": "gpu",
    "Namespace": "ns",
    "PodUIDs": {"u": {}},
    "DriverState": {
        "gpu.nvidia.com": {
            "Devices": [
                {
                    "PoolName": "node",
                    "DeviceName": "gpu-0",
                    "RequestNames": ["gpu"],
                    "CDIDeviceIDs": ["nvidia.com/gpu=0"],
                }
            ]
        },
        "other": {"Devices": None},
    },
}


def promise(folder: Path, entries: Any) -> str:
    """Write what kubelet keeps of claims; return kubelet's directory."""
    inner = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": entries}
    (folder / kubelet.CLAIMS).write_text(json.dumps({"Data": json.dumps(inner), "Checksum": 1}))
    return str(folder)
