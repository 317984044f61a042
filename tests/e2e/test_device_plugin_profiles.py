"""A node's profile changes while a pod of a real kubelet has a GPU: that one waits, and the others change at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import gpu_node, plugin
from fakehost import Host
from gpuplugin.allocation.kubelet_view import QUIET

GPU, SECONDS, SOON = "nvidia.com/gpu", 30.0, 5.0
FILE = """version: v1
default: whole
profiles:
  whole: {{}}
  parted:
    sharing:
      timeSlicing:
        resources: [{{name: gpu, replicas: {}}}]
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs."""
    root = tmp_path_factory.mktemp("profiles") / "root"
    return fakehost.build(str(root), 3, compile_cache=str(trees.TOP / ".cache" / "fakehost"))


@pytest.fixture
def node(host: Host, env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[Node]:
    """A node with that host."""
    with gpu_node(host, env, debian_image, busybox_tree) as found:
        yield found


def swap(folder: Path, name: str, content: str) -> None:
    """Put a file into a ConfigMap's directory, as kubelet does."""
    (folder / f"..{name}").mkdir(parents=True)
    (folder / f"..{name}" / "plugin.yaml").write_text(content)
    (folder / "..data_tmp").symlink_to(f"..{name}")
    os.rename(folder / "..data_tmp", folder / "..data")


def parted(gpus: set[str], replicas: int) -> set[str]:
    return {f"{gpu}::{number}" for gpu in gpus for number in range(replicas)}


def test_a_profile_changes_around_a_pod(node: Node, host: Host, env: dict[str, str], tmp_path: Path) -> None:
    every, profile, config = {gpu.uuid for gpu in host.gpus}, tmp_path / "profile", tmp_path / "map"
    swap(config, "1", FILE.format(2))
    (config / "plugin.yaml").symlink_to("..data/plugin.yaml")
    flags = (f"--config-file={config}/plugin.yaml", f"--profile-file={profile}")
    with plugin(node, env, *flags) as running:
        running.offers(ids=every)
        node.pod("holder", {GPU: 1})
        (held,) = node.held("holder")[GPU]
        others = every - {held}
        kubelet = node.kubelet_dir / "device-plugins/kubelet.sock"
        assert until(lambda: time.time() - kubelet.stat().st_mtime > QUIET, SECONDS)

        profile.write_text("parted\n")
        assert running.offers(ids=parted(others, 2) | {held}, seconds=SOON) < SOON
        waits = f"{held} of {GPU} is not given out: it is to be given out in another way than before, which waits for"
        assert f"{waits} the end of pod default/holder-" in running.said()
        assert node.held("holder") == {GPU: [held]}
        assert node.healths("holder") == {held: "Healthy"}

        swap(config, "2", FILE.format(3))
        assert running.offers(ids=parted(others, 3) | {held}, seconds=SOON) < SOON

        swap(config, "3", FILE.format(-1))
        assert until(lambda: "the settings stay as they were: " in running.said(), SOON)
        profile.touch()  # it is read again, and as wrong as before
        assert until(lambda: running.said().count("the settings stay as they were: ") == 1, SOON)
        assert set(node.allocatable()) == parted(others, 3) | {held}

        node.remove("holder")
        running.offers(ids=parted(every, 3), seconds=SOON)
        node.pod("next", {GPU: 1})
        assert node.held("next")[GPU][0] in parted(every, 3)
        assert running.said().count("the settings stay as they were: ") == 1
        assert running.said().count(waits) == 1
