"""The API client: who it believes, what it sends, and how much it takes."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.cluster import cluster, pause
from gpuplugin.cluster.cluster import Api, ApiError
from gpuplugin.cluster.pause import Pause
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.cluster.apiserver import ApiServer, certify

ADDED = b'{"type": "ADDED"}\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, lambda _: {"kind": "Node"}).running() as found:
        yield found


def api(server: ApiServer) -> Api:
    return Api(server.environment, str(server.account))


def test_an_answer(server: ApiServer) -> None:
    assert api(server).ask("GET", "/api/v1/nodes", {"fieldSelector": "metadata.name=a"}) == {"kind": "Node"}
    asked = server.asked[0]
    assert (asked.path, asked.query) == ("/api/v1/nodes", {"fieldSelector": "metadata.name=a"})
    assert asked.headers["Authorization"] == "Bearer secret"
    assert api(server).namespace == "gpus"


def test_a_host_that_no_name_can_be_is_an_error_as_any_other(server: ApiServer) -> None:
    """A part that fails with another one ends the process."""
    where = {"KUBERNETES_SERVICE_HOST": "a..b", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ApiError, match=r"^the API server at a\.\.b does not answer: .*label empty"):
        Api(where, str(server.account)).ask("GET", "/", {})


def test_ipv6(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: {}, "::1").running() as server:
        assert api(server).ask("GET", "/", {}) == {}
        assert server.asked[0].headers["Host"].startswith("[::1]:")


def test_a_request_takes_no_longer_than_it_must(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no certificates but those it goes by, and its parts do not wait for each other's ACK."""
    wrap, delays = ssl.SSLContext.wrap_socket, list[int]()

    def wrapped(context: ssl.SSLContext, plain: socket.socket, **more: Any) -> ssl.SSLSocket:
        if "server_hostname" in more:  # the server's own has none
            delays.append(plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return wrap(context, plain, **more)

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrapped)
    monkeypatch.setattr(ssl.SSLContext, "set_default_verify_paths", lambda _: pytest.fail("reads all certificates"))
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("reads all certificates"))
    api(server).ask("GET", "/", {})
    assert delays == [1]


def test_a_token_that_rotates_is_read_again(server: ApiServer) -> None:
    asking = api(server)
    asking.ask("GET", "/", {})
    (server.account / "token").write_text("newer")
    asking.ask("GET", "/", {})
    assert [one.headers["Authorization"] for one in server.asked] == ["Bearer secret", "Bearer newer"]


def test_a_server_of_another_authority_is_not_asked(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certify(tmp_path / "other", "127.0.0.1")
    (server.account / "ca.crt").write_bytes((tmp_path / "other/crt").read_bytes())
    with pytest.raises(ApiError, match=r"does not answer: .*(certificate|CERTIFICATE)"):
        api(server).ask("GET", "/", {})
    assert server.asked == []


def test_a_connection_that_cannot_be_secured_is_closed(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(*_: Any, **__: Any) -> ssl.SSLSocket:
        raise OSError(12, "Cannot allocate memory")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        plain = socket.create_connection(listener.getsockname())
        other = listener.accept()[0]
    monkeypatch.setattr(socket, "create_connection", lambda *_: plain)
    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap)
    with other, pytest.raises(ApiError, match="does not answer: Cannot allocate memory"):
        api(server).ask("GET", "/", {})
    assert plain.fileno() == -1


def test_a_name_that_the_certificate_has_not(tmp_path: Path) -> None:
    found = ApiServer(tmp_path, lambda _: {})
    found.environment["KUBERNETES_SERVICE_HOST"] = "localhost"
    with found.running(), pytest.raises(ApiError, match=r"does not answer"):
        api(found).ask("GET", "/", {})
    assert found.asked == []


@pytest.mark.parametrize(
    ("answer", "said", "status"),
    [
        ((403, {"message": "nodes is forbidden"}), "the API server answers 403: nodes is forbidden", 403),
        (
            (403, {"message": f"{'x' * 700} {cluster.UNRELATED}'n' and this object"}),
            "answers 403: x{700} no relation",
            404,
        ),
        ((422, {"message": f"{cluster.UNRELATED}'n'"}), "the API server answers 422: no relation", 422),
        ((422, {"message": "x" * 200 + " why"}), "the API server answers 422: x{200} why$", 422),
        ((404, b"page not found"), "the API server answers 404: Not Found", 404),
        ((500, {"message": "x\x1b[2J" * 999}), r"the API server answers 500: x\\x1b", 500),
        ((302, {}), "the API server answers 302", 302),
        (b"<html>", "the API server's answer is not JSON", 0),
        (b"[" * 100_000, "the API server's answer is nested too deep", 0),
        (b" " * (cluster.ANSWER_LIMIT + 1), "the API server's answer has more than 4 MiB", 0),
    ],
    ids=[
        "refused",
        "not there for kubelet",
        "the same words of another refusal",
        "a long reason",
        "no JSON with it",
        "escapes",
        "elsewhere",
        "HTML",
        "nested",
        "large",
    ],
)
def test_answers_that_are_errors(server: ApiServer, answer: Any, said: str, status: int) -> None:
    server.answer = lambda _: answer
    with pytest.raises(ApiError, match=said) as caught:
        api(server).ask("GET", "/", {})
    assert caught.value.status == status
    assert len(str(caught.value)) < 1400


@pytest.mark.parametrize(
    ("status", "said"), [(200, "takes more than"), (403, "the API server answers 403: Forbidden")]
)
def test_a_server_that_drips_is_left(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    monkeypatch.setattr(cluster, "DEADLINE", 0.3)

    def drip(_: Any) -> Iterator[str]:
        for _ in range(100):
            yield ""
            time.sleep(0.05)

    server.answer = lambda request: (status, drip(request))
    began = time.monotonic()
    with pytest.raises(ApiError, match=said):
        api(server).ask("GET", "/", {})
    assert time.monotonic() - began < 3  # of 5


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("head", [[b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 60], [b"HTTP/1.1 2", *[b"0"] * 60]])
def test_headers_that_drip_have_the_same_deadline(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, head: list[bytes], watch: bool
) -> None:
    monkeypatch.setattr(cluster, "DEADLINE", 0.3)

    def drip(handler: Any) -> None:
        with contextlib.suppress(OSError):
            for part in head:
                handler.wfile.write(part)
                time.sleep(0.05)

    server.handled = drip
    began = time.monotonic()
    with pytest.raises(ApiError, match="takes more than"):
        [*api(server).watch("/", {})] if watch else api(server).ask("GET", "/", {})
    assert time.monotonic() - began < 2  # of 3


def test_a_handshake_that_drips_has_the_same_deadline(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "DEADLINE", 0.3)
    over = "takes more than|handshake operation timed out"  # whichever of the two ends comes first

    def drip(listener: socket.socket) -> None:
        peer = listener.accept()[0]
        with peer, contextlib.suppress(OSError):
            for byte in b"\x16\x03\x03\x02\x00" + bytes(60):  # a record of TLS, of 512 bytes
                peer.sendall(bytes([byte]))
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=[listener])
        thread.start()
        where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(listener.getsockname()[1])}
        began = time.monotonic()
        with pytest.raises(ApiError, match=over):
            Api(where, str(server.account)).ask("GET", "/", {})
        took = time.monotonic() - began
        thread.join()
    assert took < 2  # of 3


def test_lines_of_a_watch_that_drip_outlast_no_watch(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WATCH", "SILENCE"):
        monkeypatch.setattr(cluster, name, 0.2)

    def drip(_: Any) -> Iterator[str]:
        for _ in range(60):
            yield " "
            time.sleep(0.05)

    server.answer = lambda request: (200, drip(request))
    began = time.monotonic()
    with pytest.raises(ApiError, match="takes more than"):
        [*api(server).watch("/", {})]
    assert time.monotonic() - began < 2


def test_a_server_that_is_silent_is_left(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "DEADLINE", 0.2)
    server.answer = lambda _: time.sleep(1)
    with pytest.raises(ApiError, match=r"does not answer: .*timed out|takes more than 0.2 s"):
        api(server).ask("GET", "/", {})


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    found = ApiServer(tmp_path, lambda _: {})
    with found.running():
        pass
    with pytest.raises(ApiError, match=r"the API server at 127.0.0.1 does not answer: Connection refused"):
        api(found).ask("GET", "/", {})


def test_a_watch_yields_until_the_server_ends_it(server: ApiServer) -> None:
    server.answer = lambda _: iter([{"type": "ADDED"}, {"type": "BOOKMARK"}])
    assert [one["type"] for one in api(server).watch("/api/v1/nodes", {"resourceVersion": "7"})] == [
        "ADDED",
        "BOOKMARK",
    ]
    assert server.asked[0].query["watch"] == "1"
    assert server.asked[0].query["resourceVersion"] == "7"


@pytest.mark.parametrize(
    ("spread", "answer", "waits"),
    [
        (8.0, ADDED, True),
        (8.0, ADDED + b"{\n", True),
        (8.0, (503, {"message": "not yet"}), True),
        (cluster.WATCH * 2.0, ADDED, False),
    ],
    ids=["by the server", "by an error", "before it has begun", "after its time"],
)
def test_watches_that_end_together_come_back_apart(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, spread: float, answer: Any, waits: bool
) -> None:
    """All end when an API server does; one that has lasted has come to its own end."""
    waited: list[float] = []
    monkeypatch.setattr(pause, "SPREAD", spread)
    monkeypatch.setattr("gpuplugin.cluster.pause.random.uniform", lambda least, most: (least + most) / 2)
    monkeypatch.setattr("gpuplugin.cluster.pause.time.sleep", waited.append)
    server.answer = lambda _: answer
    with contextlib.suppress(ApiError):
        [*api(server).watch("/", {})]
    assert waited == [spread / 2] * waits


@pytest.mark.parametrize(
    ("line", "said"),
    [(b"x" * (cluster.ANSWER_LIMIT + 9) + b"\n", "too large"), (b"{\n", "is not JSON")],
    ids=["too large", "no JSON"],  # pytest tells children its name in a variable
)
def test_events_that_are_none(server: ApiServer, line: bytes, said: str) -> None:
    server.answer = lambda _: line
    with pytest.raises(ApiError, match=said):
        [*api(server).watch("/", {})]


def test_a_watch_that_falls_silent_is_left(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SILENCE", 0.2)

    def one(_: Any) -> Iterator[Any]:
        yield {"type": "ADDED"}
        time.sleep(1)

    server.answer = one
    with pytest.raises(ApiError, match=r"timed out"):
        [*api(server).watch("/", {})]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.environment.pop("KUBERNETES_SERVICE_HOST"), "name no API server; --cluster is for a pod"),
        (lambda one: one.environment.update(KUBERNETES_SERVICE_PORT="x"), "name no API server"),
        (lambda one: (one.account / "token").unlink(), "token cannot be read: No such file"),
        (lambda one: (one.account / "token").write_text("\n"), "token is empty or not text"),
        (lambda one: (one.account / "token").write_text("a\r\nX: y"), "token is empty or not text"),
        (lambda one: (one.account / "token").write_bytes(b"\xff"), "token cannot be read: it is not text"),
    ],
)
def test_no_pod(server: ApiServer, change: Callable[[ApiServer], Any], said: str) -> None:
    change(server)
    with pytest.raises(GpushimError, match=said):
        api(server)


def test_a_certificate_that_is_none(server: ApiServer) -> None:
    (server.account / "ca.crt").write_text("")
    with pytest.raises(GpushimError, match=r"ca.crt has no usable certificate"):
        api(server).ask("GET", "/", {})


@pytest.mark.parametrize("name", ["", "-a", "a_b", "A", "a/b", "a" * 254, "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(GpushimError, match=r"which is not a Kubernetes name; set it by the downward API"):
        cluster.named(name, "NODE_NAME")


def test_pauses_grow_until_a_try_has_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuplugin.cluster.pause.random.uniform", lambda *_: 1.0)
    clock = itertools.repeat(0.0)
    monkeypatch.setattr("gpuplugin.cluster.pause.time.monotonic", lambda: next(clock))
    one = Pause()
    assert [one.seconds() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    clock = itertools.repeat(100.0)
    assert one.seconds() == 1
