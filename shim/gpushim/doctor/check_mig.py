"""The check of GPUs in MIG mode."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpushim.doctor import Finding, Host, ok, skipped, some, warning
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.oci import device_names, selection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Snapshot
    from gpushim.oci.device_names import Item

FIX = (
    "make instances (nvidia-smi mig -i {0} -cgi PROFILE -C; -lgip lists profiles) or switch the mode off "
    "(nvidia-smi -i {0} -mig 0), then gpushim refresh"
)


def instances(host: Host) -> Iterator[Finding]:
    """Check that GPUs in MIG mode have instances for containers."""
    snapshot, stale = ensure.last(host.config, host.state)
    if not snapshot or stale or snapshot["error"]:
        yield skipped("there is no current snapshot")
        return
    claims = _list_on_demand(host, snapshot)
    divided = [gpu["index"] for gpu in snapshot["gpus"] if gpu["mig"] and gpu["index"] not in claims]
    empty = [index for index in selection.usable(snapshot)[2] if index not in claims]
    for index in empty:
        yield warning(
            f"GPU {index} is in MIG mode and has no instance: all leaves it out, and where it is named CUDA finds "
            "nothing",
            FIX.format(next(gpu["uuid"] for gpu in snapshot["gpus"] if gpu["index"] == index)),
        )
    if len(divided) > len(empty):
        migs = some([f"{mig['gpu']}:{mig['index']}" for mig in snapshot["mig"]])
        parents = some([str(index) for index in divided if index not in empty])
        yield ok(f"all gives the MIG instances {migs}; where GPU {parents} is named, no instance comes with it")
    elif not empty:
        yield ok(f"no GPU is in MIG mode{', but for those of on-demand' * bool(claims)}")


def _list_on_demand(host: Host, snapshot: Snapshot) -> set[int]:
    """Return the indices of GPUs of which claims get instances that are made for them: before, they have none."""
    settings = host.settings["device-plugin"]
    items: list[Item] = []
    if "dra" in settings["fronts"]:
        with contextlib.suppress(GpushimError):  # which the DRA driver tells
            items = device_names.parse(settings["on-demand"], ()) or []
    return {device["index"] for item in items for device in selection.find(item, snapshot) if "gpu" not in device}
