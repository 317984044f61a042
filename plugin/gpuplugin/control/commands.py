"""What root may ask of the plugin: its state, and to let go of the GPUs and take them again.

Replicas are counted, not listed: a node may have 60 000. Out of scope: the socket (control.py), how a state is shown
(gpushim.cli.device_plugin), the file that keeps what was asked for (release.py).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.kubelet import podresources
from gpuplugin.processes import spawn
from gpuplugin.snapshot import release
from gpuplugin.snapshot.release import Release
from gpushim import __version__
from gpushim.ground import system
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from gpuplugin.allocation.registry import Registry, Served
    from gpuplugin.health.reason import Reason
    from gpuplugin.kubelet.podresources import Holder
    from gpuplugin.settings.resources import Device

    Reasons = Mapping[str, Sequence[Reason]]  # by UUID of a GPU or MIG instance

CLOSING = 20.0  # seconds that letting go may take before it is said that it does not happen


class Commands:
    """The commands.

    Args:
        registry: what kubelet was told.
        start: starts a task, and sees to what it ends with.
        close: ends the processes that ask the driver.
        wake: has the host looked at again.
        about: says what else is in the state: kubelet's directory, reasons by UUID, members of the answer.

    Attributes:
        turns: how often the GPUs were let go or taken; after each the host is looked at again.
    """

    def __init__(
        self,
        registry: Registry,
        start: Callable[[Any], asyncio.Task[Any]],
        close: Callable[[], Awaitable[object]],
        wake: Callable[[], None],
        about: Callable[[], tuple[str, Reasons, dict[str, Any]]],
    ) -> None:
        self._registry, self._start, self._close, self._wake, self._about = registry, start, close, wake, about
        self._release, self.turns = Release(), 0
        self._closing: asyncio.Task[Any] | None = None  # while the GPUs are let go
        self.by_word = {"status": self._status, "release": self._let_go, "take": self._take}

    def held(self) -> bool:
        """Let go of the GPUs or take them again, as the release's file says.

        Returns:
            whether they are let go now: nothing may ask the driver.
        """
        if self._release.requested():
            if self._closing is None:
                logger.warning("the GPUs are released until gpushim device-plugin take")
                self.turns += 1
                self._registry.hold(release.PROBLEM)
                self._closing = self._start(self._closed())
        elif self._closing and self._closing.done():  # not before: it would open what is being closed
            logger.info("the GPUs are given out again")
            self.turns += 1
            self._registry.hold("")
            self._closing = None
        return self._closing is not None

    async def _closed(self) -> None:
        await self._close()
        await spawn.alone()
        self._wake()

    async def _let_go(self) -> dict[str, Any]:
        self._release.ask()
        self.held()
        if self._closing and not (await asyncio.wait([self._closing], timeout=CLOSING))[0]:
            raise GpushimError(
                "the GPUs are not released yet: a process of the device plugin, or a refresh, is in the driver and "
                "does not end; gpushim device-plugin status says when it is gone, and a reboot ends it",
                FAILED,
            )
        return await self._status()

    async def _take(self) -> dict[str, Any]:
        self._release.take()
        self.held()
        self._wake()
        return await self._status()

    async def _status(self) -> dict[str, Any]:
        kubelet_dir, reasons, more = self._about()
        served = self._registry.served
        holders = await podresources.holders(kubelet_dir, [*served])
        taken = [resource(one) for one in served.values()]
        return {
            "version": __version__,
            "released": self._release.since or None,
            "kubelet_dir": kubelet_dir,
            "closed": self._closing is not None and self._closing.done(),
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
