"""Who else gives out this node's GPUs: drivers of DRA, by their sockets, and other device plugins.

kubelet counts for each giver by itself, so that two of them give one GPU to two pods. While another one is there, its
GPUs are not given out here, unless `other-givers` says so; what claims have the record tells, when it has ended, too.
All of it is asked off kubelet's calls, again when something comes or goes, and now and then.
Out of scope: how they are asked (plugins.py, podresources.py), what claims have (record/transitions.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, NamedTuple

from gpuplugin.health.reason import GIVER, Reason
from gpuplugin.kubelet import podresources, sockets
from gpuplugin.kubelet.plugins import DRIVER, REGISTRY, Plugins, is_believed
from gpuplugin.processes import tasks
from gpuplugin.settings.resources import PREFIX
from gpushim.containers import kubelet
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from gpuplugin.allocation.registry import Registry
    from gpuplugin.kubelet.plugins import Plugin
    from gpuplugin.settings.settings import Settings
    from gpushim.containers.kubelet import Which
    from gpushim.ground.model import Snapshot

    Ids = Mapping[str, Collection[str]]  # by resource

REFUSE, SERVE = "refuse", "serve"  # values of other-givers
FIRST, LOOK, SOON = 1.0, 10.0, 1.0  # seconds for the first look, between looks, after one that another is to confirm
GONE = "when nobody listens there any more"
INSTEAD = 'take one of the two off this node, or set other-givers = "serve" under [device-plugin]'
THEN = {  # what follows, by other-givers
    REFUSE: f"gpushim-device-plugin gives out none that the other may give; {INSTEAD}",
    SERVE: "two pods may get one GPU, since other-givers is serve",
}
_UUID = re.compile("(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Allocator(NamedTuple):
    """Something that gives out GPUs.

    Attributes:
        text: a clause for people.
        until: a clause: when it ends.
        gpus: which it gives out.
    """

    text: str
    until: str
    gpus: Which


def drivers(plugins: Iterable[Plugin], names: Collection[str]) -> Iterator[Allocator]:
    """List the drivers of DRA that give out GPUs of this node.

    Args:
        plugins: that listen.
        names: of drivers whose devices are such GPUs.
    """
    for plugin in plugins:
        if plugin.kind == DRIVER and plugin.name in names:
            subject = f"the DRA driver {quote(plugin.name)}, which listens at {plugin.path},"
            yield Allocator(f"{subject} gives out this node's GPUs, too", GONE, None)


def plugins(allocatable: Ids, registered: Ids, uuids: Collection[str]) -> Iterator[Allocator]:
    """List the device plugins that give out the same GPUs, by what kubelet would give out.

    Args:
        allocatable: ids that kubelet has, of resources of all plugins but ours under other names.
        registered: ids that it was told by us.
        uuids: UUIDs of GPUs and MIG instances of this node.
    """
    for resource, ids in sorted(allocatable.items()):
        foreign_ids = {*ids} - {*registered.get(resource, ())}
        foreign_uuids = frozenset(uuid for name in foreign_ids for uuid in _UUID.findall(name)) & {*uuids}
        if foreign_uuids or (foreign_ids and resource in registered):
            text = f"another device plugin gives out this node's GPUs, too, as {quote(resource)}"
            yield Allocator(text, "when kubelet has no such device of it", foreign_uuids or None)


async def beside(kubelet_dir: str, snapshot: Snapshot) -> list[str]:
    """Return who else gives out this node's GPUs now, once; takes seconds at most.

    Returns:
        clauses; none of who cannot be asked.
    """
    listeners = await Plugins().look(kubelet_dir)
    listed = await podresources.listed(kubelet_dir)
    claims = listed.claims if listed else []
    with contextlib.suppress(OSError, ValueError):
        claims = claims + await asyncio.to_thread(kubelet.claims, kubelet_dir)
    names = {claim.driver for claim in claims if kubelet.which(claim, snapshot) != frozenset()}
    allocatable = {} if listed is None else await podresources.allocatable(kubelet_dir) or {}
    uuids = [entry["uuid"] for entry in (*snapshot["gpus"], *snapshot["mig"])]
    rows = {name: ids for name, ids in allocatable.items() if not _is_served_here(kubelet_dir, name)}
    return [entry.text for entry in (*drivers(listeners, {*kubelet.DRIVERS, *names}), *plugins(rows, {}, uuids))]


def _is_served_here(kubelet_dir: str, resource: str) -> bool:
    path = f"{kubelet.plugins(kubelet_dir)}/{sockets.PREFIX}{resource[len(PREFIX) :]}{sockets.SUFFIX}"
    return resource.startswith(PREFIX) and is_believed(path)


class Allocators:
    """All of them.

    Args:
        registry: what kubelet was told.
        settings: returns those in force.
        changed: is called when they are others than before.

    Attributes:
        clauses: about each of them.
        notes: sentences about those that do not keep this plugin from giving out GPUs.
    """

    def __init__(self, registry: Registry, settings: Callable[[], Settings], changed: Callable[[], object]) -> None:
        self._registry, self._settings, self._changed = registry, settings, changed
        self._watch, self._plugins = registry.watch, registry.watch.plugins
        self._listeners: list[Plugin] = []
        self._beside: list[Allocator] = []  # plugins
        self._doubtful: list[Allocator] = []  # that one look alone has seen
        self._basis: object = None  # what `_allocators` was made of
        self._allocators: list[Allocator] = []
        self._since: dict[str, float] = {}  # by text; seconds since boot
        self._wake, self._looked = asyncio.Event(), asyncio.Event()
        self.clauses: list[str] = []
        self.notes: list[str] = []

    async def first(self) -> None:
        """Wait until somebody has looked, but not for long."""
        await tasks.until(self._looked, FIRST)

    async def keep(self) -> None:
        """Look as long as the plugin runs."""
        while True:
            self._wake.clear()
            await self._look()
            self._looked.set()
            await tasks.until(self._wake, SOON if self._doubtful else LOOK)

    def folders(self) -> list[str]:
        """List the directories in which others come and go."""
        folder = str(self._settings().values["kubelet-dir"])
        return [folder, f"{folder}/{REGISTRY}"]

    def doubt(self, paths: Iterable[str]) -> bool:
        """Look soon if what came or went at one of these paths may be another giver's.

        Returns:
            whether it may be a device plugin's, which may have the same resource.
        """
        kubelet_dir, registry = self.folders()
        plugin_folder = kubelet.plugins(kubelet_dir)
        parts = [path.rpartition("/") for path in paths]
        is_plugin = any(folder == plugin_folder and sockets.is_foreign(name) for folder, _, name in parts)
        for folder, _, name in parts:
            if is_plugin or folder == registry or (folder == kubelet_dir and name == REGISTRY):
                self._wake.set()
        return is_plugin

    async def _look(self) -> None:
        """Find out who there is; takes seconds at most, whatever they do."""
        before = (self._listeners, self._list_names(), self._beside)
        folder = str(self._settings().values["kubelet-dir"])
        listeners = await self._plugins.look(folder)
        known = [plugin for plugin in self._listeners if plugin.kind == DRIVER and plugin not in listeners]
        if known or any(plugin.kind == DRIVER for plugin in listeners):
            with contextlib.suppress(GpushimError):  # a record that cannot be written: `decide` tells of it
                await self._watch.reconcile()
            if self._watch.state.holders is None:  # what a driver that has ended gave last is not recorded
                listeners += known
        self._listeners = listeners
        allocators = await self._compare(folder) if any(entry.kind != DRIVER for entry in listeners) else []
        self._beside = [entry for entry in allocators if entry in self._doubtful or entry in self._beside]
        self._doubtful = [entry for entry in allocators if entry not in self._beside]
        if before != (self._listeners, self._list_names(), self._beside):
            self._changed()

    def _list_names(self) -> set[str]:
        """Return the names of drivers whose devices are GPUs of this node."""
        record = self._watch.file.read_known()
        return {*kubelet.DRIVERS, *(claim["driver"] for claim in (record["claims"].values() if record else ()))}

    async def _compare(self, folder: str) -> list[Allocator]:
        allocatable = await podresources.allocatable(folder) or {}
        served = self._registry.served
        registered = {name: {*entry.resource.devices} for name, entry in served.items() if entry.endpoint.settled}
        if self._registry.instances.others():  # of this plugin, as during an update
            registered = {}
        uuids = frozenset(entry.uuid for row in served.values() for entry in row.resource.devices.values())
        unsettled = {name for name in allocatable if name in served or _is_served_here(folder, name)} - {*registered}
        rows = {name: ids for name, ids in allocatable.items() if name not in unsettled}
        return [*plugins(rows, registered, uuids)]

    def added(self, reasons: Mapping[str, list[Reason]], snapshot: Snapshot) -> dict[str, list[Reason]]:
        """Add to the reasons, by UUID, for which GPUs and MIG instances are not given out that others may do so."""
        basis = self._listeners, self._list_names(), self._beside
        if basis != self._basis:
            self._basis, clock = basis, system.clock()
            self._allocators = [*drivers(self._listeners, basis[1]), *self._beside]
            self.clauses = [allocator.text for allocator in self._allocators]
            self._since = {text: self._since.get(text, clock) for text in self.clauses}
        merged = {uuid: [*row] for uuid, row in reasons.items()}
        if self._settings().values["other-givers"] == SERVE:
            self._note([f"{text}; it is served all the same" for text in self.clauses])
            return merged
        self._note([])
        for allocator in self._allocators:
            since = self._since[allocator.text]
            reason = Reason(GIVER, f"{allocator.text}; {INSTEAD}", since, allocator.until)
            for uuid in _list_uuids(snapshot, allocator.gpus):
                merged.setdefault(uuid, []).append(reason)
        return merged

    def _note(self, notes: list[str]) -> None:
        for note in notes:
            if note not in self.notes:
                logger.warning("%s", note)
        self.notes = notes


def _list_uuids(snapshot: Snapshot, gpus: Which) -> Iterator[str]:
    """List the UUIDs of what is meant, MIG instances of a GPU with it."""
    for gpu in (gpu for gpu in snapshot["gpus"] if gpu["uuid"]):
        is_whole = gpus is None or gpu["uuid"] in gpus
        if is_whole:
            yield gpu["uuid"]
        for mig in snapshot["mig"]:
            if mig["gpu"] == gpu["index"] and (is_whole or (gpus is not None and mig["uuid"] in gpus)):
                yield mig["uuid"]
