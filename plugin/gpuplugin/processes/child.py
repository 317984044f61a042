"""A child that asks NVML (nvml_child.py, nvml_limits.py): read as it speaks, killed if silent, started again.

Whatever it does costs the plugin no more than that: what it says is bounded and believed only as far as health.py
believes it. A child that cannot be killed, as a driver holds it, is left behind and waited for, so that there are
never two. Out of scope: what its lines mean, but for those about itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.processes import process, tasks
from gpushim.ground.errors import quote, visible
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

# Seconds.
FIRST, LONGEST = 1.0, 60.0  # between its end and its next start, more each time
SETTLED = 10.0  # after which one that has told something has begun well
STARTING = 20.0  # most, from its start to what it tells first: a driver initialises GPUs then
LOOK = 1.0  # between looks whether it has ended, where the kernel does not tell
REPEATED = 3600.0  # before the same is logged again
KILLED = 1.0  # for which `stop` waits for one that it has killed
LINE_LIMIT = 1 << 16  # bytes
# In a second, and bytes of one that counts once: kubelet's calls run in the same loop. A child that watches tells 100
# (event_loop.MOST_SENT), and after a pause of this loop what a pipe holds, 1300 of the shortest.
LINES, LONG = 2000, 256
FED = 8000  # of one that is fed: for each GPU of each container it says two
WHY_LIMIT = 300  # characters of why it ends that it tells itself
SUSPECTS = 64  # GPUs, most, of which it hung


class Child:
    """One child, and those that follow it.

    Args:
        name: what it does, for sentences: "events" or "polls".
        words: gives its command line, from the UUIDs of GPUs whose calls hung: these are to be asked last.
        heard: is called with each line that it tells, but for those about itself.
        on_stop: is called when it does not watch any more: why, a clause; the GPU whose call hung, or "".
        silence: seconds without a line after which it hangs.
        on_start: is called when one tells its first line, and leaves out no GPU.
        lost: what is not done while it does not run.
        fed: it reads what `say` writes.

    Attributes:
        pid: of the one that runs, or is left behind; 0 for none.
        answered: whether that one has told something.
    """

    def __init__(
        self,
        name: str,
        words: Callable[[Collection[str]], list[str]],
        heard: Callable[[dict[str, Any]], None],
        on_stop: Callable[[str, str], None],
        silence: float,
        on_start: Callable[[], None] = lambda: None,
        lost: str = "GPUs are not watched",
        fed: bool = False,
    ) -> None:
        self.name, self.pid, self._lost = name, 0, lost
        self._fed, self._feed = fed, -1  # the end of a pipe
        self._words, self._heard, self._on_stop, self._on_start, self._silence = (
            words,
            heard,
            on_stop,
            on_start,
            silence,
        )
        self._suspects: dict[str, None] = {}
        self._logged: dict[str, float] = {}  # until when a sentence is not logged again
        self._garbled = False
        self._task: asyncio.Task[None] | None = None
        self._begin_life()

    def begin(self, start: Callable[[Any], asyncio.Task[Any]] = asyncio.ensure_future) -> None:
        """Start it, if it does not run; `start` starts the task that sees to it."""
        if self._task is None:
            self._hurry = asyncio.Event()  # not before: Python 3.9 ties it to the loop of that moment
            self._task = start(self._run())

    def again(self) -> None:
        """Start another in its place, as its command line has changed."""
        if self._task is not None:
            self._hurry.set()

    def say(self, line: dict[str, Any]) -> bool:
        """Write a line to the one that runs; returns whether that can read it."""
        data = json.dumps(line).encode() + b"\n"
        try:
            return 0 < len(data) <= select.PIPE_BUF and self._feed >= 0 and os.write(self._feed, data) > 0
        except OSError:  # it has ended, or reads nothing
            return False

    async def stop(self) -> bool:
        """Kill it, and start none any more; within KILLED seconds.

        Returns:
            whether it is gone, and has let go of the driver.
        """
        task, self._task = self._task, None
        if task is not None:
            await tasks.cancel(task)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._reap(), KILLED)
        return not self.pid

    async def _run(self) -> None:
        pause = FIRST
        while self._task is not None:  # a cancelling that was swallowed starts no other
            if self.pid:  # left behind by the last `stop`
                await self._reap()
            self._hurry.clear()
            began = time.monotonic()
            why = await self._life()
            if not self._hurry.is_set():
                self._stopped(f"{why}; it starts again", why, self._hung)
            await self._end_of_it()
            if self.answered and time.monotonic() - began > SETTLED:
                pause = FIRST
            await tasks.until(self._hurry, pause)
            pause = FIRST if self._hurry.is_set() else min(2 * pause, LONGEST)

    def _begin_life(self) -> None:
        self.answered, self._buffer, self._last = False, b"", time.monotonic()
        self._second, self._lines = self._last, 0  # since then so many lines
        self._asks = self._hung = self._why = ""  # a GPU, a GPU, a clause

    async def _life(self) -> str:
        """Start one and read what it says until it ends or must end; returns why."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        taking, feed = os.pipe2(os.O_CLOEXEC) if self._fed else (None, -1)
        loop = asyncio.get_running_loop()
        self._begin_life()
        self._over: asyncio.Future[str] = loop.create_future()
        try:
            try:
                self.pid = process.spawn(self._words([*self._suspects]), process.environment(), writing, None, taking)
            except OSError as error:
                return f"it cannot be started: {error.strerror}"
            finally:
                os.close(writing)
                if taking is not None:
                    os.close(taking)
                    os.set_blocking(feed, False)
                    self._feed = feed
            os.set_blocking(reading, False)
            loop.add_reader(reading, self._readable, reading)
            with process.watched(self.pid, lambda: self._dead(reading)) as answered:
                return await self._end(LONGEST if answered else LOOK, reading)
        finally:
            loop.remove_reader(reading)
            self._readable(reading)  # what it has told already
            os.close(reading)
            if feed >= 0:
                self._feed = -1
                os.close(feed)

    async def _end(self, look: float, reading: int) -> str:
        """Wait until it has ended (looked at every `look` seconds), is silent, or to be another; return why."""
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry.wait())
        either: set[asyncio.Future[Any]] = {self._over, hurry}
        try:
            while True:
                left = (
                    self._last + (self._silence if self.answered else max(STARTING, self._silence)) - time.monotonic()
                )
                if left <= 0:
                    return self._hangs()
                done, _ = await asyncio.wait(either, timeout=min(left, look), return_when=asyncio.FIRST_COMPLETED)
                if not done and process.ended(self.pid):
                    self._dead(reading)
                if self._over.done():
                    return self._over.result()
                if hurry in done:
                    return "it is started again"
        finally:
            hurry.cancel()

    def _dead(self, reading: int) -> None:
        """Take what one told that has ended: as much as a pipe holds, though something that it started speaks on."""
        self._readable(reading)
        if not self._over.done():
            self._over.set_result(self._why or "it has ended")

    def _hangs(self) -> str:
        if self._asks:
            self._suspects.pop(self._asks, None)
            self._suspects[self._asks] = None
            for uuid in [*self._suspects][:-SUSPECTS]:
                del self._suspects[uuid]
            self._hung = self._asks
            return f"a call of {quote(self._asks)} hangs"
        return f"it has said nothing for {time.monotonic() - self._last:.0f} s"

    def _stopped(self, sentence: str, why: str, gpu: str) -> None:
        now = time.monotonic()
        if now >= self._logged.get(sentence, 0.0):  # a GPU that hangs is tried all the time
            self._logged = dict([*self._logged.items()][1 - SUSPECTS :])
            self._logged[sentence] = now + REPEATED
            logger.warning("%s (gpushim-%s): %s", self._lost, self.name, sentence)
        self._on_stop(why, gpu)

    async def _end_of_it(self) -> None:
        """Kill it and wait; while that is in vain no GPU is watched, for there are never two."""
        try:
            await asyncio.wait_for(self._reap(), KILLED)
        except asyncio.TimeoutError:
            why = f"the driver holds process {self.pid}, which cannot be killed"
            self._stopped(why, why, "")
            await self._reap()

    async def _reap(self) -> None:
        """Kill it, and wait until it is gone, whatever that takes."""
        pid = self.pid
        if pid:
            process.kill(pid)
            await process.gone(pid)
            if self.pid == pid:  # else who waited for it, too, has started another
                self.pid = 0

    def _readable(self, reading: int) -> None:
        """Take what it has written, at most LINE_LIMIT at a time."""
        if self._over.done():
            return
        try:
            data = os.read(reading, LINE_LIMIT)
        except BlockingIOError:
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if self._floods(max(len(lines), len(data) // LONG)):
            self._over.set_result("it writes without end")
            return
        try:
            for line in lines:
                self._line(line)
        except Exception as error:  # noqa: BLE001 - the task ends with it, and whoever started that sees to it
            self._over.set_exception(error)
            return
        if not data:
            self._over.set_result(self._why or "it has ended")
        elif len(self._buffer) > LINE_LIMIT:
            self._over.set_result(f"it has written a line of more than {LINE_LIMIT >> 10} KiB")

    def _floods(self, lines: int) -> bool:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._lines = now, 0
        self._lines += lines
        return self._lines > (FED if self._fed else LINES)

    def _line(self, data: bytes) -> None:
        try:
            line = json.loads(data)
            if not isinstance(line, dict):
                raise ValueError(line)
        except (ValueError, RecursionError):
            if not self._garbled:
                text = quote(data[:WHY_LIMIT].decode("utf-8", "replace"))
                logger.warning(
                    "the child that asks NVML (%s) has written what is none of its lines: %s", self.name, text
                )
            self._garbled = True
            return
        self._last = time.monotonic()
        if "asks" in line:
            self._asks = str(line["asks"])[:WHY_LIMIT]
        elif "failed" in line:
            self._why = visible(str(line["failed"])[:WHY_LIMIT])
        elif "alive" in line:
            self._asks = ""
        else:
            self._asks = ""
            self._well(line)
            self._heard(line)

    def _well(self, line: dict[str, Any]) -> None:
        """Take note that it watches, and which GPUs have answered."""
        for answered in (line.get("poll"), line.get("watching")):
            self._suspects = {uuid: None for uuid in self._suspects if uuid not in _texts(answered)}
        if not self.answered and not self._suspects:
            self._on_start()
        self.answered = True


async def ended(children: Iterable[Child]) -> None:
    """Wait until children that were stopped are gone, however long a driver that hangs holds them."""
    for child in children:
        if child.pid:
            await process.gone(child.pid)
            child.pid = 0


def _texts(found: object) -> set[str]:
    return {one for one in found if isinstance(one, str)} if isinstance(found, (dict, list)) else set()
