"""Opaque configs of an allocated claim: which of them counts for which of its devices, and what it says.

The kinds are NVIDIA's, GpuConfig and MigDeviceConfig of resource.nvidia.com/v1beta1, read strictly: what would be
ignored is an error, for a limit that is misspelled limits nobody. Of several configs for a device, one of the claim
counts before one of its device class, then one that names the request before one that names none, then the later.
Out of scope: what is done with them, and whether the devices are there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.settings import quantity
from gpuplugin.settings.forms import ALIKE, find_meant, show, suggest
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.bounds import CLAIM_CONFIG, LISTED
from gpushim.ground.errors import REQUEST, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

API = "resource.nvidia.com/v1beta1"
ROWS = 64  # results, or configs of claim and classes, of an allocation (twice DeviceConfigMaxSize)
KINDS = {"GpuConfig": "gpu", "MigDeviceConfig": "mig"}  # with the type of the devices that each is for
TIME_SLICING, MPS = "TimeSlicing", "MPS"
STRATEGIES = (TIME_SLICING, MPS)
INTERVALS = ("Default", "Short", "Medium", "Long")
_COMPUTE_DOMAINS = "NVIDIA's driver compute-domain.nvidia.com serves compute domains"
UNSUPPORTED = {
    "VfioDeviceConfig": "it gives GPUs to containers, not to virtual machines",
    "ComputeDomainChannelConfig": _COMPUTE_DOMAINS,
    "ComputeDomainDaemonConfig": _COMPUTE_DOMAINS,
}
_DEVICE = re.compile("(GPU|MIG)-[0-9a-fA-F-]{36}|[0-9]{1,3}")
_AN_AMOUNT = "at least 1Mi, as a Kubernetes quantity such as 10Gi"
_LIMITS = "defaultPerDevicePinnedMemoryLimit"


@dataclass(frozen=True)
class Config:
    """What the configs of a claim say of one of its devices.

    Attributes:
        strategy: TimeSlicing, MPS, or "" if nothing is said.
        interval: of TimeSlicing of a GPU: one of INTERVALS.
        threads: of MPS: percent, 1 to 100; None if nothing is said.
        memory: of MPS: of each device, a quantity; "" if nothing is said.
        per_device: of MPS: (UUID, or index among the devices of this config; quantity), which count before `memory`.
        multi_user: of MPS: one server for clients of all users.
        position: among the allocation's configs.
    """

    strategy: str = ""
    interval: str = ""
    threads: int | None = None
    memory: str = ""
    per_device: tuple[tuple[str, str], ...] = ()
    multi_user: bool = False
    position: int = field(default=-1, compare=False)


class Row(NamedTuple):
    """A config that is read, with what decides where it counts."""

    of_claim: bool
    requests: tuple[str, ...]
    where: str
    type: str
    config: Config


def chosen(allocation: Mapping[str, Any], types: Mapping[str, str]) -> dict[int, Config]:
    """Choose the config of each device that a claim got of this driver.

    Args:
        allocation: of the claim's status.
        types: gpu or mig, by the name of a device; what is not there is of any type.

    Returns:
        by the position of the device in the allocation's results; without those of other drivers.

    Raises:
        GpushimError: a config of this driver is wrong, or names a request that got a device of another type.
    """
    devices = allocation.get("devices") or {}
    rows = [_row(row, number) for number, row in enumerate(_rows(devices, "config")) if _is_own(row)]
    return {
        number: _best(str(result.get("request")), str(result.get("device")), rows, types)
        for number, result in enumerate(_rows(devices, "results"))
        if result.get("driver") == OWN_DRIVER
    }


def of_others(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes of configs of an allocation that are for other drivers, and whether this one may be meant."""
    names = [row["opaque"].get("driver") for row in rows if isinstance(row.get("opaque"), dict)]
    foreign_names = dict.fromkeys(name for name in names if isinstance(name, str) and name != OWN_DRIVER)
    return [
        f"a config is for the driver {quote(name)}, which is not this one{suggest(name, (OWN_DRIVER,), ALIKE)}"
        for name in [*foreign_names][:LISTED]
    ]


def limits(config: Config, uuids: Sequence[str]) -> dict[str, int]:
    """Return the limits of memory of the devices that a config of MPS counts for.

    Args:
        config: of them.
        uuids: theirs, in the order of the allocation's results: what the config's indices count.

    Returns:
        MiB by UUID, without devices that have no limit.

    Raises:
        GpushimError: the config names a device that is not among them; it would limit nothing.
    """
    amounts = dict.fromkeys(uuids, config.memory) if config.memory else {}
    for key, memory in config.per_device:
        matches = [*uuids[int(key) :][:1]] if key.isdecimal() else [uuid for uuid in uuids if uuid == key]
        if not matches:
            fix = f"write a UUID of {', '.join(uuids[:LISTED])}, or an index below {len(uuids)}"
            raise _unknown("the claim's config", f"sharing.mpsConfig.{_LIMITS}", key, fix)
        amounts[matches[0]] = memory
    return {uuid: mebibytes(memory) or 0 for uuid, memory in amounts.items()}


def mebibytes(text: str) -> int | None:
    """Return a Kubernetes quantity in whole MiB; None if it is none, or is below 1Mi or above 8Ei."""
    number = quantity.parse(text)
    return int(number) >> 20 if number is not None and 1 << 20 <= number < 1 << 63 else None


def _best(request: str, device: str, rows: Sequence[Row], types: Mapping[str, str]) -> Config:
    """Find the config that counts for a device; one of the wrong type is passed over if it names no request.

    Args:
        request: that got the device.
        device: its name.
        rows: the configs of this driver.
        types: as for `chosen`.

    Raises:
        GpushimError: one that names the request is of another type.
    """
    names = {request, request.partition("/")[0]}  # an alternative of firstAvailable is g/two
    fit = [row for row in rows if not row.requests or names & {*row.requests}]
    for row in sorted(fit, key=lambda row: (row.of_claim, bool(row.requests), row.config.position), reverse=True):
        kind = types.get(device, row.type)
        if kind == row.type:
            return row.config
        if row.requests:
            raise GpushimError(
                f'{row.where} is for devices of type {row.type}, and the request "{quote(request)}" got one of type '
                f"{kind}; name other requests there, an alternative as in gpu/small, or write the other kind",
                REQUEST,
            )
    return Config()


def _rows(found: Any, key: str) -> list[dict[str, Any]]:
    """Return a list of an allocation's devices, "config" or "results".

    Raises:
        GpushimError: it is none, or too long.
    """
    rows = (found.get(key) or []) if isinstance(found, dict) else None
    if not isinstance(rows, list) or len(rows) > ROWS or not all(isinstance(row, dict) for row in rows):
        raise GpushimError(
            f"the claim's allocation has no list of {key} as the scheduler writes it; delete the claim and its pod, "
            "and make them again",
            REQUEST,
        )
    return rows


def _is_own(row: Mapping[str, Any]) -> bool:
    opaque = row.get("opaque")
    return isinstance(opaque, dict) and opaque.get("driver") == OWN_DRIVER


def _row(row: Mapping[str, Any], number: int) -> Row:
    """Read a config of this driver."""
    of_claim = row.get("source") != "FromClass"
    value = row.get("requests") or []
    requests = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
    owner = "the claim's" if of_claim else "the device class's"
    parameters = row["opaque"].get("parameters")
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    title = kind if isinstance(kind, str) and kind in {**KINDS, **UNSUPPORTED} else f"config for {OWN_DRIVER}"
    subject = f"{owner} {title}" + (f' of the request "{quote(requests[0])}"' if requests else "")
    _check_size(parameters, subject)
    if isinstance(kind, str) and kind in UNSUPPORTED:
        raise GpushimError(f"{subject} is not supported by gpushim: {UNSUPPORTED[kind]}; omit it", REQUEST)
    if not isinstance(parameters, dict):
        raise _wrong(subject, "parameters", parameters, "an object")
    type_ = KINDS[_one_of(kind, subject, "kind", (*KINDS,))]
    _one_of(parameters.get("apiVersion"), subject, "apiVersion", (API,))
    fields = _object(parameters, subject, "parameters", ("apiVersion", "kind", "sharing"))
    config = replace(_config(fields.get("sharing"), subject, type_), position=number)
    return Row(of_claim, requests, subject, type_, config)


def _check_size(parameters: Any, subject: str) -> None:
    try:
        size = len(json.dumps(parameters, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
    except RecursionError:
        size = CLAIM_CONFIG + 1
    if size > CLAIM_CONFIG:
        raise GpushimError(f"{subject} has more than {CLAIM_CONFIG >> 10} KiB; shorten it", REQUEST)


def _config(sharing: Any, subject: str, type_: str) -> Config:
    """Read the field sharing."""
    if sharing is None:
        return Config()
    by_time = ("timeSlicingConfig",) if type_ == "gpu" else ()  # the driver has no time slices for MIG instances
    fields = _object(sharing, subject, "sharing", ("strategy", *by_time, "mpsConfig"))
    strategy = _one_of(fields.get("strategy"), subject, "sharing.strategy", STRATEGIES)
    unfit = "mpsConfig" if strategy == TIME_SLICING else "timeSlicingConfig"
    if fields.get(unfit) is not None:
        raise GpushimError(
            f"{subject}: sharing.{unfit} does not go with the strategy {strategy}; omit it, or write the strategy "
            f"{MPS if strategy == TIME_SLICING else TIME_SLICING}",
            REQUEST,
        )
    if strategy == MPS:
        return _mps(fields.get("mpsConfig"), subject)
    slicing = _object(fields.get("timeSlicingConfig"), subject, "sharing.timeSlicingConfig", ("interval",))
    interval = slicing.get("interval")
    if interval is not None:
        _one_of(interval, subject, "sharing.timeSlicingConfig.interval", INTERVALS)
    return Config(strategy, (interval or INTERVALS[0]) if by_time else "")


def _mps(mps_config: Any, subject: str) -> Config:
    name = "sharing.mpsConfig"
    allowed = ("defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit", _LIMITS, "multiUser")
    fields = _object(mps_config, subject, name, allowed)
    threads = fields.get("defaultActiveThreadPercentage")
    if threads is not None and not (type(threads) is int and 1 <= threads <= 100):
        raise _wrong(subject, f"{name}.defaultActiveThreadPercentage", threads, "a whole number between 1 and 100")
    memory = fields.get("defaultPinnedDeviceMemoryLimit")
    if memory is not None:
        memory = _amount(memory, subject, f"{name}.defaultPinnedDeviceMemoryLimit")
    limits = _object(fields.get(_LIMITS), subject, f"{name}.{_LIMITS}", _DEVICE.fullmatch)
    per_device = {key: _amount(value, subject, f'{name}.{_LIMITS}["{quote(key)}"]') for key, value in limits.items()}
    multi_user = fields.get("multiUser")
    if multi_user is not None and not isinstance(multi_user, bool):
        raise _wrong(subject, f"{name}.multiUser", multi_user, "true or false")
    return Config(MPS, "", threads, memory or "", (*sorted(per_device.items()),), bool(multi_user))


def _amount(value: Any, subject: str, name: str) -> str:
    text = str(value) if type(value) is int else value  # YAML has it as a number, which Kubernetes takes, too
    if not isinstance(text, str) or mebibytes(text) is None:
        raise _wrong(subject, name, value, _AN_AMOUNT)
    return text


def _object(value: Any, subject: str, name: str, allowed: tuple[str, ...] | Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields of an object, none where there is none, if each of them is known."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(subject, name, value, "an object")
    for key in map(str, value):
        if key in allowed if isinstance(allowed, tuple) else allowed(key):
            continue
        if not isinstance(allowed, tuple):
            fix = "write a UUID, or an index among the claim's devices"
        else:
            meant_key = find_meant(key, allowed)
            fix = f"is {meant_key} meant?" if meant_key else f"it may have {', '.join(allowed)}"
        raise _unknown(subject, name, key, fix)
    return value


def _one_of(value: Any, subject: str, name: str, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _wrong(subject, name, value, " or ".join(filter(None, (", ".join(allowed[:-1]), allowed[-1]))))
    return value


def _wrong(subject: str, name: str, value: Any, form: str) -> GpushimError:
    return GpushimError(f"{subject}: {name} is {show(value)}; write {form}", REQUEST)


def _unknown(subject: str, name: str, key: str, fix: str) -> GpushimError:
    return GpushimError(f'{subject}: "{quote(key)}" is unknown in {name}; {fix}', REQUEST)
