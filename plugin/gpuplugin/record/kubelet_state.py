"""What kubelet has at one moment: by its list (pod-resources), its checkpoint of devices and its file of claims.

The list names pods, without the devices of init containers, and of a kubelet that has just started without pods of
the API server. The checkpoint has uids, and for a while what ended pods had: kubelet writes it at each Allocate and
at each list that a plugin sends, without those as soon as it was asked for its list (UpdateAllocatedDevices in its
devicemanager). Both files can be read while kubelet is away.
Out of scope: their form (gpushim.containers.kubelet), what follows (transitions.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpuplugin.devices.changes import UNTOLD, is_instance
from gpuplugin.record.record_form import CONFIRMED
from gpuplugin.settings.sharing import MPS, TIME_SLICING
from gpushim.containers import kubelet
from gpushim.ground import system
from gpushim.ground.errors import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gpuplugin.devices.changes import Units
    from gpuplugin.kubelet.podresources import Listed
    from gpuplugin.record.record_form import Claim, ClaimDevice, ClaimShare
    from gpushim.containers.kubelet import Given
    from gpushim.ground.model import Snapshot

TICK = 0.01  # seconds by which a file's time may be behind: the kernel's clock for these moves in steps
PIPES = "variable CUDA_MPS_PIPE_DIRECTORY="  # of the answer to a container of an MPS daemon alone


class KubeletState(NamedTuple):
    """What kubelet has.

    Attributes:
        clock: seconds since boot at which it was asked.
        holders: "pod NAMESPACE/NAME" by resource and id; None if it does not answer.
        runs: it listens for plugins.
        is_new: the record does not have it yet.
        is_young: it is away, or was not seen to run for long, and may not list all pods.
        lists_all: it has answered, and no pod of the API server's is missing.
        checkpoint: its entries, by "RESOURCE ID"; None if it cannot be read.
        written: when the checkpoint was written, in seconds since boot; off by what the clock was set by since.
        damage: why a file that is there says nothing, a clause, or "".
        is_stale: no device plugin of gpushim's runs, which makes kubelet write its checkpoint anew.
        claims: of all drivers, as listed and as in the file.
        claim_uids: of the file; None where it is not seen, as in a pod.
        snapshot: of the host's inventory, by which claims of others are understood; None while there is none.
        pods: all that it lists, also those that have nothing.
    """

    clock: float
    holders: Mapping[str, Mapping[str, str]] | None = None
    runs: bool = False
    is_new: bool = False
    is_young: bool = False
    lists_all: bool = False
    checkpoint: Mapping[str, Given] | None = None
    written: float = 0.0
    damage: str = ""
    is_stale: bool = False
    claims: Collection[kubelet.Claim] = ()
    claim_uids: Collection[str] | None = None
    snapshot: Snapshot | None = None
    pods: frozenset[str] = frozenset()

    @property
    def answers(self) -> bool:
        """Whether it lists pods, and has run long enough to list all but those that its checkpoint has."""
        return self.holders is not None and not self.is_young

    @property
    def tells_all(self) -> bool:
        """Whether nobody has anything but what is told here."""
        return self.answers and not self.damage

    def find_pod(self, resource: str, name: str) -> str:
        """Return the pod that is listed with a device, "" if none is."""
        return (self.holders or {}).get(resource, {}).get(name, "")

    def find_uid(self, key: str) -> str:
        """Return the uid of the pod that has a device by the checkpoint, "" if none has."""
        grant = (self.checkpoint or {}).get(key)
        return grant.uid if grant else ""

    def find_share(self, key: str) -> tuple[str, str]:
        """Return kind and group of the share of which a device was given, as far as the answer tells."""
        grant = (self.checkpoint or {}).get(key)
        if grant is None or "::" not in key.partition(" ")[2]:  # one replica of a GPU has no number
            return UNTOLD, ""
        groups = [variable.rpartition("/")[0].rpartition("/")[2] for variable in grant.answer if PIPES in variable]
        return (MPS, groups[0]) if groups else (TIME_SLICING if grant.answer else UNTOLD, "")

    def list_devices(self) -> dict[str, tuple[str, str]]:
        """Return pods and uids, each "" if not known, by resource and id with a blank between them."""
        devices = {key: ("", grant.uid) for key, grant in (self.checkpoint or {}).items()}
        for resource, row in (self.holders or {}).items():
            for name, pod in row.items():
                key = f"{resource} {name}"
                devices[key] = pod, devices[key][1] if key in devices else ""
        return devices

    def has_claim(self, uid: str, claim: Claim) -> bool:
        """Return whether a claim is listed, or in the file."""
        if uid in (self.claim_uids or ()):
            return True
        names = {device["device"] for device in claim["devices"]}
        owner = claim["driver"], claim["namespace"], claim["name"]
        return any(
            (entry.driver, entry.namespace, entry.name) == owner and entry.device in names and entry.uid in ("", uid)
            for entry in self.claims
        )

    def unrecorded_claims(self, recorded: Mapping[str, Claim], units: Units) -> dict[str, Claim]:
        """Return claims that have, or may have, devices of this host that are not recorded, as a record has them.

        Names come again: one that is recorded by its name, and whose pods hang, keeps its devices beside these.
        """
        if self.snapshot is None or not self.claims:
            return {}
        names = {
            (claim["driver"], claim["namespace"], claim["name"], device["device"])
            for claim in recorded.values()
            for device in claim["devices"]
        }
        devices: dict[str, dict[str, ClaimDevice]] = defaultdict(dict)
        pods: dict[str, set[str]] = defaultdict(set)
        claims: dict[str, Claim] = {}
        for entry in self.claims:
            if entry.uid in recorded or (entry.driver, entry.namespace, entry.name, entry.device) in names:
                continue
            key, uuids = name_claim(entry.namespace, entry.name, entry.driver), kubelet.which(entry, self.snapshot)
            if key in recorded and uuids != frozenset():
                devices[key].update((device["uuid"], device) for device in recorded[key]["devices"])
                pods[key].update(recorded[key]["pods"])
            for uuid in units if uuids is None else uuids & units.keys():
                devices[key][uuid] = describe_device(uuid, units, entry.device)
            pods[key] |= entry.uids
            claims[key] = {
                "driver": entry.driver, "namespace": entry.namespace, "name": entry.name, "sharing": [],
                "devices": [*devices[key].values()], "pods": sorted(pods[key]), "state": CONFIRMED, "since": 0.0,
            }  # fmt: skip
        return {key: claim for key, claim in claims.items() if claim["devices"]}


def describe_device(
    uuid: str, units: Units, device: str, request: str = "", admin: bool = False, share: ClaimShare | None = None
) -> ClaimDevice:
    """Return a claim's device with every fact by which it excludes others, also when the host has it no more."""
    unit = units[uuid]
    gpus = {other.gpu: other.uuid for other in units.values() if not is_instance(other.uuid)}
    row: ClaimDevice = {
        "request": request, "device": device, "uuid": uuid, "admin": admin,
        "gpu": gpus.get(unit.gpu, uuid), "placement": unit.placement,
    }  # fmt: skip
    if share:
        row["share"] = share
    return row


def name_claim(namespace: str, name: str, driver: str) -> str:
    """Return a claim's name for sentences, which is also the key of one whose uid is not known."""
    return visible(f"claim {namespace}/{name} of {driver}")


def read(folder: str, listed: Listed | None, clock: float, snapshot: Snapshot | None = None) -> KubeletState:
    """Read kubelet's files, and return what it has.

    Args:
        folder: kubelet's directory.
        listed: what it has answered; None if it was not asked, or has not.
        clock: seconds since boot before it was asked.
        snapshot: of the host's inventory.
    """
    state, damages = KubeletState(clock, snapshot=snapshot), list[str]()
    if listed:
        state = state._replace(holders=listed.held(), claims=listed.claims, pods=frozenset(listed.pods))
    with _noting(damages, f"{kubelet.plugins(folder)}/{kubelet.CHECKPOINT}") as path:
        modified = os.stat(path).st_mtime  # before: it may be replaced
        rows = kubelet.checkpoint(folder).given
        entries = {f"{entry.resource} {name}": entry for entry in rows for name in entry.devices}
        state = state._replace(checkpoint=entries, written=system.clock() - time.time() + modified + TICK)
    with _noting(damages, f"{folder}/{kubelet.CLAIMS}"):
        claims = [*kubelet.claims(folder), *state.claims]
        state = state._replace(claims=claims, claim_uids=kubelet.claim_uids(folder))
    return state._replace(damage="; ".join(damages))


@contextlib.contextmanager
def _noting(damages: list[str], path: str) -> Iterator[str]:
    """Add to the damages why a file cannot be used that is there."""
    try:
        yield path
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        damages.append(f"{path} cannot be used: {error.strerror if isinstance(error, OSError) else error}")
