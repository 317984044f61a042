"""`gpushim-device-plugin --cluster`: what the container beside the plugin does at the API server.

It has no GPU, is not root, and alone has the service account's token. RBAC cannot limit a DaemonSet's pods to their
own nodes: whoever has the token may read all nodes, and write the NodeFeature object of each.
The container beside gpushim-node works by `serve`, too. Out of scope: what it does there (installed_label.py); the
plugin, which reads and writes the files (profiles.py, labels_file.py).
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.cluster import FOLDER, Api, Pause, named
from gpuplugin.cluster.node_feature import NodeFeature
from gpuplugin.cluster.node_label import NodeLabel
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FILES = ("profile-file", "labels-file")  # settings that --cluster goes by
LOOK = 1.0  # seconds between looks at a file


def run(
    environment: Mapping[str, str], profile_file: str, labels_file: str, once: bool, folder: str = FOLDER
) -> None:
    """Follow the node's label, and post its labels, until a signal ends it.

    Args:
        environment: of a pod, with NODE_NAME.
        profile_file: gets the profile that the label names; "": the label is not followed.
        labels_file: whose labels are posted; "": none are.
        once: write the profile, and return.
        folder: where kubelet mounts the service account.

    Raises:
        GpushimError: this is no pod, or there is nothing to do.
    """
    api, node = Api(environment, folder), named(environment.get("NODE_NAME", ""), "NODE_NAME")
    work: list[Callable[[], Iterator[None]]] = []
    if profile_file:
        work.append(NodeLabel(api, node, profile_file).follow)
    if labels_file and not once:
        work.append(watching(NodeFeature(api, node, labels_file, environment).look))
    if not work:
        raise GpushimError(
            "--cluster has nothing to do; say --profile-file, or --node-feature and --labels-file", FAILED
        )
    serve(work, once)


def serve(work: list[Callable[[], Iterator[None]]], once: bool = False) -> None:
    """Do work at the API server, each part in a thread of its own, until a signal ends it.

    Args:
        work: each yields when it has got what it asked for; one that ends or fails is begun again.
        once: return when the first has.

    Raises:
        GpushimError: a part of it has ended by what is no GpushimError.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # the first process of a container has no default
    for each in work:
        threading.Thread(target=_keep, args=(each, once, ended), daemon=True).start()
    ended.wait()
    if not once:
        raise GpushimError("a part of the work at the API server has ended; its traceback is above", FAILED)


def watching(look: Callable[[], None]) -> Callable[[], Iterator[None]]:
    """Make work of a look at what may have changed.

    Args:
        look: asks the API server if something has.
    """

    def work() -> Iterator[None]:
        while True:
            look()
            yield
            time.sleep(LOOK)

    return work


def _keep(work: Callable[[], Iterator[Any]], once: bool, ended: threading.Event) -> None:
    """Do it again and again; what fails is said once, and tried again later and later."""
    pause, last_error = Pause(), ""
    try:
        while True:
            try:
                for _ in work():
                    last_error = ""
                    if once:
                        return
            except GpushimError as error:
                if str(error) != last_error:
                    logger.warning("%s; it is tried again", error)
                last_error = str(error)
            time.sleep(pause.seconds())
    finally:
        ended.set()
