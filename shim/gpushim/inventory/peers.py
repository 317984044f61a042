"""How near GPUs are to each other, and to which NUMA node each belongs: for whoever hands out several.

Nothing here fails a listing: a GPU that does not answer has no peers.
Out of scope: what follows from it (gpuplugin.devices.preferred).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from gpushim.inventory import procfs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpushim.ground.model import Gpu

NVLINKS = 36  # of a GPU at most (NVML_NVLINK_MAX_LINKS of nvml.h)
FURTHEST = 50  # NVML_TOPOLOGY_SYSTEM


def add_place(gpus: Sequence[Gpu], sys: str) -> None:
    """Fill in the members "numa" and "pci_class" of GPUs."""
    for gpu in gpus if sys else ():
        folder = f"{sys}/bus/pci/devices/{procfs.sysfs_name(gpu['pci'])}"
        with contextlib.suppress(OSError, ValueError), open(f"{folder}/numa_node", encoding="ascii") as file:
            gpu["numa"] = max(int(file.read(16)), -1)
        with contextlib.suppress(OSError, ValueError), open(f"{folder}/class", encoding="ascii") as file:
            gpu["pci_class"] = file.read(16).strip()


def add(nvml: Any, gpus: Sequence[Gpu], handles: Mapping[int, Any], known: set[str]) -> None:
    """Fill in the member "peers" of GPUs, through NVML.

    Args:
        nvml: a session.
        gpus: that answer.
        handles: NVML's, by index.
        known: PCI addresses of all GPUs, also of those that do not answer: what else a link leads to is a switch.
    """
    links = {gpu["index"]: _links(nvml, handles[gpu["index"]]) for gpu in gpus}
    switched = {index: sum(count for pci, count in ends.items() if pci not in known) for index, ends in links.items()}
    for gpu in gpus:
        one = gpu["index"]
        for peer in gpus:
            other = peer["index"]
            if other != one:  # links to switches lead to every GPU that has such links
                count = links[one][peer["pci"]] + min(switched[one], switched[other])
                gpu["peers"].append([other, _level(nvml, handles[one], handles[other]), count])


def _level(nvml: Any, one: Any, other: Any) -> int:
    """Return nvmlGpuTopologyLevel_t of two GPUs: 0 is one board, FURTHEST are two sockets."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        return int(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    return FURTHEST


def _links(nvml: Any, handle: Any) -> Counter[str]:
    """Count a GPU's NVLinks that are up, by the PCI address of what they lead to."""
    found: Counter[str] = Counter()
    for link in range(NVLINKS):
        # No such link, no NVLink at all, no such function in an old driver or old bindings, or a garbled answer.
        with contextlib.suppress(nvml.NVMLError, AttributeError, UnicodeDecodeError):
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                found[procfs.pci_address(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)] += 1
    return found
