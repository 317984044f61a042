"""Compare desired devices with those of the API server, and find what it dropped.

It writes quantities in another form, adds the time of a taint, leaves out what is empty, and drops fields of features
that are off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.cluster import member
from gpuplugin.settings import quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_NAME = {"attributes", "capacity", "counters"}  # objects whose members have names that a driver gives
QUANTITIES = {"capacity", "counters"}  # below them, texts are quantities


def same(desired: Any, actual: Any, path: tuple[str, ...] = ()) -> bool:
    """Return whether the API server has devices, or a part of them, as desired; `path` has the names to the part."""
    if isinstance(desired, dict) and isinstance(actual, dict):
        names = _member_names(desired) | _member_names(actual)
        if path[-1:] == ("taints",):
            names -= {"timeAdded"} - _member_names(desired)
        return all(same(desired.get(name), actual.get(name), (*path, name)) for name in names)
    if isinstance(desired, list) and isinstance(actual, list):
        return len(desired) == len(actual) and all(same(*pair, path) for pair in zip(desired, actual))
    if isinstance(desired, str) and isinstance(actual, str) and desired != actual and QUANTITIES.intersection(path):
        return None is not quantity.parse(desired) == quantity.parse(actual)
    return desired == actual and isinstance(desired, bool) == isinstance(actual, bool)


def dropped(desired: Any, actual: Any, path: str = "spec.devices") -> Iterator[str]:
    """Yield the fields that the API server has not kept, such as spec.devices[].taints."""
    if isinstance(desired, dict) and isinstance(actual, dict):
        by_name = path.rpartition(".")[2] in BY_NAME
        for name in _member_names(desired):
            step = f"{path}.{'*' if by_name else name}"
            if name in _member_names(actual):
                yield from dropped(desired[name], actual[name], step)
            else:
                yield step
    elif isinstance(desired, list) and isinstance(actual, list):
        for pair in zip(desired, actual):
            yield from dropped(*pair, f"{path}[]")


def dated(desired: list[dict[str, Any]], published: list[list[Any]]) -> list[dict[str, Any]]:
    """Return devices whose taints have the time that those in the API server have: a pod is evicted by it."""
    times = {
        _taint_key(device, taint): member(taint, "timeAdded")
        for devices in published
        for device in devices
        for taint in member(device, "taints") or ()
    }

    def with_time(device: dict[str, Any], taint: dict[str, Any]) -> dict[str, Any]:
        time = times.get(_taint_key(device, taint))
        return {"timeAdded": time, **taint} if time else taint

    return [
        {**device, "taints": [with_time(device, taint) for taint in device["taints"]]}
        if device.get("taints")
        else device
        for device in desired
    ]


def _taint_key(device: Any, taint: Any) -> tuple[str, ...]:
    return (str(member(device, "name")), *(str(member(taint, name)) for name in ("key", "value", "effect")))


def _member_names(parent: dict[str, Any]) -> set[str]:
    """Return the names of members that the API server would not leave out."""
    return {name for name, value in parent.items() if value is not None and value not in ([], {})}
