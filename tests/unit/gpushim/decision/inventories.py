"""Inventories of a simulated host, and requests with the nodes and files that they bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpushim.config.policy import defaults

UUIDS = [f"GPU-{i}1111111-1111-1111-1111-111111111111" for i in range(3)]
LIBRARY = {"path": "/usr/lib/libcuda.so.5", "kind": "library", "soname": "libcuda.so.1", "links": ["a::/usr/lib/b"]}
NVML = {"path": "/usr/lib/libnvidia-ml.so.5", "kind": "library", "soname": "libnvidia-ml.so.1"}
BARE = {"compute": [LIBRARY], "utility": [NVML]}
CAPS = "/dev/nvidia-caps/nvidia-cap"


def gpu(index: int, minor: int, **changes: Any) -> dict[str, Any]:
    node = {"minor": minor, "node": f"/dev/nvidia{minor}", "pci": f"00000000:0{index}:00.0", "mig": False}
    facts: dict[str, Any] = {
        "model": "NVIDIA A100",
        "brand": "Nvidia",
        "arch": "8.0",
        "memory": 40960,
        "drm": [],
        "links": [],
        "problem": None,
    }
    return {"index": index, "nvml": index, "uuid": UUIDS[index], **node, **facts, **changes}


def snapshot(**changes: Any) -> Any:
    """A host with three GPUs, the third divided by MIG."""
    node = {f"/dev/nvidia{minor}": [195, minor, 0o666, 0, 0] for minor in range(3)}
    node["/dev/nvidiactl"] = [195, 255, 0o666, 0, 0]
    node["/dev/nvidia-modeset"] = [195, 254, 0o666, 0, 0]
    node["/dev/nvidia-uvm"] = [508, 0, 0o666, 0, 0]
    node["/dev/nvidia-uvm-tools"] = [508, 1, 0o666, 0, 0]
    node["/dev/nvidia-fs0"] = [510, 0, 0o666, 0, 0]
    node["/dev/nvidia-caps-imex-channels/channel3"] = [511, 3, 0o666, 0, 0]
    node |= {f"{CAPS}{n}": [237, n, 0o444, 0, 0] for n in (1, 2, 12, 13)}
    instance = {"uuid": "MIG-1", "legacy": "MIG-x/1/0", "gpu": 2, "index": 0, "gi": 1, "ci": 0, "profile": "1g.5gb"}
    return {
        "error": None,
        "platform": "native",
        "notes": [],
        "stamp": {"gpus": {}},
        "inputs": {"sys": "/sys"},
        "driver": {
            "version": "535.183.01",
            "cuda": "12.2",
            "root": "/",
            "dev-root": "/",
            "params": "",
            "empty": "/e",
        },
        "gpus": [gpu(0, 1), gpu(1, 2), gpu(2, 0, mig=True)],
        "mig": [{**instance, "nodes": [CAPS + "12", CAPS + "13"]}],
        "nodes": node,
        "features": {"gds": ["/dev/nvidia-fs0"], "mofed": []},
        "files": {
            "any": [{"path": "/lib/firmware/gsp.bin", "kind": "firmware"}],
            "utility": [
                NVML,
                {"path": "/usr/bin/nvidia-smi", "kind": "binary"},
                {"path": "/run/nvidia-persistenced/socket", "kind": "socket"},
            ],
            "compute": [LIBRARY],
        },
        "mps": "",
        "policy": {
            **defaults(),
            "cdi": {**defaults()["cdi"], "foreign-kinds": ["*"]},
            "log": {"file": "/var/log/g.log", "format": "json", "level": "info"},
        },
        **changes,
    }


BUNDLE: Any = {"rootfs": "/b/rootfs", "userns": False, "hook": "/usr/bin/gpushim-hook"}
CONTROL = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
ENDS = ["/dev/nvidia-uvm-tools"]
NODE_CASES = [
    (["NVIDIA_VISIBLE_DEVICES=0"], [*CONTROL, "/dev/nvidia1", *ENDS]),
    (["NVIDIA_VISIBLE_DEVICES=1,0"], [*CONTROL, "/dev/nvidia2", "/dev/nvidia1", *ENDS]),
    (["NVIDIA_VISIBLE_DEVICES=0,GPU-01111111"], [*CONTROL, "/dev/nvidia1", *ENDS]),
    (["NVIDIA_VISIBLE_DEVICES=none"], [*CONTROL, *ENDS]),
    (
        ["NVIDIA_VISIBLE_DEVICES=all"],
        [*CONTROL, "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia0", CAPS + "12", CAPS + "13", *ENDS],
    ),
    (["NVIDIA_VISIBLE_DEVICES=2:0"], [*CONTROL, "/dev/nvidia0", CAPS + "12", CAPS + "13", *ENDS]),
    (["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility"], ["/dev/nvidiactl", "/dev/nvidia1"]),
    (["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=video"], [*CONTROL, "/dev/nvidia1", *ENDS]),
    (
        ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics"],
        ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-modeset"],
    ),
    (["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled"], [*CONTROL, "/dev/nvidia1", *ENDS, "/dev/nvidia-fs0"]),
    (["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MOFED=enabled"], [*CONTROL, "/dev/nvidia1", *ENDS]),
    (
        ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=3"],
        [*CONTROL, "/dev/nvidia1", *ENDS, "/dev/nvidia-caps-imex-channels/channel3"],
    ),
    (
        ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"],
        [*CONTROL, "/dev/nvidia1", CAPS + "1", CAPS + "2", *ENDS],
    ),
]


def drawing(**changes: Any) -> Any:
    """A host whose GPUs 0 and 2 have DRM nodes; the latter has a MIG instance that draws."""
    inventory = snapshot(**changes)
    for index, number in ((0, 1), (2, 3)):
        card = f"/dev/dri/card{number}"
        link = f"../card{number}::/dev/dri/by-path/pci-0000:0{index}:00.0-card"
        inventory["nodes"][card] = [226, number, 0o660, 0, 44]
        inventory["gpus"][index].update(drm=[card], links=[link])
    inventory["mig"][0]["profile"] = "1g.24gb+gfx"
    return inventory


FILES = {
    "utility": [{"path": "/ml", "kind": "library", "soname": "libnvidia-ml.so.1"}],
    "compute": [LIBRARY, {"path": "/mps-control", "kind": "binary"}],
    "video": [{"path": "/cuvid", "kind": "library", "soname": "libnvcuvid.so.1"}],
    "graphics": [{"path": "/glx", "kind": "library", "soname": "libGLX_nvidia.so.0"}],
    "graphics32": [{"path": "/32/glx", "kind": "library32", "soname": "libGLX_nvidia.so.0"}],
    "compute32": [{"path": "/32/cuda", "kind": "library32", "soname": "libcuda.so.1"}],
    "display": [{"path": "/xorg/nvidia_drv.so", "kind": "data"}],
    "gds": [{"path": "/etc/cufile.json", "kind": "data"}],
    "mps": [{"path": "/run/nvidia-mps", "kind": "directory"}, {"path": "/mps-control", "kind": "binary"}],
}
FILE_CASES = [
    (["NVIDIA_DRIVER_CAPABILITIES=video"], ["/cuvid", LIBRARY["path"]]),
    (["NVIDIA_DRIVER_CAPABILITIES=display"], ["/xorg/nvidia_drv.so", "/glx"]),
    (["NVIDIA_DRIVER_CAPABILITIES=graphics,compat32"], ["/glx", "/32/glx"]),
    (["NVIDIA_DRIVER_CAPABILITIES=utility,compat32"], ["/ml"]),
    (["NVIDIA_DRIVER_CAPABILITIES=utility", "NVIDIA_GDS=enabled"], ["/ml", "/etc/cufile.json"]),
    (["NVIDIA_DRIVER_CAPABILITIES=utility", "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/"], ["/ml"]),
]
CAPABILITY_CASES = [
    ("utility", ["/lib/firmware/gsp.bin", NVML["path"], "/usr/bin/nvidia-smi"]),
    ("compute", ["/lib/firmware/gsp.bin", "/usr/lib/libcuda.so.5"]),
    ("graphics", ["/lib/firmware/gsp.bin"]),
]


def with_specs(directory: Path, **changes: Any) -> Any:
    """The host with CDI specs: devices vendor.com/net=a and nvidia.com/gpu=special."""
    for kind, name, env in (("vendor.com/net", "a", "NET=a"), ("nvidia.com/gpu", "special", DEVICES + "=void")):
        device = {"name": name, "containerEdits": {"env": [env], "deviceNodes": [{"path": "/dev/null"}]}}
        document = {"cdiVersion": "0.5.0", "kind": kind, "devices": [device]}
        (directory / f"{name}.json").write_text(json.dumps(document))
    inventory = snapshot(**changes)
    inventory["policy"]["cdi"]["spec-dirs"] = [str(directory)]
    return inventory


DEVICES = "NVIDIA_VISIBLE_DEVICES"
FOREIGN_ONLY = [
    {"process": {"env": [f"{DEVICES}=vendor.com/net=a"]}},
    {"process": {"env": [f"{DEVICES}=vendor.com/net=a", "NVIDIA_REQUIRE_CUDA=cuda>=99"]}},
    {"annotations": {"cdi.k8s.io/x": "vendor.com/net=a"}},
    {"annotations": {"cdi.k8s.io/x": "vendor.com/net=a"}, "process": {"env": [f"{DEVICES}=all"]}},
]
