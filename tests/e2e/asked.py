"""What a cluster's API server has, by an administrator's `kubectl proxy`: a kubectl for each look takes a tenth of a
processor's second, and tests that wait look often.

Out of scope: kinds that are not in the table, and what changes something: kubectl does that (plane.py).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import urllib.parse
from pathlib import Path
from typing import Any

PROXY = "/usr/bin/kubectl proxy --kubeconfig={work}/admin --unix-socket={work}/proxy"
SECONDS = 60.0
PLACES = {
    "api/v1/nodes": "node",
    "api/v1/namespaces/{}/pods": "pod pods",
    "api/v1/namespaces/{}/serviceaccounts": "serviceaccount",
    "apis/apps/v1/namespaces/{}/daemonsets": "daemonset daemonsets",
    "apis/batch/v1/namespaces/{}/jobs": "job",
    "apis/resource.k8s.io/v1/resourceslices": "resourceslices",
    "apis/resource.k8s.io/v1/namespaces/{}/resourceclaims": "resourceclaim resourceclaims",
}
PLACE = {kind: place for place, kinds in PLACES.items() for kind in kinds.split()}
PARAMETERS = {"--selector": "labelSelector", "--field-selector": "fieldSelector"}


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(str(self.path))


def get(proxy: Path, *words: str) -> dict[str, Any] | None:
    """Ask for what `kubectl get --output=json --ignore-not-found` with these words would print.

    Args:
        proxy: the socket of `PROXY`.
        words: a kind, perhaps a name, options.

    Returns:
        The object, or the list; empty if there is no object of the name. None for words that are kubectl's alone.
    """
    kind, *names = (word for word in words if not word.startswith("--"))
    options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    namespace = options.pop("--namespace", "default")
    if kind not in PLACE or len(names) > 1 or options.keys() - PARAMETERS.keys():
        return None
    query = urllib.parse.urlencode({PARAMETERS[name]: value for name, value in options.items()})
    with contextlib.closing(_Connection(proxy)) as connection:
        connection.request("GET", f"/{'/'.join([PLACE[kind].format(namespace), *names])}?{query}")
        answer = connection.getresponse()
        text = answer.read()
    assert answer.status in (200, 404), f"{words}: {text!r}"
    found: dict[str, Any] = json.loads(text)
    return found if answer.status == 200 else {}
