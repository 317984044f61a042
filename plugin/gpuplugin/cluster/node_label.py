"""What a node's label names, a profile or a MIG layout, written to a file, as NVIDIA's config manager does.

A label that is taken away leaves an empty file: the default of config-file counts, and no GPU is cut.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.cluster import GONE, METADATA, Api, ApiError, member
from gpushim.ground.errors import FAILED, GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.paths import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

LABEL = "nvidia.com/device-plugin.config"
MIG_LABELS = ("gpushim/mig-layout", "nvidia.com/mig.config")  # the first that is there counts
NODES = "/api/v1/nodes"
PROFILE = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")  # as a label's value in Kubernetes


class NodeLabel:
    """A label of a node, and the file.

    Args:
        path: of the file.
        labels: names of the label, of which the first that is there counts.
    """

    def __init__(self, api: Api, node: str, path: str, labels: tuple[str, ...] = (LABEL,)) -> None:
        self._api, self._path, self._labels = api, path, labels
        self._only = {"fieldSelector": f"metadata.name={node}"}
        self._node = node
        self._written: str | None = None
        self._wrong: str | None = None

    def once(self) -> str:
        """Write what the label names now; return the version to watch from.

        Raises:
            GpushimError: the API server does not say, or the file cannot be written.
        """
        kind = METADATA.format("PartialObjectMetadataList")
        answer = self._api.ask("GET", NODES, {**self._only, "limit": "2"}, accept=kind)
        items, version = member(answer, "items"), member(member(answer, "metadata"), "resourceVersion")
        for item in items if isinstance(items, list) else ():
            self._take(item)
        if not items:
            raise ApiError(f"the API server knows no node {self._node}; set NODE_NAME to spec.nodeName")
        return str(version or "")

    def follow(self) -> Iterator[None]:
        """Write what it names at each change of the label; yields when the server has answered, ends when it does.

        Raises:
            GpushimError: as for `once`.
        """
        version = self.once()
        yield
        query = {**self._only, "resourceVersion": version}
        for event in self._api.watch(NODES, query, accept=METADATA.format("PartialObjectMetadata")):
            kind, node = member(event, "type"), member(event, "object")
            if kind == "ERROR":
                if member(node, "code") == GONE:
                    return
                message = quote(str(member(node, "message"))[:300])
                raise ApiError(f"the API server ends the watch of node {self._node}: {message}")
            if kind in ("ADDED", "MODIFIED"):
                self._take(node)
            yield

    def _take(self, node: Any) -> None:
        metadata = member(node, "metadata")
        if member(metadata, "name") != self._node:
            return
        values = {label: member(member(metadata, "labels"), label) or "" for label in self._labels}
        label = next(filter(values.get, self._labels), self._labels[0])
        name = values[label]
        if name and not PROFILE.fullmatch(str(name)):
            if name != self._wrong:
                logger.warning('the label %s is "%s", which is not a valid name', label, quote(str(name)))
            self._wrong = name
        elif name != self._written:
            self._write(label, name)

    def _write(self, label: str, name: str) -> None:
        try:
            replace.replace(self._path, f"{name}\n".encode() if name else b"")
        except OSError as error:
            raise GpushimError(f"{self._path} cannot be written: {error.strerror}", FAILED) from None
        self._written, self._wrong = name, None
        logger.info("the label %s is %s", label, f'"{name}"' if name else "not there")
