"""Memory limits of a GPU that the kernel enforces: for a cgroup, whatever runs in it; drivers from r615 on.

A program of its own sets them, for NVML is never called in the plugin. They follow from what root's kubelet and
engine say of a container, never from what the container says. Out of scope: when they are set, and limits of MPS.

Source: nvmlDeviceSetMemoryLimits_v1 of NVML's reference: root alone, no MIG, a full path below /sys/fs/cgroup.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpushim import stamp
from gpushim.inventory import files, nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuplugin.resources import Device
    from gpushim.model import Snapshot

CGROUPS = "/sys/fs/cgroup"
MIB = 1 << 20
LINE_LIMIT = 8192  # bytes of a line on stdin
_PROGRAM = "import sys; sys.path[:] = sys.argv[1].split(':'); from gpuplugin.limits import main; main(*sys.argv[2:])"


@dataclass(frozen=True)
class Limit:
    """What the processes of a cgroup may have of a GPU together: its UUID, the cgroup's path, and MiB."""

    gpu: str
    cgroup: str
    mib: int


def command(snapshot: Snapshot) -> list[str]:
    """Return the command line of the program that sets limits: it reads a JSON object a line, and answers each so.

    Args:
        snapshot: of this host.
    """
    driver = snapshot["driver"]
    places = ":".join(path for path in sys.path if path.startswith("/"))
    python = sys.executable or "/usr/bin/python3"
    return [python, "-ISB", "-c", _PROGRAM, places, driver["root"], driver["version"]]


def wanted(
    pods: Iterable[Mapping[str, Any]],
    devices: Mapping[str, Device],
    holders: Iterable[Mapping[str, Any]],
    cgroup: Callable[[int, str], str],
) -> list[Limit]:
    """List the limits of the containers that have parts of GPUs now.

    A container counts if its engine, in a cgroup of kubelet's, has it by the names that kubelet has it by; those who
    may make a container there are root.

    Args:
        pods: as kubelet's pod-resources lists them.
        devices: by the ids that kubelet has.
        holders: as gpushim.holders lists them.
        cgroup: `cgroup_of`.
    """
    places: dict[str, list[str]] = {}
    for one in holders:
        path = cgroup(one["pid"], one["id"])
        if path:
            places.setdefault(one["name"], []).append(path)
    found = []
    for pod in pods:
        for box in pod["containers"]:
            paths = places.get(f"{pod['namespace']}/{pod['name']}/{box['name']}", [])
            for gpu, mib in _parts(box, devices).items() if len(paths) == 1 else ():
                found.append(Limit(gpu, paths[0], mib))
    return found


def _parts(box: Mapping[str, Any], devices: Mapping[str, Device]) -> dict[str, int]:
    """Add up what a container has of each GPU, MiB; a GPU of which it has a part without a limit is left out."""
    ids = [name for row in box["devices"] for name in row["device_ids"] if name in devices]
    shares = [(devices[name].uuid, devices[name].share) for name in ids]
    endless = {uuid for uuid, share in shares if share is None or not share.memory}
    found: dict[str, int] = {}
    for uuid, share in shares:
        if share and share.memory and uuid not in endless:
            found[uuid] = found.get(uuid, 0) + share.memory
    return found


def cgroup_of(pid: int, container: str, proc: str = "/proc", mounted: str = CGROUPS) -> str:
    """Return the path of a container's cgroup, or "" if it is none of kubelet's, or of cgroup v1.

    Who has a cgroup of his own, as each user's systemd, may give those below it any name: root alone makes kubelet's.

    Args:
        pid: of a process of the container, which may have gone into a cgroup below its own.
        container: the id that the engine gave it, which is in the name of its cgroup.
        proc: where procfs is mounted.
        mounted: where cgroup v2 is mounted.
    """
    try:
        with open(f"{proc}/{pid}/cgroup") as file:
            line, *others = file.read().splitlines()
    except (OSError, ValueError):
        return ""
    parts = line.partition("0::/")[2].split("/")
    at = [place for place, part in enumerate(parts) if len(container) >= 12 and container in part]
    kubelets = any(part.startswith("kubepods") for part in parts)
    if others or not line.startswith("0::/") or ".." in parts or not at or not kubelets:
        return ""
    path = "/".join((mounted, *parts[: at[0] + 1]))
    folders = ["/".join((mounted, *parts[:number])) for number in range(at[0] + 1)]
    return path if os.path.isdir(path) and all(map(stamp.ours, folders)) else ""


def main(root: str, version: str, mounted: str = CGROUPS) -> None:
    """Say whether limits can be set here, then set those that stdin tells, until it ends."""
    path = files.library(root, "libnvidia-ml.so", version)
    try:
        with nvml.session(files.inside(root, path) if path else "libnvidia-ml.so.1", lambda what: None) as session:
            why = _missing(session, mounted)
            tell(can=not why, why=why)
            while not why and (line := sys.stdin.readline(LINE_LIMIT)):
                row = json.loads(line)
                limit = Limit(str(row["gpu"]), str(row["cgroup"]), int(row["mib"]))
                tell(**row, error=_set(session, limit))
    except nvml.UnusableError as error:
        tell(can=False, why=str(error))


def tell(**line: Any) -> None:
    """Print a line."""
    os.write(1, json.dumps(line).encode() + b"\n")


def _missing(session: Any, mounted: str) -> str:
    """Say why the kernel cannot enforce limits here, or "": asking changes nothing."""
    if not os.path.exists(f"{mounted}/cgroup.controllers"):
        return "the kernel enforces no limit of a GPU's memory here: that needs cgroup v2"
    if not hasattr(session, "nvmlDeviceGetMemoryLimits_v1"):
        return "the kernel enforces no limit of a GPU's memory here: Python's nvidia-ml-py is older than that"
    for index in range(session.nvmlDeviceGetCount()):
        handle = session.nvmlDeviceGetHandleByIndex(index)
        try:
            session.nvmlDeviceGetMemoryLimits_v1(handle, _limits(session, "Get", mounted))
        except session.NVMLError_FunctionNotFound:
            return "the kernel enforces no limit of a GPU's memory here: that needs driver 615 or newer"
        except session.NVMLError:  # of this GPU: it is in MIG mode, or has another reason that setting one tells
            continue
    return ""


def _set(session: Any, limit: Limit) -> str:
    try:
        handle = session.nvmlDeviceGetHandleByUUID(limit.gpu.encode())
        limits = _limits(session, "Set", limit.cgroup)
        # Nothing is promised: the soft limit is memory that others cannot have.
        limits.softLimit, limits.hardLimit = 0, limit.mib * MIB
        session.nvmlDeviceSetMemoryLimits_v1(handle, limits)
    except session.NVMLError as error:
        return str(error)
    return ""


def _limits(session: Any, verb: str, cgroup: str) -> Any:
    found = getattr(session, f"c_nvml{verb}MemoryLimits_v1_t")()
    found.nameSpace = cgroup.encode()
    return found
