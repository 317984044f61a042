"""Variables, mounts and annotations as they name devices: a request of sound form, or a refusal."""

from __future__ import annotations

import copy
from typing import Any

from fuzz.oracles import host, refused
from gpushim.decision import plan
from gpushim.ground.errors import GpushimError
from gpushim.oci import device_list, request
from gpushim.oci.authorization import FEATURES

# A line is a variable, or begins with # (destination of a mount of /dev/null), @ (annotation), ! (policy).
INVENTORY: Any = host()
INVENTORY["policy"]["cdi"]["spec-dirs"] = []
BUNDLE: Any = {"rootfs": "/b/rootfs", "userns": False, "hook": "/usr/bin/gpushim-hook"}
SWITCHES: tuple[str, ...] = (
    "accept-volume-mounts",
    "accept-env-when-unprivileged",
    "disable-require",
    "ignore-imex-channel-requests",
)
SWITCHES += ("accept-annotations-when-unprivileged", "list-devices-in-refusals")


def seeds() -> list[bytes]:
    """Return sets of lines."""
    lists = device_list.DEVICE_LIST
    texts = [
        "NVIDIA_VISIBLE_DEVICES=all\nNVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics",
        "CUDA_VERSION=12.1.1\nNVIDIA_DISABLE_REQUIRE=true",
        "NVIDIA_VISIBLE_DEVICES=0\nNVIDIA_REQUIRE_CUDA=cuda>=12.0\nNVIDIA_GDS=enabled\nNVIDIA_IMEX_CHANNELS=3,3",
        "!privileged\nNVIDIA_VISIBLE_DEVICES=2:0\nNVIDIA_MIG_CONFIG_DEVICES=all\nNVIDIA_MIG_MONITOR_DEVICES=all",
        f"#{lists}/0\n#{lists}/imex/3\n#{lists}/cdi/nvidia.com/gpu/1",
        f"NVIDIA_VISIBLE_DEVICES={lists}\n#{lists}/GPU-01111111\n!accept-volume-mounts",
        "@cdi.k8s.io/a=nvidia.com/gpu=0,vendor.com/x=1\n!accept-env-when-unprivileged",
        "DOCKER_RESOURCE_GPU=0\n!swarm\n!ignore-imex-channel-requests\nCUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps",
    ]
    return [text.encode() for text in texts]


def one(data: bytes) -> None:
    """Read a container's request and plan for it."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    policy = copy.deepcopy(INVENTORY["policy"])
    for name in SWITCHES:
        policy["requests"][name] ^= f"!{name}" in lines
    policy["requests"]["swarm-variables"] = ["DOCKER_RESOURCE_GPU"] if "!swarm" in lines else []
    ignored: list[str] = []
    try:
        wanted = request.read(_spec(lines), policy, ignored)
        if wanted is not None:
            _sound(wanted)
            plan.plan(wanted, INVENTORY, BUNDLE)
    except GpushimError as error:
        refused(error)
    assert all(sentence.isprintable() for sentence in ignored)


def _spec(lines: list[str]) -> dict[str, Any]:
    rest = [line for line in lines if line[:1] not in "#@!"]
    notes = dict(line[1:].partition("=")[::2] for line in lines if line.startswith("@"))
    mounts = [{"source": "/dev/null", "destination": line[1:]} for line in lines if line.startswith("#")]
    capabilities = {"bounding": ["CAP_SYS_ADMIN"] if "!privileged" in lines else []}
    return {"process": {"env": rest, "capabilities": capabilities}, "annotations": notes, "mounts": mounts}


def _sound(wanted: request.Request) -> None:
    assert wanted.source
    assert len({item[:2] for item in wanted.devices}) == len(wanted.devices)
    assert [word for word in request.CAPABILITIES if word in wanted.capabilities] == wanted.capabilities
    assert [word for word in FEATURES if word in wanted.features] == wanted.features
    assert len(set(wanted.imex)) == len(wanted.imex)
    assert all(0 <= channel <= request.LAST_CHANNEL for channel in wanted.imex)
    assert wanted.privileged or not (wanted.mig_config or wanted.mig_monitor)
