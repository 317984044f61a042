"""Which kubelet the book knows: each start of one is another, which has forgotten what its checkpoint does not have.

Out of scope: who has what (listed.py), who asks kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gpuplugin.book import checkpoints, listed
from gpuplugin.kubelet import cgroups, sockets
from gpushim.containers.kubelet import KUBELET_SOCKET, plugins
from gpushim.ground import system
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.book.book import Book
    from gpuplugin.book.page import Page


class Starts:
    """The starts of kubelet.

    Args:
        book: which knows them.
        kubelet_dir: returns kubelet's directory, which settings may change.
        hurry: is called when there is another kubelet, or one that the book cannot be told of.
    """

    def __init__(self, book: Book, kubelet_dir: Callable[[], str], hurry: Callable[[], None]) -> None:
        self._book, self._kubelet_dir, self._hurry = book, kubelet_dir, hurry

    def kubelet(self) -> str:
        """Return what tells the kubelet that is there from others."""
        return str(sockets.identity(self._path()))

    def runs(self) -> bool:
        """Say whether kubelet listens for plugins."""
        return sockets.is_listening(self._path())

    def young(self, now: float, quiet: float) -> bool:
        """Say whether kubelet has started just now: its socket, which it makes then, was first seen just now.

        It answers before it makes that: one that is left of the kubelet before has nobody who listens.

        Args:
            now: seconds since boot.
            quiet: seconds for which it is young.
        """
        if not self.runs():
            return True
        page = self._book.read()
        seen = page["kubelet"] if page and page["boot"] == system.boot() else None
        return not seen or seen[0] != self.kubelet() or now - seen[1] < quiet

    async def meet(self) -> None:
        """Have the book know another kubelet if it can be written; nothing is given out where it cannot."""
        with contextlib.suppress(GpushimError):
            await self.met()
        if not self.is_met():
            self._hurry()

    def is_met(self) -> bool:
        """Say whether the book has the kubelet that is there now."""
        return self._knows(self._book.read(), self.kubelet())

    async def met(self) -> None:
        """Have the book know the kubelet that runs now, and what its checkpoint does not have any more.

        Raises:
            GpushimError: it cannot be written.
        """
        there = self.kubelet()
        if self._knows(self._book.read(), there) or not self.runs():
            return
        remembered = await asyncio.to_thread(checkpoints.remembered, self._kubelet_dir())
        running = await cgroups.find_running(listed.unlisted_uids(self._book.now(self._book.read()), {}, remembered))
        with self._book.locked() as before:
            if not self._knows(before, there):
                page = self._book.now(before)
                self._book.write(listed.met(page, [there, system.clock()], remembered, running))
        self._hurry()

    def _path(self) -> str:
        return f"{plugins(self._kubelet_dir())}/{KUBELET_SOCKET}"

    def _knows(self, page: Page | None, there: str) -> bool:
        """Say whether the book has this kubelet."""
        known = page["kubelet"] if page and page["boot"] == (system.boot() or "") else None
        return known is not None and known[0] == there
