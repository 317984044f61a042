"""What a node offers to a cluster: its resources, and each one's answers to kubelet. In memory, without grpc.

Out of scope: kubelet (daemon.py, endpoint.py); names and values (resources.py, allocation.py, preferred.py).
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation import allocation, memory_limits
from gpuplugin.allocation.allocation import Ways
from gpuplugin.devices import changes, division, preferred
from gpuplugin.health import reason
from gpuplugin.kubelet.v1beta1 import check, write_device
from gpuplugin.mps import mps
from gpuplugin.record.transitions import Request
from gpuplugin.settings import resources
from gpuplugin.settings.resources import GONE, Device
from gpushim.containers.kubelet import KUBELET_SOCKET, plugins
from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure
from gpushim.inventory.procfs import UNASKED
from gpushim.oci.authorization import FEATURES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gpuplugin.devices.preferred import Choice
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

REMEMBERED = 10  # Allocates


class Resource:
    """A resource: what there is of it, and its answers to kubelet.

    Args:
        name: such as nvidia.com/gpu.
        settings: in force.
        ways: how containers are told.
        grant: writes down what a container gets, before it is told; raises GpushimError if it cannot have that.

    Attributes:
        devices: by id; the host has had them all.
        listed: each one's part of the list, made when the device has changed.
        allocated: what was given out last: seconds since 1970, ids.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        ways: Ways,
        grant: Callable[[list[Request]], None] = lambda requests: None,
    ) -> None:
        self.name, self._grant = name, grant
        self.devices: dict[str, Device] = {}
        self.listed: dict[str, bytes] = {}
        self._of: dict[str, list[str]] = {}  # ids by UUID
        self._had: dict[str, Device] = {}  # the same, without what `mark_unhealthy` was told
        self._ailing: Mapping[str, str] = {}
        self.since: dict[str, float] = {}  # by UUID, system.clock() since when it is not given out
        self.allocated: deque[tuple[float, Sequence[str]]] = deque(maxlen=REMEMBERED)
        self._answered = self._left = 0.0  # time.monotonic() of the last Allocate, of the last that the host lost
        self._choose: Choice = preferred.shared((), packed=False)
        self.obey(settings, ways)

    def obey(self, settings: Settings, ways: Ways) -> None:
        """Go by other settings from now on; `have` follows."""
        self._settings, self._ways = settings, ways

    def have(self, devices: Sequence[Device], weights: Mapping[tuple[int, int], int]) -> None:
        """Take over what the host has; what it had and has not is kept, and cannot be used.

        kubelet 1.36 crashes if a device leaves the list while it allocates it.

        Raises:
            GpushimError: that is more than kubelet reads, until what it had is dropped; nothing new is taken over.
        """
        now = {device.id: device for device in devices}
        gone = {key: replace(one, problem=GONE) for key, one in self._had.items() if key not in now}
        if gone.keys() - self.gone:
            self._left = time.monotonic()
        try:
            check(self.name, [(one.id, one.numa) for one in (*now.values(), *gone.values())])
        except GpushimError:
            self._take({key: gone.get(key, one) for key, one in self._had.items()})
            raise
        self._take({**now, **gone})
        share = next((device.share for device in devices if device.share), None)
        policy = (share and share.policy) or self._settings.values["allocation-policy"]
        self._choose = preferred.allowed(devices, weights, policy == "packed")

    def fail(self, problem: str) -> None:
        """Take note that no device can be used for now, and nobody can say which of them the host still has."""
        self._take(
            {key: one if one.problem == GONE else replace(one, problem=problem) for key, one in self._had.items()}
        )

    def mark_unhealthy(self, problems: Mapping[str, str]) -> None:
        """Go by what is wrong beside what the snapshot says, until the next call.

        Args:
            problems: by UUID of a GPU or MIG instance; of all its replicas, therefore.
        """
        before, self._ailing = self._ailing, problems
        other = [uuid for uuid in {*before, *problems} if before.get(uuid) != problems.get(uuid)]
        self._renew([key for uuid in other for key in self._of.get(uuid, ())])

    def _take(self, had: dict[str, Device]) -> None:
        """Have these devices, and no others."""
        before, self._had, self._of = self._had, had, {}
        for key, one in had.items():
            self._of.setdefault(one.uuid, []).append(key)
        self._renew([key for key, one in had.items() if before.get(key) != one])
        self.devices = {key: self.devices[key] for key in had}
        self.listed = {key: self.listed[key] for key in had}
        self.since = {uuid: then for uuid, then in self.since.items() if uuid in self._of}

    def _renew(self, keys: Collection[str]) -> None:
        """Make these devices again, and say once of each GPU or MIG instance if it has become unusable, or usable."""
        ailing, uuids = self._ailing, dict.fromkeys(self._had[key].uuid for key in keys)
        before = _problems(one for one in self.devices.values() if one.uuid in uuids)
        made = {key: self._had[key] for key in keys}
        made.update((key, _ill(one, ailing[one.uuid])) for key, one in [*made.items()] if one.uuid in ailing)
        self.devices = {**self.devices, **made}
        now = _problems(self.devices[key] for one in uuids for key in self._of[one])
        for uuid, problem in now.items():
            if problem:
                self.since.setdefault(uuid, system.clock())
            else:
                self.since.pop(uuid, None)
        reason.log(before, now, dict.fromkeys(now, self.name))
        self.listed = {
            **self.listed,
            **{key: write_device(key, not one.problem, one.numa) for key, one in made.items()},
        }

    def drop(self, ids: set[str]) -> None:
        """Forget devices that the host does not have any more."""
        self._take({key: one for key, one in self._had.items() if key not in ids})

    @property
    def gone(self) -> set[str]:
        """The devices that the host does not have any more."""
        return {name for name, device in self.devices.items() if device.problem == GONE}

    @property
    def well(self) -> set[str]:
        """The devices that can be used."""
        return {name for name, device in self.devices.items() if not device.problem}

    @property
    def idle(self) -> float:
        """Seconds since a device was last given out, or missed."""
        return time.monotonic() - max(self._answered, self._left)

    def allocate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ContainerAllocateRequest.

        Raises:
            GpushimError: a device of it cannot be given.
        """
        ids = request["devices_ids"]
        found = allocation.check(ids, self.name, self.devices)
        answer = allocation.answer(found, self.name, self._ways)
        chosen = [(name, self.devices[name]) for name in ids]
        limits = memory_limits.mounts([device for _, device in chosen]) if self._ways.limits else []
        if limits:
            answer["mounts"] = [*answer.get("mounts", ()), *limits]
        self._grant([Request(one.uuid, self.name, name, changes.way(self.name, one)) for name, one in chosen])
        self._answered = time.monotonic()
        self.allocated.append((time.time(), ids))
        return answer

    def prefer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ContainerPreferredAllocationRequest."""
        must, size = request["must_include_deviceIDs"], request["allocation_size"]
        free = request["available_deviceIDs"]
        well = [name for name in free if name in self.devices and not self.devices[name].problem]
        return {"deviceIDs": self._choose(well if len({*well, *must}) >= size else free, must, size)}


def _problems(devices: Iterable[Device]) -> dict[str, str]:
    """Return the problem of each GPU or MIG instance: that of the first of its devices which the host has."""
    found: dict[str, str] = {}
    for one in sorted(devices, key=lambda one: one.problem == GONE):
        found.setdefault(one.uuid, one.problem)
    return found


def _ill(device: Device, problem: str) -> Device:
    """Add a problem to a device, unless it has the device's own in it; what the host does not have has no other."""
    if device.problem == GONE:
        return device
    if device.problem in problem:
        return replace(device, problem=problem)
    return replace(device, problem=f"{device.problem}; {problem}")


def offered(snapshot: Snapshot, settings: Settings, notes: list[str]) -> tuple[dict[str, list[Device]], Ways]:
    """List the resources of a node as the settings have them, and say how containers are told.

    Args:
        snapshot: of its inventory.
        settings: in force.
        notes: gets a sentence for each thing that is left out.

    Raises:
        GpushimError: the host cannot serve GPUs, or not as the settings say.
    """
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    if settings.checks.checks and (snapshot["platform"], snapshot["source"]) == ("native", "proc"):
        why = next((note for note in snapshot["notes"] if UNASKED in note), f"NVML cannot be used: {UNASKED}")
        raise GpushimError(f"the GPUs' health is not known: {why}", INVENTORY)
    there = resources.find(snapshot, settings.values["mig-strategy"], settings.values["exclude"], notes)
    found = division.divide(there, snapshot, settings.sharing, notes)
    groups = division.mps_groups(snapshot, settings)
    daemons = {one.name: mps.unready_reason(system.state_dir(), one) for one in groups}
    owed = mps.unrestored(system.state_dir(), groups)
    found = {name: [_served(device, daemons, owed) for device in devices] for name, devices in found.items()}
    ways = _ways(settings, snapshot)
    notes += allocation.clash(ways, found)
    if not ways.limits and any(one.share and one.share.memory for devices in found.values() for one in devices):
        notes.append(memory_limits.missing(snapshot))
    notes += allocation.unheard(ways, snapshot["policy"]["requests"])
    notes += [
        f"no container gets IMEX channel {channel}, which this host does not have; nvidia-modprobe makes it"
        for channel in settings.values["imex-channels"]
        if channel not in ways.imex
    ]
    for name, devices in found.items():
        check(name, [(one.id, one.numa) for one in devices])
    _check_cdi(snapshot, found, ways)
    return found, ways


def absent(settings: Settings) -> list[str]:
    """Say that kubelet is not there, or elsewhere; one that starts makes its socket then."""
    path = f"{plugins(str(settings.values['kubelet-dir']))}/{KUBELET_SOCKET}"
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return [
            f"kubelet does not listen at {path}, and until it does nothing is registered: start it, or let "
            "kubelet-dir under [device-plugin] of config.toml be its --root-dir"
        ]
    except OSError:  # root alone may look there
        pass
    return []


def _check_cdi(snapshot: Snapshot, found: Mapping[str, Sequence[Device]], ways: Ways) -> None:
    """Refuse to tell devices by CDI where engines would not find them."""
    if allocation.BY_CDI.isdisjoint(ways.ways):
        return
    from gpuplugin.allocation import cdi  # which needs much of gpushim

    well = [device for devices in found.values() for device in devices if not device.problem]
    cdi.check(snapshot, allocation.cdi_names(well, ways))


def _ways(settings: Settings, snapshot: Snapshot) -> Ways:
    """Say how containers are told their devices."""
    values, nodes = settings.values, snapshot["nodes"]
    control = [path for path in ensure.CONTROL_NODES if path in nodes] if values["pass-device-specs"] else None
    return Ways(
        ways=values["device-list-strategy"],
        by_index=values["device-id-strategy"] == "index",
        kind=snapshot["policy"]["cdi"]["kind"],
        annotation_prefix=values["cdi-annotation-prefix"],
        features=[name for name in FEATURES if values.get(name)],
        imex=_channels(values, nodes),
        control=control,
        dev_root=snapshot["driver"]["dev-root"],
        limits=not memory_limits.missing(snapshot),
    )


def _channels(values: Mapping[str, Any], nodes: Mapping[str, Any]) -> list[int]:
    asked: list[int] = values["imex-channels"]
    missing = [one for one in asked if f"{ensure.IMEX_CHANNEL}{one}" not in nodes]
    if missing and values["imex-required"]:
        raise GpushimError(
            f"imex-required is true, and this host has no IMEX channel {missing[0]}; nvidia-modprobe makes it",
            INVENTORY,
        )
    return [one for one in asked if one not in missing]


def _served(device: Device, daemons: Mapping[str, str], owed: Mapping[str, str]) -> Device:
    """Take note of a device whose daemon of MPS does not run, or that is as a group that is over has left it."""
    why = daemons.get(device.share.group, "") if device.share else ""
    if device.uuid in owed:
        why = why or mps.unfinished(owed[device.uuid])
    return replace(device, problem=why) if why and not device.problem else device
