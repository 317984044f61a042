"""The release of the GPUs, and taking them again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gpuplugin.processes import spawn
from gpuplugin.snapshot import release
from gpuplugin.snapshot.release import Release
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CLOSING = 20.0  # seconds that letting go may take before it is said that it does not happen


class LettingGo:
    """Whether the GPUs are released.

    Args:
        start: starts a task, and sees to what it ends with.
        close: ends the processes that ask the driver.
        wake: makes the plugin look at the host again.
        tell: is called with why nothing is given out, and with "" when it is again.

    Attributes:
        turns: how often the GPUs were released or taken; after each the host is looked at again.
    """

    def __init__(
        self,
        start: Callable[[Any], asyncio.Task[Any]],
        close: Callable[[], Awaitable[object]],
        wake: Callable[[], None],
        tell: Callable[[str], None],
        program: str,
    ) -> None:
        self._start, self._close, self._wake, self._tell, self._program = start, close, wake, tell, program
        self._release, self.turns = Release(), 0
        self._closing: asyncio.Task[Any] | None = None  # while the GPUs are let go

    def held(self) -> bool:
        """Release the GPUs or take them again, as the release's file says; return whether they are released.

        While they are, nothing may ask the driver.
        """
        if self._release.requested():
            if self._closing is None:
                logger.warning("the GPUs are released until gpushim device-plugin take")
                self.turns += 1
                self._tell(release.PROBLEM)
                self._closing = self._start(self._close_all())
        elif self._closing and self._closing.done():  # not before: it would open what is being closed
            logger.info("the GPUs are given out again")
            self.turns += 1
            self._tell("")
            self._closing = None
        return self._closing is not None

    @property
    def state(self) -> dict[str, Any]:
        """Return since when, in seconds since 1970 or None, and whether all is closed."""
        closed = self._closing is not None and self._closing.done()
        return {"released": self._release.since or None, "closed": closed}

    async def _close_all(self) -> None:
        await self._close()
        await spawn.wait_for_all()
        self._wake()

    async def let_go(self) -> None:
        """Release the GPUs.

        Raises:
            GpushimError: that cannot be written down, or does not end in time.
        """
        self._release.ask()
        self.held()
        if self._closing and not (await asyncio.wait([self._closing], timeout=CLOSING))[0]:
            raise GpushimError(
                f"the GPUs are not released yet: a process of {self._program}, or a refresh, is in the driver and "
                "does not end; gpushim device-plugin release, once more, waits for it, and a reboot ends it",
                FAILED,
            )

    def take(self) -> None:
        """Take the GPUs again.

        Raises:
            GpushimError: the file cannot be removed.
        """
        self._release.take()
        self.held()
        self._wake()
