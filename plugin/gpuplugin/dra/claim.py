"""What a claim gets here: the results of its allocation, as the API server has it, that are this driver's.

Users write claims, and the scheduler completes them, so all that is taken from one is checked.
Pure. Out of scope: whether it can have that (gpuplugin.record), opaque configs (configs.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.dra import configs
from gpuplugin.dra.configs import INTERVALS, MPS, Config
from gpuplugin.dra.offered import CONTAINER, THREADS, type_of
from gpuplugin.mps import of_claims
from gpuplugin.record.kubelet_state import describe_device
from gpuplugin.settings.forms import LABEL
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.bounds import LISTED
from gpushim.ground.errors import REQUEST, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuplugin.devices.changes import Units
    from gpuplugin.dra.offered import Offered
    from gpuplugin.record.record_form import ClaimDevice, ClaimShare

MOST = 32  # results of a claim (AllocationResultsMaxSize)
UID = re.compile("[0-9a-zA-Z-]{1,64}")  # of a pod, in the names of its cgroups
MOST_PODS = 256  # that have one (ResourceClaimReservedForMaxSize)


class Result(NamedTuple):
    """A device of a claim.

    Attributes:
        request: its name, without that of a subrequest.
        device: its name in the pool.
        admin: for an administrator who looks at it, beside whoever has it.
        config: what the claim and its classes say of it.
        tolerations: of taints, as the scheduler has copied them from the request.
        share: id of its part of a device that several claims have; "" of a device that it has alone.
        memory: of the part, MiB.
        threads: of the part, percent.
    """

    request: str
    device: str
    admin: bool
    config: Config = Config()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    share: str = ""
    memory: int = 0
    threads: int = 0


class Claim(NamedTuple):
    """A claim, and what it is to get here."""

    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]
    pods: tuple[str, ...] = ()  # uids of those that have it

    def __str__(self) -> str:
        """Name it in a sentence."""
        return quote(f"{self.namespace}/{self.name}")


def allocated(request: Mapping[str, str], body: Mapping[str, Any], node: str) -> Claim:
    """Return what a claim is to get.

    Args:
        request: "namespace", "name" and "uid", as kubelet has them.
        body: the ResourceClaim.
        node: name of this node, which is its pool.

    Raises:
        GpushimError: it is another claim, has no allocation, or one that is not for this node.
    """
    name = quote(f"{request['namespace']}/{request['name']}")
    try:
        if body["metadata"]["uid"] != request["uid"]:
            raise GpushimError(f"claim {name} is not the one that this pod was made for; delete the pod", REQUEST)
        results = tuple(_results((body.get("status") or {}).get("allocation"), name, node))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        raise GpushimError(f"claim {name} is malformed; make it and its pod again", REQUEST) from None
    if not results:
        raise GpushimError(f"claim {name} has no device of {OWN_DRIVER} on node {node}", REQUEST)
    return Claim(request["uid"], request["namespace"], request["name"], results, reserved_for(body))


def reserved_for(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids of the pods that a claim is reserved for; of a malformed body, those that can be read.

    Args:
        body: the ResourceClaim.
    """
    status = body.get("status") if isinstance(body, dict) else None
    rows = status.get("reservedFor") if isinstance(status, dict) else None
    pods = [row for row in rows[:MOST_PODS] if isinstance(row, dict)] if isinstance(rows, list) else []
    uids = [row.get("uid") for row in pods if row.get("resource") == "pods"]
    return tuple(sorted({uid for uid in uids if isinstance(uid, str) and UID.fullmatch(uid)}))


def is_here(row: Mapping[str, Any], body: Mapping[str, Any], node: str) -> bool:
    """Return whether a claim still has something here that it once got; what is not understood has.

    Args:
        row: of the record.
        body: the ResourceClaim.
        node: as for `allocated`.
    """
    names = {(device["device"], device.get("share", {}).get("id")) for device in row["devices"]}
    try:
        allocation = (body.get("status") or {}).get("allocation") or {"devices": {"results": []}}
        results = allocation["devices"]["results"]
        return any(
            (result["driver"], result["pool"]) == (OWN_DRIVER, node)
            and (result["device"], result.get("shareID")) in names
            for result in results
        )
    except (KeyError, TypeError, AttributeError):
        return True


def changes_device(result: Result) -> bool:
    """Return whether a result's config asks for MPS, or for a time slice that is not the default."""
    return not result.admin and (result.config.strategy == MPS or result.config.interval in INTERVALS[1:])


def groups(claim: Claim, uuids: Mapping[str, str]) -> list[MpsGroup]:
    """List the groups of devices that a claim's containers share by MPS, or with a time slice of their own.

    An administrator's results are in none: nothing of what others have is changed.

    Args:
        claim: that is prepared.
        uuids: of the devices of its results, by name.

    Raises:
        GpushimError: its configs cannot be followed here.
    """
    by_config: dict[int, list[Result]] = {}  # by their configs
    for result in claim.results:
        if changes_device(result):
            by_config.setdefault(result.config.position, []).append(result)
    groups: list[MpsGroup] = []
    daemons: dict[str, str] = {}  # by request
    for results in by_config.values():
        limits = configs.limits(results[0].config, [uuids[result.device] for result in results])
        divided = uuids[results[0].device].startswith("MIG-")
        # A process can use one MIG instance.
        for members in [[result] for result in results] if divided else [results]:
            name = f"claim-{claim.uid}-{len(groups)}"
            groups.append(_group(name, members[0].config, [uuids[result.device] for result in members], limits))
            if any(daemons.setdefault(result.request, name) != name for result in members):
                raise GpushimError(
                    f'claim {claim} has several MPS daemons in the request "{quote(members[0].request)}", and a '
                    "process can use one, of the GPUs of one config or of one MIG instance; make it several requests",
                    REQUEST,
                )
    if groups and not of_claims.NAME.fullmatch(groups[0].name):
        raise GpushimError(f"claim {claim} is malformed; make it and its pod again", REQUEST)
    return groups


def describe_devices(claim: Claim, offered: Mapping[str, Offered], units: Units) -> list[ClaimDevice]:
    """Return the devices of a claim's results as the record has them.

    Args:
        claim: that is prepared.
        offered: devices by name.
        units: GPUs and MIG instances of this host, by UUID.

    Raises:
        GpushimError: a config changes a device for all claims that have parts of it, a process cannot use all, or a
            device is given out in parts no more.
    """
    rows = []
    clients: set[str] = set()  # requests
    for result in claim.results:
        device = offered[result.device]
        if result.share and not result.admin and not device.body.get("allowMultipleAllocations"):
            raise GpushimError(
                f"claim {claim} has a part of {result.device}, which is shared no more; make claim and pod again",
                REQUEST,
            )
        share = _describe_share(result, device) if result.share else None
        if share:
            _check_part(claim, result, share, clients)
        rows.append(describe_device(device.uuid, units, result.device, result.request, result.admin, share))
    return rows


def _check_part(claim: Claim, result: Result, share: ClaimShare, clients: set[str]) -> None:
    if (share["memory"] < share["of"] or share["group"]) and changes_device(result):
        raise GpushimError(
            f"claim {claim} has {share['memory']} MiB of {result.device}, and a config that changes it for other "
            "claims, too; leave out the config, or ask for a device that is not shared",
            REQUEST,
        )
    if share["group"] and result.request in clients:
        raise GpushimError(
            f'claim {claim} has several parts of GPUs that MPS shares in the request "{quote(result.request)}", and '
            "a process has limits for one; make it several requests",
            REQUEST,
        )
    clients.update([result.request] * bool(share["group"]))


def _describe_share(result: Result, device: Offered) -> ClaimShare:
    limit = device.body["attributes"]["memoryLimit"]["string"]
    is_part = result.memory < device.memory and not result.admin
    return {
        "id": result.share,
        "memory": result.memory,
        "of": device.memory,
        "limited": limit == CONTAINER and is_part,
        "threads": result.threads,
        "group": "" if result.admin else device.group,
    }


def _group(name: str, config: Config, uuids: Sequence[str], limits: Mapping[str, int]) -> MpsGroup:
    gpus = tuple(MpsGpu(uuid, number, 0) for number, uuid in enumerate(uuids))
    amounts = tuple(limits.get(uuid) for uuid in uuids)
    interval = INTERVALS.index(config.interval) if config.interval else 0
    return MpsGroup(
        name, gpus, None, config.threads or 100, config.multi_user, amounts if any(amounts) else (), interval
    )


def _results(allocation: Mapping[str, Any] | None, name: str, node: str) -> Iterator[Result]:
    if not allocation:
        raise GpushimError(f"claim {name} is not allocated; the scheduler does that when a pod is to run", REQUEST)
    try:
        config_of = configs.chosen(allocation, _types(allocation))
    except GpushimError as error:
        rows = [row["device"] for row in allocation["devices"]["results"][:MOST] if row["driver"] == OWN_DRIVER]
        names = ", ".join(quote(str(name)) for name in rows[:LISTED]) + (", ..." if len(rows) > LISTED else "")
        raise GpushimError(f"{error}; the claim has {names}", REQUEST) from None
    for number, row in enumerate(allocation["devices"]["results"][:MOST]):
        if row["driver"] != OWN_DRIVER:
            continue
        if row["pool"] != node:
            location = f"on {quote(str(row['pool']))}, but its pod is on {node}"
            raise GpushimError(f"claim {name} has a device {location}; let the scheduler place the pod", REQUEST)
        request, admin = str(row["request"]).partition("/")[0], row.get("adminAccess") is True
        if not LABEL.fullmatch(request):
            raise ValueError  # which the record would keep, however long it is
        tolerations = tuple(toleration for toleration in row.get("tolerations") or () if isinstance(toleration, dict))
        yield Result(request, str(row["device"]), admin, config_of[number], tolerations, *_share(row))


def _share(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return the id, memory and threads of a result's part of a device.

    Raises:
        ValueError: it has an id, and not the others.
    """
    share = row.get("shareID")
    if share is None:
        return "", 0, 0
    consumed = row["consumedCapacity"]
    memory, threads = configs.mebibytes(str(consumed["memory"])), int(consumed["threads"])
    if memory is None or not (UID.fullmatch(share) and 0 <= threads <= THREADS):
        raise ValueError
    return share, memory, threads


def _types(allocation: Mapping[str, Any]) -> dict[str, str]:
    """Return the types of devices, as far as they are known."""
    names = [str(row["device"]) for row in allocation["devices"]["results"]]
    return {name: type_of(name) for name in names if type_of(name)}
