"""What a node offers to a cluster: its resources, and each one's answers to kubelet; without grpc.

Out of scope: kubelet (daemon.py, endpoint.py); names and values (resources.py, allocation.py, preferred.py).
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation import allocation, memory_limits
from gpuplugin.allocation.allocation import Delivery
from gpuplugin.devices import changes, division, preferred
from gpuplugin.health import reason
from gpuplugin.kubelet.v1beta1 import check, write_device
from gpuplugin.mps import mps
from gpuplugin.record.grants import Request
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
        delivery: how containers are told.
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
        delivery: Delivery,
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
        self.obey(settings, delivery)

    def obey(self, settings: Settings, delivery: Delivery) -> None:
        """Go by other settings from now on; `have` follows."""
        self._settings, self._delivery = settings, delivery

    def have(self, devices: Sequence[Device], weights: Mapping[tuple[int, int], int]) -> None:
        """Take over what the host has; what it had and has not is kept, and cannot be used.

        kubelet 1.36 crashes if a device leaves the list while it allocates it.

        Raises:
            GpushimError: that is more than kubelet reads, until what it had is dropped; nothing new is taken over.
        """
        present = {device.id: device for device in devices}
        missing = {key: replace(device, problem=GONE) for key, device in self._had.items() if key not in present}
        if missing.keys() - self.gone:
            self._left = time.monotonic()
        try:
            check(self.name, [(device.id, device.numa) for device in (*present.values(), *missing.values())])
        except GpushimError:
            self._take({key: missing.get(key, device) for key, device in self._had.items()})
            raise
        self._take({**present, **missing})
        share = next((device.share for device in devices if device.share), None)
        policy = (share and share.policy) or self._settings.values["allocation-policy"]
        self._choose = preferred.allowed(devices, weights, policy == "packed")

    def fail(self, problem: str) -> None:
        """Take note that no device can be used for now, and nobody can say which of them the host still has."""
        self._take(
            {
                key: device if device.problem == GONE else replace(device, problem=problem)
                for key, device in self._had.items()
            }
        )

    def mark_unhealthy(self, problems: Mapping[str, str]) -> None:
        """Go by problems, by UUID of a GPU or MIG instance, beside the snapshot, until the next call."""
        before, self._ailing = self._ailing, problems
        changed = [uuid for uuid in {*before, *problems} if before.get(uuid) != problems.get(uuid)]
        self._renew([key for uuid in changed for key in self._of.get(uuid, ())])

    def _take(self, had: dict[str, Device]) -> None:
        before, self._had, self._of = self._had, had, {}
        for key, device in had.items():
            self._of.setdefault(device.uuid, []).append(key)
        self._renew([key for key, device in had.items() if before.get(key) != device])
        self.devices = {key: self.devices[key] for key in had}
        self.listed = {key: self.listed[key] for key in had}
        self.since = {uuid: clock for uuid, clock in self.since.items() if uuid in self._of}

    def _renew(self, keys: Collection[str]) -> None:
        """Make these devices again, and say once of each GPU or MIG instance if it has become unusable, or usable."""
        ailing, uuids = self._ailing, dict.fromkeys(self._had[key].uuid for key in keys)
        before = _problems(device for device in self.devices.values() if device.uuid in uuids)
        renewed = {key: self._had[key] for key in keys}
        renewed.update(
            (key, _add_problem(device, ailing[device.uuid]))
            for key, device in [*renewed.items()]
            if device.uuid in ailing
        )
        self.devices = {**self.devices, **renewed}
        problems = _problems(self.devices[key] for uuid in uuids for key in self._of[uuid])
        for uuid, problem in problems.items():
            if problem:
                self.since.setdefault(uuid, system.clock())
            else:
                self.since.pop(uuid, None)
        reason.log(before, problems, dict.fromkeys(problems, self.name))
        self.listed = {
            **self.listed,
            **{key: write_device(key, not device.problem, device.numa) for key, device in renewed.items()},
        }

    def drop(self, ids: set[str]) -> None:
        """Forget devices that the host does not have any more."""
        self._take({key: device for key, device in self._had.items() if key not in ids})

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
        usable = allocation.check(ids, self.name, self.devices)
        answer = allocation.answer(usable, self.name, self._delivery)
        chosen = [(name, self.devices[name]) for name in ids]
        limits = memory_limits.mounts([device for _, device in chosen]) if self._delivery.limits else []
        if limits:
            answer["mounts"] = [*answer.get("mounts", ()), *limits]
        self._grant(
            [Request(device.uuid, self.name, name, changes.way(self.name, device)) for name, device in chosen]
        )
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
    problems: dict[str, str] = {}
    for device in sorted(devices, key=lambda device: device.problem == GONE):
        problems.setdefault(device.uuid, device.problem)
    return problems


def _add_problem(device: Device, problem: str) -> Device:
    """Add a problem to a device, unless it has the device's own in it; what the host does not have has no other."""
    if device.problem == GONE:
        return device
    if device.problem in problem:
        return replace(device, problem=problem)
    return replace(device, problem=f"{device.problem}; {problem}")


def offered(snapshot: Snapshot, settings: Settings, notes: list[str]) -> tuple[dict[str, list[Device]], Delivery]:
    """Return the resources of a node as the settings have them, and how containers are told.

    `notes` gets a sentence for each thing that is left out.

    Raises:
        GpushimError: the host cannot serve GPUs, or not as the settings say.
    """
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    if settings.checks.checks and (snapshot["platform"], snapshot["source"]) == ("native", "proc"):
        sentence = next((note for note in snapshot["notes"] if UNASKED in note), f"NVML cannot be used: {UNASKED}")
        raise GpushimError(f"the GPUs' health is not known: {sentence}", INVENTORY)
    devices_by_name = _divide(snapshot, settings, notes)
    all_devices = [device for devices in devices_by_name.values() for device in devices]
    delivery = _choose_delivery(settings, snapshot)
    notes += allocation.clash(delivery, devices_by_name)
    if not delivery.limits and any(device.share and device.share.memory for device in all_devices):
        notes.append(memory_limits.missing(snapshot))
    notes += allocation.unheard(delivery, snapshot["policy"]["requests"])
    notes += [
        f"no container gets IMEX channel {channel}, which this host does not have; nvidia-modprobe makes it"
        for channel in settings.values["imex-channels"]
        if channel not in delivery.imex
    ]
    for name, devices in devices_by_name.items():
        check(name, [(device.id, device.numa) for device in devices])
    _check_cdi(snapshot, all_devices, delivery)
    return devices_by_name, delivery


def _divide(snapshot: Snapshot, settings: Settings, notes: list[str]) -> dict[str, list[Device]]:
    """Return the devices of each resource; a device whose MPS daemon does not run has that for its problem."""
    units = resources.find(snapshot, settings.values["mig-strategy"], settings.values["exclude"], notes)
    groups = division.mps_groups(snapshot, settings)
    daemons = {group.name: mps.unready_reason(system.state_dir(), group) for group in groups}
    unrestored = mps.unrestored(system.state_dir(), groups)
    return {
        name: [_note_daemon(device, daemons, unrestored) for device in devices]
        for name, devices in division.divide(units, snapshot, settings.sharing, notes).items()
    }


def absent(settings: Settings) -> list[str]:
    """Return a note where kubelet is not there, or elsewhere; one that starts makes its socket then."""
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


def _check_cdi(snapshot: Snapshot, devices: Sequence[Device], delivery: Delivery) -> None:
    if allocation.BY_CDI.isdisjoint(delivery.strategies):
        return
    from gpuplugin.allocation import cdi  # which needs much of gpushim

    cdi.check(snapshot, allocation.cdi_names([device for device in devices if not device.problem], delivery))


def _choose_delivery(settings: Settings, snapshot: Snapshot) -> Delivery:
    values, nodes = settings.values, snapshot["nodes"]
    control = [path for path in ensure.CONTROL_NODES if path in nodes] if values["pass-device-specs"] else None
    return Delivery(
        strategies=values["device-list-strategy"],
        by_index=values["device-id-strategy"] == "index",
        kind=snapshot["policy"]["cdi"]["kind"],
        annotation_prefix=values["cdi-annotation-prefix"],
        features=[name for name in FEATURES if values.get(name)],
        imex=_list_channels(values, nodes),
        control=control,
        dev_root=snapshot["driver"]["dev-root"],
        limits=not memory_limits.missing(snapshot),
    )


def _list_channels(values: Mapping[str, Any], nodes: Mapping[str, Any]) -> list[int]:
    channels: list[int] = values["imex-channels"]
    missing = [channel for channel in channels if f"{ensure.IMEX_CHANNEL}{channel}" not in nodes]
    if missing and values["imex-required"]:
        raise GpushimError(
            f"imex-required is true, and this host has no IMEX channel {missing[0]}; nvidia-modprobe makes it",
            INVENTORY,
        )
    return [channel for channel in channels if channel not in missing]


def _note_daemon(device: Device, daemons: Mapping[str, str], unrestored: Mapping[str, str]) -> Device:
    """Take note of a device whose daemon of MPS does not run, or that is as a group that is over has left it."""
    problem = daemons.get(device.share.group, "") if device.share else ""
    if device.uuid in unrestored:
        problem = problem or mps.unfinished(unrestored[device.uuid])
    return replace(device, problem=problem) if problem and not device.problem else device
