"""How much memory of its GPUs a container may use, and uses: as its cgroup has it, whoever set the limit.

The kernel keeps limits in the cgroup's files where it has the controller dmem, else the driver does, which a child
asks by NVML. A limit holds for the cgroups below as well: of several the smallest counts, and what is used of it.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushim.decision import memory
from gpushim.decision.memory import CGROUPS
from gpushim.engines.processes import ask
from gpushim.ground import system
from gpushim.inventory import nvml_program, procfs
from gpushim.paths.mountinfo import read_proc

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gpushim.ground.model import Snapshot

    Question = tuple[str, str]  # a GPU's PCI address, and a cgroup's directory

DEPTH = 32  # cgroups above one another, from the root on: a container may have any number below its own
SIZE = 1 << 16  # bytes of a file, which has a line for each GPU
SECONDS = 5.0  # for a child that opens NVML


class Use(NamedTuple):
    """Bytes that are used, and may be; None: as many as there are."""

    used: int
    limit: int | None


def cgroup(process: str) -> str:
    """Return the path of a process's cgroup of version 2; "" if it has none, or none that is seen here."""
    try:
        lines = read_proc(f"{process}/cgroup", SIZE).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    path = next((line[3:] for line in lines if line.startswith("0::/")), "")
    return "" if path.startswith("/../") else path


def add(rows: Sequence[dict[str, Any]], inventory: Snapshot) -> list[str]:
    """Add to each row of holders.holders what it may use of its whole GPUs, as "memory".

    Each gets [{"device", "used", "limit"}] of the GPUs of which that is known: bytes, "limit" None if there is none.

    Returns:
        sentences about what is not known.
    """
    pcis = {str(gpu["index"]): gpu["pci"] for gpu in inventory["gpus"]}
    folders = {row["cgroup"]: _folders(row["cgroup"]) for row in rows}
    uses, problem = look(
        {
            (pcis[device], folder)
            for row in rows
            for device in row["devices"]
            for folder in folders[row["cgroup"]]
            if device in pcis
        },
        inventory,
    )
    for row in rows:
        smallest_uses = {
            device: smallest([uses.get((pcis.get(device, ""), folder)) for folder in folders[row["cgroup"]]])
            for device in row["devices"]
        }
        row["memory"] = [{"device": device, **use._asdict()} for device, use in smallest_uses.items() if use]
    return [f"limits of GPU memory are not known: {problem}"] if problem else []


def look(questions: Collection[Question], inventory: Snapshot, top: str = "") -> tuple[dict[Question, Use], str]:
    """Return what is used of GPUs in cgroups, as far as that is known, and why the driver does not tell it, or "".

    Cgroups are mounted at `top`, by default CGROUPS.
    """
    regions = {pci: f"nvidia/{procfs.sysfs_name(pci)}/vidmem" for pci, _ in questions}
    kernel = _by_region("dmem.capacity", top or CGROUPS)
    files = {folder: _read_kernel(folder) for _, folder in questions} if kernel else {}
    uses = {(pci, folder): use for pci, folder in questions if (use := files.get(folder, {}).get(regions[pci]))}
    unlisted = sorted((pci, folder) for pci, folder in questions if regions[pci] not in kernel)
    if not unlisted or memory.missing_here(inventory):
        return uses, ""
    answers, problem = _ask_nvml(unlisted, inventory)
    return {**uses, **answers}, problem


def smallest(uses: Sequence[Use | None]) -> Use | None:
    """Return the use that counts, of those of a cgroup and of all above it, the cgroup itself last."""
    limited = [use for use in uses if use and use.limit is not None]
    return min(limited, key=lambda use: use.limit or 0, default=uses[-1] if uses else None)


def _folders(path: str) -> list[str]:
    """Return the directories of the cgroups above one, but for the root, and its own."""
    names = path.split("/")[1:][:DEPTH]
    return [f"{CGROUPS}/{'/'.join(names[:number])}" for number in range(1, len(names) + 1)] if path != "/" else []


def _read_kernel(folder: str) -> dict[str, Use]:
    """Return what the kernel has of a cgroup, by region; {} where dmem is not enabled for it."""
    limits, used = _by_region("dmem.max", folder), _by_region("dmem.current", folder)
    return {region: Use(size, limits.get(region)) for region, size in used.items() if size is not None}


def _by_region(name: str, folder: str) -> dict[str, int | None]:
    """Return the bytes in a file of dmem's, by region; None for "max"."""
    lines = [line.split() for line in (system.text(f"{folder}/{name}", SIZE) or "").splitlines()]
    return {line[0]: int(line[1]) if line[1].isdecimal() else None for line in lines if len(line) == 2}


def _ask_nvml(questions: Sequence[Question], inventory: Snapshot) -> tuple[dict[Question, Use], str]:
    """Return what the driver has of cgroups, and why that is not known, or ""."""
    words = nvml_program.program("gpushim.containers.memory_use", nvml_program.library(inventory))
    answer = ask.program(words, SECONDS, json.dumps(questions).encode())
    if answer.code is None:
        return {}, f"NVML has not answered for {SECONDS:g} s"
    try:
        document = json.loads(answer.out)
        return {question: Use(*use) for question, use in zip(questions, document["uses"]) if use}, document["error"]
    except (ValueError, KeyError, TypeError):
        return {}, f"NVML ended without an answer ({answer.last})"


def main(library: str) -> None:
    """Answer questions on stdin by NVML: print {"uses": [[used, limit] or null, for each], "error": ""}."""
    from gpushim.inventory import nvml  # in the child alone

    uses, error = [], ""
    try:
        with nvml.session(library, lambda what: None) as session:
            uses = [_use(session, pci, folder) for pci, folder in json.load(sys.stdin)]
    except (nvml.UnusableError, AttributeError) as problem:  # the latter where nvidia-ml-py is too old
        error = str(problem)
    json.dump({"uses": uses, "error": error}, sys.stdout)


def _use(session: Any, pci: str, folder: str) -> Use | None:
    try:
        handle = session.nvmlDeviceGetHandleByPciBusId(pci.encode())
        answer = session.c_nvmlGetMemoryLimits_v1_t()
        answer.nameSpace = folder.encode()
        session.nvmlDeviceGetMemoryLimits_v1(handle, answer)
    except session.NVMLError_NoPermission:
        raise
    except session.NVMLError:  # the cgroup or the GPU has gone, or is divided
        return None
    endless = answer.hardLimit == session.NVML_DEVICE_MEMORY_LIMIT_MAX
    return Use(answer.currentUsed, None if endless else answer.hardLimit)
