"""Where the API server is, and the credentials for it: kubelet's for a pod, or those that a node half sends.

Both rotate, so they are read, or sent, again.
"""

from __future__ import annotations

import os
import ssl
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from gpushim.ground.errors import CONFIG, FAILED, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_LIMIT = 64 << 10  # bytes; a service account's has about one KiB
WAIT = 15.0  # seconds for the node half


class Access(NamedTuple):
    """What a request is made with: the server, the prefix of paths, the name in its certificate, headers, TLS."""

    host: str
    port: int
    base: str
    name: str
    headers: dict[str, str]
    context: ssl.SSLContext


class PodAccess:
    """The access that kubelet gives a pod.

    Args:
        folder: where kubelet puts token, ca.crt and namespace.

    Raises:
        GpushimError: this is no pod, or its service account is not mounted.
    """

    def __init__(self, environment: Mapping[str, str], folder: str) -> None:
        self._host, self._port = _server_address(environment)
        self._folder = folder
        self.mounted("token")

    def current(self) -> Access:
        """Read the credentials.

        Raises:
            GpushimError: there are none.
        """
        token, path = self.mounted("token"), f"{self._folder}/ca.crt"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks certificate and name
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise GpushimError(f"{path} has no usable certificate: {error.strerror or error}", FAILED) from None
        return Access(self._host, self._port, "", self._host, _bearer(token), context)

    def mounted(self, name: str) -> str:
        """Return the one line of a file of the service account.

        Raises:
            GpushimError: it has none.
        """
        path = f"{self._folder}/{name}"
        try:
            with open(path, "rb") as file:
                text = file.read(TOKEN_LIMIT).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise GpushimError(f"{path} cannot be read: {reason}; mount the service account there", FAILED) from None
        if not text or not text.isprintable():
            raise GpushimError(f"{path} is empty or not text; mount the service account there", FAILED)
        return text


class RelayedAccess:
    """The access that the node half sends; until it has sent any, that of the pod, or None where this is no pod."""

    def __init__(self, pod: PodAccess | None) -> None:
        self._pod, self._changed = pod, threading.Condition()
        self._access: Access | None = None

    def take(self, fields: Any) -> None:
        """Set the access for all requests from now on.

        Args:
            fields: path, server, ca, name, cert, key, token, all text; None for the pod's.

        Raises:
            GpushimError: it cannot be used.
        """
        access = None if fields is None else _access(fields)
        with self._changed:
            self._access = access
            self._changed.notify_all()

    def current(self) -> Access:
        """Return the access, for which this waits a while; raises as `PodAccess.current` does."""
        with self._changed:
            if self._pod is None and not self._changed.wait_for(lambda: self._access, WAIT):
                raise GpushimError(
                    "no API server is known; name a kubeconfig under [device-plugin] of config.toml", FAILED
                )
            access = self._access
        if access is None:
            assert self._pod
            return self._pod.current()
        return access


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _access(fields: Mapping[str, str]) -> Access:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        server = urlsplit(fields["server"])
        host, port = str(server.hostname), server.port or 443
        context.load_verify_locations(cadata=fields["ca"])
        if fields["cert"]:
            _load_certificate(context, fields["cert"], fields["key"])
    except (OSError, ValueError) as error:  # OSError: ssl.SSLError, too
        reason = getattr(error, "strerror", None) or error
        raise GpushimError(f"the kubeconfig {quote(fields['path'])} cannot be used: {reason}", CONFIG) from None
    return Access(host, port, server.path.rstrip("/"), fields["name"] or host, _bearer(fields["token"]), context)


def _load_certificate(context: ssl.SSLContext, *parts: str) -> None:
    """Load a certificate into a context; OpenSSL reads it, and its key, from files alone: these are on no disk."""
    files = []
    try:
        for text in parts:
            files.append(os.memfd_create("client"))
            with open(files[-1], "wb", closefd=False) as stream:
                stream.write(text.encode())
        cert, key = (f"/proc/self/fd/{file}" for file in files)
        context.load_cert_chain(cert, key, password="")  # or it would ask at a terminal
    finally:
        for fd in files:
            os.close(fd)


def _server_address(environment: Mapping[str, str]) -> tuple[str, int]:
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (port.isascii() and port.isdecimal() and len(port) < 6):
        raise GpushimError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name no API server; --cluster is for a pod", FAILED
        )
    return host, int(port)
