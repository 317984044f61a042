"""The MIG layout that a file names, mostly by the node's label: which GPUs wait for it, and the request to cut them.

The node plans and cuts (gpushim.mig.cut_request). A GPU that must change is unhealthy from the plan on until it is
cut, and is cut when the record says that nobody has it. All of that is in files, so that another process goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from gpuplugin.health.reason import LAYOUT, Reason
from gpuplugin.record import transitions
from gpuplugin.settings import resources
from gpuplugin.settings.profiles import read_choice
from gpuplugin.snapshot import node_requests
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.inventory import ensure
from gpushim.mig import cut_request
from gpushim.paths import lock, trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplugin.record.record_form import Record
    from gpushim.ground.model import Snapshot

AGAIN = 10.0  # seconds until a request is repeated that has no answer, or that found a GPU in use
SETTLED = 2.0  # seconds after which what was answered to kubelet before a GPU was unhealthy is in the record
PENDING, SUCCESS, FAILURE = "pending", "success", "failed"  # as NVIDIA's mig-manager has them
NOUN = "MIG layout"  # for sentences


def tell_state(path: str) -> str:
    """Return how far the layout is that a file names; "" for none."""
    try:
        subject = _describe(read_choice(path, NOUN))
    except GpushimError:
        return FAILURE
    if not subject["layout"]:
        return ""
    answer = _read_answer(subject)
    if not answer or "" in answer["gpus"].values():
        return PENDING
    return FAILURE if answer["problem"] or answer["gpus"] else SUCCESS


class MigLayout:
    """The layout of this node.

    Attributes:
        reasons: why devices of GPUs that wait for it are not given out, by UUID.
        problem: why it cannot be had, or "".
    """

    def __init__(self) -> None:
        self.reasons: dict[str, list[Reason]] = {}
        self._waiting: dict[str, float] = {}  # GPUs, since when
        self._closed: list[str] = []  # those of them that nobody gets any more
        self._subject: dict[str, Any] = {}  # of the last look
        self.problem = self._name = ""

    def look(self, values: Mapping[str, Any], snapshot: Snapshot) -> bool:
        """Go by the name that counts now, and have the node plan what is new; return whether GPUs wait.

        Args:
            values: of settings.
            snapshot: of the host's inventory.
        """
        try:
            name, problem = read_choice(values["mig-layout-file"], NOUN), ""
        except GpushimError as error:
            name, problem = "", str(error)
        subject = _describe(name) if name else {}
        answer = _read_answer(subject) if name else {}
        problems = filter(None, [problem, answer.get("problem"), *answer.get("gpus", {}).values()])
        self._tell("; ".join(f"MIG layout {name}: {sentence}" if name else sentence for sentence in problems))
        uuids = [uuid for uuid, problem in answer.get("gpus", {}).items() if not problem]
        asked = _take_back(subject, uuids)
        clock, lock_path = system.clock(), f"{system.state_dir()}/{cut_request.LOCK}"
        is_cutting = lock.is_held(lock_path) or _is_older(snapshot, answer)
        settled = {uuid for uuid, since in self._waiting.items() if clock - since >= SETTLED}
        self._subject, self._closed = subject, [uuid for uuid in uuids if uuid in settled and not is_cutting]
        begun = {*self._waiting, *asked.get("free", ())} if is_cutting else ()  # perhaps by what was just taken back
        self._waiting = {uuid: self._waiting.get(uuid, clock) for uuid in (*uuids, *begun)}
        self._name = name or asked.get("layout", self._name)
        self.reasons = self._find_reasons(snapshot)
        if name and not answer and not is_cutting:
            _ask(subject, [], values, snapshot)
        return bool(self._waiting)

    def free(self, values: Mapping[str, Any], snapshot: Snapshot, record: Record | None) -> None:
        """Have those GPUs cut that nobody has, and nobody can have got since.

        Args:
            values: of settings.
            snapshot: of the host's inventory.
            record: of who has what; None if that cannot be read.
        """
        if record is None or record["unknown"] or snapshot["error"] or snapshot["source"] != "nvml":
            return  # who has what is not known, or which instances there are
        uuids = [uuid for uuid in self._closed if not _is_held(record, uuid, snapshot)]
        if uuids:
            _ask(self._subject, uuids, values, snapshot)

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            logger.error("%s", problem)
        self.problem = problem

    def _find_reasons(self, snapshot: Snapshot) -> dict[str, list[Reason]]:
        uuids = {gpu["index"]: gpu["uuid"] for gpu in snapshot["gpus"]}
        homes = {
            **{uuid: uuid for uuid in uuids.values()},
            **{mig["uuid"]: uuids.get(mig["gpu"], "") for mig in snapshot["mig"]},
        }
        text, until = f"the GPU waits for its MIG layout, {self._name}", "when nobody has the GPU, and it is cut"
        return {
            uuid: [Reason(LAYOUT, text, self._waiting[home], until)]
            for uuid, home in homes.items()
            if home in self._waiting
        }


def _describe(name: str) -> dict[str, Any]:
    """Return what an answer must be about: a layout of a file in this boot."""
    identity = trust.identity(f"{os.path.dirname(system.config_path())}/{cut_request.LAYOUTS}")
    return {"layout": name, "boot": system.boot(), "file": json.loads(json.dumps(identity))}


def _read_answer(subject: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the node has said of a layout; {} if nothing."""
    answer: Mapping[str, Any] = ensure.own(f"{system.state_dir()}/{cut_request.ANSWER}")
    return answer if subject.items() <= (answer.get("request") or {}).items() else {}


def _is_older(snapshot: Snapshot, answer: Mapping[str, Any]) -> bool:
    """Return whether a snapshot has what was there before GPUs were cut: it is read before the answer."""
    return bool(answer) and bool(answer["request"]["free"]) and snapshot["looked"] < answer["request"]["at"]


def _path() -> str:
    return f"{system.state_dir()}/{cut_request.NAME}"


def _take_back(subject: Mapping[str, Any], uuids: Collection[str]) -> Mapping[str, Any]:
    """Return the last request; remove it if it is about something else, or names a GPU that waits no more."""
    request: Mapping[str, Any] = ensure.own(_path())
    if not subject or not subject.items() <= request.items() or not {*request["free"]} <= {*uuids}:
        _remove(cut_request.NAME)
    if not subject:
        _remove(cut_request.ANSWER)  # the same name is planned anew when it comes again
    return request


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(f"{system.state_dir()}/{name}")


def _ask(subject: Mapping[str, Any], free: Collection[str], values: Mapping[str, Any], snapshot: Snapshot) -> None:
    """Write a request, unless it was written just now."""
    partitions = sorted(gpu["uuid"] for gpu in resources.list_excluded(snapshot, values["on-demand"]))
    row = {**subject, "free": sorted(free), "partitions": partitions}
    before, clock = ensure.own(_path()), system.clock()
    if row.items() <= before.items() and 0 <= clock - before["at"] < AGAIN:
        return
    try:
        replace(_path(), json.dumps({**row, "at": clock}).encode(), 0o600)
        node_requests.ask(renewed=True)
    except OSError as error:
        logger.warning("%s cannot be written: %s", _path(), error.strerror)


def _is_held(record: Record, uuid: str, snapshot: Snapshot) -> bool:
    """Return whether anybody has a GPU or a part of it that is there; an administrator's claim has nothing.

    After a boot a claim may have an instance that is not; the layout, which makes it again, does not wait for it.
    """
    gpu, instances = record["gpus"].get(uuid), {mig["uuid"] for mig in snapshot["mig"]}
    return bool(gpu and gpu["allocations"]) or any(
        device["uuid"] == uuid or (device["gpu"] == uuid and device["uuid"] in instances)
        for claim in record["claims"].values()
        for device in transitions.list_held(claim)
    )
