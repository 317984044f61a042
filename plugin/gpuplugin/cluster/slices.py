"""A node's ResourceSlices, kept as they are desired.

A watch shows what becomes of them; they are written only while some are desired.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster import slice_content, slice_plan
from gpuplugin.cluster.cluster import GONE, Api, ApiError, lacking, member, node_uid
from gpuplugin.cluster.slice_plan import MANAGER, Plan, Slice
from gpuplugin.cluster.slice_state import State
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.errors import GpushimError, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Devices = list[dict[str, Any]]

API = "resource.k8s.io/v1"
PATH = f"/apis/{API}/resourceslices"
PAGE = 10  # slices of a list's answer, each of which has some 350 KB at most
PAGES = 100
TRIES = 4  # at objects that others change meanwhile
SETTLE = 0.2  # seconds; whoever deletes one slice deletes the others, too
TICK = 10.0  # seconds between looks at what waits for a time
REFUSED = {400, 403, 413, 422}
BUSY = {0, 429, 500, 502, 503, 504}  # of a server that can say nothing of the version


class Slices:
    """The slices of a node.

    Args:
        tell: gets generation, problem and what was dropped, after each write, failure and repair.
    """

    def __init__(self, api: Api, node: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._api, self._node, self._tell = api, node, tell
        self._only = {"fieldSelector": f"spec.driver={OWN_DRIVER},spec.nodeName={node}"}
        self._changed = threading.Condition()
        self._busy = threading.Lock()  # one reads all, or writes
        self._state = State()
        self._slices: dict[str, Slice] = {}
        self._deleted: set[str] = set()  # uids that were deleted here, and may still be in the watch
        self._version, self._owner = "", ""  # to go on from; uid of the node
        self._desired: list[Devices] | None = None
        self._forms: dict[str, list[Any]] = {}  # what the server makes of devices
        self._fresh = True  # whether it may have dropped something that is not known here
        self._doubtful = -1  # index of a slice that was refused: tried first, before others make the pool incomplete
        self._due = self._listed = self._asked = False

    def want(self, slices: list[Devices] | None) -> None:
        """Keep exactly these slices from now on; None: write nothing, and leave what is there."""
        with self._changed:
            if slices is None or slices != self._desired:
                self._desired = slices
                self._state.begin(slices is None)
                keys = {*map(_key, slices or ())}
                self._forms = {key: form for key, form in self._forms.items() if key in keys}
            self._due = self._asked = True
            self._changed.notify_all()

    def follow(self) -> Iterator[None]:
        """Follow the watch of the slices, once some are desired; end when the server ends it.

        Raises:
            ApiError: the API server does not say.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._desired is not None)
        try:
            if not self._version:
                with self._busy:
                    self._read()
            yield
            query = {**self._only, "resourceVersion": self._version}
            for event in self._ask_watch(query):
                if not self._apply(event):
                    return
                yield
        except GpushimError as error:
            with self._changed:
                self._state.problem("watch", str(error))
                self._fresh = True
                if getattr(error, "status", 0) not in BUSY:
                    self._version = ""
                self._changed.notify_all()
            raise

    def _ask_watch(self, query: dict[str, str]) -> Iterator[Any]:
        try:
            yield from self._api.watch(PATH, query, begun=self._begun)
        except ApiError as error:
            raise lacking(error, "watch", "resourceslices") from None

    def write(self) -> Iterator[None]:
        """Write whatever is not as desired, for ever."""
        while True:
            with self._changed:
                if not (self._pending() or self._state.changed()):  # each news may be of how long to wait
                    self._changed.wait(self._state.wait(TICK) or TICK)
                desired, is_asked = (self._desired, self._asked) if self._pending() else (None, False)
                if desired is not None:
                    self._due = self._asked = False
            if desired is not None:
                with self._busy:
                    self._repair(desired, is_asked)
            with self._changed:
                message = self._state.message()
            if message:
                self._tell({"published": message})
            yield

    def _pending(self) -> bool:
        return self._due and self._listed and self._desired is not None and not self._state.wait(TICK)

    def _repair(self, desired: list[Devices], say: bool) -> None:
        last_error = ApiError("this node's ResourceSlices change while they are written")
        try:
            for _ in range(TRIES):
                plan = self._plan(desired)
                if plan.empty:
                    break
                self._state.repairing(self._slices.values())
                try:
                    say = True
                    if not self._carry_out(plan, desired):
                        self._due = self._asked = True
                        return
                except ApiError as error:
                    if error.status not in (404, 409):
                        raise
                    last_error = error
                    self._read()
            else:
                raise last_error
        except GpushimError as error:
            self._due = self._asked = True
            self._state.failed(str(error))
        else:
            self._fresh, self._doubtful = False, -1
            pairs = [(devices, self._forms.get(_key(devices), devices)) for devices in desired]
            self._state.done(plan.generation, {path for pair in pairs for path in slice_content.dropped(*pair)})
            self._state.say = self._state.say or say

    def _plan(self, desired: list[Devices]) -> Plan:
        def same(index: int, slice_: Slice) -> bool:
            return slice_content.same(self._forms.get(_key(desired[index]), desired[index]), slice_.devices)

        with self._changed:
            slices = [*self._slices.values()]
        plan = slice_plan.plan(slices, self._node, len(desired), same)
        if plan.empty or not self._fresh:
            return plan
        for index, slice_ in slice_plan.candidates(slices, len(desired)):
            if not same(index, slice_):  # the server may have dropped fields: it says what it would make of them
                answer = self._post(desired[index], slice_.name, slice_, slice_.generation, len(desired), dry=True)
                self._forms[_key(desired[index])] = answer.devices
        self._fresh = False
        return slice_plan.plan(slices, self._node, len(desired), same)

    def _carry_out(self, plan: Plan, desired: list[Devices]) -> bool:
        """Carry out a plan; return False if other slices are desired meanwhile, and the rest was left."""
        written: list[Slice] = []
        for slice_ in plan.first:
            self._delete(slice_)
        for index, name, current in sorted(plan.writes, key=lambda row: row[0] != self._doubtful):
            if self._desired is not desired:
                return False
            try:
                answer = self._post(desired[index], name, current, plan.generation, len(desired))
            except ApiError as error:
                if error.status in REFUSED:
                    self._doubtful = index
                    for slice_ in written if plan.anew else ():
                        with contextlib.suppress(ApiError):
                            self._delete(slice_)  # so that the generation before counts again
                raise
            written.append(answer)
            self._forms[_key(desired[index])] = answer.devices
        for slice_ in plan.after:
            if self._desired is not desired:
                return False
            self._delete(slice_)
        return True

    def _post(
        self, devices: Devices, name: str, current: Slice | None, generation: int, count: int, dry: bool = False
    ) -> Slice:
        self._owner = self._owner or node_uid(self._api, self._node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._owner}
        metadata: dict[str, Any] = {"name": name, "ownerReferences": [owner]}
        if current:
            metadata.update({**current.metadata, "uid": current.uid})
            metadata.update({"resourceVersion": str(current.version)} if current.version else {})
        pool = {"name": self._node, "generation": generation, "resourceSliceCount": count}
        dated = slice_content.dated(devices, [slice_.devices for slice_ in self._slices.values()])
        body = {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": metadata,
            "spec": {
                "driver": OWN_DRIVER,
                "nodeName": self._node,
                "pool": pool,
                slice_plan.member_of(devices): dated,
            },
        }
        query = {"fieldManager": MANAGER, **({"dryRun": "All"} if dry else {})}
        verb, method, path = ("update", "PUT", f"{PATH}/{name}") if current else ("create", "POST", PATH)
        answer = slice_plan.parse_slice(self._ask(verb, method, path, query, body), self._node)
        if not answer or answer.name != name:
            raise ApiError(f"the API server's answer is not the ResourceSlice {name} that it was sent")
        if not dry:
            with self._changed:
                self._slices[name] = answer
        return answer

    def _delete(self, slice_: Slice) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": slice_.uid}}
        try:
            self._ask("delete", "DELETE", f"{PATH}/{slice_.name}", {}, body)
        except ApiError as error:
            if error.status != 404:
                raise
        with self._changed:
            self._deleted.add(slice_.uid)
            self._slices.pop(slice_.name, None)

    def _read(self) -> None:
        slices: dict[str, Slice] = {}
        query = {**self._only, "limit": str(PAGE)}
        for _ in range(PAGES):
            answer = self._ask("list", "GET", PATH, query)
            metadata, items = member(answer, "metadata"), member(answer, "items")
            parsed = [slice_plan.parse_slice(item, self._node) for item in (items if isinstance(items, list) else ())]
            slices.update({slice_.name: slice_ for slice_ in parsed if slice_})
            if not member(metadata, "continue"):
                break
            query["continue"] = str(member(metadata, "continue"))
        else:
            raise ApiError(f"more than {PAGE * PAGES} ResourceSlices name this node; delete those of other drivers")
        with self._changed:
            self._slices, self._deleted = slices, set()
            self._version = str(member(metadata, "resourceVersion") or "")
            self._state.problem("watch", "")
            self._due = self._listed = True
            self._changed.notify_all()

    def _begun(self) -> None:
        with self._changed:
            self._state.problem("watch", "")
            self._state.again()
            self._due = self._due or self._fresh
            self._changed.notify_all()

    def _apply(self, event: Any) -> bool:
        """Apply an event of the watch; return False if it cannot go on from here."""
        kind, object_ = member(event, "type"), member(event, "object")
        if kind == "ERROR":
            self._version = ""
            if member(object_, "code") == GONE:
                return False
            text = visible(str(member(object_, "message"))[:300])
            raise ApiError(f"the API server ends the watch of ResourceSlices: {text}")
        slice_ = slice_plan.parse_slice(object_, self._node) if kind in ("ADDED", "MODIFIED", "DELETED") else None
        with self._changed:
            self._version = str(member(member(object_, "metadata"), "resourceVersion") or self._version)
            current = self._slices.get(slice_.name) if slice_ else None
            if not slice_ or (
                kind != "DELETED"
                and (slice_.uid in self._deleted or (current and 0 < slice_.version <= current.version))
            ):
                return True
            if kind != "DELETED":
                self._slices[slice_.name] = slice_
            elif current and current.uid == slice_.uid:
                del self._slices[slice_.name]
                self._owner = ""  # the node may be another one
            else:
                self._deleted.discard(slice_.uid)
                return True
            self._due = True
            self._state.settle(SETTLE)
            self._changed.notify_all()
        return True

    def _ask(self, verb: str, method: str, path: str, query: dict[str, str], body: Any = None) -> Any:
        try:
            return self._api.ask(method, path, query, body)
        except ApiError as error:
            raise lacking(error, verb, "resourceslices") from None


def _key(devices: Devices) -> str:
    return json.dumps(devices, sort_keys=True)
