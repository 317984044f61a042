"""What root may ask of the plugin: its state, and to let go of the GPUs and take them again.

Out of scope: the socket (control.py), the file that keeps what was asked for (release.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gpuplugin.control import status
from gpuplugin.kubelet import podresources
from gpuplugin.processes import process
from gpuplugin.snapshot import release
from gpuplugin.snapshot.release import Release
from gpushim import __version__
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gpuplugin.allocation.registry import Registry

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
        about: Callable[[], tuple[str, status.Reasons, dict[str, Any]]],
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
                logger.warning("the GPUs are let go, until gpushim device-plugin take")
                self.turns += 1
                self._registry.hold(release.PROBLEM)
                self._closing = self._start(self._closed())
        elif self._closing and self._closing.done():  # not before: it would open what is being closed
            logger.info("the GPUs are taken again")
            self.turns += 1
            self._registry.hold("")
            self._closing = None
        return self._closing is not None

    async def _closed(self) -> None:
        await self._close()
        await process.alone()
        self._wake()

    async def _let_go(self) -> dict[str, Any]:
        self._release.ask()
        self.held()
        if self._closing and not (await asyncio.wait([self._closing], timeout=CLOSING))[0]:
            raise GpushimError(
                "the GPUs are not let go yet: a process of the device plugin, or a refresh, is in the driver and "
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
        taken = [status.resource(one) for one in served.values()]
        return {
            "version": __version__,
            "released": self._release.since or None,
            "kubelet_dir": kubelet_dir,
            "closed": self._closing is not None and self._closing.done(),
            "resources": await asyncio.to_thread(status.resources, taken, reasons, holders),
            "pods": holders,
            **more,
        }
