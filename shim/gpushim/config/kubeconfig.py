"""A kubeconfig, by which the DRA driver of a package asks the API server.

The files that it names rotate, as kubelet's own do. Nothing that it says is executed. The half of the driver that
asks cannot read root's files.
"""

from __future__ import annotations

import base64
import os
from typing import Any
from urllib.parse import urlsplit

from gpushim.cdi import spec_text
from gpushim.config import policy
from gpushim.ground.errors import CONFIG, GpushimError, quote
from gpushim.paths import trust

# Members of a cluster and of a user that are not supported, and so must be empty.
_REFUSED = (
    ("insecure-skip-tls-verify", "proxy-url"),
    (
        *("exec", "auth-provider", "username", "password"),
        *("as", "as-uid", "as-groups", "as-user-extra"),
    ),
)
CERTIFICATE = "-----BEGIN CERTIFICATE-----"  # RFC 7468
_TAKEN = "server, certificate-authority, tls-server-name, client-certificate, client-key, token and tokenFile count"


class Kubeconfig:
    def __init__(self) -> None:
        self._access: dict[str, str] | None = None
        self._identities: dict[str, object] = {}  # by path, from before it was read

    def look(self, path: str) -> dict[str, str] | None:
        """Return the content, as gpuplugin.cluster.access.Lent takes it; None for the path "". Costs a few stats.

        Raises:
            GpushimError: it is wrong, or a file cannot be read, which its __cause__ says, or trusted. The content
                before still counts.
        """
        if not path:
            self._access, self._identities = None, {}
        elif path not in self._identities or any(
            trust.identity(file) != identity for file, identity in self._identities.items()
        ):
            self._identities = {}
            try:
                self._access = self._read(path)
            except GpushimError:
                self._identities = {}
                raise
            except ValueError as error:  # of an address, or of a name of a file
                self._identities = {}
                raise _error(path, quote(str(error))) from None
        return self._access

    def _file(self, path: str) -> str:
        self._identities[path] = trust.identity(path)
        try:
            return policy.trusted(path, "kubeconfig, or file of one").decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise GpushimError(
                f"{path} cannot be read: {reason}; kubeconfig under [device-plugin] leads there", CONFIG
            ) from error

    def _read(self, path: str) -> dict[str, str]:
        try:
            content, _ = spec_text.parse(self._file(path).encode(), path)
        except GpushimError as error:  # whose code is that of a CDI spec
            raise GpushimError(str(error), CONFIG) from error.__cause__
        if not (current := _member(content, "current-context")):
            raise _error(path, "it has no current-context")
        context = _find_row(content, "contexts", current, path)
        parts = [_find_row(content, f"{part}s", _member(context, part), path) for part in ("cluster", "user")]
        for part, refused in zip(parts, _REFUSED):
            for key in (key for key in refused if part.get(key)):
                raise _error(path, f"it has {key}; {_TAKEN}")
        cluster, user = parts
        access = {
            "path": path,
            "server": _text(cluster, "server"),
            "name": _text(cluster, "tls-server-name"),
            "ca": self._data(cluster, "certificate-authority", path),
            "cert": self._data(user, "client-certificate", path),
            "key": self._data(user, "client-key", path),
            "token": self._token(user, path),
        }
        server = urlsplit(access["server"])
        if server.scheme != "https" or not server.hostname or server.port == 0 or not access["ca"]:
            raise _error(path, "it names no server with https:// and its certificate-authority")
        if CERTIFICATE not in access["ca"]:
            raise _error(path, f"its certificate-authority has no {CERTIFICATE}")
        if not access["token"] and not (access["cert"] and access["key"]):
            raise _error(path, "it has neither a token nor a client-certificate with its client-key")
        return access

    def _data(self, part: dict[str, Any], key: str, path: str) -> str:
        data, file = _text(part, f"{key}-data"), _text(part, key)
        try:
            if data:
                return base64.b64decode(data, validate=True).decode()
        except ValueError:
            raise _error(path, f"its {key}-data is no text in base64") from None
        return self._file(os.path.join(os.path.dirname(path), file)) if file else ""

    def _token(self, user: dict[str, Any], path: str) -> str:
        file = _text(user, "tokenFile")
        token = self._file(os.path.join(os.path.dirname(path), file)) if file else _text(user, "token")
        if not token.strip().isascii() or not token.strip().isprintable():
            raise _error(path, "its token is no word")
        return token.strip()


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _text(part: dict[str, Any], key: str) -> str:
    value = part.get(key)
    return value if isinstance(value, str) else ""


def _find_row(document: Any, rows: str, name: Any, path: str) -> dict[str, Any]:
    """Return the member `cluster`, `user` or `context` of the row that has a name."""
    listed = _member(document, rows)
    for row in listed if isinstance(listed, list) else ():
        if _member(row, "name") == name and isinstance(_member(row, rows[:-1]), dict):
            return dict(row[rows[:-1]])
    raise _error(path, f'it has nothing named "{quote(str(name))}" below {rows}')


def _error(path: str, reason: str) -> GpushimError:
    return GpushimError(f"the kubeconfig {path} cannot be used: {reason}", CONFIG)
