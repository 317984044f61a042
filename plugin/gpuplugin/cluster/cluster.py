"""A client of the API server of the cluster that this pod or node is in.

Whatever the server sends is bounded in size, and in time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from gpuplugin.cluster import pause
from gpuplugin.cluster.access import FOLDER, PodAccess, RelayedAccess
from gpushim.ground.errors import FAILED, GpushimError, quote, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ANSWER_LIMIT = 4 << 20  # bytes of an answer, and of a line of a watch
DEADLINE = 15.0  # seconds for an answer, from the first byte that is sent; of a watch, for its beginning
SILENCE = 90.0  # seconds; the server sends a bookmark about once a minute
WATCH = 300  # seconds for which a watch lasts at least
# By this the Node authorizer forbids to kubelet's own credentials what is not there, and a claim that no pod of its
# node has.
UNRELATED = "no relationship found between node "
MESSAGE = 800  # characters of what a server says, with names of 253 in it
NAME = re.compile("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # of a node, a namespace or a pod (RFC 1123)
GONE = 410  # what the server answers where the version to go on from is too old
METADATA = "application/json;as={};g=meta.k8s.io;v=v1"  # of objects, without the rest
APPLY = "application/apply-patch+yaml"  # of which JSON is a part
MERGE = "application/merge-patch+json"


class ApiError(GpushimError):
    """An answer of the API server that is an error, or the lack of one.

    Attributes:
        status: of HTTP; 0 if there is no answer.
        about: name of the object that it is about, if the server says one.
    """

    def __init__(self, sentence: str, status: int = 0, about: str = "") -> None:
        super().__init__(sentence, FAILED)
        self.status, self.about = status, about


class DeepError(ApiError):
    """An answer of the API server that is nested deeper than Python reads."""


class Api:
    """The API server.

    Args:
        environment: variables of a pod.
        folder: where kubelet puts token, ca.crt and namespace.
        access: to it, if it is not that of this pod.

    Raises:
        GpushimError: this is no pod, or its service account is not mounted.
    """

    def __init__(
        self, environment: Mapping[str, str], folder: str = FOLDER, access: RelayedAccess | None = None
    ) -> None:
        self._pod = None if access else PodAccess(environment, folder)
        self._access, self._folder = access or self._pod, folder

    @property
    def namespace(self) -> str:
        assert self._pod
        return named(self._pod.mounted("namespace"), f"{self._folder}/namespace")

    def ask(
        self, method: str, path: str, query: Mapping[str, str], body: Any = None, accept: str = "", kind: str = APPLY
    ) -> Any:
        """Make a request, and return the JSON of the answer.

        Args:
            method: of HTTP.
            path: such as /api/v1/nodes.
            query: behind the path.
            body: an object.
            accept: media type of the answer; "" is JSON.
            kind: of PATCH: APPLY (server-side apply) or MERGE.

        Raises:
            ApiError: there is no answer in time, it is an error, or it is too large.
        """
        with self._answer(method, path, query, body, accept, kind) as answer:
            return _json(b"".join(_read(answer)))

    def watch(
        self, path: str, query: Mapping[str, str], accept: str = "", begun: Callable[[], None] = lambda: None
    ) -> Iterator[Any]:
        """Yield the events of a watch until the server ends it, after WATCH seconds or up to twice that.

        Watches of all nodes end together when a server restarts, so an early end is raised after a random delay
        (`pause.apart`).

        Args:
            path: as for `ask`.
            query: as for `ask`.
            accept: as for `ask`.
            begun: called when the server has begun to answer.

        Raises:
            ApiError: as for `ask`; or the server says nothing for SILENCE seconds.
        """
        seconds = WATCH * random.uniform(1, 2)  # noqa: S311 - no secret; nodes that began at once do not stay together
        parameters = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": f"{seconds:.0f}"}
        earliest_end = time.monotonic() + seconds - pause.SPREAD
        try:
            with self._answer("GET", path, parameters, None, accept, watch=seconds + SILENCE) as answer:
                begun()
                while (line := answer.readline(ANSWER_LIMIT + 1)).endswith(b"\n"):
                    yield _json(line)
                if len(line) > ANSWER_LIMIT:
                    raise ApiError("the API server sends an event that is too large")
        except ApiError:
            pause.apart(earliest_end)
            raise
        pause.apart(earliest_end)

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Any,
        accept: str,
        kind: str = APPLY,
        watch: float = 0.0,
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield an answer that is no error, which must come within DEADLINE, or `watch` seconds if given."""
        assert self._access
        access = self._access.current()
        headers = {**access.headers, "Accept": accept or "application/json"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = kind if method == "PATCH" else "application/json"
        # With a context of its own, or it would read all certificates again.
        connection = http.client.HTTPSConnection(access.host, access.port, context=access.context)
        limit = _Limit()
        try:
            with socket.create_connection((access.host, access.port), DEADLINE) as tcp:
                tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else it waits 40 ms for an ACK
                limit.begin(DEADLINE, tcp.dup())
                # This takes the descriptor of `tcp`.
                connection.sock = access.context.wrap_socket(tcp, server_hostname=access.name)
            connection.request(method, f"{access.base}{path}?{urlencode(query)}", data, headers)
            tls = connection.sock  # which an answer without keep-alive takes with it
            with connection.getresponse() as answer:
                if not 200 <= answer.status < 300:
                    raise _refused(answer)
                if watch:
                    limit.begin(watch)
                    tls.settimeout(SILENCE)
                yield answer
            if limit.over:  # which looks like the answer's end
                raise ApiError("")
        except (OSError, ValueError, http.client.HTTPException, ApiError) as error:  # ValueError: a host like a..b
            raise _failed(error, limit, access.host) from None
        finally:
            limit.end()
            connection.close()


def _failed(error: Exception, limit: _Limit, host: str) -> ApiError:
    """Return what went wrong with a request."""
    if limit.over and not getattr(error, "status", 0):
        return ApiError(f"the API server's answer takes more than {limit.seconds:g} s")
    if isinstance(error, ApiError):
        return error
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ApiError(f"the API server at {host} does not answer: {quote(str(reason))}")


def named(text: str, source: str) -> str:
    """Return a name that Kubernetes gave an object.

    Raises:
        GpushimError: it is none.
    """
    if not NAME.fullmatch(text):
        raise GpushimError(
            f'{source} is "{quote(text)}", which is not a Kubernetes name; set it by the downward API', FAILED
        )
    return text


class _Limit:
    """A deadline of a connection, whatever comes of it: a socket's timeout is for each byte, and some drip."""

    def __init__(self) -> None:
        self.seconds, self.over = 0.0, False
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None

    def begin(self, seconds: float, connected: socket.socket | None = None) -> None:
        """Close a socket after so many seconds from now; `connected` is that socket, given once."""
        if self._timer:
            self._timer.cancel()
        self.seconds, self._socket = seconds, connected or self._socket
        self._timer = threading.Timer(seconds, self._shut)
        self._timer.daemon = True
        self._timer.start()

    def _shut(self) -> None:
        self.over = True
        if self._socket:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._socket:
            self._socket.close()


def _read(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    size = 0
    while True:
        part = answer.read1(1 << 16)
        if not part:
            return
        size += len(part)
        if size > ANSWER_LIMIT:
            raise ApiError(f"the API server's answer has more than {ANSWER_LIMIT >> 20} MiB")
        yield part


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise ApiError("the API server's answer is not JSON") from None
    except RecursionError:
        raise DeepError("the API server's answer is nested too deep") from None


def _refused(answer: http.client.HTTPResponse) -> ApiError:
    """Return the error that the server describes in a Status object; what is UNRELATED is not found."""
    try:
        status = _json(b"".join(_read(answer)))
    except (ApiError, OSError, http.client.HTTPException):
        status = None
    message = visible(str(member(status, "message") or answer.reason)[:MESSAGE])
    about = member(member(status, "details"), "name")
    code = 404 if answer.status == 403 and UNRELATED in message else answer.status
    return ApiError(f"the API server answers {answer.status}: {message}", code, str(about or ""))


def member(parent: Any, name: str) -> Any:
    """Return a member of what a server sends; None if it is no object, or has none of that name."""
    return parent.get(name) if isinstance(parent, dict) else None


def lacking(error: ApiError, verb: str, resource: str) -> ApiError:
    """Return the error with the right that the service account lacks, if that is what it is."""
    if error.status != 403:
        return error
    return ApiError(f"{error}; give the service account the right to {verb} {resource}", 403, error.about)


def node_uid(api: Api, node: str) -> str:
    """Return the uid of a node's object, with which the node's own objects go.

    Raises:
        ApiError: the API server does not say, or has no such node.
    """
    try:
        answer = api.ask("GET", f"/api/v1/nodes/{node}", {}, accept=METADATA.format("PartialObjectMetadata"))
    except ApiError as error:
        if error.status == 404:
            raise ApiError(f"the API server knows no node {node}; set NODE_NAME to spec.nodeName") from None
        raise lacking(error, "get", "nodes") from None
    return str(member(member(answer, "metadata"), "uid") or "")
