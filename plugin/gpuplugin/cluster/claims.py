"""Claims that the node half asks for, read from the API server."""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.cluster import METADATA, NAME, Api, ApiError, DeepError, lacking, member
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT_ONCE = 8  # requests
MOST = 1000  # claims that wait
ALONE = METADATA.format("PartialObjectMetadata")  # without what its author nests
PATH = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"


class Claims:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked = queue.Queue[tuple[dict[str, Any], "Callable[[dict[str, Any]], None]"]](MOST)

    def ask(self, request: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Queue a claim to be read.

        Args:
            request: with claim, namespace, name and uid.
            answer: called with the claim's object, that it is absent, or an error.
        """
        try:
            self._asked.put_nowait((request, answer))
        except queue.Full:
            answer({"claim": request["claim"], "error": f"more than {MOST} claims are asked for at once"})

    def work(self) -> Iterator[None]:
        """Answer for ever; AT_ONCE threads do."""
        while True:
            request, answer = self._asked.get()
            try:
                result = self._read(*(str(request.get(name)) for name in ("namespace", "name", "uid")))
            except GpushimError as error:
                result = {"error": str(error)}
            answer({"claim": request["claim"], **result})
            yield

    def _read(self, namespace: str, name: str, uid: str) -> dict[str, Any]:
        if not (NAME.fullmatch(namespace) and NAME.fullmatch(name)):
            return {"error": "the claim's namespace or name is none in Kubernetes"}
        path = PATH.format(namespace, name)
        try:
            claim = self._api.ask("GET", path, {})
        except DeepError:
            if member(member(self._api.ask("GET", path, {}, accept=ALONE), "metadata"), "uid") != uid:
                return {"absent": True}  # else nobody could take back what another one of that name had
            raise
        except ApiError as error:
            if error.status == 404 and error.about == name:  # not that the server has no claims at all
                return {"absent": True}
            raise lacking(error, "get", "resourceclaims") from None
        if member(member(claim, "metadata"), "uid") != uid:
            return {"absent": True}
        return {"object": {"metadata": {"uid": uid}, "status": _own_status(claim)}}


def _own_status(claim: Any) -> dict[str, Any]:
    """Return what is this driver's of a claim's status, and its pods; of configs of others their driver alone."""
    status = member(claim, "status")
    allocation = member(status, "allocation")
    pods = [row for row in _list_member(status, "reservedFor") if member(row, "resource") == "pods"]
    users = {"reservedFor": [{"resource": "pods", "uid": member(row, "uid")} for row in pods]}
    if not allocation:
        return users
    devices = member(allocation, "devices")
    results = _list_member(devices, "results")
    written = _list_member(member(member(claim, "spec"), "devices"), "config")
    requests = [*dict.fromkeys(str(member(result, "request")) for result in results)]
    own = [result for result in results if member(result, "driver") == OWN_DRIVER]
    config = [_config(row, requests, written) for row in _list_member(devices, "config")]
    return {**users, "allocation": {"devices": {"results": own, "config": config}}}


def _with_requests(row: dict[str, Any], requests: list[str], written: list[Any]) -> dict[str, Any]:
    """Return a config of this driver with its requests' names, which Kubernetes 1.37 leaves out where they are all.

    One without names would be passed over for a device of another type, instead of refused.
    """
    if row.get("requests"):
        return row
    if row.get("source") == "FromClass":
        return {**row, "requests": requests}
    with contextlib.suppress(RecursionError):  # of what is too deep to be read, too
        for config in written:
            names = [name for name in _list_member(config, "requests") if isinstance(name, str)]
            if member(config, "opaque") == row.get("opaque") and all(
                name in names or name.partition("/")[0] in names for name in requests
            ):
                return {**row, "requests": names}
    return row


def _list_member(parent: Any, key: str) -> list[Any]:
    rows = member(parent, key)
    return rows if isinstance(rows, list) else []


def _config(row: Any, requests: list[str], written: list[Any]) -> Any:
    driver = member(member(row, "opaque"), "driver")
    if driver == OWN_DRIVER:
        return _with_requests(row, requests, written)
    return {"opaque": {"driver": driver}} if isinstance(driver, str) else {}
