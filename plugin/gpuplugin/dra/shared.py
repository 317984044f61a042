"""What the containers of a claim share: MPS daemons and time slices, and the CDI spec that leads to them.

Supervisors do it (gpuplugin.mps), units of the node, which follow what the record says, whether this driver runs or
not. A claim's spec is there while they serve, so that after a boot no container comes before them. It has the limits
of a claim's parts of devices, too.
Out of scope: which groups a claim has (claim.py), who has the GPUs (gpuplugin.record).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation import memory_limits
from gpuplugin.mps import control_daemon, mps, of_claims, time_slice
from gpuplugin.record.transitions import is_own
from gpushim.cdi import versions
from gpushim.cdi.generate import output
from gpushim.ground import system
from gpushim.ground.errors import FAILED, INVENTORY, GpushimError
from gpushim.ground.logs import logger
from gpushim.paths.replace import content, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.dra.claim import Claim
    from gpuplugin.record.allocations_file import AllocationsFile
    from gpuplugin.record.record_form import ClaimDevice, ClaimShare
    from gpushim.ground.model import Snapshot

KIND = "gpushim/claim"  # of specs: one name for each group
IN_CONTAINER = "/run/gpushim/mps"  # of pipes, as the device plugin's
POLL = 0.05  # seconds between looks at what is waited for
END = 20.0  # seconds for a claim's groups to end
_FILE = re.compile(r"gpushim-claim-([0-9a-f-]{36})\.json")
_SHARE = "share-{}"  # name of a device's part, by its id
_OPTIONS = ("nosuid", "nodev", "noexec", "bind")


class Sharing:
    """The groups of all claims.

    Args:
        file: the record, which has claims and their groups.
        start: starts a task.
        snapshot: returns the snapshot; None while nothing can be given.
        daemons: returns the MPS groups of the settings, of whose devices claims get parts.
    """

    def __init__(
        self,
        file: AllocationsFile,
        start: Callable[[Any], asyncio.Task[Any]],
        snapshot: Callable[[], Snapshot | None],
        daemons: Callable[[], Sequence[MpsGroup]] = list,
    ) -> None:
        self._file, self._known, self._units, self._daemons = file, snapshot, mps.Units(start), daemons
        self._begins: set[str] = set()  # uids of claims that are being prepared
        self._over: dict[str, float] = {}  # time.monotonic() since when groups are of no claim, by name
        self._unserved: dict[str, str] = {}  # why what claims share does not serve, by UUID

    @property
    def unrestored(self) -> dict[str, str]:
        """Why GPUs that claims shared which are over are not what they were before, by UUID; by the files, each time.

        A claim that the record has keeps them from others, and has END for it; without one it counts at once.
        """
        state, clock, rows = system.state_dir(), time.monotonic(), {}
        groups_left = of_claims.claims_by_group(state).items()
        with contextlib.suppress(GpushimError):  # while it cannot be read, no claim is known
            rows = self._file.read_current()["claims"] if groups_left else {}
        late_groups = [
            name for name, uid in groups_left if uid not in rows or clock - self._over.get(name, clock) > END
        ]
        return {
            uuid: mps.unfinished(name) for name in late_groups for uuid in mps.unreleased(mps.Folders(state, name))
        }

    @property
    def problems(self) -> dict[str, str]:
        """Why what claims share, or have shared, is not as it is to be, by UUID."""
        return {**self._unserved, **self.unrestored}

    def check(self, groups: Sequence[MpsGroup], uuids: Collection[str]) -> None:
        """Refuse what this node's driver has no program for, and what is still as a claim that is over had it.

        Args:
            groups: of a claim.
            uuids: of what it is to have for itself.

        Raises:
            GpushimError: a program is missing, or something is not free yet.
        """
        unrestored = self.unrestored
        for uuid in sorted(unrestored.keys() & uuids):
            raise GpushimError(unrestored[uuid], INVENTORY)
        if snapshot := self._known():
            need_programs(groups, snapshot)

    async def begin(
        self, claim: Claim, groups: Sequence[MpsGroup], devices: Sequence[ClaimDevice], late: float
    ) -> None:
        """Wait until a claim's groups serve, and have engines find them.

        Args:
            claim: that the record has, with these groups.
            groups: of the claim.
            devices: of it.
            late: time.monotonic() until which to wait.

        Raises:
            GpushimError: they do not serve by then, or the spec cannot be written.
        """
        self._begins.add(claim.uid)
        served = [*groups, *self._find_daemons(devices)]
        problem_paths = [mps.Folders(system.state_dir(), group.name).problem for group in groups]
        for path in problem_paths:
            _remove(path)  # of an attempt before
        try:
            while problem := _describe_unserved(served):
                if time.monotonic() > late or any(map(os.path.lexists, problem_paths)):
                    problem = "; ".join(filter(None, (problem, mps.no_starter())))
                    raise GpushimError(f"claim {claim} waits for what its containers share: {problem}", INVENTORY)
                self._units.need(group.name for group in served)
                await asyncio.sleep(POLL)
            if groups or _parts(devices):
                _write(_path(claim.uid), groups, devices)
        finally:
            self._begins.discard(claim.uid)

    async def end(self, uids: Collection[str]) -> None:
        """Have claims share nothing any more, and wait until their GPUs are what they were before.

        Raises:
            GpushimError: a file cannot be written.
        """
        state = system.state_dir()
        self._file.change_claims(uids, lambda claim: {**claim, "sharing": []})  # which their supervisors follow
        for uid in uids:
            _remove(_path(uid))
        late = time.monotonic() + END
        while names := _left(state, uids):
            if time.monotonic() > late:
                logger.error("%s", mps.unfinished(names[0]))
                return
            self._units.need(names)
            await asyncio.sleep(POLL)

    async def look(self) -> None:
        """See to it that there is what claims share, and nothing else.

        Raises:
            GpushimError, OSError: a file cannot be read or written.
        """
        if self._known() is None:
            return
        state, folder = system.state_dir(), output.default_directory()
        names = os.listdir(folder) if os.path.isdir(folder) else []  # before the record, where a claim is first
        files = {match[1] for match in map(_FILE.fullmatch, names) if match}
        groups_left = of_claims.claims_by_group(state)
        claims = {
            uid: row
            for uid, row in of_claims.recorded().items()
            if is_own(uid, row) and (row["sharing"] or _parts(row["devices"]))
        }
        groups_by_uid = {uid: of_claims.groups_of(row) for uid, row in claims.items()}
        known_names = {group.name for groups in groups_by_uid.values() for group in groups}
        over = [name for name, uid in groups_left.items() if name not in known_names and groups_by_uid.get(uid) != []]
        self._units.need(over)
        self._over = {name: self._over.get(name, time.monotonic()) for name in over}
        problems: dict[str, str] = {}
        for uid in files - groups_by_uid.keys():
            _remove(_path(uid))
        for uid, groups in groups_by_uid.items():
            if uid in self._begins or (claims[uid]["sharing"] and not groups):  # of another version
                continue
            served = [*groups, *self._find_daemons(claims[uid]["devices"])]
            if problem := _describe_unserved(served):
                self._units.need(group.name for group in served)
                problems.update((gpu.uuid, problem) for group in served for gpu in group.gpus)
                _remove(_path(uid))
            else:
                _write(_path(uid), groups, claims[uid]["devices"])
        self._unserved = problems

    def _find_daemons(self, devices: Sequence[ClaimDevice]) -> list[MpsGroup]:
        """Return the MPS groups of the settings whose daemons a claim's parts need."""
        names = {share["group"] for _, share in _parts(devices) if share["group"]}
        return [group for group in self._daemons() if group.name in names] if names else []


def need_programs(groups: Sequence[MpsGroup], snapshot: Snapshot) -> None:
    """Raise GpushimError for groups for which the driver of a host has no program."""
    for group in groups:
        (time_slice.find_program if group.interval else control_daemon.find_daemon)(snapshot)


def names(devices: Sequence[ClaimDevice], groups: Sequence[MpsGroup]) -> list[list[str]]:
    """List the CDI names in its spec that go with each of a claim's devices: of a group in each request once.

    Args:
        devices: of a claim that is prepared.
        groups: of the claim.
    """
    of_gpu = {gpu.uuid: group.name for group in groups for gpu in group.gpus}
    names_of_devices, pairs = [], set()
    for device in devices:
        name = "" if device["admin"] else of_gpu.get(device["uuid"], "")
        fresh = bool(name) and (device["request"], name) not in pairs
        pairs.add((device["request"], name))
        row = [name] * fresh + [_SHARE.format(share["id"]) for _, share in _parts([device])]
        names_of_devices.append([f"{KIND}={name}" for name in row])
    return names_of_devices


def _parts(devices: Sequence[ClaimDevice]) -> list[tuple[str, ClaimShare]]:
    """Return the parts of devices of which a claim's containers are told, each after its device's UUID."""
    return [
        (device["uuid"], device["share"])
        for device in devices
        if "share" in device and (device["share"]["limited"] or device["share"]["group"])
    ]


def spec(groups: Sequence[MpsGroup], devices: Sequence[ClaimDevice] = ()) -> dict[str, Any]:
    """Return a claim's CDI spec.

    Args:
        groups: of the claim.
        devices: of it.

    Raises:
        GpushimError: a limit's file cannot be written.
    """
    rows = [{"name": group.name, "containerEdits": _edits(group)} for group in groups]
    rows += [
        {"name": _SHARE.format(share["id"]), "containerEdits": _edit_part(uuid, share)}
        for uuid, share in _parts(devices)
    ]
    document: dict[str, Any] = {"cdiVersion": "", "kind": KIND, "devices": rows}
    document["cdiVersion"], _ = versions.required(document)
    return document


def _edits(group: MpsGroup) -> dict[str, Any]:
    if group.interval:  # it has nothing else, and a device without edits is an error
        return {"env": [f"GPUSHIM_TIME_SLICE={time_slice.VALUES[group.interval]}"]}
    return _edit_client(group.name)


def _edit_client(group: str) -> dict[str, Any]:
    """Return what has a container use the MPS daemon of a group."""
    folders, pipes = mps.Folders(system.state_dir(), group), f"{IN_CONTAINER}/{group}/pipe"
    return {
        "env": [f"CUDA_MPS_PIPE_DIRECTORY={pipes}"],
        "mounts": [
            {"hostPath": folders.pipe, "containerPath": pipes, "options": ["ro", *_OPTIONS]},
            {"hostPath": folders.shm, "containerPath": "/dev/shm", "options": ["rw", *_OPTIONS]},
        ],
    }


def _edit_part(uuid: str, share: ClaimShare) -> dict[str, Any]:
    """Return what limits a container to a part of a device.

    Raises:
        GpushimError: a limit's file cannot be written.
    """
    edits: dict[str, Any] = {"mounts": []}
    if share["group"]:
        edits = _edit_client(share["group"])
        edits["env"].append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share['threads']}")
        if share["memory"] < share["of"] and not share["limited"]:
            edits["env"].append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={uuid}={share['memory']}M")
    if share["limited"]:
        path = memory_limits.write_file(uuid, share["memory"] << 20)
        container_path = memory_limits.CONTAINER_FOLDER + share["id"]
        edits["mounts"].append({"hostPath": path, "containerPath": container_path, "options": ["ro", *_OPTIONS]})
    return edits


def _describe_unserved(groups: Sequence[MpsGroup]) -> str:
    """Return why groups do not serve now; "" if they do."""
    return next(filter(None, (mps.unready_reason(system.state_dir(), group) for group in groups)), "")


def _left(state: str, uids: Collection[str]) -> list[str]:
    return sorted(name for name, uid in of_claims.claims_by_group(state).items() if uid in uids)


def _path(uid: str) -> str:
    """Return where a claim's spec is: where engines look last, and nothing outlives a boot."""
    return f"{output.default_directory()}/gpushim-claim-{uid}.json"


def _remove(path: str) -> None:
    """Have a file not be there.

    Raises:
        GpushimError: it cannot be removed.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise GpushimError(f"{path} cannot be removed: {error.strerror}", FAILED) from None


def _write(path: str, groups: Sequence[MpsGroup], devices: Sequence[ClaimDevice]) -> None:
    """Have a claim's spec be there.

    Raises:
        GpushimError: it cannot be written.
    """
    data = json.dumps(spec(groups, devices)).encode() + b"\n"
    try:
        if not os.path.exists(path) or content(path) != data:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            replace(path, data, 0o644, durable=False)
    except OSError as error:
        raise GpushimError(f"the CDI spec {path} cannot be written: {error.strerror}", FAILED) from None
