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
        place: among the allocation's configs.
    """

    strategy: str = ""
    interval: str = ""
    threads: int | None = None
    memory: str = ""
    per_device: tuple[tuple[str, str], ...] = ()
    place: int = field(default=-1, compare=False)


class Row(NamedTuple):
    """A config that is read, with what decides where it counts."""

    of_claim: bool
    requests: tuple[str, ...]
    where: str
    type: str
    config: Config


def chosen(allocation: Mapping[str, Any], driver: str, types: Mapping[str, str]) -> dict[int, Config]:
    """Choose the config of each device that a claim got of a driver.

    Args:
        allocation: of the claim's status.
        driver: its name.
        types: gpu or mig, by the name of a device; what is not there is of any type.

    Returns:
        by the place of the device in the allocation's results; without those of other drivers.

    Raises:
        GpushimError: a config of this driver is wrong, or names a request that got a device of another type.
    """
    found = allocation.get("devices") or {}
    rows = [_row(row, place, driver) for place, row in enumerate(_rows(found, "config")) if _is_of(row, driver)]
    return {
        place: _best(str(result.get("request")), str(result.get("device")), rows, types)
        for place, result in enumerate(_rows(found, "results"))
        if result.get("driver") == driver
    }


def of_others(rows: Sequence[Mapping[str, Any]], driver: str) -> list[str]:
    """Say which configs are for other drivers, and whether this one may be meant: to them they are nothing wrong.

    Args:
        rows: of an allocation.
        driver: the name of this one.
    """
    found = [row["opaque"].get("driver") for row in rows if isinstance(row.get("opaque"), dict)]
    others = dict.fromkeys(one for one in found if isinstance(one, str) and one != driver)
    return [
        f"a config is for the driver {quote(one)}, which is not this one{suggest(one, (driver,), ALIKE)}"
        for one in [*others][:LISTED]
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
    found = dict.fromkeys(uuids, config.memory) if config.memory else {}
    for key, memory in config.per_device:
        named = [*uuids[int(key) :][:1]] if key.isdecimal() else [one for one in uuids if one == key]
        if not named:
            fix = f"write a UUID of {', '.join(uuids[:LISTED])}, or an index below {len(uuids)}"
            raise _unknown("the claim's config", f"sharing.mpsConfig.{_LIMITS}", key, fix)
        found[named[0]] = memory
    return {uuid: mebibytes(memory) or 0 for uuid, memory in found.items()}


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
    for row in sorted(fit, key=lambda row: (row.of_claim, bool(row.requests), row.config.place), reverse=True):
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


def _is_of(row: Mapping[str, Any], driver: str) -> bool:
    opaque = row.get("opaque")
    return isinstance(opaque, dict) and opaque.get("driver") == driver


def _row(row: Mapping[str, Any], place: int, driver: str) -> Row:
    """Read a config of this driver."""
    of_claim = row.get("source") != "FromClass"
    named = row.get("requests") or []
    requests = tuple(map(str, named)) if isinstance(named, list) else (str(named),)
    whose = "the claim's" if of_claim else "the device class's"
    parameters = row["opaque"].get("parameters")
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    what = kind if isinstance(kind, str) and kind in {**KINDS, **UNSUPPORTED} else f"config for {quote(driver)}"
    where = f"{whose} {what}" + (f' of the request "{quote(requests[0])}"' if requests else "")
    _check_size(parameters, where)
    if isinstance(kind, str) and kind in UNSUPPORTED:
        raise GpushimError(f"{where} is not supported by gpushim: {UNSUPPORTED[kind]}; omit it", REQUEST)
    if not isinstance(parameters, dict):
        raise _wrong(where, "parameters", parameters, "an object")
    type_ = KINDS[_one_of(kind, where, "kind", (*KINDS,))]
    _one_of(parameters.get("apiVersion"), where, "apiVersion", (API,))
    fields = _object(parameters, where, "parameters", ("apiVersion", "kind", "sharing"))
    config = replace(_config(fields.get("sharing"), where, type_), place=place)
    return Row(of_claim, requests, where, type_, config)


def _check_size(parameters: Any, where: str) -> None:
    try:
        size = len(json.dumps(parameters, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
    except RecursionError:
        size = CLAIM_CONFIG + 1
    if size > CLAIM_CONFIG:
        raise GpushimError(f"{where} has more than {CLAIM_CONFIG >> 10} KiB; shorten it", REQUEST)


def _config(sharing: Any, where: str, type_: str) -> Config:
    """Read the field sharing."""
    if sharing is None:
        return Config()
    by_time = ("timeSlicingConfig",) if type_ == "gpu" else ()  # the driver has no time slices for MIG instances
    fields = _object(sharing, where, "sharing", ("strategy", *by_time, "mpsConfig"))
    strategy = _one_of(fields.get("strategy"), where, "sharing.strategy", STRATEGIES)
    other = "mpsConfig" if strategy == TIME_SLICING else "timeSlicingConfig"
    if fields.get(other) is not None:
        raise GpushimError(
            f"{where}: sharing.{other} does not go with the strategy {strategy}; omit it, or write the strategy "
            f"{MPS if strategy == TIME_SLICING else TIME_SLICING}",
            REQUEST,
        )
    if strategy == MPS:
        return _mps(fields.get("mpsConfig"), where)
    slicing = _object(fields.get("timeSlicingConfig"), where, "sharing.timeSlicingConfig", ("interval",))
    interval = slicing.get("interval")
    if interval is not None:
        _one_of(interval, where, "sharing.timeSlicingConfig.interval", INTERVALS)
    return Config(strategy, (interval or INTERVALS[0]) if by_time else "")


def _mps(found: Any, where: str) -> Config:
    name = "sharing.mpsConfig"
    fields = _object(found, where, name, ("defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit", _LIMITS))
    threads = fields.get("defaultActiveThreadPercentage")
    if threads is not None and not (type(threads) is int and 1 <= threads <= 100):
        raise _wrong(where, f"{name}.defaultActiveThreadPercentage", threads, "a whole number between 1 and 100")
    memory = fields.get("defaultPinnedDeviceMemoryLimit")
    if memory is not None:
        memory = _amount(memory, where, f"{name}.defaultPinnedDeviceMemoryLimit")
    limits = _object(fields.get(_LIMITS), where, f"{name}.{_LIMITS}", _DEVICE.fullmatch)
    per_device = {key: _amount(value, where, f'{name}.{_LIMITS}["{quote(key)}"]') for key, value in limits.items()}
    return Config(MPS, "", threads, memory or "", (*sorted(per_device.items()),))


def _amount(value: Any, where: str, name: str) -> str:
    text = str(value) if type(value) is int else value  # YAML has it as a number, which Kubernetes takes, too
    if not isinstance(text, str) or mebibytes(text) is None:
        raise _wrong(where, name, value, _AN_AMOUNT)
    return text


def _object(value: Any, where: str, name: str, known: tuple[str, ...] | Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields of an object, none where there is none, if each of them is known."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(where, name, value, "an object")
    for key in map(str, value):
        if key in known if isinstance(known, tuple) else known(key):
            continue
        if not isinstance(known, tuple):
            fix = "write a UUID, or an index among the claim's devices"
        else:
            near = find_meant(key, known)
            fix = f"is {near} meant?" if near else f"it may have {', '.join(known)}"
        raise _unknown(where, name, key, fix)
    return value


def _one_of(value: Any, where: str, name: str, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise _wrong(where, name, value, " or ".join(filter(None, (", ".join(known[:-1]), known[-1]))))
    return value


def _wrong(where: str, name: str, value: Any, form: str) -> GpushimError:
    return GpushimError(f"{where}: {name} is {show(value)}; write {form}", REQUEST)


def _unknown(where: str, name: str, key: str, fix: str) -> GpushimError:
    return GpushimError(f'{where}: "{quote(key)}" is unknown in {name}; {fix}', REQUEST)
