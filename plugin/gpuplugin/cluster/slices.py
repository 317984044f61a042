"""This node's ResourceSlices: kept as they were wanted last, whoever edits or deletes them.

A watch tells of changes, so that nothing is asked while nothing happens; what is to be written, slice_plan.py works
out. As long as nothing is wanted, because kubelet does not have the driver, nothing is written: who would repair what
kubelet takes away then, would attract pods that cannot start. kubelet does that at its start.
Out of scope: whose wish it is (dra.py), what devices say (gpuplugin.dra).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster import slice_content, slice_plan
from gpuplugin.cluster.cluster import GONE, ApiError, member
from gpuplugin.cluster.slice_plan import DRIVER, MANAGER
from gpushim.ground.errors import quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuplugin.cluster.cluster import Api
    from gpuplugin.cluster.slice_plan import Plan, Seen

    Devices = list[dict[str, Any]]  # of a slice

SLICES, NODES = "/apis/resource.k8s.io/v1/resourceslices", "/api/v1/nodes"
CONFLICT, MISSING = 409, 404
REPAIRS, MINUTE = 5, 60.0  # repairs in so many seconds after which the next one waits
WAIT = 10.0  # seconds that it waits then


class Slices:
    """Those of a node.

    Args:
        api: the API server.
        node: this node's name, which is its pool's.
        published: is called with what became of a wish: "generation", "problem" and "dropped".
    """

    def __init__(self, api: Api, node: str, published: Callable[[dict[str, Any]], None]) -> None:
        self._api, self._node, self._published = api, node, published
        self._only = {"fieldSelector": f"spec.nodeName={node},spec.driver={DRIVER}"}
        self._turn = threading.Condition()
        self._wanted: list[Devices] | None = None
        self._there: dict[str, Seen] | None = None  # by name; None while it is not known
        self._uid = ""  # of the Node
        self._repairs: deque[float] = deque(maxlen=REPAIRS)  # time.monotonic()
        self._dropped: list[str] = []
        self._news: dict[str, Any] = {}

    def want(self, slices: list[Devices] | None) -> None:
        """Have these slices from now on; None: have nothing written."""
        with self._turn:
            self._wanted, self._news = slices, {}
            self._repairs.clear()
            self._turn.notify_all()

    def follow(self) -> Iterator[None]:
        """Know what the API server has; yields when it has answered, ends when it ends the watch.

        Raises:
            ApiError: it does not answer.
        """
        found = self._api.ask("GET", SLICES, self._only)
        there = [slice_plan.seen(one, self._node) for one in member(found, "items") or ()]
        with self._turn:
            self._there = {one.name: one for one in there if one}
            self._turn.notify_all()
        yield
        version = str(member(member(found, "metadata"), "resourceVersion") or "")
        for event in self._api.watch(SLICES, {**self._only, "resourceVersion": version}):
            self._hear(member(event, "type"), member(event, "object"))
            yield

    def _hear(self, kind: Any, found: Any) -> None:
        if kind == "ERROR":
            status = member(found, "code")
            message = quote(str(member(found, "message"))[:300])
            raise ApiError(f"the API server ends the watch of slices: {message}", status if status == GONE else 0)
        one = slice_plan.seen(found, self._node)
        if one and kind in ("ADDED", "MODIFIED", "DELETED"):
            self._note(one, gone=kind == "DELETED")

    def _note(self, one: Seen, gone: bool = False) -> None:
        """Take note of a slice, unless a later version of it is known; versions of a kind go up."""
        with self._turn:
            known = self._there.get(one.name) if self._there is not None else None
            if self._there is None or (known and known.version > one.version):
                return
            if gone:
                self._there.pop(one.name, None)
            else:
                self._there[one.name] = one
            self._turn.notify_all()

    def keep(self) -> Iterator[None]:
        """Write what is missing; yields after each time.

        Raises:
            ApiError: it cannot be written now.
        """
        while True:
            wanted, plan = self._due()
            if plan.empty:
                self._tell(plan.generation)
                yield
                with self._turn:
                    if self._plan() == (wanted, plan):
                        self._turn.wait()
                continue
            self._hold_back(plan)
            try:
                self._write(wanted, plan)
            except ApiError as error:
                if error.status not in (CONFLICT, MISSING):
                    self._tell(plan.generation, str(error))
                    raise
                self._list_again()
            yield

    def _due(self) -> tuple[list[Devices], Plan]:
        """Wait until something is wanted; return that, and what is to be done."""
        with self._turn:
            while (found := self._plan()) is None:
                self._turn.wait()
            return found

    def _plan(self) -> tuple[list[Devices], Plan] | None:
        wanted, there = self._wanted, self._there
        if wanted is None or there is None:
            return None

        def same(index: int, one: Seen) -> bool:
            return slice_content.same(wanted[index], one.devices) or slice_content.same(
                self._kept(wanted[index]), one.devices
            )

        return wanted, slice_plan.plan(there.values(), self._node, len(wanted), same)

    def _kept(self, devices: Devices) -> Devices:
        """Leave out what the server drops."""
        return slice_content.without(devices, self._dropped) if self._dropped else devices

    def _hold_back(self, plan: Plan) -> None:
        """Wait if this has been put right again and again: somebody else writes it."""
        now = time.monotonic()
        if len(self._repairs) == REPAIRS and now - self._repairs[0] < MINUTE:
            with self._turn:
                by = sorted({one.by for one in (self._there or {}).values() if one.by})
            who = f" ({quote(', '.join(by))})" if by else ""
            problem = f"somebody else{who} changes this node's slices of {DRIVER} again and again; see who does"
            if self._news.get("problem") != problem:
                logger.warning("%s", problem)
            self._tell(plan.generation, problem)
            time.sleep(WAIT)
        self._repairs.append(now)

    def _write(self, wanted: list[Devices], plan: Plan) -> None:
        for one in plan.first:
            self._delete(one)
        with self._turn:
            there = [one.devices for one in (self._there or {}).values()]
        for index, name, old in plan.writes:
            if self._superseded(wanted):
                return
            devices = slice_content.dated(wanted[index], there)
            found = self._put(self._object(name, devices, plan.generation, len(wanted), old), old)
            answer = member(member(found, "spec"), "devices") or []
            dropped = sorted({*self._dropped, *slice_content.dropped(devices, answer)})
            if dropped != self._dropped:
                logger.warning(
                    "the API server does not keep %s of slices: a feature is off there", ", ".join(dropped)
                )
                self._dropped = dropped
            written = slice_plan.seen(found, self._node)
            if written:
                self._note(written)
        for one in plan.after:
            self._delete(one)
        self._tell(plan.generation)

    def _superseded(self, wanted: list[Devices]) -> bool:
        with self._turn:
            return self._wanted is not wanted

    def _object(self, name: str, devices: Devices, generation: int, count: int, old: Seen | None) -> dict[str, Any]:
        self._uid = self._uid or self._node_uid()
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._uid}
        metadata: dict[str, Any] = {**(old.metadata if old else {}), "name": name, "ownerReferences": [owner]}
        if old:
            metadata["resourceVersion"] = str(old.version)
        pool = {"name": self._node, "generation": generation, "resourceSliceCount": count}
        spec = {"driver": DRIVER, "nodeName": self._node, "pool": pool, "devices": devices}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}

    def _node_uid(self) -> str:
        return str(member(member(self._api.ask("GET", f"{NODES}/{self._node}", {}), "metadata"), "uid"))

    def _put(self, body: dict[str, Any], old: Seen | None) -> Any:
        asked = {"fieldManager": MANAGER}
        if old:
            return self._api.ask("PUT", f"{SLICES}/{old.name}", asked, body)
        return self._api.ask("POST", SLICES, asked, body)

    def _delete(self, one: Seen) -> None:
        only = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": one.uid}}
        try:
            self._api.ask("DELETE", f"{SLICES}/{one.name}", {}, only)
        except ApiError as error:
            if error.status not in (CONFLICT, MISSING):  # it has gone, or is another one
                raise
        self._note(one, gone=True)

    def _list_again(self) -> None:
        """Know what is there, for somebody was faster."""
        self._uid = ""
        found = self._api.ask("GET", SLICES, self._only)
        there = [slice_plan.seen(one, self._node) for one in member(found, "items") or ()]
        with self._turn:
            self._there = {one.name: one for one in there if one}

    def _tell(self, generation: int, problem: str = "") -> None:
        """Say what has become of the wish, once."""
        news = {"generation": generation, "problem": problem, "dropped": self._dropped}
        if news != self._news:
            self._news = news
            self._published(news)
