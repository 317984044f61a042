"""What GPUs are cut into and given out in parts, as all who know of it have it: whether they agree.

Those are NVML, the slices that the scheduler reads, CDI specs, the record, MPS's directories, kubelet and claims.
Out of scope: what containers reach (reach.py), and what changes all that (test_dra_cut_walk.py).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from e2e import claims
from e2e.kube import CLAIMS
from e2e.packaged import Packaged
from e2e.plane import Cluster
from fakehost import Host
from gpuplugin.dra.partitions import name_partition

RECORD = """
import json
from gpuplugin.record.allocations_file import AllocationsFile
print(json.dumps(AllocationsFile().read()))
"""
# As nvidia-smi mig; the arguments: NVML's library, and what it is to do.
HAND = """
import sys
from gpuplugin.dra import partition_child
partition_child.main(*sys.argv[1:])
"""


def published(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return devices of a complete pool by name; nothing if it is not complete."""
    specs = [row["spec"] for row in claims.slices(cluster)]
    if {spec["pool"]["resourceSliceCount"] for spec in specs} != {len(specs)}:
        return {}
    if len({spec["pool"]["generation"] for spec in specs}) != 1:
        return {}
    return {device["name"]: device for spec in specs for device in spec.get("devices", ())}


def slices_of(device: dict[str, Any]) -> set[str]:
    """Return the memory slices that a partition has."""
    counters = [name for row in device.get("consumesCounters", ()) for name in row["counters"]]
    return {name for name in counters if name.startswith("memory-slice")}


class Cuts:
    """What is cut of a node's GPUs, and given out.

    Args:
        node: the package's programs there.
        host: the node's.
        on_demand: indices of the GPUs that are cut on demand, of which nothing is made yet.
    """

    def __init__(self, node: Packaged, host: Host, on_demand: Collection[int]) -> None:
        self.node, self.host, self.on_demand = node, host, on_demand
        self.uuids = [gpu.uuid for gpu in host.gpus]
        self.hand: dict[str, str] = {}  # instances made by hand: GPU's UUID, by the name of what they are in place of
        self.sizes = {name: size for name, row in published(node.cluster).items() if (size := slices_of(row))}

    def by_nvml(self, *requests: list[str]) -> list[dict[str, Any]]:
        """Have NVML do something on the node."""
        text = self.node.python(HAND, self.host.nvml, json.dumps(requests))
        return [json.loads(line) for line in text.splitlines()]

    def instances(self) -> dict[str, str]:
        """Return UUIDs of instances on GPUs that are cut on demand, "" of what is half-made, by partitions' names."""
        self.host.adopt()
        found = {}
        for gpu in (self.host.gpus[index] for index in self.on_demand):
            of_instance = {mig.gi: mig for mig in gpu.mig}
            for instance in gpu.instances:
                start = int(instance.placement.partition(":")[0])
                mig = of_instance.get(instance.gi)
                profile = mig.profile if mig else f"half-made-{instance.profile}"
                found[name_partition(gpu.uuid.lower(), profile, start)] = mig.uuid if mig else ""
        return found

    def differences(self, names: Collection[str], lost: str) -> dict[str, list[list[str]]]:
        """Return what is so alone and what is to be alone, by what they are about; nothing where all agree.

        Args:
            names: of the pods and claims that there are to be.
            lost: UUID of the GPU of which NVML tells nothing, or "none".
        """
        record = json.loads(self.node.python(RECORD)) or {"claims": {}}
        rows, instances, results = record["claims"], self.instances(), self.allocated(names)
        partitions = {device["device"] for row in rows.values() for device in row["devices"]} & self.sizes.keys()
        groups = {group["group"] for row in rows.values() for group in row["sharing"]}
        folders = self.node.cluster.run("ls /run/gpushim/mps 2>/dev/null", check=False).split()
        files = self.node.cluster.run("cd /var/run/cdi; ls gpushim-claim-* 2>/dev/null", check=False).split()
        specs = {file.removeprefix("gpushim-claim-").removesuffix(".json") for file in files}
        away = {uid for uid, row in rows.items() if lost in {device["gpu"] for device in row["devices"]}}
        migs = {mig.uuid for gpu in self.host.gpus for mig in gpu.mig}
        uuids = {uuid.lower(): uuid for uuid in (*self.uuids, *migs)} | instances
        pairs = {
            "record": (given(rows, lost), {f"{name} {row['device']} {row.get('shareID')}" for name, row in results}),
            "pods": (self.held(names), {f"{name} {uuids.get(row['device'])}" for name, row in results}),
            "instances": ({*instances}, partitions | self.hand.keys()),
            "slices": (self.but(lost, published(self.node.cluster)), self.but(lost, self.wanted(migs, instances))),
            "CDI": (self.but(lost, self.in_spec()), self.but(lost, migs)),
            # Of a lost GPU's no daemon serves.
            "specs of claims": (specs - away, {uid for uid, row in rows.items() if told(row)} - away),
            "groups": ({*folders} - {"gpu.mps"}, groups),
        }
        return {what: [sorted(now - then), sorted(then - now)] for what, (now, then) in pairs.items() if now != then}

    def allocated(self, names: Collection[str]) -> list[tuple[str, dict[str, Any]]]:
        """Return what the scheduler has given to claims, each with the claim's name."""
        return [
            (claim["metadata"]["name"], result)
            for claim in self.node.cluster.get("resourceclaims")["items"]
            if claim["metadata"]["name"] in names
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        ]

    def held(self, names: Collection[str]) -> set[str]:
        """Return what kubelet says that pods have."""
        everybody = self.node.cluster.node.everybody()
        return {f"{name} {uuid}" for name in names for uuid in everybody.get(name, {}).get(CLAIMS, ())}

    def wanted(self, migs: Collection[str], instances: dict[str, str]) -> set[str]:
        """Return the names of devices that are to be published.

        Args:
            migs: UUIDs of all instances.
            instances: as `instances` returns them.
        """
        free = {name for name in self.sizes if not any(self.touch(name, other) for other in self.hand)}
        whole = [gpu.uuid for gpu in self.host.gpus if not (gpu.mig_mode and gpu.mig_mode[0])]
        made = {*instances.values()} - {instances.get(name) for name in self.hand}
        return free | {uuid.lower() for uuid in (*whole, *({*migs} - made))}

    def touch(self, name: str, other: str) -> bool:
        """Return whether two partitions exclude each other by where they are."""
        return self.of(name) == self.of(other) and bool(self.sizes[name] & self.sizes[other])

    def in_spec(self) -> set[str]:
        """Return the UUIDs of instances in the node's CDI spec."""
        text = self.node.cluster.run("cat /var/run/cdi/nvidia.com-gpu.json 2>/dev/null", check=False)
        names = {str(row["name"]) for row in json.loads(text or "{}").get("devices", ())}
        return {name for name in names if name.startswith("MIG-") and ":" not in name}

    def but(self, lost: str, names: Iterable[str]) -> set[str]:
        """Return names but those of devices of a GPU."""
        return {name for name in names if self.of(name.lower()) != lost}

    def of(self, name: str) -> str:
        """Return the UUID of the GPU that a device's name is of, "" if there is none."""
        found = {mig.uuid.lower(): gpu.uuid for gpu in self.host.gpus for mig in gpu.mig}
        return found.get(name) or next((uuid for uuid in self.uuids if uuid[4:] in name), "")


def given(rows: dict[str, dict[str, Any]], lost: str) -> set[str]:
    """Return what the record says that claims have; what they had of a lost GPU ends when that is found."""
    return {
        f"{row['name']} {device['device']} {device.get('share', {}).get('id')}"
        for row in rows.values()
        for device in row["devices"]
        if row["state"] != "lost" or device["gpu"] != lost
    }


def told(row: dict[str, Any]) -> bool:
    """Return whether containers of a claim of the record are told something by a CDI spec of its own."""
    shares = [device.get("share") or {} for device in row["devices"]]
    return bool(row["sharing"]) or any(share.get("limited") or share.get("group") for share in shares)
