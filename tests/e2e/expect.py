"""What a container must see of the simulated host, in terms of probe.py's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakehost import Host

PROBE = Path(__file__).with_name("probe.py")
INSIDE = "/probe.py"
# With the capabilities compute and utility, which is what a container gets that names none.
CONTROL_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
MODESET_NODE = "/dev/nvidia-modeset"  # which all capabilities bring
GPU_MAJOR = 195
# Says to whom the files belong that the hook makes in an image.
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
OWNERS = ("stat", "--format=%u", "/etc/ld.so.cache", "/etc/ld.so.conf.d/zz-gpushim.conf", f"{LIBRARIES}/libcuda.so.1")


def probe(host: Host, indices: list[int]) -> list[str]:
    """Return the command that runs the probe and tries every GPU that is not among the indices."""
    others = [gpu for gpu in host.gpus if gpu.index not in indices]
    return ["python3", INSIDE, *(f"{GPU_MAJOR}:{gpu.minor}" for gpu in others)]


def sees_by_cdi(output: str, host: Host, indices: list[int]) -> None:
    """Assert that a container has these GPUs from our CDI spec, just as the shim gives them with all capabilities.

    Args:
        output: what the command of `probe` printed.
        host: the simulated host.
        indices: NVML indices of the GPUs that were asked for, in ascending order.
    """
    report: dict[str, Any] = json.loads(output)
    assert report["nodes"].pop(MODESET_NODE) == "ENXIO"
    sees_exactly(json.dumps(report), host, indices)


def sees_exactly(output: str, host: Host, indices: list[int]) -> None:
    """Assert that a container has these GPUs of the host, whole, and no way to any other.

    Args:
        output: what the command of `probe` printed.
        host: the simulated host.
        indices: NVML indices of the GPUs that were asked for, in ascending order.
    """
    report: dict[str, Any] = json.loads(output)
    given = [host.gpus[index] for index in indices]
    others = [gpu for gpu in host.gpus if gpu.index not in indices]
    nodes = sorted([*CONTROL_NODES, *(f"/dev/nvidia{gpu.minor}" for gpu in given)])
    # No driver stands behind the nodes: ENXIO is an open that the device rules let through.
    assert report["nodes"] == dict.fromkeys(nodes, "ENXIO")
    assert report["made"] == {f"{GPU_MAJOR}:{gpu.minor}": "EPERM" for gpu in others}
    assert set(report["libraries"].values()) == {"loads"}, report["libraries"]
    assert sorted(report["uuids"]) == sorted(gpu.uuid for gpu in given)
    said = report["nvidia-smi"]
    assert [gpu.uuid for gpu in host.gpus if gpu.uuid in said] == [gpu.uuid for gpu in given], said
    assert "libcuda.so.1 " in report["ldconfig"]


def sees_in_a_user_namespace(output: str, host: Host, indices: list[int]) -> None:
    """Assert the same of a container in which nobody may make nodes, or try to.

    Args:
        output: what the probe printed that had nothing to try.
        host: the simulated host.
        indices: NVML indices of the GPUs that were asked for, in ascending order.
    """
    report: dict[str, Any] = json.loads(output)
    report["nodes"].pop(MODESET_NODE, None)  # a CDI spec brings it
    _, _, *others = probe(host, indices)
    sees_exactly(json.dumps({**report, "made": dict.fromkeys(others, "EPERM")}), host, indices)


def sees_nothing(output: str) -> None:
    """Assert that a container has nothing of the host's GPUs, not even by making their nodes."""
    report: dict[str, Any] = json.loads(output)
    assert report["nodes"] == {}
    assert set(report["made"].values()) == {"EPERM"}
    assert "loads" not in report["libraries"].values()
    assert "libcuda" not in report["ldconfig"]


def refuses(message: str, host: Host, item: str) -> None:
    """Assert that an engine's user reads which item is unknown and what the host has instead."""
    assert f'"{item}"' in message or f"'{item}'" in message or f" {item}" in message, message
    for gpu in host.gpus:
        assert gpu.uuid in message, message
    assert "Traceback" not in message


def refused_in_log(env: dict[str, str]) -> str:
    """Return the sentence of a refusal that is the last line of gpushim's log."""
    *_, last = Path(env["GPUSHIM_CONFIG"]).with_name("gpushim.log").read_text().splitlines()
    line = json.loads(last)
    assert line["level"] == "error", line
    return str(line["msg"])
