"""What root may ask of the plugin: its state, and to let go of the GPUs and take them again.

Replicas are counted, not listed: a node may have 60 000. Out of scope: the socket (control.py), how a state is shown
(gpushim.cli.device_plugin), the file that keeps what was asked for (release.py).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.control.letting_go import LettingGo
from gpuplugin.kubelet import podresources
from gpushim import __version__
from gpushim.ground import system

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from gpuplugin.allocation.registry import Registry, Served
    from gpuplugin.health.reason import Reason
    from gpuplugin.kubelet.podresources import Holder
    from gpuplugin.settings.resources import Device

    Reasons = Mapping[str, Sequence[Reason]]  # by UUID of a GPU or MIG instance


class Commands:
    """The commands.

    Args:
        registry: what kubelet was told.
        start: starts a task, and sees to what it ends with.
        close: ends the processes that ask the driver.
        wake: has the host looked at again.
        about: says what else is in the state: kubelet's directory, reasons by UUID, members of the answer.
    """

    def __init__(
        self,
        registry: Registry,
        start: Callable[[Any], asyncio.Task[Any]],
        close: Callable[[], Awaitable[object]],
        wake: Callable[[], None],
        about: Callable[[], tuple[str, Reasons, dict[str, Any]]],
    ) -> None:
        self._registry, self._about = registry, about
        self._letting = LettingGo(start, close, wake, registry.hold, "the device plugin")
        self.by_word = {"status": self._status, "release": self._let_go, "take": self._take}

    def held(self) -> bool:
        """As `LettingGo.held`."""
        return self._letting.held()

    @property
    def turns(self) -> int:
        """As `LettingGo.turns`."""
        return self._letting.turns

    async def _let_go(self) -> dict[str, Any]:
        await self._letting.let_go()
        return await self._status()

    async def _take(self) -> dict[str, Any]:
        self._letting.take()
        return await self._status()

    async def _status(self) -> dict[str, Any]:
        kubelet_dir, reasons, more = self._about()
        served = self._registry.served
        holders = await podresources.holders(kubelet_dir, [*served])
        taken = [resource(one) for one in served.values()]
        return {
            "version": __version__,
            "kubelet_dir": kubelet_dir,
            **self._letting.state,
            "resources": await asyncio.to_thread(resources, taken, reasons, holders),
            "pods": holders,
            **more,
        }


def resource(served: Served) -> dict[str, Any]:
    """Take of a resource what `resources` needs; quick, for it runs where kubelet's calls do."""
    one = served.resource
    devices, allocated = (*one.devices.values(),), (*one.allocated,)
    shown = {"name": one.name, "told": served.endpoint.listed, "devices": devices, "allocated": allocated}
    return {**shown, "since": {**one.since}}


def resources(taken: Iterable[Mapping[str, Any]], reasons: Reasons, holders: Sequence[Holder] | None) -> Any:
    """List resources with their devices, each GPU or MIG instance once.

    Args:
        taken: of each, by `resource`.
        reasons: why devices are sick, beside what the snapshot says.
        holders: who has what, or None if kubelet does not say.
    """
    return [
        {
            "name": one["name"],
            "registered": one["told"],
            "devices": _devices(one["devices"], one["since"], reasons, _held(one["name"], holders)),
            "allocated": [{"at": at, "devices": [*ids]} for at, ids in reversed(one["allocated"])],
        }
        for one in taken
    ]


def _held(name: str, holders: Sequence[Holder] | None) -> set[str] | None:
    if holders is None:
        return None
    return {device for one in holders if one["resource"] == name for device in one["devices"]}


def _devices(
    devices: Iterable[Device], since: Mapping[str, float], reasons: Reasons, held: set[str] | None
) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    boot = time.time() - system.clock()
    for one in devices:
        row = found.get(one.uuid)
        if row is None:
            row = found[one.uuid] = {
                "uuid": one.uuid,
                "index": one.index,
                "replicas": 0,
                "held": None if held is None else 0,
                "healthy": not one.problem,
                "problem": one.problem,
                "since": boot + since[one.uuid] if one.uuid in since else None,
                "reasons": [
                    {"kind": why.kind, "text": why.text, "since": why.when, "until": why.until}
                    for why in reasons.get(one.uuid, ())
                ],
            }
        row["replicas"] += 1
        if held is not None:
            row["held"] += one.id in held
    return [*found.values()]
