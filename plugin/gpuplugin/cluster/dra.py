"""`gpushim-dra-driver --cluster`: the half of the DRA driver that has the token, and is not root.

It hears from the half on the node, by a socket, which slices that has and which claims it is to prepare; whoever made
the socket is root of this node. Out of scope: slices (slices.py), what is done with claims (gpuplugin.dra).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster import parts
from gpuplugin.cluster.cluster import FOLDER, Api, ApiError, member, named
from gpuplugin.cluster.slices import MISSING, Slices
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
LIMIT = 8 << 20  # bytes of a line
AT_ONCE, QUEUED = 8, 256  # claims that are fetched, and that wait
LOOK = 0.25  # seconds between looks for the socket; the other container starts at the same time
OBJECT = {"metadata": ("namespace", "name", "uid", "deletionTimestamp"), "status": ("allocation", "reservedFor")}


def run(environment: Mapping[str, str], path: str, folder: str = FOLDER) -> None:
    """Serve the half on the node until a signal ends it.

    Args:
        environment: of a pod, with NODE_NAME.
        path: of the socket.
        folder: where kubelet mounts the service account.

    Raises:
        GpushimError: this is no pod, or a part has ended.
    """
    api, node = Api(environment, folder), named(environment.get("NODE_NAME", ""), "NODE_NAME")
    half = Half(api, node, path)
    parts.run([half.slices.follow, half.slices.keep, half.serve])


class Half:
    """This half.

    Args:
        api: the API server.
        node: this node's name.
        path: of the socket.
    """

    def __init__(self, api: Api, node: str, path: str) -> None:
        self._api, self._path = api, path
        self.slices = Slices(api, node, lambda news: self._say({"published": news}))
        self._turn = threading.Lock()
        self._other: socket.socket | None = None
        self._queue = threading.BoundedSemaphore(QUEUED)

    def serve(self) -> Iterator[None]:
        """Do what the other half says; yields with each line, ends when it does.

        Raises:
            GpushimError: it says what it should not.
        """
        with socket.socket(socket.AF_UNIX) as other, ThreadPoolExecutor(AT_ONCE) as several:
            while True:
                with contextlib.suppress(OSError):
                    other.connect(self._path)
                    break
                time.sleep(LOOK)
            with self._turn:
                self._other = other
            try:
                for line in _lines(other):
                    self._hear(json.loads(line), several)
                    yield
            except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
                raise GpushimError(
                    f"the container that gives out GPUs says what it should not: {error!r}", FAILED
                ) from None
            finally:
                self.slices.want(None)
                with self._turn:
                    self._other = None
        yield

    def _hear(self, line: dict[str, Any], several: ThreadPoolExecutor) -> None:
        if "pool" in line:
            self.slices.want(line["pool"] and line["pool"]["slices"])
        elif "claim" in line and self._queue.acquire(timeout=1.0):
            several.submit(self._fetch, line)

    def _fetch(self, asked: dict[str, Any]) -> None:
        """Answer with a claim."""
        try:
            self._say({"claim": asked["claim"], **self._found(asked)})
        finally:
            self._queue.release()

    def _found(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            namespace, name = named(asked["namespace"], "a claim's namespace"), named(asked["name"], "a claim's name")
            found = self._api.ask("GET", CLAIMS.format(namespace, name), {})
        except ApiError as error:
            return {"absent": True} if error.status == MISSING else {"error": str(error)}
        except GpushimError as error:
            return {"error": str(error)}
        if member(member(found, "metadata"), "uid") != asked["uid"]:
            return {"absent": True}
        kept = {part: {key: member(member(found, part), key) for key in keys} for part, keys in OBJECT.items()}
        return {"object": {**kept, "spec": member(found, "spec")}}

    def _say(self, news: dict[str, Any]) -> None:
        """Tell the other half, if it is there; what counts is told again when it comes."""
        line = json.dumps(news, separators=(",", ":")).encode() + b"\n"
        with self._turn, contextlib.suppress(OSError):
            if self._other:
                self._other.sendall(line)


def _lines(other: socket.socket) -> Iterator[bytes]:
    with other.makefile("rb") as file:
        while line := file.readline(LIMIT + 1):
            if len(line) > LIMIT or not line.endswith(b"\n"):
                raise ValueError("a line is too long, or ends in its middle")
            yield line
