"""What a node offers to a cluster: its resources, and each one's answers to kubelet. In memory, without grpc.

Out of scope: kubelet (daemon.py, endpoint.py); names and values (resources.py, allocation.py, preferred.py).
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuplugin import allocation, division, mps, preferred, resources
from gpuplugin.allocation import Ways
from gpuplugin.resources import Device
from gpuplugin.v1beta1 import HEALTHY, KUBELET_SOCKET, UNHEALTHY, written
from gpushim import stamp
from gpushim.errors import INVENTORY, GpushimError
from gpushim.logs import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpuplugin.preferred import Choice
    from gpuplugin.settings import Settings
    from gpushim.model import RequestsPolicy, Snapshot

NOTHING = (
    "which brings nothing to unprivileged containers while accept-env-when-unprivileged under [requests] of "
    "config.toml is false"
)
REMEMBERED = 10  # Allocates
GONE = "the host does not have it any more"


class Resource:
    """A resource: what there is of it, and its answers to kubelet.

    Args:
        name: such as nvidia.com/gpu.
        settings: in force.
        ways: how containers are told.

    Attributes:
        devices: by id; the host has had them all.
        allocated: what was given out last: seconds since 1970, ids.
    """

    def __init__(self, name: str, settings: Settings, ways: Ways) -> None:
        self.name = name
        self.devices: dict[str, Device] = {}
        self._had: dict[str, Device] = {}  # the same, without what `ail` was told
        self._ailing: Mapping[str, str] = {}
        self.allocated: deque[tuple[float, Sequence[str]]] = deque(maxlen=REMEMBERED)
        self._under_way: dict[str, float] = {}  # time.monotonic() at which an id was given out that no pod has yet
        self._answered = self._left = 0.0  # time.monotonic() of the last Allocate, of the last that the host lost
        self._choose: Choice = preferred.shared((), packed=False)
        self.obey(settings, ways)

    def obey(self, settings: Settings, ways: Ways) -> None:
        """Go by other settings from now on; `have` follows."""
        self._settings, self._ways = settings, ways

    def have(self, devices: Sequence[Device], weights: Mapping[tuple[int, int], int]) -> None:
        """Take over what the host has; what it had and has not is kept, and cannot be used.

        kubelet 1.36 crashes if a device leaves the list while it allocates it.
        """
        now = {device.id: device for device in devices}
        gone = {key: replace(one, problem=GONE) for key, one in self._had.items() if key not in now}
        if gone.keys() - self.gone:
            self._left = time.monotonic()
        self._take({**now, **gone})
        whole = all(device.id == device.uuid and ":" not in device.index for device in devices)
        share = next((device.share for device in devices if device.share), None)
        policy = (share and share.policy) or self._settings.values["allocation-policy"]
        distinct = bool(share and share.distinct)
        self._choose = (
            preferred.nearest(devices, weights)
            if whole
            else preferred.shared(devices, policy == "packed", distinct=distinct)
        )

    def fail(self, problem: str) -> None:
        """Take note that no device can be used for now, and nobody can say which of them the host still has."""
        self._take(
            {key: one if one.problem == GONE else replace(one, problem=problem) for key, one in self._had.items()}
        )

    def ail(self, problems: Mapping[str, str]) -> None:
        """Go by what is wrong beside what the snapshot says, until the next call.

        Args:
            problems: by UUID of a GPU or MIG instance; of all its replicas, therefore.
        """
        self._ailing = problems
        self._take(self._had)

    def _take(self, had: dict[str, Device]) -> None:
        """Have these devices, and say once of each GPU or MIG instance if it has become unusable, or usable."""
        ailing, before = self._ailing, _problems(self.devices)
        sick = {key: _ill(one, ailing[one.uuid]) for key, one in had.items() if one.uuid in ailing}
        devices = {**had, **sick}
        for uuid, problem in _problems(devices).items():
            if problem and problem != before.get(uuid):
                logger.warning("%s of %s is not given out: %s", uuid, self.name, problem)
            elif before.get(uuid) and not problem:
                logger.info("%s of %s can be given out again", uuid, self.name)
        self._had, self.devices = had, devices

    def drop(self, ids: set[str]) -> None:
        """Forget devices that the host does not have any more."""
        self._had = {key: one for key, one in self._had.items() if key not in ids}
        self.devices = {key: one for key, one in self.devices.items() if key not in ids}

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

    def listed(self) -> list[dict[str, Any]]:
        """Say what there is as Device messages."""
        return [_message(one) for one in self.devices.values()]

    def allocate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ContainerAllocateRequest.

        Raises:
            GpushimError: a device of it cannot be given.
        """
        ids = request["devices_ids"]
        found = allocation.check(ids, self.name, self.devices)
        answer = allocation.answer(found, self.name, self._ways)
        self._answered = time.monotonic()
        self.allocated.append((time.time(), ids))
        self._under_way.update(dict.fromkeys(ids, self._answered))
        return answer

    def under_way(self, held: Collection[str], seconds: float) -> set[str]:
        """Return what was given out so many seconds ago at most and has not been seen with a pod since.

        Args:
            held: what pods have now.
            seconds: after which kubelet has listed the pod, or there is none.
        """
        late = time.monotonic() - seconds
        self._under_way = {key: then for key, then in self._under_way.items() if then > late and key not in held}
        return {*self._under_way}

    def prefer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ContainerPreferredAllocationRequest."""
        must, size = request["must_include_deviceIDs"], request["allocation_size"]
        return {"deviceIDs": self._choose(request["available_deviceIDs"], must, size)}


def _problems(devices: Mapping[str, Device]) -> dict[str, str]:
    """Return the problem of each GPU or MIG instance: that of the first of its devices which the host has."""
    found: dict[str, str] = {}
    for one in sorted(devices.values(), key=lambda one: one.problem == GONE):
        found.setdefault(one.uuid, one.problem)
    return found


def _ill(device: Device, problem: str) -> Device:
    """Add a problem to a device; what the host does not have has no other."""
    if device.problem == GONE:
        return device
    return replace(device, problem=f"{device.problem}; {problem}" if device.problem else problem)


def _message(device: Device) -> dict[str, Any]:
    topology = {"topology": {"nodes": [{"ID": device.numa}]}} if device.numa >= 0 else {}
    return {"ID": device.id, "health": UNHEALTHY if device.problem else HEALTHY, **topology}


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
    there = resources.find(snapshot, settings.values["mig-strategy"], settings.values["exclude"], notes)
    found = division.divide(there, snapshot, settings.sharing, notes)
    daemons = {one.name: mps.ready(stamp.state_dir(), one) for one in division.mps_groups(snapshot, settings)}
    found = {name: [_served(device, daemons) for device in devices] for name, devices in found.items()}
    told = _ways(settings, snapshot)
    notes += allocation.clash(told, found)
    notes += _unheard(told, snapshot["policy"]["requests"])
    notes += [
        f"no container gets IMEX channel {channel}, which this host does not have; nvidia-modprobe makes it"
        for channel in settings.values["imex-channels"]
        if channel not in told.imex
    ]
    for name, devices in found.items():
        written(name, [_message(replace(one, problem=GONE)) for one in devices])  # the longest that it may become
    _check_cdi(snapshot, found, told)
    return found, told


def absent(settings: Settings) -> list[str]:
    """Say that kubelet is not there, or elsewhere; one that starts makes its socket then."""
    path = f"{settings.values['kubelet-dir']}/device-plugins/{KUBELET_SOCKET}"
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


def _check_cdi(snapshot: Snapshot, found: Mapping[str, Sequence[Device]], told: Ways) -> None:
    """Refuse to tell devices by CDI where engines would not find them."""
    if allocation.BY_CDI.isdisjoint(told.ways):
        return
    from gpuplugin import cdi  # which needs much of gpushim

    well = [device for devices in found.values() for device in devices if not device.problem]
    cdi.check(snapshot, allocation.cdi_names(well, told))


def _unheard(told: Ways, requests: RequestsPolicy) -> list[str]:
    """Say where gpushim-runtime's policy forbids the way in which containers are told."""
    closed = not requests["accept-env-when-unprivileged"]
    if allocation.MOUNTS in told.ways:
        if requests["accept-volume-mounts"]:
            by_variable = closed and told.features and allocation.BY_CDI.isdisjoint(told.ways)
            return [f"{', '.join(told.features)} is told by a variable, {NOTHING}; choose cdi-cri"] * bool(
                by_variable
            )
        return [
            f"device-list-strategy has {allocation.MOUNTS}, and gpushim-runtime refuses such containers while "
            "accept-volume-mounts under [requests] of config.toml is false; make it true"
        ]
    if allocation.ENVVAR not in told.ways or not closed:
        return []
    return [f"device-list-strategy has {allocation.ENVVAR}, {NOTHING}; choose volume-mounts"]


def _ways(settings: Settings, snapshot: Snapshot) -> Ways:
    """Say how containers are told their devices."""
    values, nodes = settings.values, snapshot["nodes"]
    control = [path for path in allocation.CONTROL_NODES if path in nodes] if values["pass-device-specs"] else None
    return Ways(
        ways=values["device-list-strategy"],
        by_index=values["device-id-strategy"] == "index",
        kind=snapshot["policy"]["cdi"]["kind"],
        annotation_prefix=values["cdi-annotation-prefix"],
        features=[name for name in allocation.FEATURES if values[name]],
        imex=_channels(values, nodes),
        control=control,
        dev_root=snapshot["driver"]["dev-root"],
    )


def _channels(values: Mapping[str, Any], nodes: Mapping[str, Any]) -> list[int]:
    wanted: list[int] = values["imex-channels"]
    missing = [one for one in wanted if f"{allocation.CHANNEL}{one}" not in nodes]
    if missing and values["imex-required"]:
        raise GpushimError(
            f"imex-required is true, and this host has no IMEX channel {missing[0]}; nvidia-modprobe makes it",
            INVENTORY,
        )
    return [one for one in wanted if one not in missing]


def _served(device: Device, daemons: Mapping[str, str]) -> Device:
    """Take note of a device whose daemon of MPS does not run."""
    why = daemons.get(device.share.group, "") if device.share and not device.problem else ""
    return replace(device, problem=why) if why else device
