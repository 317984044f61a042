"""A client of the API server of the cluster that this pod or node is in.

Whatever the server sends is bounded in size, and in time.
Out of scope: where it is, and credentials (access.py); what is asked
(node_label.py, node_feature.py, installed_label.py, slices.py, claims.py).
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
from gpuplugin.cluster.access import FOLDER, Lent, Pod
from gpushim.ground.errors import FAILED, GpushimError, quote, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ANSWER_LIMIT = 4 << 20  # bytes of an answer, and of a line of a watch
DEADLINE = 15.0  # seconds for an answer, from the first byte that is sent; of a watch, for its beginning
SILENCE = 90.0  # seconds; the server sends a bookmark about once a minute
WATCH = 300  # seconds for which a watch lasts at least
MESSAGE = 300  # characters of what a server says
NAME = re.compile("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # of a node, a namespace or a pod (RFC 1123)
GONE = 410  # what the server answers where the version to go on from is too old
METADATA = "application/json;as={};g=meta.k8s.io;v=v1"  # of objects, without the rest
APPLY = "application/apply-patch+yaml"  # of which JSON is a part
MERGE = "application/merge-patch+json"


class ApiError(GpushimError):
    """What the API server answers, or why it does not.

    Attributes:
        status: of HTTP; 0 if there is no answer.
        about: name of the object that it is about, if the server says one.
    """

    def __init__(self, sentence: str, status: int = 0, about: str = "") -> None:
        super().__init__(sentence, FAILED)
        self.status, self.about = status, about


class DeepError(ApiError):
    """What the API server answers is nested deeper than Python reads."""


class Api:
    """The API server.

    Args:
        environment: variables of a pod.
        folder: where kubelet puts token, ca.crt and namespace.
        access: to it, if it is not that of this pod.

    Raises:
        GpushimError: this is no pod, or its service account is not mounted.
    """

    def __init__(self, environment: Mapping[str, str], folder: str = FOLDER, access: Lent | None = None) -> None:
        self._pod = None if access else Pod(environment, folder)
        self._access, self._folder = access or self._pod, folder

    @property
    def namespace(self) -> str:
        """That of this pod."""
        assert self._pod
        return named(self._pod.mounted("namespace"), f"{self._folder}/namespace")

    def ask(
        self, method: str, path: str, query: Mapping[str, str], body: Any = None, accept: str = "", kind: str = APPLY
    ) -> Any:
        """Ask, and return the JSON of the answer.

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

        One that ends before, or cannot begin, does so together with those of other nodes, as with a server: so this
        goes on for a while then (`pause.apart`).

        Args:
            path: as for `ask`.
            query: as for `ask`.
            accept: as for `ask`.
            begun: called when the server has begun to answer.

        Raises:
            ApiError: as for `ask`; or the server says nothing for SILENCE seconds.
        """
        seconds = WATCH * random.uniform(1, 2)  # noqa: S311 - no secret; nodes that began at once do not stay together
        asked = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": f"{seconds:.0f}"}
        enough = time.monotonic() + seconds - pause.SPREAD
        try:
            with self._answer("GET", path, asked, None, accept, watch=seconds + SILENCE) as answer:
                begun()
                while (line := answer.readline(ANSWER_LIMIT + 1)).endswith(b"\n"):
                    yield _json(line)
                if len(line) > ANSWER_LIMIT:
                    raise ApiError("the API server sends an event that is too large")
        except ApiError:
            pause.apart(enough)
            raise
        pause.apart(enough)

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
        """Ask; yields an answer that is no error, which must come within DEADLINE, or `watch` seconds if given."""
        assert self._access
        to = self._access.now()
        headers = {**to.headers, "Accept": accept or "application/json"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = kind if method == "PATCH" else "application/json"
        connection = http.client.HTTPSConnection(to.host, to.port, context=to.context)  # else it reads all others
        limit = _Limit()
        try:
            with socket.create_connection((to.host, to.port), DEADLINE) as plain:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else it waits 40 ms for an ACK
                limit.begin(DEADLINE, plain.dup())
                connection.sock = to.context.wrap_socket(plain, server_hostname=to.name)  # which takes its descriptor
            connection.request(method, f"{to.base}{path}?{urlencode(query)}", data, headers)
            opened = connection.sock  # which an answer without keep-alive takes with it
            with connection.getresponse() as answer:
                if not 200 <= answer.status < 300:
                    raise _refused(answer)
                if watch:
                    limit.begin(watch)
                    opened.settimeout(SILENCE)
                yield answer
            if limit.over:  # which looks like the answer's end
                raise ApiError("")
        except (OSError, ValueError, http.client.HTTPException, ApiError) as error:  # ValueError: a host like a..b
            if limit.over and not getattr(error, "status", 0):
                raise ApiError(f"the API server's answer takes more than {limit.seconds:g} s") from None
            if isinstance(error, ApiError):
                raise
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ApiError(f"the API server at {to.host} does not answer: {quote(str(why))}") from None
        finally:
            limit.end()
            connection.close()


def named(text: str, where: str) -> str:
    """Return a name that Kubernetes gave an object.

    Args:
        text: as it was given.
        where: by what, in messages.

    Raises:
        GpushimError: it is none.
    """
    if not NAME.fullmatch(text):
        raise GpushimError(
            f'{where} is "{quote(text)}", which is not a Kubernetes name; set it by the downward API', FAILED
        )
    return text


class _Limit:
    """An end that a connection has, whatever comes of it: a socket's timeout is for each byte, and some drip."""

    def __init__(self) -> None:
        self.seconds, self.over = 0.0, False
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None

    def begin(self, seconds: float, connected: socket.socket | None = None) -> None:
        """Let it end after so many seconds from now; `connected`, which is closed at the end, is told once."""
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
        """Let it be as long as it will."""
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
    """Say what the server says of an error, a Status object."""
    try:
        answered = _json(b"".join(_read(answer)))
    except (ApiError, OSError, http.client.HTTPException):
        answered = None
    why = visible(str(member(answered, "message") or answer.reason)[:MESSAGE])
    about = member(member(answered, "details"), "name")
    return ApiError(f"the API server answers {answer.status}: {why}", answer.status, str(about or ""))


def member(thing: Any, name: str) -> Any:
    """Return a member of what a server sends; None if it is no object, or has none of that name."""
    return thing.get(name) if isinstance(thing, dict) else None
