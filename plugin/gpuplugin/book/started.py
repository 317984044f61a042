"""The file beside the book with the pods that were started with devices of the plugin, by uid, until they have ended.

The book has what kubelet lists, which is no pod that was deleted by force; this has it until no process of it runs.
It is of one boot. What is damaged is told, says nothing, and is written anew with what kubelet's checkpoint has.
Out of scope: its lock, which is the book's; whether a pod runs (pod_cgroups.py); who waits (starts.py, prepare.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpuplugin.book import book
from gpuplugin.devices.changes import is_instance
from gpushim.ground import system
from gpushim.ground.logs import logger
from gpushim.paths import trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpuplugin.book.page import Page

    # "to": the pod's name as the book has it, "" while it is not known; "had": by resource and id its "gpu" and
    # "uuid", and the "division" in which it was given
    Row = dict[str, Any]

NAME, FORM = "started.json", 1  # in the book's directory


class Started:
    """The file, as this process knows it.

    Attributes:
        problem: that it was damaged, so that not all who run are known until they have ended; or "".
    """

    def __init__(self) -> None:
        self._seen: object = None  # identity of the file that was read or written last
        self._rows: dict[str, Row] = {}
        self.problem = ""

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{book.folder()}/{NAME}"

    def read(self) -> Mapping[str, Row]:
        """Return the pods that it has, by uid.

        Raises:
            GpushimError: it cannot be read now.
        """
        seen = trust.identity(self.path)
        if seen is None or seen != self._seen:
            found = _parsed(book.content(self.path)) if seen else {}
            if found is None:
                self.problem = f"{self.path} was damaged, or a newer version's, and does not say who runs"
                logger.warning("%s", self.problem)
            self._rows, self._seen = found or {}, seen
        return self._rows

    def write(self, rows: dict[str, Row]) -> None:
        """Have these in it from now on; the book's lock is held.

        Raises:
            GpushimError: it cannot be written.
        """
        data = json.dumps({"form": FORM, "boot": system.boot() or "", "pods": rows}, separators=(",", ":"))
        try:
            replace(self.path, data.encode() + b"\n", 0o600, durable=False)
        except OSError as error:
            self._seen = None
            raise book.unwritable(error) from None
        self._rows, self._seen = rows, trust.identity(self.path)


def _parsed(data: bytes | None) -> dict[str, Row] | None:
    """Return what the file has; None if it cannot be understood."""
    try:
        found = json.loads(data or b"")
        if found["boot"] != system.boot():
            return {}
        return {str(uid): _checked(row) for uid, row in found["pods"].items()} if found["form"] == FORM else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _checked(row: Any) -> Row:
    texts = [row["to"]]
    for key, one in row["had"].items():
        kind, name = one["division"]
        texts += [key, one["gpu"], one["uuid"], kind, name]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    found: Row = row
    return found


def after(
    rows: Mapping[str, Row], given: Mapping[str, set[str]], page: Page, runs: Callable[[str], bool]
) -> dict[str, Row]:
    """Return the file's pods without those that have ended, and with those that kubelet has given something to.

    Args:
        rows: as they were.
        given: by kubelet's checkpoint: keys of the book's entries, by uid.
        page: the book.
        runs: says whether a pod has a process.
    """
    found = {uid: row for uid, row in rows.items() if uid in given or runs(uid)}
    for uid, keys in given.items():
        mine = [
            (key, gpu, one["entries"][key])
            for gpu, one in page["gpus"].items()
            for key in keys & one["entries"].keys()
        ]
        if mine:
            before = rows.get(uid, {"to": "", "had": {}})
            still = {key: one for key, one in before["had"].items() if key in keys}  # a static pod's uid comes again
            had = {key: {"gpu": gpu, "uuid": one["uuid"], "division": one["division"]} for key, gpu, one in mine}
            to = next((one["to"] for *_, one in mine if one["to"]), before["to"])
            found[uid] = {"to": to, "had": {**still, **had}}
    return found


def named(uid: str, rows: Mapping[str, Row]) -> str:
    """Name a pod, by its uid where nothing else is known."""
    return (rows[uid]["to"] if uid in rows else "") or f"the pod with the uid {uid}"


def excludes(row: Row, keys: Collection[str], other: Row) -> tuple[str, str]:
    """Say which device of a container it cannot use yet for what another pod has: the UUIDs of both, or "" twice.

    Args:
        row: the container's pod.
        keys: of the container's devices.
        other: the other pod.
    """
    for key in keys:
        mine = row["had"][key]
        for had in other["had"].values():
            shared = "::" in key and had["division"] == mine["division"]
            if touch(had["uuid"], had["gpu"], mine["uuid"], mine["gpu"]) and not shared:
                return mine["uuid"], had["uuid"]
    return "", ""


def holder(
    rows: Mapping[str, Row], uuids: Collection[str], homes: Mapping[str, str], runs: Callable[[str], bool]
) -> tuple[str, str, str]:
    """Say which pod of the file runs with some of what is to be somebody's alone: its name, and the UUIDs of both.

    Args:
        rows: of the file.
        uuids: of GPUs and MIG instances.
        homes: UUIDs of the GPUs that have them, by UUID of all GPUs and MIG instances.
        runs: says whether a pod has a process.
    """
    for uid, row in rows.items():
        for had in row["had"].values():
            mine = next((one for one in uuids if touch(had["uuid"], had["gpu"], one, homes.get(one, ""))), "")
            if mine and runs(uid):
                return named(uid, rows), mine, had["uuid"]
    return "", "", ""


def touch(uuid: str, gpu: str, other: str, its_gpu: str) -> bool:
    """Say whether two are one, or one is a MIG instance of the other."""
    return uuid == other or (gpu == its_gpu and is_instance(uuid) != is_instance(other))
