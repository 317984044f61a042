"""The file of labels that node-feature-discovery reads (its source "local"), and their print.

The file stays when the plugin ends: labels of a node must not go and come with each restart.
Out of scope: which labels there are (labels.py).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gpuplugin import kept, labels
from gpushim import replace
from gpushim.cli import show
from gpushim.errors import GpushimError
from gpushim.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuplugin.settings import Settings
    from gpushim.model import Snapshot

LIMIT = 1 << 20  # bytes of a file
RETRY = 60.0  # seconds, where no interval is wanted


class LabelsFile:
    """The daemon's.

    Args:
        spawn: starts what is awaited, as asyncio.create_task does.
    """

    def __init__(self, spawn: Callable[[Any], asyncio.Task[Any]]) -> None:
        self._spawn = spawn
        self._task: asyncio.Task[Any] | None = None
        self._of: tuple[float, Settings] | None = None  # what the file was last written of
        self._again = 0.0  # time.monotonic() at which it is looked at again
        self._said = ""

    def look(self, snapshot: Snapshot, settings: Settings) -> None:
        """Have the file written if snapshot or settings have changed, or its time has come.

        To be called every few seconds.
        """
        path, interval = settings.values["labels-file"], settings.values["labels-interval"]
        now, of = time.monotonic(), (snapshot["looked"], settings)
        same = self._of is not None and self._of[0] == of[0] and self._of[1] is settings
        wanted = not same or (now >= self._again and (interval or self._said))
        if not path or not wanted or (self._task and not self._task.done()):
            return
        self._of, self._again = of, now + (interval or RETRY)
        try:
            found = labels.labels(snapshot, settings, labels.machine())
        except GpushimError as error:
            self._say(f"the labels in {path} stay as they were: {error}")
        else:
            self._task = self._spawn(self._write(path, found, not settings.values["labels-no-timestamp"]))

    async def _write(self, path: str, found: Mapping[str, str], stamped: bool) -> None:
        try:
            await asyncio.to_thread(write, path, found, stamped)  # no RPC waits for a disk
        except OSError as error:
            why = "its directory is missing" if isinstance(error, FileNotFoundError) else error.strerror
            self._say(f"the labels cannot be written to {path}: {why}; it is tried again")
        else:
            self._said = ""

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            logger.warning("%s", sentence)
        self._said = sentence


def write(path: str, found: Mapping[str, str], stamped: bool) -> None:
    """Write the file if it says something else.

    Args:
        path: of the file, whose directory exists.
        found: labels.
        stamped: the file says, too, since when they are so, in seconds since 1970; that stays while they do.

    Raises:
        OSError: it cannot be written; what is there stays.
    """
    before = read(path)
    since = before.pop(labels.TIMESTAMP, "")
    wanted = (since if before == found else "") or str(int(time.time()))
    if before != found or since != (wanted if stamped else ""):
        replace.replace(path, text(found, wanted if stamped else "").encode())


def text(found: Mapping[str, str], since: str = "") -> str:
    """Return labels as lines, KEY=VALUE, sorted."""
    rows = {**found, labels.TIMESTAMP: since} if since else found
    return "".join(f"{name}={value}\n" for name, value in sorted(rows.items()))


def read(path: str) -> dict[str, str]:
    """Read the labels that a file has, as far as it is one of ours; {} if it cannot be read."""
    lines = (replace.content(path, LIMIT) or b"").decode(errors="replace").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def tell(settings: Settings, form: str) -> None:
    """Print labels as the file has them, or as JSON.

    Args:
        settings: in force.
        form: "table" or "json".

    Raises:
        GpushimError: there are none, as of sharing that does not go together.
    """
    for note in settings.notes:
        show.say(f"note: {note}", error=True)
    snapshot = kept.current(settings)
    found = labels.labels(snapshot, settings, labels.machine())
    if not found:
        error = snapshot["error"]
        show.say(f"note: no labels of GPUs: {error['sentence'] if error else 'no GPU is given out'}", error=True)
    since = "" if settings.values["labels-no-timestamp"] else str(int(time.time()))
    if form == "json":
        show.emit(form, {**found, labels.TIMESTAMP: since} if since else found)
    else:
        show.text(text(found, since))
