"""A small API server, with TLS and a service account's directory, whose answers tests choose."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Answer = Callable[
    ["Request"], Any
]  # JSON; bytes as they are; a tuple of status and one of these; an iterator of lines


class Request:
    """What was asked."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        size = int(handler.headers.get("Content-Length") or 0)
        self.method, self.path, self.query = handler.command, parts.path, dict(parse_qsl(parts.query))
        self.headers = handler.headers
        self.peer: bytes | None = handler.connection.getpeercert(True)
        self.body: Any = json.loads(handler.rfile.read(size)) if size else None


class ApiServer:
    """The server.

    Args:
        folder: gets certificate and service account.
        answer: to each request.
        host: address that it listens at.

    Attributes:
        asked: all requests.
        environment: variables of a pod.
        account: what kubelet mounts.
        context: of TLS.
        handled: writes an answer itself, where tests choose its headers.
    """

    def __init__(self, folder: Path, answer: Answer, host: str = "127.0.0.1") -> None:
        self.answer, self.asked, self.account = answer, list[Request](), folder / "account"
        self.handled: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.account.mkdir()
        certify(folder, host)
        (self.account / "ca.crt").write_bytes((folder / "crt").read_bytes())
        (self.account / "token").write_text("secret\n")
        (self.account / "namespace").write_text("gpus")
        family = type("Server", (ThreadingHTTPServer,), {"address_family": 10 if ":" in host else 2})
        self._server = family((host, 0), self._handler())
        self.context = context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "crt", folder / "key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        port = str(self._server.server_address[1])
        self.environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "NODE_NAME": "node-1"}

    @contextlib.contextmanager
    def running(self) -> Iterator[ApiServer]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                request = Request(self)
                server.asked.append(request)
                if server.handled:
                    server.handled(self)
                    self.close_connection = True
                    return
                answer = server.answer(request)
                status, answer = answer if isinstance(answer, tuple) else (200, answer)
                data = answer if isinstance(answer, bytes) else b""
                data = json.dumps(answer).encode() if isinstance(answer, (dict, list)) else data
                stream = None if isinstance(answer, (bytes, dict, list)) else answer
                self.send_response(status)
                self.send_header(*(("Connection", "close") if stream else ("Content-Length", str(len(data)))))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(data)
                    for line in stream or ():
                        self.wfile.write(json.dumps(line).encode() + b"\n")
                        self.wfile.flush()
                self.close_connection = stream is not None

            def do_PATCH(self) -> None:
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def certify(folder: Path, host: str) -> None:
    """Make a key and a certificate for an address, signed by itself."""
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    more = ["-subj", "/CN=api", "-addext", f"subjectAltName=IP:{host}", "-days", "2"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    subprocess.run([*words, *more, *files], check=True, capture_output=True)
