"""`gpushim list`: the GPUs and MIG instances of this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpushim.cli import show
from gpushim.ground.errors import GpushimError
from gpushim.inventory import modules, present, procfs

if TYPE_CHECKING:
    from gpushim.ground.model import Gpu, Snapshot

COLUMNS = ("INDEX", "MODEL", "UUID", "BUS ID", "MINOR", "NODES", "NUMA", "PROBLEM", "NVML")


@click.command()
@show.format_option("table", "json", "csv")
def list_gpus(form: str) -> None:
    """List this host's GPUs and MIG instances, as containers may ask for them.

    INDEX and UUID are what NVIDIA_VISIBLE_DEVICES takes; NUMA is the node that the GPU is nearest to, as sysfs says.
    NVML, which a table has where it differs, is the index that the GPU has in nvidia-smi now.
    """
    inventory = present.snapshot()
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])
    for note in inventory["notes"]:
        show.say(f"note: {note}", error=True)
    sys = modules.sys_dir(inventory["driver"]["root"])
    gpus = [_gpu(gpu, inventory, sys) for gpu in inventory["gpus"]]
    columns: tuple[str, ...] = COLUMNS
    rows = [row for gpu in gpus for row in _rows(gpu)]
    if form == "table" and all(gpu["nvml"] in (gpu["index"], None) for gpu in gpus):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    if not rows and form == "table":
        show.say("this host has no GPU")
        return
    show.emit(form, gpus, columns, rows)


def _gpu(gpu: Gpu, inventory: Snapshot, sys: str) -> dict[str, Any]:
    names = ("index", "nvml", "model", "uuid", "pci", "minor", "node", "drm", "memory", "problem")
    migs = [mig for mig in inventory["mig"] if mig["gpu"] == gpu["index"]]
    members = dict(gpu)
    row = {name: members[name] for name in names}
    row["nvml"] = None if gpu["nvml"] < 0 else gpu["nvml"]
    return {**row, "numa": _numa(sys, gpu["pci"]), "mig_mode": gpu["mig"], "mig": migs}


def _numa(sys: str, pci: str) -> int | None:
    """Read the NUMA node of a PCI device; -1 in sysfs means that there is none (Documentation/ABI, sysfs-bus-pci)."""
    try:
        with open(f"{sys}/bus/pci/devices/{procfs.sysfs_name(pci)}/numa_node", encoding="ascii") as file:
            node = int(file.read(16))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _rows(gpu: dict[str, Any]) -> list[list[object]]:
    model = f"{gpu['model']} (MIG)" if gpu["mig_mode"] else gpu["model"]
    nodes = " ".join([gpu["node"], *gpu["drm"]])
    rows = [[gpu["index"], model, gpu["uuid"], gpu["pci"], gpu["minor"], nodes, gpu["numa"], gpu["problem"]]]
    rows[0].append(gpu["nvml"])
    for mig in gpu["mig"]:
        name, caps = f"{gpu['index']}:{mig['index']}", " ".join(mig["nodes"])
        rows.append([name, f"MIG {mig['profile']}", mig["uuid"], gpu["pci"], None, caps, gpu["numa"], None, None])
    return rows
