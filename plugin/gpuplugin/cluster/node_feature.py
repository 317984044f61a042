"""The labels of a node as a NodeFeature object, which node-feature-discovery makes labels of the node.

The object is in this pod's namespace, and goes when the pod does: the next one of the node has taken it over by then.
The labels are read from the labels file of the container beside.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster import pause
from gpuplugin.cluster.cluster import Api, ApiError, named
from gpuplugin.cluster.labels_file import read
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Mapping

API = "nfd.k8s-sigs.io/v1alpha1"
NODE_NAME = "nfd.node.kubernetes.io/node-name"  # the label by which node-feature-discovery knows whose object it is
MANAGER = "gpushim"
AGAIN = 300.0  # seconds, roughly, after which it is looked for anyway: somebody may have removed it
MOST = 2000  # labels
# A label of nvidia.com, and its value (Kubernetes, "Labels and Selectors").
KEY = re.compile(r"nvidia\.com/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
VALUE = re.compile("([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


class NodeFeature:
    """The object.

    Args:
        environment: POD_NAME and POD_UID are of the pod that owns the object; without them nobody does.
    """

    def __init__(self, api: Api, node: str, path: str, environment: Mapping[str, str]) -> None:
        self._api, self._node, self._path = api, node, path
        pod, uid = environment.get("POD_NAME", ""), environment.get("POD_UID", "")
        owner = (
            {"apiVersion": "v1", "kind": "Pod", "name": named(pod, "POD_NAME"), "uid": uid} if pod and uid else None
        )
        self._owners = [owner] if owner else []
        self._identity: object = None
        self._again = 0.0

    def look(self) -> None:
        """Post the labels if the file has changed, or the object is gone.

        An object that is there is left alone: it may be that of the pod that replaces this one in a rolling update,
        and with this pod as its owner it would go when this one does.

        Raises:
            GpushimError: the API server does not take them.
        """
        identity = trust.identity(self._path)
        if identity is None or (identity == self._identity and time.monotonic() < self._again):
            return
        namespace, name = self._api.namespace, f"gpushim-{self._node}"
        path = f"/apis/{API}/namespaces/{namespace}/nodefeatures/{name}"
        if identity == self._identity and self._is_there(path):
            self._again = time.monotonic() + pause.roughly(AGAIN)
            return
        labels = {
            name: value for name, value in read(self._path).items() if KEY.fullmatch(name) and VALUE.fullmatch(value)
        }
        body = self._object(name, namespace, dict([*labels.items()][:MOST]))
        try:
            self._api.ask("PATCH", path, {"fieldManager": MANAGER, "force": "true"}, body)
        except ApiError as error:
            if error.status == 404:
                raise ApiError(
                    f"{error}; NodeFeature objects are node-feature-discovery's: install that, or write labels to a "
                    "file (labels-file)",
                    404,
                ) from None
            raise
        self._identity, self._again = identity, time.monotonic() + pause.roughly(AGAIN)

    def _is_there(self, path: str) -> bool:
        try:
            self._api.ask("GET", path, {})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _object(self, name: str, namespace: str, labels: Mapping[str, str]) -> dict[str, Any]:
        return {
            "apiVersion": API,
            "kind": "NodeFeature",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {NODE_NAME: self._node},
                "ownerReferences": self._owners,
            },
            "spec": {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": labels},
        }
