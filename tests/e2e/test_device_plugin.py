"""The device plugin under a real kubelet, containerd 2, gpushim-runtime, and runc with CDI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import chroots, kube, trees
from e2e.engines import containerd
from e2e.kube import Node
from fakehost import Host


@pytest.fixture(scope="module")
def node(
    gpu_host: Host, gpushim_env: dict[str, str], cdi_dir: Path, debian_image: Path, busybox_tree: Path
) -> Iterator[Node]:
    """A node whose containers are made by gpushim-runtime."""
    program = kube.program()
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    with chroots.entered("sid", Path(gpu_host.root), program.parent, view="v1") as place:
        chroots.publish(place.prefix, cdi_dir)
        options: dict[str, Any] = {"env": gpushim_env, "prefix": place.prefix, "cdi": True, "default": "nvidia"}
        handlers = {"nvidia": trees.TOP / "bin" / "gpushim-runtime"}
        with containerd(handlers, pause="docker.io/library/pause:local", **options) as engine:
            for archive in (debian_image, pause):
                engine.load(archive, ("k8s.io",))
            with kube.node(engine, place) as found:
                yield found


def test_smoke(node: Node) -> None:
    assert node.allocatable() == []
    pod = node.pod("plain", {})
    assert pod.phase == "Running"
