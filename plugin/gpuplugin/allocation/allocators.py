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
from gpuplugin.kubelet.plugins import DRIVER, REGISTRY, Plugins, is_believed, is_ours
from gpuplugin.processes import tasks
from gpuplugin.record import kubelet_state
from gpuplugin.record.transitions import find_admin_claims
from gpuplugin.settings.resources import PREFIX
from gpushim.containers import kubelet
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote, visible
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


def drivers(plugins: Iterable[Plugin], held: Iterable[Claim], snapshot: Snapshot) -> Iterator[Allocator]:
    """List the drivers of DRA that give out GPUs of this node, and the claims that have some.

    Of gpushim's own driver the claims count: it goes by the same record.

    Args:
        plugins: that listen.
        held: claims that have or may have some, as `relevant` lists them.
        snapshot: what the node has.
    """
    gave = {*kubelet.DRIVERS}
    for claim in held:
        gpus = kubelet.which(claim, snapshot)
        gave.add(claim.driver)
        who = kubelet_state.name_claim(claim.namespace, claim.name, claim.driver)
        pod = f", for pod {claim.namespace}/{claim.pod}" if claim.pod else ""
        has = f"{who} {'has it' if gpus else 'may have it'}{pod}"
        yield Allocator(visible(has), "when kubelet lists that claim no more", gpus)
    for one in plugins:
        if one.kind == DRIVER and one.name in gave and not is_ours(one):
            text = f"the DRA driver {quote(one.name)}, which listens at {one.path}, gives out this node's GPUs, too"
            yield Allocator(text, GONE, None, by=True)


def relevant(held: Iterable[Claim], snapshot: Snapshot) -> list[Claim]:
    """List the claims, of those of all drivers, that have or may have GPUs of this node."""
    return [one for one in held if kubelet.which(one, snapshot) != frozenset()][:CLAIMS]


def plugins(theirs: Ids, ours: Ids, known: Collection[str]) -> Iterator[Allocator]:
    """List the device plugins that give out the same GPUs, by what kubelet would give out.

    Args:
        theirs: ids that kubelet has, of resources of all plugins but ours under other names.
        ours: ids that it was told by us.
        known: UUIDs of GPUs and MIG instances of this node.
    """
    for resource, ids in sorted(theirs.items()):
        strange = {*ids} - {*ours.get(resource, ())}
        named = frozenset(uuid for one in strange for uuid in _UUID.findall(one)) & {*known}
        if named or (strange and resource in ours):
            text = f"another device plugin gives out this node's GPUs, too, as {quote(resource)}"
            yield Allocator(text, "when kubelet has no such device of it", named or None, by=True)


async def beside(kubelet_dir: str, snapshot: Snapshot) -> list[str]:
    """Say once who else gives out this node's GPUs now; takes seconds at most.

    Args:
        kubelet_dir: kubelet's directory.
        snapshot: what the node has.

    Returns:
        clauses; none of who cannot be asked.
    """
    there = await Plugins().look(kubelet_dir)
    listed = await podresources.listed(kubelet_dir) if podresources.answers(kubelet_dir) else None
    held = listed.claims if listed else []
    with contextlib.suppress(OSError, ValueError):
        held = held + await asyncio.to_thread(kubelet.claims, kubelet_dir)
    theirs = {} if listed is None else await podresources.allocatable(kubelet_dir) or {}
    known = [one["uuid"] for one in (*snapshot["gpus"], *snapshot["mig"])]
    rows = {name: ids for name, ids in theirs.items() if not _served(kubelet_dir, name)}
    held = relevant(held, snapshot)
    return [one.text for one in (*drivers(there, held, snapshot), *plugins(rows, {}, known)) if one.by]


def _served(kubelet_dir: str, resource: str) -> bool:
    """Say whether an instance of this plugin serves a resource."""
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
        self._plugins = Plugins()
        self._there: list[Plugin] = []
        self._saved: object = None  # identity of kubelet's file of claims
        self._saved_claims: list[Claim] = []  # of that file
        self._listed: list[Claim] = []  # by kubelet itself
        self._heard = False  # whether it has answered
        self._beside: list[Allocator] = []  # plugins
        self._doubtful: list[Allocator] = []  # that one look alone has seen
        self._for: object = None  # what `_found` was made of
        self._found: list[Allocator] = []
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
        ours = kubelet.plugins(kubelet_dir)
        places = [path.rpartition("/") for path in paths]
        found = any(folder == ours and sockets.is_foreign(name) for folder, _, name in places)
        for folder, _, name in places:
            if found or folder == registry or (folder == kubelet_dir and name in (kubelet.CLAIMS, REGISTRY)):
                self._wake.set()
        return found

    async def _look(self) -> None:
        """Find out who there is; takes seconds at most, whatever they do."""
        before = (self._there, self._claims(), self._beside)
        folder = str(self._settings().values["kubelet-dir"])
        there = await self._plugins.look(folder)
        if not await self._hear(folder, there):  # what a driver that has ended gave last is not known
            there += [one for one in self._there if one.kind == DRIVER and one not in there]
        self._there = there
        found = await self._compare(folder) if any(one.kind != DRIVER for one in there) else []
        self._beside = [one for one in found if one in self._doubtful or one in self._beside]
        self._doubtful = [one for one in found if one not in self._beside]
        if before != (self._there, self._claims(), self._beside):
            self._changed()

    async def _hear(self, folder: str, there: Iterable[Plugin]) -> bool:
        """Ask which claims there are, where there may be some; False if nobody answers."""
        saved = sockets.identity(f"{folder}/{kubelet.CLAIMS}")
        if saved != self._saved:
            with contextlib.suppress(OSError, ValueError):  # then what it was last may still be so; it is read again
                self._saved_claims = await asyncio.to_thread(kubelet.claims, folder)
                self._saved = saved
        drives = any(one.kind == DRIVER for one in (*self._there, *there))
        if self._heard and not (self._saved_claims or self._listed or drives):
            return True
        listed = await podresources.listed(folder) if podresources.answers(folder) else None
        if listed is not None:
            self._heard, self._listed = True, listed.claims
        return listed is not None

    def _claims(self) -> list[Claim]:
        """List claims: what kubelet lists, and what it has kept, since after its start it lists not all at once.

        Without an administrator's, which look at what others have: kubelet does not tell them from others.
        """
        listed = {one[:5] for one in self._listed}
        looks = frozenset[Any]()
        with contextlib.suppress(GpushimError):
            file = self._registry.file
            looks = find_admin_claims(file.current(file.read()))
        both = self._listed + [one for one in self._saved_claims if one[:5] not in listed]
        return [
            one
            for one in both
            if one.driver not in kubelet.DRIVERS or (one.namespace, one.name, one.device) not in looks
        ]

    async def _compare(self, folder: str) -> list[Allocator]:
        """Hold what kubelet has against what it was told."""
        theirs = await podresources.allocatable(folder) or {}
        served = self._registry.served
        ours = {name: {*one.resource.devices} for name, one in served.items() if one.endpoint.settled}
        if self._registry.instances.others():  # of this plugin, as during an update
            ours = {}
        known = frozenset(one.uuid for row in served.values() for one in row.resource.devices.values())
        own = {name for name in theirs if name in served or _served(folder, name)} - {*ours}
        return [*plugins({name: ids for name, ids in theirs.items() if name not in own}, ours, known)]

    def added(self, reasons: Mapping[str, list[Reason]], snapshot: Snapshot) -> dict[str, list[Reason]]:
        """Add to the reasons for which GPUs and MIG instances are not given out that others may give them out.

        Args:
            reasons: by UUID.
            snapshot: what the node has.
        """
        of = (snapshot["gpus"], snapshot["mig"], self._there, self._claims(), self._beside)
        if of != self._for:
            self._for, now = of, system.clock()
            held = relevant(self._claims(), snapshot)
            self._found = [*drivers(self._there, held, snapshot), *self._beside]
            self.state = {"claims": [*map(_claim_row, held)], "givers": [one.text for one in self._found if one.by]}
            self._since = {one.text: self._since.get(one.text, now) for one in self._found}
        found = {uuid: [*row] for uuid, row in reasons.items()}
        serve = self._settings().values["other-givers"] == SERVE
        self._note([f"{one.text}; it is served all the same" for one in self._found if one.by] if serve else [])
        for one in self._found if not serve else ():
            why = Reason("giver", f"{one.text}; {INSTEAD}" if one.by else one.text, self._since[one.text], one.until)
            for uuid in _all(snapshot, one.gpus):
                found.setdefault(uuid, []).append(why)
        return found

    def _note(self, notes: list[str]) -> None:
        for note in notes:
            if note not in self.notes:
                logger.warning("%s", note)
        self.notes = notes


def _claim_row(claim: Claim) -> dict[str, str]:
    keys = ("namespace", "pod", "container", "name", "driver", "device")
    return {key: getattr(claim, key) for key in keys}


def _all(snapshot: Snapshot, gpus: Which) -> Iterator[str]:
    """List the UUIDs of what is meant, MIG instances of a GPU with it."""
    for gpu in (one for one in snapshot["gpus"] if one["uuid"]):
        whole = gpus is None or gpu["uuid"] in gpus
        if whole:
            yield gpu["uuid"]
        for mig in snapshot["mig"]:
            if mig["gpu"] == gpu["index"] and (whole or (gpus is not None and mig["uuid"] in gpus)):
                yield mig["uuid"]
