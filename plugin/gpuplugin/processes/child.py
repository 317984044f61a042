"""A child that asks NVML (nvml_child.py, nvml_limits.py): read as it speaks, killed if silent, started again.

Whatever it does costs the plugin no more than that: what it says is bounded and believed only as far as health.py
believes it. A child that cannot be killed, as a driver holds it, is left behind and waited for, so that there are
never two.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.processes import spawn, tasks
from gpushim.ground.errors import quote, visible
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# Seconds.
FIRST, LONGEST = 1.0, 60.0  # between its end and its next start, more each time
SETTLED = 10.0  # after which one that has told something has begun well
STARTING = 20.0  # most, from its start to what it tells first: a driver initialises GPUs then
REPEATED = 3600.0  # before the same is logged again
KILLED = 1.0  # for which `stop` waits for one that it has killed
GATHER = 0.02  # in which one that asks all GPUs names each; a turn of the loop for each line costs more
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
        name: of its work, for sentences: "events" or "polls".
        words: returns its command line, from the UUIDs of GPUs whose calls hung: these are to be asked last.
        heard: is called with each line that it prints, but for those about itself.
        on_stop: is called when it does not watch any more: why, a clause; the GPU whose call hung, or "".
        silence: seconds without a line after which it hangs.
        start: starts the task that sees to it.
        lost: what is not done while it does not run.
        fed: it answers what `say` writes.
        gather: read together what it prints within GATHER seconds.

    Attributes:
        pid: of the one that runs, or is left behind; 0 for none.
        answered: whether that one has printed something.
    """

    def __init__(
        self,
        name: str,
        words: Callable[[Collection[str]], list[str]],
        heard: Callable[[dict[str, Any]], None],
        on_stop: Callable[[str, str], None],
        silence: float,
        start: Callable[[Any], asyncio.Task[Any]] = asyncio.ensure_future,
        lost: str = "GPUs are not watched",
        fed: bool = False,
        gather: bool = False,
    ) -> None:
        self.name, self.pid, self._lost, self._start = name, 0, lost, start
        self._limit, self._feed = FED if fed else LINES, -1  # the end of a pipe
        self._gather = gather
        self._words, self._heard, self._on_stop, self._silence = words, heard, on_stop, silence
        self._suspects: dict[str, None] = {}
        self._logged: dict[str, float] = {}  # until when a sentence is not logged again
        self._garbled = self._hurried = False
        self._task: asyncio.Task[None] | None = None
        self._begin_life()

    def begin(self) -> None:
        """Start it, if it does not run."""
        if self._task is None:
            self._news = asyncio.Event()  # not before: Python 3.9 ties it to the loop of that moment
            self._task = self._start(self._run())

    def again(self) -> None:
        """Start another in its place, as its command line has changed."""
        if self._task is not None:
            self._hurried = True
            self._news.set()

    def say(self, line: dict[str, Any]) -> bool:
        """Write a line to the one that runs; return whether that can read it."""
        data = json.dumps(line).encode() + b"\n"
        try:
            return 0 < len(data) <= select.PIPE_BUF and self._feed >= 0 and os.write(self._feed, data) > 0
        except OSError:  # it has ended, or reads nothing
            return False

    async def stop(self, patient: bool = False) -> bool:
        """Kill it, and start none any more; return whether it is gone, and has let go of the driver.

        Args:
            patient: wait until it is gone, however long a driver that hangs holds it; else KILLED seconds.
        """
        task, self._task = self._task, None
        if task is not None:
            await tasks.cancel(task)
        if task is not None or patient:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._reap(), None if patient else KILLED)
        return not self.pid

    async def _run(self) -> None:
        pause = FIRST
        while self._task is not None:  # a cancelling that was swallowed starts no other
            if self.pid:  # left behind by the last `stop`
                await self._reap()
            self._hurried = False
            began = time.monotonic()
            reason = await self._life()
            if not self._hurried:
                self._report_stop(f"{reason}; it starts again", reason, self._hung)
            await self._wait_for_end()
            if self.answered and time.monotonic() - began > SETTLED:
                pause = FIRST
            if not self._hurried:
                self._news.clear()
                await tasks.until(self._news, pause)
            pause = FIRST if self._hurried else min(2 * pause, LONGEST)

    def _begin_life(self) -> None:
        self.answered, self._buffer, self._last = False, b"", time.monotonic()
        self._second, self._lines = self._last, 0  # since then so many lines
        self._asks = self._hung = self._end_reason = ""  # a GPU, a GPU, why nothing more is read

    async def _life(self) -> str:
        """Start one and read its lines until it ends or must end; return why."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        taking, feed = os.pipe2(os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        self._begin_life()
        try:
            try:
                self.pid = spawn.spawn(self._words([*self._suspects]), taking, writing)
            except OSError as error:
                return f"it cannot be started: {error.strerror}"
            finally:
                os.close(writing)
                os.close(taking)
            os.set_blocking(reading, False)
            os.set_blocking(feed, False)
            self._feed = feed
            return await self._end(reading)
        finally:
            loop.remove_reader(reading)
            self._feed = -1
            try:
                self._read(reading)  # what it has told already
            finally:
                os.close(reading)
                os.close(feed)

    async def _end(self, reading: int) -> str:
        """Read its lines until it has ended, is silent, or is to be another; return why.

        Its end shows at the end of the pipe; if something that it started holds that, as soon as this speaks on, or
        it would have been silent for too long.
        """
        loop = asyncio.get_running_loop()
        while True:
            ended = spawn.has_ended(self.pid)  # before reading, which takes as much as a pipe holds
            self._read(reading)
            if self._end_reason or ended:
                return self._end_reason or "it has ended"
            if self._hurried:
                return "it is restarted"
            silence = self._silence if self.answered else max(STARTING, self._silence)
            seconds = self._last + silence - time.monotonic()
            if seconds <= 0:
                return self._note_hang()
            loop.add_reader(reading, self._news.set)
            await tasks.until(self._news, seconds)
            loop.remove_reader(reading)  # which is readable until it is read, and so would wake this again
            if self._gather and self._news.is_set():
                await asyncio.sleep(GATHER)
            self._news.clear()

    def _note_hang(self) -> str:
        if self._asks:
            self._suspects.pop(self._asks, None)
            self._suspects[self._asks] = None
            for uuid in [*self._suspects][:-SUSPECTS]:
                del self._suspects[uuid]
            self._hung = self._asks
            return f"a call of {quote(self._asks)} hangs"
        return f"no output for {time.monotonic() - self._last:.0f} s"

    def _report_stop(self, sentence: str, reason: str, gpu: str) -> None:
        now = time.monotonic()
        if now >= self._logged.get(sentence, 0.0):  # a GPU that hangs is tried all the time
            self._logged = dict([*self._logged.items()][1 - SUSPECTS :])
            self._logged[sentence] = now + REPEATED
            logger.warning("%s (gpushim-%s): %s", self._lost, self.name, sentence)
        self._on_stop(reason, gpu)

    async def _wait_for_end(self) -> None:
        """Kill it and wait; while that is in vain no GPU is watched, for there are never two."""
        try:
            await asyncio.wait_for(self._reap(), KILLED)
        except asyncio.TimeoutError:
            reason = f"the driver holds process {self.pid}, which cannot be killed"
            self._report_stop(reason, reason, "")
            await self._reap()

    async def _reap(self) -> None:
        pid = self.pid
        if pid:
            spawn.kill(pid)
            await spawn.wait_for(pid)
            if self.pid == pid:  # else who waited for it, too, has started another
                self.pid = 0

    def _read(self, reading: int) -> None:
        """Read what it has written, at most LINE_LIMIT at a time."""
        try:
            data = os.read(reading, LINE_LIMIT)
        except BlockingIOError:
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if self._floods(max(len(lines), len(data) // LONG)):
            self._end_reason = "it writes without end"
            return
        for line in lines:
            self._take_line(line)
        if not data:
            self._end_reason = self._end_reason or "it has ended"
        elif len(self._buffer) > LINE_LIMIT:
            self._end_reason = f"it has written a line of more than {LINE_LIMIT >> 10} KiB"

    def _floods(self, lines: int) -> bool:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._lines = now, 0
        self._lines += lines
        return self._lines > self._limit

    def _take_line(self, data: bytes) -> None:
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
        elif "failed" in line:  # its last
            self._end_reason = visible(str(line["failed"])[:WHY_LIMIT]) or "it has ended"
        elif "alive" in line:
            self._asks = ""
        else:
            self._asks, self.answered = "", True
            for answered in (line.get("poll"), line.get("watching")):
                self._suspects = {uuid: None for uuid in self._suspects if uuid not in _texts(answered)}
            self._heard(line)


def _texts(value: object) -> set[str]:
    return {text for text in value if isinstance(text, str)} if isinstance(value, (dict, list)) else set()
