"""Who else gives out this node's GPUs: drivers of DRA, by their sockets and claims, and other device plugins.

kubelet counts for each giver by itself, so that two of them give one GPU to two pods. While another one is there, its
GPUs are not given out here, unless `other-givers` says so; what a claim has is not until kubelet lists it no more.
All of it is asked off kubelet's calls, again when something comes or goes, and now and then.
Out of scope: how they are asked (plugins.py, podresources.py), which GPU a claim's device is (kubelet.which).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.health.reason import Reason
from gpuplugin.kubelet import podresources, sockets
from gpuplugin.kubelet.plugins import DRIVER, REGISTRY, Plugins, is_believed
from gpuplugin.processes import tasks
from gpuplugin.record import kubelet_state
from gpuplugin.record.transitions import find_admin_claims
from gpuplugin.settings.resources import PREFIX
from gpushim.containers import kubelet
from gpushim.ground import system
from gpushim.ground.errors import quote, visible
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from gpuplugin.allocation.registry import Registry
    from gpuplugin.kubelet.plugins import Plugin
    from gpuplugin.settings.settings import Settings
    from gpushim.containers.kubelet import Claim, Which
    from gpushim.ground.model import Snapshot

    Ids = Mapping[str, Collection[str]]  # by resource

REFUSE, SERVE = "refuse", "serve"  # values of other-givers
FIRST, LOOK, SOON = 1.0, 10.0, 1.0  # seconds for the first look, between looks, after one that another is to confirm
CLAIMS = 4096  # claims that count, most; a node has as many as it has containers
GONE = "when nobody listens there any more"
INSTEAD = 'take one of the two off this node, or set other-givers = "serve" under [device-plugin]'
THEN = {  # what follows, by other-givers
    REFUSE: f"gpushim-device-plugin gives out none that the other may give; {INSTEAD}",
    SERVE: "two pods may get one GPU, since other-givers is serve",
}
_UUID = re.compile("(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Allocator(NamedTuple):
    """Something that gives out GPUs, or has done so.

    Attributes:
        text: a clause for people.
        until: a clause: when it ends.
        gpus: which it gives out, or has given.
        by: whether it is there, and no claim that was made.
    """

    text: str
    until: str
    gpus: Which
    by: bool = False


def drivers(plugins: Iterable[Plugin], claims: Iterable[Claim], snapshot: Snapshot) -> Iterator[Allocator]:
    """List the drivers of DRA that give out GPUs of this node, and the claims that have some.

    Of gpushim's own driver the claims count: it goes by the same record.

    Args:
        plugins: that listen.
        claims: claims that have or may have some, as `relevant` lists them.
    """
    gave = {*kubelet.DRIVERS}
    for claim in claims:
        gpus = kubelet.which(claim, snapshot)
        gave.add(claim.driver)
        name = kubelet_state.name_claim(claim.namespace, claim.name, claim.driver)
        pod = f", for pod {claim.namespace}/{claim.pod}" if claim.pod else ""
        clause = f"{name} {'has it' if gpus else 'may have it'}{pod}"
        yield Allocator(visible(clause), "when kubelet lists that claim no more", gpus)
    for plugin in plugins:
        if plugin.kind == DRIVER and plugin.name in gave:
            subject = f"the DRA driver {quote(plugin.name)}, which listens at {plugin.path},"
            yield Allocator(f"{subject} gives out this node's GPUs, too", GONE, None, by=True)


def relevant(claims: Iterable[Claim], snapshot: Snapshot) -> list[Claim]:
    """List the claims, of those of all drivers, that have or may have GPUs of this node."""
    return [claim for claim in claims if kubelet.which(claim, snapshot) != frozenset()][:CLAIMS]


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
            yield Allocator(text, "when kubelet has no such device of it", foreign_uuids or None, by=True)


async def beside(kubelet_dir: str, snapshot: Snapshot) -> list[str]:
    """Return who else gives out this node's GPUs now, once; takes seconds at most.

    Returns:
        clauses; none of who cannot be asked.
    """
    listeners = await Plugins().look(kubelet_dir)
    listed = await podresources.listed(kubelet_dir) if podresources.answers(kubelet_dir) else None
    claims = listed.claims if listed else []
    with contextlib.suppress(OSError, ValueError):
        claims = claims + await asyncio.to_thread(kubelet.claims, kubelet_dir)
    allocatable = {} if listed is None else await podresources.allocatable(kubelet_dir) or {}
    uuids = [entry["uuid"] for entry in (*snapshot["gpus"], *snapshot["mig"])]
    rows = {name: ids for name, ids in allocatable.items() if not _is_served_here(kubelet_dir, name)}
    claims = relevant(claims, snapshot)
    return [entry.text for entry in (*drivers(listeners, claims, snapshot), *plugins(rows, {}, uuids)) if entry.by]


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
        state: in words that a program reads: "claims" that have, or may have, a GPU, and "givers" that are there.
        notes: sentences about those that do not keep this plugin from giving out GPUs.
    """

    def __init__(self, registry: Registry, settings: Callable[[], Settings], changed: Callable[[], object]) -> None:
        self._registry, self._settings, self._changed = registry, settings, changed
        self._plugins = registry.watch.plugins
        self._listeners: list[Plugin] = []
        self._saved: object = None  # identity of kubelet's file of claims
        self._saved_claims: list[Claim] = []  # of that file
        self._listed: list[Claim] = []  # by kubelet itself
        self._heard = False  # whether it has answered
        self._beside: list[Allocator] = []  # plugins
        self._doubtful: list[Allocator] = []  # that one look alone has seen
        self._basis: object = None  # what `_allocators` was made of
        self._allocators: list[Allocator] = []
        self._since: dict[str, float] = {}  # by text; seconds since boot
        self._wake, self._looked = asyncio.Event(), asyncio.Event()
        self.state: dict[str, Any] = {"claims": [], "givers": []}
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
            await tasks.until(self._wake, SOON if self._doubtful or not self._heard else LOOK)

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
            if is_plugin or folder == registry or (folder == kubelet_dir and name in (kubelet.CLAIMS, REGISTRY)):
                self._wake.set()
        return is_plugin

    async def _look(self) -> None:
        """Find out who there is; takes seconds at most, whatever they do."""
        before = (self._listeners, self._claims(), self._beside)
        folder = str(self._settings().values["kubelet-dir"])
        listeners = await self._plugins.look(folder)
        if not await self._hear(folder, listeners):  # what a driver that has ended gave last is not known
            listeners += [entry for entry in self._listeners if entry.kind == DRIVER and entry not in listeners]
        self._listeners = listeners
        allocators = await self._compare(folder) if any(entry.kind != DRIVER for entry in listeners) else []
        self._beside = [entry for entry in allocators if entry in self._doubtful or entry in self._beside]
        self._doubtful = [entry for entry in allocators if entry not in self._beside]
        if before != (self._listeners, self._claims(), self._beside):
            self._changed()

    async def _hear(self, folder: str, listeners: Iterable[Plugin]) -> bool:
        """Ask which claims there are, where there may be some; False if nobody answers."""
        identity = sockets.identity(f"{folder}/{kubelet.CLAIMS}")
        if identity != self._saved:
            with contextlib.suppress(OSError, ValueError):  # then what it was last may still be so; it is read again
                self._saved_claims = await asyncio.to_thread(kubelet.claims, folder)
                self._saved = identity
        has_driver = any(plugin.kind == DRIVER for plugin in (*self._listeners, *listeners))
        record = self._registry.watch.file.read_known()  # which has the claims of gpushim's own driver
        may_be_some = self._saved_claims or self._listed or has_driver or record is None or record["claims"]
        if self._heard and not may_be_some:
            return True
        listed = await podresources.listed(folder) if podresources.answers(folder) else None
        if listed is not None:
            self._heard, self._listed = True, listed.claims
        return listed is not None

    def _claims(self) -> list[Claim]:
        """List claims: what kubelet lists, and what it has kept, since after its start it lists not all at once.

        Without an administrator's, which look at what others have: kubelet does not tell them from others.
        """
        listed = {claim[:5] for claim in self._listed}
        admin_claims = find_admin_claims(self._registry.watch.file.read_known())
        claims = self._listed + [claim for claim in self._saved_claims if claim[:5] not in listed]
        return [
            claim
            for claim in claims
            if claim.driver not in kubelet.DRIVERS or (claim.namespace, claim.name, claim.device) not in admin_claims
        ]

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
        basis = (snapshot["gpus"], snapshot["mig"], self._listeners, self._claims(), self._beside)
        if basis != self._basis:
            self._basis, clock = basis, system.clock()
            claims = relevant(self._claims(), snapshot)
            self._allocators = [*drivers(self._listeners, claims, snapshot), *self._beside]
            self.state = {
                "claims": [*map(_claim_row, claims)],
                "givers": [allocator.text for allocator in self._allocators if allocator.by],
            }
            self._since = {allocator.text: self._since.get(allocator.text, clock) for allocator in self._allocators}
        merged = {uuid: [*row] for uuid, row in reasons.items()}
        if self._settings().values["other-givers"] == SERVE:
            self._note(
                [f"{allocator.text}; it is served all the same" for allocator in self._allocators if allocator.by]
            )
            return merged
        self._note([])
        for allocator in self._allocators:
            text = f"{allocator.text}; {INSTEAD}" if allocator.by else allocator.text
            reason = Reason("giver", text, self._since[allocator.text], allocator.until)
            for uuid in _list_uuids(snapshot, allocator.gpus):
                merged.setdefault(uuid, []).append(reason)
        return merged

    def _note(self, notes: list[str]) -> None:
        for note in notes:
            if note not in self.notes:
                logger.warning("%s", note)
        self.notes = notes


def _claim_row(claim: Claim) -> dict[str, str]:
    keys = ("namespace", "pod", "container", "name", "driver", "device")
    return {key: getattr(claim, key) for key in keys}


def _list_uuids(snapshot: Snapshot, gpus: Which) -> Iterator[str]:
    """List the UUIDs of what is meant, MIG instances of a GPU with it."""
    for gpu in (gpu for gpu in snapshot["gpus"] if gpu["uuid"]):
        is_whole = gpus is None or gpu["uuid"] in gpus
        if is_whole:
            yield gpu["uuid"]
        for mig in snapshot["mig"]:
            if mig["gpu"] == gpu["index"] and (is_whole or (gpus is not None and mig["uuid"] in gpus)):
                yield mig["uuid"]
