"""Whether the API server has the devices that were desired, and what of them it dropped.

It writes quantities in another form, adds the time of a taint, leaves out what is empty, and drops fields of features
that are off. Out of scope: which slices there are (slice_plan.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.cluster import member
from gpuplugin.settings import quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_NAME = {"attributes", "capacity", "counters"}  # objects whose members have names that a driver gives
QUANTITIES = {"capacity", "counters"}  # below them, texts are quantities


def same(desired: Any, found: Any, path: tuple[str, ...] = ()) -> bool:
    """Say whether devices are the same.

    Args:
        desired: a list of devices, or a part of it.
        found: what the API server has in its place.
        path: of names to the part.
    """
    if isinstance(desired, dict) and isinstance(found, dict):
        names = _given(desired) | _given(found)
        if path[-1:] == ("taints",):
            names -= {"timeAdded"} - _given(desired)
        return all(same(desired.get(name), found.get(name), (*path, name)) for name in names)
    if isinstance(desired, list) and isinstance(found, list):
        return len(desired) == len(found) and all(same(*both, path) for both in zip(desired, found))
    if isinstance(desired, str) and isinstance(found, str) and desired != found and QUANTITIES.intersection(path):
        return None is not quantity.parse(desired) == quantity.parse(found)
    return desired == found and isinstance(desired, bool) == isinstance(found, bool)


def dropped(desired: Any, found: Any, path: str = "spec.devices") -> Iterator[str]:
    """Yield the fields that the API server has not kept, such as spec.devices[].taints.

    Args:
        desired: a list of devices, or a part of it.
        found: what the API server answered.
        path: of the part.
    """
    if isinstance(desired, dict) and isinstance(found, dict):
        named = path.rpartition(".")[2] in BY_NAME
        for name in _given(desired):
            step = f"{path}.{'*' if named else name}"
            if name in _given(found):
                yield from dropped(desired[name], found[name], step)
            else:
                yield step
    elif isinstance(desired, list) and isinstance(found, list):
        for both in zip(desired, found):
            yield from dropped(*both, f"{path}[]")


def dated(desired: list[dict[str, Any]], found: list[list[Any]]) -> list[dict[str, Any]]:
    """Return devices whose taints have the time that those in the API server have: a pod is evicted by it.

    Args:
        desired: devices.
        found: devices of each slice that is there.
    """
    times = {
        _taint(device, taint): member(taint, "timeAdded")
        for devices in found
        for device in devices
        for taint in member(device, "taints") or ()
    }

    def with_time(device: dict[str, Any], taint: dict[str, Any]) -> dict[str, Any]:
        time = times.get(_taint(device, taint))
        return {"timeAdded": time, **taint} if time else taint

    return [
        {**device, "taints": [with_time(device, taint) for taint in device["taints"]]}
        if device.get("taints")
        else device
        for device in desired
    ]


def _taint(device: Any, taint: Any) -> tuple[str, ...]:
    """Return what a taint is known by."""
    return (str(member(device, "name")), *(str(member(taint, name)) for name in ("key", "value", "effect")))


def _given(thing: dict[str, Any]) -> set[str]:
    """Return the names of members that the API server would not leave out."""
    return {name for name, value in thing.items() if value is not None and value not in ([], {})}
