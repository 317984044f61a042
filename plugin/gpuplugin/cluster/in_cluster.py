"""`gpushim-device-plugin --cluster`: what the container beside the plugin does at the API server.

It has no GPU, is not root, and alone has the service account's token. RBAC cannot limit a DaemonSet's pods to their
own nodes: whoever has the token may read all nodes, and write the NodeFeature object of each.
The container beside gpushim-node works by `watching`, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuplugin.cluster import parts
from gpuplugin.cluster.access import FOLDER
from gpuplugin.cluster.cluster import Api, named
from gpuplugin.cluster.node_feature import NodeFeature
from gpuplugin.cluster.node_label import NodeLabel
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuplugin.cluster.parts import Part

FILES = ("profile-file", "labels-file")  # settings that --cluster goes by
LOOK = 1.0  # seconds between looks at a file


def run(
    environment: Mapping[str, str], profile_file: str, labels_file: str, once: bool, folder: str = FOLDER
) -> None:
    """Follow the node's label, and post its labels, until a signal ends the process.

    Args:
        environment: of a pod, with NODE_NAME.
        profile_file: gets the profile that the label names; "": the label is not followed.
        labels_file: whose labels are posted; "": none are.
        once: write the profile, and return.
        folder: where kubelet mounts the service account.

    Raises:
        GpushimError: this is no pod, or there is nothing to do.
    """
    parts.run(half(environment, profile_file, "" if once else labels_file, folder), once)


def half(environment: Mapping[str, str], profile_file: str, labels_file: str, folder: str = FOLDER) -> list[Part]:
    """Return the parts that `run` does; arguments and errors are the same."""
    api, node = Api(environment, folder), named(environment.get("NODE_NAME", ""), "NODE_NAME")
    work: list[Part] = []
    if profile_file:
        work.append(NodeLabel(api, node, profile_file).follow)
    if labels_file:
        work.append(watching(NodeFeature(api, node, labels_file, environment).look))
    if not work:
        raise GpushimError(
            "--cluster has nothing to do; say --profile-file, or --node-feature and --labels-file", FAILED
        )
    return work


def watching(look: Callable[[], None]) -> Callable[[], Iterator[None]]:
    """Return the part that calls `look` every LOOK seconds."""

    def work() -> Iterator[None]:
        while True:
            look()
            yield
            time.sleep(LOOK)

    return work
