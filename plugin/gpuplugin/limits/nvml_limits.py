"""Memory limits of a GPU that the kernel enforces: for a cgroup, whatever runs in it; drivers from r615 on.

A program of its own sets them, for NVML is never called in the plugin. They follow from what root's kubelet and
engine say of a container, never from what the container says. Out of scope: when they are set, and limits of MPS.

Source: nvmlDeviceSetMemoryLimits_v1 of NVML's reference: root alone, no MIG, a full path below /sys/fs/cgroup.
"""

from __future__ import annotations

import json
import os
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuplugin.health import nvml_child, nvml_lines
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuplugin.kubelet.podresources import Holder
    from gpuplugin.settings.resources import Device
    from gpushim.ground.model import Snapshot

CGROUPS = "/sys/fs/cgroup"
MIB = 1 << 20
SINCE = 615  # version of the driver
ALIVE = 3.0  # seconds between lines that say that it runs
_NONE = "the kernel enforces no limit of a GPU's memory here: that needs"


@dataclass(frozen=True)
class Limit:
    """What the processes of a cgroup may have of a GPU together: its UUID, the cgroup's path, and MiB."""

    gpu: str
    cgroup: str
    mib: int


def command(snapshot: Snapshot) -> list[str]:
    """Return the command line of the program that sets limits: it reads a JSON object a line, and answers each.

    {"can": whether, "why": not} comes first, then each {"gpu", "cgroup", "mib"} again with "error", "" if it is set;
    about itself it speaks as nvml_child.py does.

    Args:
        snapshot: of this host.
    """
    return nvml_child.program("gpuplugin.limits.nvml_limits", nvml_child.library(snapshot), CGROUPS)


def expected(
    rows: Iterable[Holder],
    devices: Mapping[tuple[str, str], Device],
    holders: Iterable[Mapping[str, Any]],
    cgroup: Callable[[int, str], str],
) -> dict[str, list[Limit]]:
    """List the limits of the containers that have parts of GPUs now, by NAMESPACE/POD/CONTAINER.

    A container counts if its engine, in a cgroup of kubelet's, has it by the names that kubelet has it by; those who
    may make a container there are root. Who is not known for sure is not in it.

    Args:
        rows: as podresources.holders lists them.
        devices: by resource and id.
        holders: as gpushim.containers.holders lists them.
        cgroup: `cgroup_of`.
    """
    places: dict[str, list[str]] = {}
    for one in holders:
        path = cgroup(one["pid"], one["id"])
        if path:
            places.setdefault(one["name"], []).append(path)
    parts: dict[str, list[Device]] = {}
    for row in rows:
        ids = [(row["resource"], name) for name in row["devices"]]
        parts.setdefault(container(row), []).extend(devices[one] for one in ids if one in devices)
    return {
        name: [Limit(gpu, places[name][0], mib) for gpu, mib in _together(held).items()]
        for name, held in parts.items()
        if len(places.get(name, ())) == 1
    }


def container(row: Holder) -> str:
    """Return the name by which engines have kubelet's containers."""
    return f"{row['namespace']}/{row['pod']}/{row['container']}"


def _together(devices: Iterable[Device]) -> dict[str, int]:
    """Add up what a container has of each GPU, MiB; a GPU of which it has a part without a limit is left out."""
    shares = [(one.uuid, one.share) for one in devices]
    endless = {uuid for uuid, share in shares if share is None or not share.memory}
    found: dict[str, int] = {}
    for uuid, share in shares:
        if share and share.memory and uuid not in endless:
            found[uuid] = found.get(uuid, 0) + share.memory
    return found


def cgroup_of(pid: int, name: str, proc: str = "/proc", mounted: str = CGROUPS) -> str:
    """Return the path of a container's cgroup, or "" if it is none of kubelet's, or of cgroup v1.

    Who has a cgroup of his own, as each user's systemd, may give those below it any name: root alone makes kubelet's.

    Args:
        pid: of a process of the container, which may have gone into a cgroup below its own.
        name: the id that the engine gave it, which is in the name of its cgroup.
        proc: where procfs is mounted.
        mounted: where cgroup v2 is mounted.
    """
    try:
        with open(f"{proc}/{pid}/cgroup") as file:
            line, *others = file.read().splitlines()
    except (OSError, ValueError):
        return ""
    parts = line.partition("0::/")[2].split("/")
    at = [place for place, part in enumerate(parts) if len(name) >= 12 and name in part]
    kubelets = any(part.startswith("kubepods") for part in parts)
    if others or not line.startswith("0::/") or ".." in parts or not at or not kubelets:
        return ""
    path = "/".join((mounted, *parts[: at[0] + 1]))
    folders = ["/".join((mounted, *parts[:number])) for number in range(at[0] + 1)]
    return path if os.path.isdir(path) and all(map(trust.ours, folders)) else ""


def unlikely(version: str) -> str:
    """Say, without asking NVML, why the kernel cannot enforce limits here; "" if it may.

    Args:
        version: of the driver, such as 615.10.
    """
    if not os.path.exists(f"{CGROUPS}/cgroup.controllers"):
        return f"{_NONE} cgroup v2"
    major = version.partition(".")[0]
    return f"{_NONE} driver {SINCE} or newer" if major.isdigit() and int(major) < SINCE else ""


def main(library: str, mounted: str) -> None:
    """Say whether limits can be set here, then set those that stdin tells, until it ends."""

    def serve(session: Any) -> None:
        why = _missing(session, mounted)
        nvml_lines.tell(can=not why, why=why)
        if not why:
            _serve(session)
        os.read(0, 1)  # whoever has heard that it cannot ends it
        raise EOFError

    nvml_child.run("limits", library, serve)


def _serve(session: Any) -> None:
    """Set what lines of stdin tell, until it ends."""
    rest = b""
    while True:
        if select.select([0], [], [], ALIVE)[0]:
            more = os.read(0, 1 << 16)
            if not more:
                return
            *lines, rest = (rest + more).split(b"\n")
            for row in map(json.loads, lines):
                nvml_lines.tell(asks=row["gpu"])
                nvml_lines.tell(**row, error=_set(session, Limit(row["gpu"], row["cgroup"], row["mib"])))
        nvml_lines.tell(alive=1)


def _missing(session: Any, mounted: str) -> str:
    """Say why the kernel cannot enforce limits here, or "": asking changes nothing."""
    if not os.path.exists(f"{mounted}/cgroup.controllers"):
        return f"{_NONE} cgroup v2"
    if not hasattr(session, "nvmlDeviceGetMemoryLimits_v1"):
        return f"{_NONE} a newer nvidia-ml-py"
    for index in range(session.nvmlDeviceGetCount()):
        handle = session.nvmlDeviceGetHandleByIndex(index)
        try:
            session.nvmlDeviceGetMemoryLimits_v1(handle, _limits(session, "Get", mounted))
        except session.NVMLError_FunctionNotFound:
            return f"{_NONE} driver {SINCE} or newer"
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
