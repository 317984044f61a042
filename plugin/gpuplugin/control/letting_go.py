"""Letting go of the GPUs, and taking them again: what of it the device plugin and the DRA driver have in common.

Out of scope: the file that keeps what was asked for (release.py), and the sockets on which it is asked (control.py).
"""

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
    """Whether the GPUs are let go.

    Args:
        start: starts a task, and sees to what it ends with.
        close: ends the processes that ask the driver.
        wake: has the host looked at again.
        tell: is called with why nothing is given out, and with "" when it is again.
        who: this program, for sentences.

    Attributes:
        turns: how often the GPUs were let go or taken; after each the host is looked at again.
    """

    def __init__(
        self,
        start: Callable[[Any], asyncio.Task[Any]],
        close: Callable[[], Awaitable[object]],
        wake: Callable[[], None],
        tell: Callable[[str], None],
        who: str,
    ) -> None:
        self._start, self._close, self._wake, self._tell, self._who = start, close, wake, tell, who
        self._release, self.turns = Release(), 0
        self._closing: asyncio.Task[Any] | None = None  # while the GPUs are let go

    def held(self) -> bool:
        """Let go of the GPUs or take them again, as the release's file says.

        Returns:
            whether they are let go now: nothing may ask the driver.
        """
        if self._release.requested():
            if self._closing is None:
                logger.warning("the GPUs are released until gpushim device-plugin take")
                self.turns += 1
                self._tell(release.PROBLEM)
                self._closing = self._start(self._closed())
        elif self._closing and self._closing.done():  # not before: it would open what is being closed
            logger.info("the GPUs are given out again")
            self.turns += 1
            self._tell("")
            self._closing = None
        return self._closing is not None

    @property
    def state(self) -> dict[str, Any]:
        """What is told of it: since when, in seconds since 1970 or None, and whether all is closed."""
        closed = self._closing is not None and self._closing.done()
        return {"released": self._release.since or None, "closed": closed}

    async def _closed(self) -> None:
        await self._close()
        await spawn.alone()
        self._wake()

    async def let_go(self) -> None:
        """Let go.

        Raises:
            GpushimError: that cannot be written down, or does not end in time.
        """
        self._release.ask()
        self.held()
        if self._closing and not (await asyncio.wait([self._closing], timeout=CLOSING))[0]:
            raise GpushimError(
                f"the GPUs are not released yet: a process of {self._who}, or a refresh, is in the driver and does "
                "not end; gpushim device-plugin release, once more, waits for it, and a reboot ends it",
                FAILED,
            )

    def take(self) -> None:
        """Take them again.

        Raises:
            GpushimError: the file cannot be removed.
        """
        self._release.take()
        self.held()
        self._wake()
