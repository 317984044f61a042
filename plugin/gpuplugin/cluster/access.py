"""Where the API server is, and what it is asked with: what kubelet gives a pod, or a package's node half tells.

Both rotate, so they are read, or told, again.
Out of scope: requests (cluster.py), the kubeconfig (gpushim/config/kubeconfig.py).
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
    """What a request is made with.

    Attributes:
        host: of the server.
        port: of the server.
        base: what paths begin with.
        name: that its certificate must have.
        headers: that say who asks.
        context: of TLS.
    """

    host: str
    port: int
    base: str
    name: str
    headers: dict[str, str]
    context: ssl.SSLContext


class Pod:
    """What kubelet gives a pod.

    Args:
        environment: variables of a pod.
        folder: where kubelet puts token, ca.crt and namespace.

    Raises:
        GpushimError: this is no pod, or its service account is not mounted.
    """

    def __init__(self, environment: Mapping[str, str], folder: str) -> None:
        self._host, self._port = _place(environment)
        self._folder = folder
        self.mounted("token")

    def now(self) -> Access:
        """Return what to ask with.

        Raises:
            GpushimError: there is nothing.
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
                found = file.read(TOKEN_LIMIT).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise GpushimError(f"{path} cannot be read: {why}; mount the service account there", FAILED) from None
        if not found or not found.isprintable():
            raise GpushimError(f"{path} is empty or not text; mount the service account there", FAILED)
        return found


class Lent:
    """What the node half tells; before it has told anything, that of the pod.

    Args:
        pod: that; None where this is no pod.
    """

    def __init__(self, pod: Pod | None) -> None:
        self._pod, self._changed = pod, threading.Condition()
        self._access: Access | None = None

    def take(self, lent: Any) -> None:
        """Go by what is told from now on.

        Args:
            lent: texts: path, server, ca, name, cert, key, token; None: by the pod's.

        Raises:
            GpushimError: nothing can be asked with it.
        """
        found = None if lent is None else _access(lent)
        with self._changed:
            self._access = found
            self._changed.notify_all()

    def now(self) -> Access:
        """Return what to ask with; as `Pod.now`."""
        with self._changed:
            if self._pod is None and not self._changed.wait_for(lambda: self._access, WAIT):
                raise GpushimError(
                    "no API server is known; name a kubeconfig under [device-plugin] of config.toml", FAILED
                )
            found = self._access
        if found is None:
            assert self._pod
            return self._pod.now()
        return found


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _access(lent: Mapping[str, str]) -> Access:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        server = urlsplit(lent["server"])
        host, port = str(server.hostname), server.port or 443
        context.load_verify_locations(cadata=lent["ca"])
        if lent["cert"]:
            _present(context, lent["cert"], lent["key"])
    except (OSError, ValueError) as error:  # OSError: ssl.SSLError, too
        why = getattr(error, "strerror", None) or error
        raise GpushimError(f"the kubeconfig {quote(lent['path'])} cannot be used: {why}", CONFIG) from None
    return Access(host, port, server.path.rstrip("/"), lent["name"] or host, _bearer(lent["token"]), context)


def _present(context: ssl.SSLContext, *parts: str) -> None:
    """Have a context present a certificate; OpenSSL reads it, and its key, from files alone: these are on no disk."""
    files = []
    try:
        for text in parts:
            files.append(os.memfd_create("client"))
            with open(files[-1], "wb", closefd=False) as file:
                file.write(text.encode())
        cert, key = (f"/proc/self/fd/{file}" for file in files)
        context.load_cert_chain(cert, key, password="")  # or it would ask at a terminal
    finally:
        for one in files:
            os.close(one)


def _place(environment: Mapping[str, str]) -> tuple[str, int]:
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (port.isascii() and port.isdecimal() and len(port) < 6):
        raise GpushimError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name no API server; --cluster is for a pod", FAILED
        )
    return host, int(port)
