"""MPS as the plugin sees it: the directories of a group of GPUs, whether its control daemon serves, its unit.

A few short reads, never a question to the daemon. Units that are missing are started; where there is no systemd, as
in a pod, the node is asked to (node_requests.py).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.devices import division
from gpuplugin.mps import of_claims
from gpuplugin.mps.of_claims import describe
from gpuplugin.processes import spawn
from gpuplugin.snapshot import node_requests, node_snapshot
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.inventory import ensure
from gpushim.paths import lock, trust
from gpushim.refresh import plugin_requests

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

AGAIN = 10.0  # seconds between starts


class Folders:
    """The directories of a group, root's alone.

    Attributes:
        top: the directory of all that follow.
        pipe: where clients find the daemon.
        log: where the daemon writes its logs.
        private: a directory that root alone enters, so that no user of the host gets to what is in it.
        shm: the /dev/shm of the daemon and its clients, which may all write to it.
        lock: the file that a supervisor holds.
        state: what a supervisor tells of a daemon that serves.
        modes: the compute modes that the GPUs had before.
        slices: the time slices that the GPUs had before.
        problem: why the last supervisor has ended, unless a signal ended it.
    """

    def __init__(self, state_dir: str, group: str) -> None:
        self.state_dir, self.group, self.top = state_dir, group, f"{state_dir}/mps/{group}"
        self.pipe, self.log, self.private = f"{self.top}/pipe", f"{self.top}/log", f"{self.top}/private"
        self.shm, self.lock = f"{self.private}/shm", f"{self.top}/lock"
        self.state, self.problem = f"{self.top}/state.json", f"{self.top}/problem.json"
        self.modes, self.slices = f"{self.top}/compute-modes.json", f"{self.top}/time-slices.json"


def unit(group: str) -> str:
    return f"gpushim-mps@{group}.service"


def unready_reason(state_dir: str, group: MpsGroup) -> str:
    """Return why clients cannot use a group of the settings; "" if its daemon serves, with the GPUs and limits of
    these.
    """
    folders = Folders(state_dir, group.name)
    subject = f"the {'unit' if group.interval else 'MPS daemon'} of {group.name}"
    if not (all(map(trust.ours, (state_dir, f"{state_dir}/mps", folders.top))) and lock.is_held(folders.lock)):
        reason = ensure.own(folders.problem).get("sentence") if trust.ours(folders.top) else None
        if reason:
            return f"{subject} has ended: {reason}; systemctl start {unit(group.name)} starts it again"
        return (
            f"{subject} does not run; start it with systemctl start {unit(group.name)}, or see with journalctl -u "
            f"{unit(group.name)} why it has ended"
        )
    state = ensure.own(folders.state)
    if "group" not in state:
        return f"{subject} is starting or ending; journalctl -u {unit(group.name)} says what it waits for"
    if {key: state.get(key) for key in describe(group)} != describe(group):
        return (
            f"{subject} has other GPUs or limits than the settings; it follows them as soon as "
            f"it has no client, and at once by systemctl restart {unit(group.name)}, which ends its clients"
        )
    return ""


def no_starter() -> str:
    """Return why nothing starts a claim's units here, "" if systemd does; from a pod the node is asked."""
    if os.path.isdir(system.SYSTEMD) or os.environ.get(node_snapshot.POD):
        return ""
    return "systemd, which starts units of claims, does not run here"


def unreleased(folders: Folders) -> set[str]:
    """Return UUIDs of GPUs and MIG instances whose daemon, compute mode or time slice a supervisor has yet to end."""
    files = (folders.modes, folders.slices)
    return {*ensure.own(folders.state).get("gpus", ()), *(uuid for path in files for uuid in ensure.own(path))}


def unfinished(group: str) -> str:
    """Return the sentence about a group that has ended, and whose unit has not."""
    return (
        f"{unit(group)} has not ended yet, and its GPUs may have another compute mode or time slice; "
        f"journalctl -u {unit(group)} says what it waits for"
    )


def unrestored(state_dir: str, groups: Iterable[MpsGroup]) -> dict[str, str]:
    """Return which groups have not restored GPUs and MIG instances, by UUID; `groups` have theirs still."""
    uuids = {group.name: {gpu.uuid for gpu in group.gpus} for group in groups}
    return {
        uuid: name
        for name in of_claims.orphaned(state_dir)
        for uuid in unreleased(Folders(state_dir, name)) - uuids.get(name, set())
    }


def missing(state_dir: str, groups: Iterable[str]) -> list[str]:
    return [unit(group) for group in groups if not lock.is_held(Folders(state_dir, group).lock)]


class Units:
    """The units of all groups; `start` starts a task, and sees to what it ends with."""

    def __init__(self, start: Callable[[Any], asyncio.Task[Any]]) -> None:
        self._start = start
        self._condition: object = [], {}
        self._next: dict[str, float] = {}  # time.monotonic() of the next start, by unit

    def look(self, snapshot: Snapshot, settings: Settings) -> bool:
        """Start units that are missing, and return whether what clients find has changed."""
        groups, state_dir = _groups(snapshot, settings), system.state_dir()
        unrestored_groups = unrestored(state_dir, groups)
        self.need({*(group.name for group in groups), *unrestored_groups.values()})
        former, self._condition = (
            self._condition,
            ([unready_reason(state_dir, group) for group in groups], unrestored_groups),
        )
        return self._condition != former

    def need(self, groups: Iterable[str]) -> None:
        """Start units of these groups that are missing, each once in a while."""
        time_now = time.monotonic()
        self._next = {name: at for name, at in self._next.items() if at > time_now}
        names = [name for name in missing(system.state_dir(), groups) if name not in self._next]
        units = [*filter(plugin_requests.UNIT.fullmatch, sorted(names))]
        if units:
            self._next.update(dict.fromkeys(units, time_now + AGAIN))
            self._begin(units)

    def _begin(self, units: list[str]) -> None:
        if os.path.isdir(system.SYSTEMD):
            self._start(_run([plugin_requests.SYSTEMCTL, "start", "--no-block", *units]))
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
    try:
        pid = spawn.spawn(words)
    except OSError as error:
        logger.warning("%s cannot be started: %s", words[0], error.strerror)
        return
    code = await spawn.wait_for(pid)
    if code > 0:  # by a signal: who ends all children has ended it, too
        logger.warning("%s has ended with %s", " ".join(words), code)
