"""A label of this pod's node that says whether gpushim-node has installed gpushim there.

The device plugin's DaemonSet has pods where it is. The label follows a file, so one that somebody has removed comes
back, and that of a machine which was replaced under its name goes. The chart names the label, and its admission
policy lets nothing else be changed.
"""

from __future__ import annotations

import os
import time

from gpuplugin.cluster import pause
from gpuplugin.cluster.cluster import MERGE, METADATA, Api, ApiError
from gpuplugin.cluster.node_label import NODES
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.ground.logs import logger

MANAGER = "gpushim-node"
AGAIN = 300.0  # seconds, roughly, after which it is said again
MISSING = 404


class InstalledLabel:
    """The label of a node, and the file.

    Args:
        label: name of the label, whose value is "true".
        installed: absolute path of the file that is there when gpushim is installed; "": it is not.
        posted: absolute path of a file to make when the API server knows; "": none.
    """

    def __init__(self, api: Api, node: str, label: str, installed: str, posted: str) -> None:
        self._api, self._node, self._label = api, node, label
        self._installed, self._posted = installed, posted
        self._state: bool | None = None
        self._again = 0.0

    def look(self) -> None:
        """Set or remove the label, if the file has come or some time has passed.

        Raises:
            GpushimError: the API server refuses or does not answer, or the file `posted` cannot be made.
        """
        installed = bool(self._installed) and os.path.lexists(self._installed)
        if installed == self._state and time.monotonic() < self._again:
            return
        self._set(installed)
        if installed != self._state:
            logger.info("the node %s has %s label %s", self._node, "the" if installed else "no", self._label)
        self._make_posted()
        self._state = installed
        self._again = time.monotonic() + pause.roughly(AGAIN)

    def _set(self, installed: bool) -> None:
        body = {"metadata": {"labels": {self._label: "true" if installed else None}}}
        accept = METADATA.format("PartialObjectMetadata")
        try:
            self._api.ask("PATCH", f"{NODES}/{self._node}", {"fieldManager": MANAGER}, body, accept, MERGE)
        except ApiError as error:
            if installed or error.status != MISSING:  # what is not there has no label
                raise

    def _make_posted(self) -> None:
        if self._posted:
            try:
                os.close(os.open(self._posted, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            except OSError as error:
                raise GpushimError(f"{self._posted} cannot be written: {error.strerror}", FAILED) from None
