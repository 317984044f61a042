"""The file of labels that node-feature-discovery reads (its source "local"), and their print.

The file stays when the plugin ends: labels of a node must not go and come with each restart.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster import labels
from gpuplugin.health import mig_layout
from gpuplugin.settings import resources
from gpuplugin.snapshot import node_snapshot
from gpushim.cli import show
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.paths import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

    Others = Callable[[Settings, Snapshot], list[str]]  # sentences

LIMIT = 1 << 20  # bytes of a file
RETRY = 60.0  # seconds, where no interval is wanted


class LabelsFile:
    """The labels file that the daemon keeps.

    Args:
        spawn: starts what is awaited, as asyncio.create_task does.

    Attributes:
        problem: why the file is not what it should be, a sentence; "" if it is.
    """

    def __init__(self, spawn: Callable[[Any], asyncio.Task[Any]]) -> None:
        self._spawn = spawn
        self._task: asyncio.Task[Any] | None = None
        self._of: tuple[float, Settings, str] | None = None  # what the file was last written of
        self._again = 0.0  # time.monotonic() at which it is looked at again
        self.problem = ""

    def look(self, snapshot: Snapshot, settings: Settings) -> None:
        """Start to write the file if snapshot or settings have changed, or its time has come.

        To be called every few seconds.
        """
        path, interval = settings.values["labels-file"], settings.values["labels-interval"]
        state = mig_layout.tell_state(settings.values["mig-layout-file"]) if path else ""
        time_now, source = time.monotonic(), (snapshot["looked"], settings, state)
        is_same = self._of is not None and self._of[::2] == source[::2] and self._of[1] is settings
        is_due = not is_same or (time_now >= self._again and (interval or self.problem))
        self.problem = self.problem if path else ""
        if not path or not is_due or (self._task and not self._task.done()):
            return
        self._of, self._again = source, time_now + (interval or RETRY)
        try:
            pairs = _list_labels(snapshot, settings, state)
        except GpushimError as error:
            self._warn(f"the labels in {path} stay as they were: {error}")
        else:
            self._task = self._spawn(self._write(path, pairs, settings))

    async def _write(self, path: str, pairs: Mapping[str, str], settings: Settings) -> None:
        stamped = not settings.values["labels-no-timestamp"]
        forbidden = (settings.values["kubelet-dir"], system.state_dir(), system.LASTING_DIR)
        try:
            await asyncio.to_thread(write, path, pairs, stamped, forbidden)  # no RPC waits for a disk
        except OSError as error:
            reason = error.strerror
            if isinstance(error, FileNotFoundError):  # which below /proc and its kind says that none can be made
                has_directory = os.path.isdir(os.path.dirname(path))
                reason = "no file can be made in its directory" if has_directory else "its directory is missing"
            self._warn(f"the labels cannot be written to {path}: {reason}; retrying")
        else:
            self.problem = ""

    def _warn(self, sentence: str) -> None:
        if sentence != self.problem:
            logger.warning("%s", sentence)
        self.problem = sentence


def write(path: str, pairs: Mapping[str, str], stamped: bool, forbidden: Collection[str]) -> None:
    """Write the file if its labels change.

    Args:
        path: of the file, whose directory exists.
        pairs: labels.
        stamped: the file says, too, since when they are so, in seconds since 1970; that stays while they do.
        forbidden: directories below which a file would mean something else.

    Raises:
        OSError: it cannot be written, or another file is there; that stays.
    """
    _check(path, forbidden)
    old = read(path)
    since = old.pop(labels.TIMESTAMP, "")
    changed_at = (since if old == pairs else "") or str(int(time.time()))
    if old != pairs or since != (changed_at if stamped else ""):
        replace.replace(path, text(pairs, changed_at if stamped else "").encode())


def _check(path: str, forbidden: Collection[str]) -> None:
    """Refuse to write where a node lives by the files: a path may be mistyped, or lead elsewhere."""
    folder = os.path.realpath(os.path.dirname(path))
    for top in map(os.path.realpath, forbidden):
        if f"{folder}/".startswith(f"{top}/"):
            raise OSError(errno.EPERM, f"what is below {top} is not for labels; name a directory made for them")
    lines = (replace.content(path, LIMIT) or b"").splitlines()
    if not all(line.startswith(resources.PREFIX.encode()) for line in lines):
        raise OSError(errno.EEXIST, "what is there is not a labels file; remove it, or choose another place")


def text(pairs: Mapping[str, str], since: str = "") -> str:
    """Return labels as lines, KEY=VALUE, sorted."""
    rows = {**pairs, labels.TIMESTAMP: since} if since else pairs
    return "".join(f"{name}={value}\n" for name, value in sorted(rows.items()))


def read(path: str) -> dict[str, str]:
    """Read the labels that a file has, as far as it is one of ours; {} if it cannot be read."""
    lines = (replace.content(path, LIMIT) or b"").decode(errors="replace").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _list_labels(snapshot: Snapshot, settings: Settings, state: str) -> dict[str, str]:
    """Return the labels of this node, with how far its MIG layout is, if it has one."""
    pairs = labels.labels(snapshot, settings, labels.machine())
    return {**pairs, labels.MIG_STATE: state} if pairs and state else pairs


def print_labels(settings: Settings, form: str, find_rivals: Others) -> None:
    """Print labels as the file has them, or as JSON.

    Args:
        settings: in force.
        form: "table" or "json".
        find_rivals: returns sentences about others that offer GPUs, which the labels count all the same.

    Raises:
        GpushimError: there are none, as of sharing that does not go together.
    """
    for note in settings.notes:
        show.say(f"note: {note}", error=True)
    snapshot = node_snapshot.current()
    for note in find_rivals(settings, snapshot):
        show.say(f"note: {note}", error=True)
    pairs = _list_labels(snapshot, settings, mig_layout.tell_state(settings.values["mig-layout-file"]))
    if not pairs:
        error = snapshot["error"]
        show.say(f"note: no labels of GPUs: {error['sentence'] if error else 'no GPU is given out'}", error=True)
    since = "" if settings.values["labels-no-timestamp"] else str(int(time.time()))
    if form == "json":
        show.emit(form, {**pairs, labels.TIMESTAMP: since} if since else pairs)
    else:
        show.text(text(pairs, since))
