"""`gpushim-device-plugin --cluster`: what the half with the service account's token does at the API server.

It has no GPU, is not root, and alone has the service account's token. RBAC cannot limit a DaemonSet's pods to their
own nodes: whoever has the token may read all nodes, and write the NodeFeature object of each.
The container beside gpushim-node works by `watching`, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuplugin.cluster import parts
from gpuplugin.cluster.access import FOLDER, PodAccess, RelayedAccess
from gpuplugin.cluster.claims import AT_ONCE, Claims
from gpuplugin.cluster.cluster import Api, named
from gpuplugin.cluster.dra_in_cluster import Link
from gpuplugin.cluster.node_feature import NodeFeature
from gpuplugin.cluster.node_label import MIG_LABELS, NodeLabel
from gpuplugin.cluster.slices import Slices
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuplugin.cluster.parts import Part

FILES = ("profile-file", "labels-file", "mig-layout-file")  # settings that --cluster goes by
LOOK = 1.0  # seconds between looks at a file


def run(
    environment: Mapping[str, str],
    profile_file: str,
    labels_file: str,
    once: bool,
    socket: str = "",
    layout_file: str = "",
    folder: str = FOLDER,
) -> None:
    """Follow the node's label, post its labels, publish its slices and read claims, until a signal ends the process.

    Args:
        environment: of a pod, with NODE_NAME; on a host for claims alone.
        profile_file: gets the profile that the label names; "": the label is not followed.
        labels_file: whose labels are posted; "": none are.
        once: write the profile, and return.
        socket: of the half on the node, for claims; "": there are none.
        layout_file: gets the MIG layout that the label names; "": that is not followed.
        folder: where kubelet mounts the service account.

    Raises:
        GpushimError: this is no pod, or there is nothing to do.
    """
    if once:
        labels_file = socket = layout_file = ""
    parts.run(half(environment, profile_file, labels_file, socket, layout_file, folder), once)


def half(
    environment: Mapping[str, str],
    profile_file: str,
    labels_file: str,
    socket: str = "",
    layout_file: str = "",
    folder: str = FOLDER,
) -> list[Part]:
    """Return the parts that `run` does; arguments and errors are the same."""
    node = named(environment.get("NODE_NAME", ""), "NODE_NAME")
    work: list[Part] = []
    if socket:  # whose other end may lend its access
        own = PodAccess(environment, folder) if "KUBERNETES_SERVICE_HOST" in environment else None
        access = RelayedAccess(own)
        api, link = Api(environment, folder, access), Link(socket, access)
        link.slices, link.claims = Slices(api, node, link.send), Claims(api)
        work += [link.follow, link.slices.follow, link.slices.write, *[link.claims.work] * AT_ONCE]
    else:
        api = Api(environment, folder)
    if profile_file:
        work.append(NodeLabel(api, node, profile_file).follow)
    if layout_file:
        work.append(NodeLabel(api, node, layout_file, MIG_LABELS).follow)
    if labels_file:
        work.append(watching(NodeFeature(Api(environment, folder), node, labels_file, environment).look))
    if not work:
        raise GpushimError(
            "--cluster has nothing to do; say --socket, --profile-file, --mig-layout-file, or --node-feature and "
            "--labels-file",
            FAILED,
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
