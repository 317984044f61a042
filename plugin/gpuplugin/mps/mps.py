"""MPS as the plugin sees it: where a group of GPUs has its directories, whether its control daemon serves, its unit.

Looked at with a few short reads, never by asking the daemon. Units that are missing are started; where there is no
systemd, as in a pod, the node is asked to (node_requests.py).
Out of scope: running a daemon (supervisor.py), and what a container gets of it (allocation.py).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.devices import division
from gpuplugin.processes import spawn
from gpuplugin.snapshot import node_requests
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.inventory import ensure
from gpushim.paths import lock, trust
from gpushim.refresh.plugin_requests import SYSTEMCTL

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from gpuplugin.devices.division import MpsGroup
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

AGAIN = 10.0  # seconds between starts


class Place:
    """The directory of a group, root's alone.

    Args:
        state_dir: gpushim's state directory.
        group: the group's name.

    Attributes:
        top: the directory of all that follow.
        pipe: where clients find the daemon.
        log: where the daemon writes its logs.
        private: a directory that root alone enters, so that no user of the host gets to what is in it.
        shm: the /dev/shm of the daemon and its clients, which may all write to it.
        lock: the file that a supervisor holds.
        state: what a supervisor tells of a daemon that serves.
        modes: the compute modes that the GPUs had before.
    """

    def __init__(self, state_dir: str, group: str) -> None:
        self.state_dir, self.group, self.top = state_dir, group, f"{state_dir}/mps/{group}"
        self.pipe, self.log, self.private = f"{self.top}/pipe", f"{self.top}/log", f"{self.top}/private"
        self.shm, self.lock = f"{self.private}/shm", f"{self.top}/lock"
        self.state, self.modes = f"{self.top}/state.json", f"{self.top}/compute-modes.json"


def unit(group: str) -> str:
    """Return the name of a group's unit."""
    return f"gpushim-mps@{group}.service"


def described(group: MpsGroup) -> dict[str, Any]:
    """Return what of a group is in its state: a daemon that serves has been told this."""
    return {
        "group": group.name,
        "gpus": [gpu.uuid for gpu in group.gpus],
        "memory": group.memory,
        "threads": group.threads,
        "multi_user": group.multi_user,
    }


def ready(state_dir: str, group: MpsGroup) -> str:
    """Say why clients cannot use a group now; "" if its daemon serves, with the GPUs and limits of the settings.

    Args:
        state_dir: gpushim's state directory.
        group: by the settings in force.
    """
    place = Place(state_dir, group.name)
    if not (all(map(trust.ours, (state_dir, f"{state_dir}/mps", place.top))) and lock.is_held(place.lock)):
        return (
            f"the MPS daemon of {group.name} does not run; start it with systemctl start {unit(group.name)}, or see "
            f"with journalctl -u {unit(group.name)} why it has ended"
        )
    found = ensure.own(place.state)
    if not found:
        return f"the MPS daemon of {group.name} is starting; journalctl -u {unit(group.name)} says what it waits for"
    if {key: found.get(key) for key in described(group)} != described(group):
        return (
            f"the MPS daemon of {group.name} has other GPUs or limits than the settings; it follows them as soon as "
            f"it has no client, and at once by systemctl restart {unit(group.name)}, which ends its clients"
        )
    return ""


def missing(state_dir: str, groups: Iterable[MpsGroup]) -> list[str]:
    """List the units of groups without a supervisor.

    Args:
        state_dir: gpushim's state directory.
        groups: by the settings in force.
    """
    return [unit(group.name) for group in groups if not lock.is_held(Place(state_dir, group.name).lock)]


class Units:
    """All of them.

    Args:
        start: starts a task, and sees to what it ends with.
    """

    def __init__(self, start: Callable[[Any], asyncio.Task[Any]]) -> None:
        self._start = start
        self._ready: list[str] = []
        self._next = 0.0  # time.monotonic()

    def look(self, snapshot: Snapshot, settings: Settings) -> bool:
        """Have units started that are missing, and say whether what clients find has changed."""
        groups, state = _groups(snapshot, settings), system.state_dir()
        units = missing(state, groups) if groups and time.monotonic() >= self._next else []
        if units:
            self._next = time.monotonic() + AGAIN
            self._begin(units)
        before, self._ready = self._ready, [ready(state, group) for group in groups]
        return self._ready != before

    def _begin(self, units: list[str]) -> None:
        if os.path.isdir(system.SYSTEMD):
            self._start(_run([SYSTEMCTL, "start", "--no-block", *units]))
            return
        try:
            node_requests.ask(units=units)
        except OSError as error:
            logger.warning("the node cannot be asked to start %s: %s", ", ".join(units), error.strerror)


def _groups(snapshot: Snapshot, settings: Settings) -> list[MpsGroup]:
    if snapshot["error"]:
        return []
    try:
        return division.mps_groups(snapshot, settings)
    except GpushimError:  # who offers the devices meets it, too, and says it
        return []


async def _run(words: list[str]) -> None:
    """Run a command; systemd starts the units, and its journal says what becomes of them."""
    try:
        pid = spawn.spawn(words)
    except OSError as error:
        logger.warning("%s cannot be started: %s", words[0], error.strerror)
        return
    code = await spawn.gone(pid)
    if code > 0:  # by a signal: who ends all children has ended it, too
        logger.warning("%s has ended with %s", " ".join(words), code)
