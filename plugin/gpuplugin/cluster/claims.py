"""Claims that the node half asks for, read from the API server.

Out of scope: what is in them (gpuplugin/dra/), the socket (dra_in_cluster.py).
"""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.cluster import METADATA, NAME, Api, ApiError, DeepError, member
from gpuplugin.cluster.rights import lacking
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT_ONCE = 8  # requests
MOST = 1000  # claims that wait
ALONE = METADATA.format("PartialObjectMetadata")  # without what its author nests
PATH = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"


class Claims:
    """The claims.

    Args:
        api: the API server.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked = queue.Queue[tuple[dict[str, Any], "Callable[[dict[str, Any]], None]"]](MOST)

    def ask(self, asked: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Have a claim read.

        Args:
            asked: with claim, namespace, name and uid.
            answer: called with the claim's object, that it is absent, or an error.
        """
        try:
            self._asked.put_nowait((asked, answer))
        except queue.Full:
            answer({"claim": asked["claim"], "error": f"more than {MOST} claims are asked for at once"})

    def work(self) -> Iterator[None]:
        """Answer for ever; AT_ONCE threads do."""
        while True:
            asked, answer = self._asked.get()
            try:
                found = self._read(*(str(asked.get(name)) for name in ("namespace", "name", "uid")))
            except GpushimError as error:
                found = {"error": str(error)}
            answer({"claim": asked["claim"], **found})
            yield

    def _read(self, namespace: str, name: str, uid: str) -> dict[str, Any]:
        if not (NAME.fullmatch(namespace) and NAME.fullmatch(name)):
            return {"error": "the claim's namespace or name is none in Kubernetes"}
        path = PATH.format(namespace, name)
        try:
            found = self._api.ask("GET", path, {})
        except DeepError:
            if member(member(self._api.ask("GET", path, {}, accept=ALONE), "metadata"), "uid") != uid:
                return {"absent": True}  # else nobody could take back what another one of that name had
            raise
        except ApiError as error:
            if error.status == 404 and error.about == name:  # not that the server has no claims at all
                return {"absent": True}
            raise lacking(error, "get", "resourceclaims") from None
        if member(member(found, "metadata"), "uid") != uid:
            return {"absent": True}
        return {"object": {"metadata": {"uid": uid}, "status": _ours(found)}}


def _ours(claim: Any) -> dict[str, Any]:
    """Return what is this driver's of a claim's status, and its pods; of configs of others their driver alone."""
    status = member(claim, "status")
    allocation = member(status, "allocation")
    rows = [row for row in _rows(status, "reservedFor") if member(row, "resource") == "pods"]
    users = {"reservedFor": [{"resource": "pods", "uid": member(row, "uid")} for row in rows]}
    if not allocation:
        return users
    devices = member(allocation, "devices")
    results = [one for one in _rows(devices, "results") if member(one, "driver") == OWN_DRIVER]
    written = _rows(member(member(claim, "spec"), "devices"), "config")
    requests = [*dict.fromkeys(str(member(one, "request")) for one in _rows(devices, "results"))]
    config = [_config(one, requests, written) for one in _rows(devices, "config")]
    return {**users, "allocation": {"devices": {"results": results, "config": config}}}


def _named(row: dict[str, Any], requests: list[str], written: list[Any]) -> dict[str, Any]:
    """Return a config of this driver with its requests' names, which Kubernetes 1.37 leaves out where they are all.

    One without names would be passed over for a device of another type, instead of refused.

    Args:
        row: of an allocation.
        requests: all that got devices.
        written: configs, as the claim has them.
    """
    if row.get("requests"):
        return row
    if row.get("source") == "FromClass":
        return {**row, "requests": requests}
    with contextlib.suppress(RecursionError):  # of what is too deep to be read, too
        for one in written:
            names = [name for name in _rows(one, "requests") if isinstance(name, str)]
            if member(one, "opaque") == row.get("opaque") and all(
                name in names or name.partition("/")[0] in names for name in requests
            ):
                return {**row, "requests": names}
    return row


def _rows(found: Any, key: str) -> list[Any]:
    rows = member(found, key)
    return rows if isinstance(rows, list) else []


def _config(row: Any, requests: list[str], written: list[Any]) -> Any:
    driver = member(member(row, "opaque"), "driver")
    if driver == OWN_DRIVER:
        return _named(row, requests, written)
    return {"opaque": {"driver": driver}} if isinstance(driver, str) else {}
