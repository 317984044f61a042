"""gpushim-node and the device plugin on nodes with the directories of k3s and k0s, under a real kubelet.

Where the engine's settings go, which unit is restarted, where the plugin registers, and that all of it is taken back.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import charts, kube, layouts, plugins, programs, trees
from e2e.expect import INSIDE, PROBE, probe, sees_exactly
from e2e.layouts import LAYOUTS, Layout, Placed
from e2e.leftovers import until
from e2e.podgpus import GPU

SECONDS = 40.0
IMAGE = "docker.io/library/debian:local"
MICROK8S = "/var/snap/microk8s/common/var/lib/kubelet"
# Kubelet's directories as they are on the node, for a plugin that runs on this machine.
PLACED = """
mount -t tmpfs none /var/lib
mkdir -p /var/lib/kubelet "$3"
mount --bind "$1" /var/lib/kubelet
if [ "$3" != /var/lib/kubelet ]; then mount --bind "$2" "$3"; fi
folder=$3
shift 3
exec "$@" --kubelet-dir="$folder"
"""
LEFT = {"/etc/tmpfiles.d/gpushim-removed.conf", "/usr/bin/gpushim-hook", "/usr/bin/gpushim-runtime"}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    """A layout."""
    return LAYOUTS[request.param]


@pytest.fixture
def there(layout: Layout, debian_image: Path, busybox_tree: Path) -> Iterator[Placed]:
    """A node with the layout, and images."""
    with layouts.node(layout, programs.path("kubelet")) as there:
        for archive in (debian_image, trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])):
            there.engine.load(archive, ("k8s.io",))
        yield there


def test_gpushim_is_installed_serves_and_goes(layout: Layout, there: Placed, payload: Path, tmp_path: Path) -> None:
    before, own = files(there, layout), there.run(f"cat {layout.config}").stdout
    done = there.call("install", "--restart", payload=payload)
    assert f"changed {layout.ours}" in done.stdout
    assert "verified: containerd has the runtime nvidia" in done.stdout
    assert f"restart {layout.unit}" in there.asked()
    assert "gpushim-runtime" in there.run(f"cat {layout.ours}").stdout
    a_container_gets_its_gpu(there)
    if layout.version == 3:  # a kubelet of today wants containerd 2
        the_plugin_registers(layout, there, tmp_path)
    assert "restart" not in "".join(there.call("install", "--restart", payload=payload).stdout.splitlines()[1:])
    done = there.call("uninstall", "--restart", payload=payload)
    assert "is removed" in done.stdout
    assert there.asked().count(f"restart {layout.unit}") == 2
    assert there.run(f"cat {layout.config}").stdout == own
    left = {path for path in files(there, layout) if path not in before}
    made = set() if (there.lower / "etc/tmpfiles.d").is_dir() else {"/etc/tmpfiles.d"}
    assert left == LEFT | made  # until the next boot, for containers that run
    assert {path: facts for path, facts in files(there, layout).items() if path not in left} == before


@pytest.mark.parametrize(
    ("kubelet", "listens"),
    [("/var/lib/kubelet", "/var/lib/kubelet"), ("/var/lib/k0s/kubelet", "/var/lib/kubelet"), (MICROK8S, MICROK8S)],
)
def test_the_charts_plugin_finds_both_of_kubelets_directories(kubelet: str, listens: str) -> None:
    """Within its container, where there is nothing else of these."""
    found = charts.objects({"kubeletDir": kubelet})[charts.PLUGIN]["spec"]["template"]["spec"]
    (plugin,) = found["containers"]
    volumes = {row["name"]: row.get("hostPath", {}) for row in found["volumes"]}
    mounted = {row["name"]: row["mountPath"] for row in plugin["volumeMounts"]}
    assert volumes["device-plugins"] == {"path": f"{listens}/device-plugins", "type": "Directory"}
    assert mounted["device-plugins"] == f"{listens}/device-plugins"
    assert mounted["pod-resources"] == f"{kubelet}/pod-resources"
    assert f"--kubelet-dir={kubelet}" in plugin["args"]


def files(there: Placed, layout: Layout) -> dict[str, str]:
    """Return the node's files, without those of containerd and of kubelet."""
    kubelets = ("/var/lib/kubelet", "/usr/libexec/kubernetes", "/etc/resolv.conf", "/opt", "/var/log", "/run/")
    others = (layout.root, layout.socket, layout.kubelet, *kubelets)
    return {path: facts for path, facts in there.files().items() if not path.startswith(others)}


def a_container_gets_its_gpu(there: Placed) -> None:
    """By the handler that was made."""
    with there.engine.cri() as client:
        asked = {"NVIDIA_VISIBLE_DEVICES": "1"}
        command = ["sleep", "1000"]
        container = client.create(client.run_pod("nvidia"), IMAGE, command, env=asked, mounts={PROBE: INSIDE})
        client.start(container)
        sees_exactly(client.execute(container, *probe(there.host, [1])), there.host, [1])


@contextlib.contextmanager
def plugin(layout: Layout, found: kube.Node, env: dict[str, str]) -> Iterator[Path]:
    """Run a device plugin with kubelet's directories in their places; yields its log."""
    log = found.work / "plugin.log"
    words = ["/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-euc", PLACED, "sh"]
    words += [str(found.usual), str(found.kubelet_dir), layout.kubelet, *plugins.COMMAND]
    with log.open("wb") as said, subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=plugins.environment(env)
    ) as process:  # fmt: skip
        try:
            yield log
        finally:
            process.terminate()


def the_plugin_registers(layout: Layout, there: Placed, tmp_path: Path) -> None:
    """Where kubelet listens, which is not in its own directory if that is another; and pods get what it gives."""
    assert there.place is not None
    env = plugins.surveyed(there.host, tmp_path)
    with kube.node(there.engine, there.place, root=layout.kubelet) as found, plugin(layout, found, env) as log:
        uuids = sorted(gpu.uuid for gpu in there.host.gpus)
        assert until(lambda: found.allocatable() == uuids, SECONDS), log.read_text()
        assert (found.kubelet_dir / "device-plugins").exists() == (layout.kubelet == "/var/lib/kubelet")
        found.pod("one", {GPU: 1})
        assert until(lambda: bool(found.held("one")), SECONDS), found.said()
        found.remove("one")
