"""Snapshots as gpushim's refresh writes them, as far as the plugin reads them."""

from __future__ import annotations

from typing import Any


def uuid(number: int, what: str = "GPU") -> str:
    return f"{what}-{number:08x}-0000-4000-8000-000000000000"


def gpu(index: int, **more: Any) -> dict[str, Any]:
    found = {
        "index": index,
        "uuid": uuid(index),
        "pci": f"00000000:{index + 16:02x}:00.0",
        "mig": False,
        "problem": None,
        "model": "NVIDIA A100-SXM4-40GB",
        "brand": "Nvidia",
        "arch": "8.0",
        "memory": 40960,
        "mig_capable": True,
        "vgpu": False,
        "pci_class": "0x030200",
        "fabric": "",
        "addressing": "",
    }
    return {**found, "node": f"/dev/nvidia{index}", "numa": index // 2, "peers": [], "minor": index, **more}


def mig(parent: int, index: int, profile: str = "1g.5gb") -> dict[str, Any]:
    place = parent * 16 + index
    nodes = [f"/dev/nvidia-caps/nvidia-cap{place * 2 + 10}", f"/dev/nvidia-caps/nvidia-cap{place * 2 + 11}"]
    found = {"uuid": uuid(place, "MIG"), "gpu": parent, "index": index, "gi": index + 1, "ci": 0, "nodes": nodes}
    found["placement"] = [index, 1]
    counted = {"multiprocessors": 14, "slices.gi": 1, "slices.ci": 1, "engines.copy": 1}
    more = {"memory": 4864, "attributes": counted}
    return {**found, "profile": profile, "legacy": f"MIG-{uuid(parent)}/{index + 1}/0", **more}


def snapshot(gpus: list[dict[str, Any]], migs: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    nodes = [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        *(one["node"] for one in gpus),
        *(n for m in migs or () for n in m["nodes"]),
    ]
    found: dict[str, Any] = {
        "platform": "native",
        "looked": 0,
        "source": "nvml",
        "error": None,
        "stamp": {"module": "580", "gpus": {}},
        "inputs": {"root": "/"},
        "files": {},
        "gpus": gpus,
        "mig": migs or [],
        "missing": [],
        "notes": [],
    }
    found["nodes"] = {node: [195, 0, 0o666, 0, 0] for node in nodes}
    found["driver"] = {"dev-root": "/", "version": "580.65.06", "cuda": "13.0"}
    allowed = ("list-devices-in-refusals", "accept-env-when-unprivileged", "accept-volume-mounts")
    found["policy"] = {"cdi": {"kind": "nvidia.com/gpu", "spec-dirs": []}, "requests": dict.fromkeys(allowed, True)}
    return {**found, **more}
