"""The metrics as Prometheus reads them: from what is known at one moment to text.

What NVML does not tell of a GPU is absent.
"""

from __future__ import annotations

import math
import platform
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gpuplugin.health.reason import GIVER, is_of_others
from gpuplugin.metrics.container_memory import Holding
from gpuplugin.metrics.metrics import (
    CLAIM,
    CONTAINER,
    FREE,
    FRONTS,
    GPU,
    HELD,
    IDENTITY,
    INSTANCE,
    ITS,
    OWN,
    REPLICA,
    SERIES,
    SHARED,
    THROTTLES,
)
from gpuplugin.metrics.readings import ECC
from gpuplugin.processes import counts
from gpuplugin.settings.resources import GONE
from gpuplugin.snapshot import release
from gpushim import __version__
from gpushim.containers import kubelet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpuplugin.health.reason import Reason
    from gpuplugin.kubelet.podresources import Holder, Listed
    from gpuplugin.metrics.meter import Readings
    from gpuplugin.metrics.metrics import Row
    from gpuplugin.settings.resources import Device
    from gpushim.containers.memory_use import Use
    from gpushim.ground.model import Snapshot

    Labels = dict[str, str]
    Sample = tuple[str, Labels, float]  # what follows the name, labels, value


@dataclass
class FrontState:
    """What a front has to tell at one moment.

    Attributes:
        own: how names of its own metrics begin, one of FRONTS.
        resources: of each its name, whether kubelet has it (None: that is not said of each), and its devices.
        reasons: why devices are sick, by UUID.
        samples: more of its own: the name's end, labels and value.
        looks: devices of admin claims: namespace and name of the claim, name of the device.
        hostname: of the node; "" is another's to say.
    """

    own: str = OWN
    resources: Sequence[tuple[str, bool | None, Sequence[Device]]] = ()
    reasons: Mapping[str, Sequence[Reason]] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    looks: Collection[tuple[str, str, str]] = ()
    hostname: str = ""


@dataclass
class State:
    """The data of the metrics at one moment.

    Attributes:
        fronts: that this process has.
        gpus: whether GPUs have metrics here; else another instance on the node has them.
        released: whether the GPUs are released.
        snapshot: what the host has; None while that is not known.
        usable: whether it is of this boot and kept true.
        readings: by UUID of a GPU.
        xids: the last one, by UUID of a GPU; 0 for none.
        listed: kubelet's list of pods, or None if kubelet does not answer.
        asked: whether kubelet answered just now.
        uses: of containers that have a limit of GPU memory.
        hostname: of the node.
    """

    fronts: Sequence[FrontState]
    gpus: bool = True
    released: bool = False
    snapshot: Snapshot | None = None
    usable: bool = False
    readings: Mapping[str, Readings] = field(default_factory=dict)
    xids: Mapping[str, int] = field(default_factory=dict)
    listed: Listed | None = None
    asked: bool = False
    uses: Mapping[Holding, Use] = field(default_factory=dict)
    hostname: str = ""


def write(state: State, accept: str) -> tuple[bytes, str]:
    """Return all metrics and their content type; `accept` may ask for OpenMetrics.

    Raises:
        ImportError: there is no prometheus-client.
    """
    from prometheus_client.exposition import choose_encoder  # costs 30 ms, and only who is asked needs it

    encoder, kind = choose_encoder(accept)
    return encoder(_Collected(state)), kind


class _Collected:
    """The registry, as prometheus-client takes one."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import Metric

        samples_by_name: dict[str, list[Sample]] = {}
        own = [row for front in self._state.fronts for row in FRONTS[front.own]]
        samples = [sample for front in self._state.fronts for sample in _front_samples(self._state, front)]
        for name, labels, value in (*samples, *_gpu_samples(self._state)):
            samples_by_name.setdefault(name, []).append(("", labels, value))
        for row in (*own, *((*GPU, *CONTAINER) if self._state.gpus else ())):
            counted = _count_samples(row) if row.key and row in own else samples_by_name.get(row.name, [])
            text = row.text + (SHARED if row in GPU else "")
            family = Metric(
                row.name.removesuffix("_total"), f"{text} Unit: {row.unit}." if row.unit else text, row.kind
            )
            for after, labels, value in counted:
                family.add_sample(row.name + after, labels, value)
            yield family


def _count_samples(row: Row) -> Iterator[Sample]:
    if row.kind == "histogram":
        from prometheus_client.utils import floatToGoString

        bounds = [*map(floatToGoString, (*counts.BOUNDS[row.key], math.inf))]
        for (key, word), (total, *numbers) in [*counts.timed.items()]:
            labels = dict(zip(row.labels, [word]))
            if key == row.key:
                for bound, number in zip(bounds, accumulate(numbers)):
                    yield "_bucket", {**labels, "le": bound}, number
                yield "_count", labels, sum(numbers)
                yield "_sum", labels, total
        return
    for (key, word), number in [*counts.counted.items()]:
        if key == row.key:
            yield "", dict(zip(row.labels, [word])), number


def _front_samples(state: State, front: FrontState) -> Iterator[Sample]:
    own, versions = front.own, {"version": __version__, "python": platform.python_version()}
    yield own + "build_info", {**versions, "Hostname": state.hostname}, 1
    for name, listed, devices in front.resources:
        numbers = Counter({("healthy", ""): 0})
        numbers.update(_health(device, front.reasons) for device in devices)
        for (health, reason), number in numbers.items():
            yield own + "devices", {"resource": name, "health": health, "reason": reason}, number
        if listed is not None:
            yield own + "registered", {"resource": name}, listed
    yield own + "released", {}, state.released
    yield own + "snapshot_up", {}, state.usable
    if state.gpus:
        yield own + "pod_resources_up", {}, state.asked
    yield from ((own + name, labels, value) for name, labels, value in front.samples)


def _health(device: Device, reasons: Mapping[str, Sequence[Reason]]) -> tuple[str, str]:
    if not device.problem:
        return "healthy", ""
    if device.problem in (GONE, release.PROBLEM):
        return "unhealthy", "removed" if device.problem == GONE else "released"
    default = GIVER if is_of_others(device.problem) else "host"
    return "unhealthy", next((reason.kind for reason in reasons.get(device.uuid, ())), default)


def _gpu_samples(state: State) -> Iterator[Sample]:
    """Yield the samples of GPUs and MIG instances; of each holder, no two alike."""
    holders, owners = _holders(state), _owners(state)
    for gpu in state.snapshot["gpus"] if state.snapshot and state.gpus else ():
        uuid, index = gpu["uuid"], str(gpu["index"])
        readings, extra = state.readings.get(uuid), {}
        if readings is None or not uuid:
            continue
        if uuid in state.xids:
            extra["xid"] = state.xids[uuid]
        minor = f"nvidia{gpu['minor']}" if gpu["minor"] is not None else ""
        labels = dict(zip(IDENTITY, (index, uuid, minor, gpu["model"] or "", state.hostname)))
        for own in holders.get(uuid, [FREE]):
            yield from _readings({**labels, **own}, {**readings.own, **extra}, mig=False)
        yield from _state_samples({**labels, **FREE}, readings)
        yield ITS + "owners", {**labels, **FREE}, len(owners.get(uuid, ()))
        for holding in [holding for holding in state.uses if holding.uuid == uuid][:SERIES]:
            for row in CONTAINER:
                value = getattr(state.uses[holding], row.key)
                yield row.name, {**labels, **dict(zip(HELD, holding[1:]))}, value
        for mig in state.snapshot["mig"] if state.snapshot else ():
            if mig["gpu"] == gpu["index"] and mig["uuid"] in readings.migs:
                mig_labels = {**labels, **dict(zip(INSTANCE, (str(mig["gi"]), mig["profile"])))}
                yield ITS + "owners", {**mig_labels, **FREE}, len(owners.get(mig["uuid"], ()))
                for own in holders.get(mig["uuid"], [FREE]):
                    yield from _readings({**mig_labels, **own}, readings.migs[mig["uuid"]], mig=True)


def _state_samples(labels: Labels, readings: Readings) -> Iterator[Sample]:
    for error, counter in ECC:
        if f"ecc {error} {counter}" in readings.own:
            yield (
                ITS + "ecc_errors",
                {**labels, "error": error, "counter": counter},
                readings.own[f"ecc {error} {counter}"],
            )
    for bit, reason in enumerate(THROTTLES if "throttle" in readings.own else ()):
        yield ITS + "throttle_reason", {**labels, "reason": reason}, int(readings.own["throttle"]) >> bit & 1
    yield ITS + "figures_up", labels, readings.up
    if readings.age is not None:
        yield ITS + "figures_age_seconds", labels, readings.age


def _readings(labels: Labels, readings: Mapping[str, Any], mig: bool) -> Iterator[Sample]:
    for row in GPU:
        value = readings.get(row.key) if row.mig or not mig else None
        if value is not None:
            yield row.name, labels, value * row.factor


def _holders(state: State) -> dict[str, list[Labels]]:
    """Return the labels of containers by UUID of their devices, replicas each by itself."""
    by_uuid: dict[str, dict[tuple[str, ...], Labels]] = {}
    for uuid, labels in (*_plugin_holders(state), *_claim_holders(state)):
        series = by_uuid.setdefault(uuid, {})
        if len(series) < SERIES:
            series[(*labels.values(),)] = labels
    return {uuid: [*series.values()] for uuid, series in by_uuid.items()}


def _owners(state: State) -> dict[str, set[tuple[str, ...]]]:
    """Return the owners by UUID: a claim, whose containers may be many, a container, or all replicas."""
    owners: dict[str, set[tuple[str, ...]]] = {}
    for uuid, labels in _plugin_holders(state):
        owners.setdefault(uuid, set()).add((REPLICA,) if REPLICA in labels else tuple(labels[key] for key in HELD))
    looks = {look for front in state.fronts for look in front.looks}
    for claim in state.listed.claims if state.listed and state.snapshot else ():
        assert state.snapshot
        if (claim.namespace, claim.name, claim.device) not in looks:
            for uuid in kubelet.which(claim, state.snapshot) or ():
                owners.setdefault(uuid, set()).add((CLAIM[0], claim.namespace, claim.name))
    return owners


def holdings(state: State) -> list[Holding]:
    """List the containers that alone of their pods have a GPU that answers, SERIES of a GPU at most."""
    by_pod: dict[tuple[str, str, str], set[Holding]] = {}
    for uuid, labels in _plugin_holders(state):
        holding = Holding(uuid, *(labels[key] for key in HELD))
        by_pod.setdefault(holding[:3], set()).add(holding)
    sole = [next(iter(sorted(pod))) for pod in by_pod.values() if len(pod) == 1]
    answering = [uuid for uuid, readings in state.readings.items() if readings.up]
    return [holding for uuid in answering for holding in [row for row in sole if row.uuid == uuid][:SERIES]]


def _plugin_holders(state: State) -> Iterator[tuple[str, Labels]]:
    rows = state.listed.devices if state.listed else ()
    ids = {(row["resource"], id_) for row in rows for id_ in row["devices"]}
    devices = {
        (name, device.id): device
        for front in state.fronts
        for name, _, listed in front.resources
        for device in listed
        if (name, device.id) in ids
    }
    for row in rows:
        for device in _known_devices(row, devices):
            labels = {key: row[key] for key in HELD}
            replica = device.id.partition("::")[2]
            if replica:
                labels[REPLICA] = replica
            yield device.uuid, labels


def _claim_holders(state: State) -> Iterator[tuple[str, Labels]]:
    """Yield the devices of claims, but of a claim that may have any GPU."""
    for claim in state.listed.claims if state.listed and state.snapshot else ():
        assert state.snapshot
        for uuid in sorted(kubelet.which(claim, state.snapshot) or ()):
            yield (
                uuid,
                dict(zip((*HELD, *CLAIM), (claim.namespace, claim.pod, claim.container, claim.name, claim.driver))),
            )


def _known_devices(row: Holder, devices: Mapping[tuple[str, str], Device]) -> Iterable[Device]:
    return (devices[row["resource"], id_] for id_ in row["devices"] if (row["resource"], id_) in devices)
