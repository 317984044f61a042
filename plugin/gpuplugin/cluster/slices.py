"""A node's ResourceSlices, kept as they are desired.

A watch shows what becomes of them; they are written only while some are desired. Out of scope: what is to be written
(slice_plan.py), what devices there are (gpuplugin/dra/).
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster import rights, slice_content, slice_plan
from gpuplugin.cluster.cluster import GONE, Api, ApiError, member
from gpuplugin.cluster.slice_plan import MANAGER, Plan, Seen
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
    """The slices.

    Args:
        api: the API server.
        node: its name, which is the pool's.
        tell: gets generation, problem and what was dropped, after each write, failure and repair.
    """

    def __init__(self, api: Api, node: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._api, self._node, self._tell = api, node, tell
        self._only = {"fieldSelector": f"spec.driver={OWN_DRIVER},spec.nodeName={node}"}
        self._changed = threading.Condition()
        self._busy = threading.Lock()  # one reads all, or writes
        self._state = State()
        self._there: dict[str, Seen] = {}
        self._gone: set[str] = set()  # uids that were deleted here, and may still be in the watch
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
        """Follow what becomes of the slices, once some are desired; ends when the server ends the watch.

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
            asked = {**self._only, "resourceVersion": self._version}
            for event in self._ask_watch(asked):
                if not self._event(event):
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

    def _ask_watch(self, asked: dict[str, str]) -> Iterator[Any]:
        try:
            yield from self._api.watch(PATH, asked, begun=self._begun)
        except ApiError as error:
            raise rights.lacking(error, "watch", "resourceslices") from None

    def write(self) -> Iterator[None]:
        """Write whatever is not as desired, for ever."""
        while True:
            with self._changed:
                if not (self._pending() or self._state.changed()):  # each news may be of how long to wait
                    self._changed.wait(self._state.wait(TICK) or TICK)
                desired, asked = (self._desired, self._asked) if self._pending() else (None, False)
                if desired is not None:
                    self._due = self._asked = False
            if desired is not None:
                with self._busy:
                    self._put_right(desired, asked)
            with self._changed:
                answered = self._state.message()
            if answered:
                self._tell({"published": answered})
            yield

    def _pending(self) -> bool:
        return self._due and self._listed and self._desired is not None and not self._state.wait(TICK)

    def _put_right(self, desired: list[Devices], say: bool) -> None:
        last = ApiError("this node's ResourceSlices change while they are written")
        try:
            for _ in range(TRIES):
                found = self._plan(desired)
                if found.empty:
                    break
                self._state.repairing(found, self._there.values())
                try:
                    say = True
                    if not self._carry_out(found, desired):
                        self._due = self._asked = True
                        return
                except ApiError as error:
                    if error.status not in (404, 409):
                        raise
                    last = error
                    self._read()
            else:
                raise last
        except GpushimError as error:
            self._due = self._asked = True
            self._state.failed(str(error))
        else:
            self._fresh, self._doubtful = False, -1
            pairs = [(each, self._forms.get(_key(each), each)) for each in desired]
            self._state.done(found.generation, {path for pair in pairs for path in slice_content.dropped(*pair)})
            self._state.say = self._state.say or say

    def _plan(self, desired: list[Devices]) -> Plan:
        def same(index: int, one: Seen) -> bool:
            return slice_content.same(self._forms.get(_key(desired[index]), desired[index]), one.devices)

        with self._changed:
            there = [*self._there.values()]
        found = slice_plan.plan(there, self._node, len(desired), same)
        if found.empty or not self._fresh:
            return found
        for index, one in slice_plan.candidates(there, len(desired)):
            if not same(index, one):  # the server may have dropped fields: it says what it would make of them
                answer = self._post(desired[index], one.name, one, one.generation, len(desired), dry=True)
                self._forms[_key(desired[index])] = answer.devices
        self._fresh = False
        return slice_plan.plan(there, self._node, len(desired), same)

    def _carry_out(self, found: Plan, desired: list[Devices]) -> bool:
        """Carry out a plan; False: something else is desired meanwhile, and the rest was left."""
        written: list[Seen] = []
        for one in found.first:
            self._delete(one)
        for index, name, there in sorted(found.writes, key=lambda row: row[0] != self._doubtful):
            if self._desired is not desired:
                return False
            try:
                answer = self._post(desired[index], name, there, found.generation, len(desired))
            except ApiError as error:
                if error.status in REFUSED:
                    self._doubtful = index
                    for one in written if found.anew else ():
                        with contextlib.suppress(ApiError):
                            self._delete(one)  # so that the generation before counts again
                raise
            written.append(answer)
            self._forms[_key(desired[index])] = answer.devices
        for one in found.after:
            if self._desired is not desired:
                return False
            self._delete(one)
        return True

    def _post(
        self, devices: Devices, name: str, there: Seen | None, generation: int, count: int, dry: bool = False
    ) -> Seen:
        self._owner = self._owner or rights.node_uid(self._api, self._node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._owner}
        metadata: dict[str, Any] = {"name": name, "ownerReferences": [owner]}
        if there:
            metadata.update({**there.metadata, "uid": there.uid})
            metadata.update({"resourceVersion": str(there.version)} if there.version else {})
        pool = {"name": self._node, "generation": generation, "resourceSliceCount": count}
        dated = slice_content.dated(devices, [one.devices for one in self._there.values()])
        body = {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": metadata,
            "spec": {"driver": OWN_DRIVER, "nodeName": self._node, "pool": pool, "devices": dated},
        }
        query = {"fieldManager": MANAGER, **({"dryRun": "All"} if dry else {})}
        verb, method, path = ("update", "PUT", f"{PATH}/{name}") if there else ("create", "POST", PATH)
        answer = slice_plan.seen(self._ask(verb, method, path, query, body), self._node)
        if not answer or answer.name != name:
            raise ApiError(f"the API server's answer is not the ResourceSlice {name} that it was sent")
        if not dry:
            with self._changed:
                self._there[name] = answer
        return answer

    def _delete(self, one: Seen) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": one.uid}}
        try:
            self._ask("delete", "DELETE", f"{PATH}/{one.name}", {}, body)
        except ApiError as error:
            if error.status != 404:
                raise
        with self._changed:
            self._gone.add(one.uid)
            self._there.pop(one.name, None)

    def _read(self) -> None:
        """Read all slices of this node."""
        found: dict[str, Seen] = {}
        query = {**self._only, "limit": str(PAGE)}
        for _ in range(PAGES):
            answer = self._ask("list", "GET", PATH, query)
            metadata, items = member(answer, "metadata"), member(answer, "items")
            each = [slice_plan.seen(item, self._node) for item in (items if isinstance(items, list) else ())]
            found.update({one.name: one for one in each if one})
            if not member(metadata, "continue"):
                break
            query["continue"] = str(member(metadata, "continue"))
        else:
            raise ApiError(f"more than {PAGE * PAGES} ResourceSlices name this node; delete those of other drivers")
        with self._changed:
            self._there, self._gone = found, set()
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

    def _event(self, event: Any) -> bool:
        """Take what the watch says; False: it cannot go on from here."""
        kind, found = member(event, "type"), member(event, "object")
        if kind == "ERROR":
            self._version = ""
            if member(found, "code") == GONE:
                return False
            answered = visible(str(member(found, "message"))[:300])
            raise ApiError(f"the API server ends the watch of ResourceSlices: {answered}")
        one = slice_plan.seen(found, self._node) if kind in ("ADDED", "MODIFIED", "DELETED") else None
        with self._changed:
            self._version = str(member(member(found, "metadata"), "resourceVersion") or self._version)
            now = self._there.get(one.name) if one else None
            if not one or (kind != "DELETED" and (one.uid in self._gone or (now and 0 < one.version <= now.version))):
                return True
            if kind != "DELETED":
                self._there[one.name] = one
            elif now and now.uid == one.uid:
                del self._there[one.name]
                self._owner = ""  # the node may be another one
            else:
                self._gone.discard(one.uid)
                return True
            self._due = True
            self._state.settle(SETTLE)
            self._changed.notify_all()
        return True

    def _ask(self, verb: str, method: str, path: str, query: dict[str, str], body: Any = None) -> Any:
        try:
            return self._api.ask(method, path, query, body)
        except ApiError as error:
            raise rights.lacking(error, verb, "resourceslices") from None


def _key(devices: Devices) -> str:
    return json.dumps(devices, sort_keys=True)
