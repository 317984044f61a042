"""What a real kubelet has of a host that changes while the plugin runs: GPUs, MIG instances, the driver, NVML."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import trees
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import SECONDS, Plugin, plugin
from e2e.podgpus import GPU
from fakehost import Host
from gpushim.refresh import plugin_socket
from sample import turn

MIG = "nvidia.com/mig-1g.5gb"
NOTICED = 5.0  # seconds until kubelet has what the host has
CACHE = str(trees.TOP / ".cache" / "fakehost")
PLACES = [(1, 0, "1g.5gb"), (2, 0, "1g.5gb")]
LAYOUT = """version: v1
mig-configs:
  small: [{devices: [1], mig-enabled: true, mig-devices: {1g.5gb: 3}}]
  large: [{devices: [1], mig-enabled: true, mig-devices: {7g.40gb: 1}}]
"""
LARGE = "nvidia.com/mig-7g.40gb"
Change = Callable[[Host], object]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Two whole GPUs and a divided one; by its nodes' numbers no other test's containers have the second."""
    root = tmp_path_factory.mktemp("rescan") / "root"
    gpus: list[dict[str, Any]] = [{}, {"minor": 60}, {"mig": PLACES}]
    return fakehost.build(str(root), gpus, compile_cache=CACHE)


@pytest.fixture(scope="module")
def one(host: Host, node: Node, env: dict[str, str]) -> Iterator[Plugin]:
    """A plugin on a node with that host, whose kubelet has run for long enough to know all pods."""
    with plugin(node, env, "--mig-strategy=mixed", f"--mig-layout-file={layout_file(env)}") as found:
        has(found, host)
        undivide(host)  # which waits for that
        has(found, host)
        divide(host)
        has(found, host)
        yield found


@pytest.fixture(autouse=True)
def _as_before(one: Plugin, host: Host) -> Iterator[None]:
    gpus = list(host.gpus)
    yield
    one.node.remove()
    host.gpus[:] = gpus
    host.gpus[1].mig_mode, host.gpus[1].mig = (0, 0), []
    host.behave()
    divide(host)
    has(one, host)


def layout_file(env: dict[str, str]) -> Path:
    """The file whose word names a layout, beside the file of these."""
    return Path(env["GPUSHIM_CONFIG"]).with_name("layout")


def there(host: Host) -> dict[str, list[str]]:
    """Return the ids of what the host has, by resource."""
    found = {GPU: [gpu.uuid for gpu in host.gpus if not gpu.mig]}
    for mig in (mig for gpu in host.gpus for mig in gpu.mig):
        found.setdefault(f"nvidia.com/mig-{mig.profile}", []).append(mig.uuid)
    return {name: sorted(ids) for name, ids in found.items() if ids}


def has(one: Plugin, host: Host, seconds: float = SECONDS) -> None:
    """Wait until kubelet would give out what the host has, and nothing else."""
    began = time.monotonic()
    found = until(lambda: {name: ids for name, ids in one.node.everything().items() if ids} == there(host), seconds)
    assert found, f"{one.node.everything()}\n{one.said()[-3000:]}"
    print(f"after {time.monotonic() - began:.1f} s")


def divide(host: Host, word: str = "0") -> None:
    """Make the MIG instances, in the same places, with UUIDs that are others for another word."""
    uuids = [f"MIG-0000000{word}-0000-4000-8000-00000000000{gi}" for gi, _, _ in PLACES]
    host.set_mig(2, [(*place, uuid) for place, uuid in zip(PLACES, uuids)])


def unplug(host: Host) -> None:
    host.gpus[:] = [gpu for gpu in host.gpus if gpu.index != 1]
    host.update()


def undivide(host: Host) -> None:
    host.gpus[2].mig_mode, host.gpus[2].mig = (0, 0), []
    host.update()


CHANGES: dict[str, Change] = {
    "a GPU goes": unplug,
    "MIG instances are others in the same places": lambda host: divide(host, "1"),
    "MIG is switched on": lambda host: host.set_mig(1, PLACES),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_and_so_is_its_end(one: Plugin, host: Host, change: str) -> None:
    gpus, modes = list(host.gpus), [(gpu.mig_mode, list(gpu.mig)) for gpu in host.gpus]
    CHANGES[change](host)
    has(one, host, NOTICED)
    host.gpus[:] = gpus
    for gpu, mode in zip(gpus, modes):
        gpu.mig_mode, gpu.mig = mode
    host.update()
    has(one, host, NOTICED)


def test_what_a_pod_has_is_nobody_elses_when_its_place_is(one: Plugin, host: Host) -> None:
    """The next pod gets an instance that is there now, but none in the place of the pod's until that ends."""
    one.node.pod("holder", {MIG: 1})
    (held,) = one.node.held("holder")[MIG]
    divide(host, "2")
    (other,) = (new for new in there(host)[MIG] if new[12:] != held[12:])
    assert until(lambda: one.node.allocatable(MIG) == [other], SECONDS), one.said()[-3000:]
    assert until(lambda: one.node.healths("holder") == {held: "Unhealthy"}, SECONDS), one.said()[-3000:]
    assert one.node.pod("next", {MIG: 1}).container
    assert (one.node.held("next")[MIG], one.node.held("holder")[MIG]) == ([other], [held])
    assert other in one.node.run(one.node.wait("next").container, ["nvidia-smi", "-L"])
    one.node.remove("holder")
    has(one, host)


def test_what_gpushim_mig_makes_is_noticed(one: Plugin, host: Host, tmp_path: Path) -> None:
    (tmp_path / "mig.yaml").write_text(LAYOUT)
    command = [str(trees.TOP / "bin/gpushim"), "mig", "apply", str(tmp_path / "mig.yaml"), "--config", "small"]
    subprocess.run(command, env={"PATH": "/usr/sbin:/usr/bin", **one.env}, check=True)
    host.adopt()
    assert [mig.profile for mig in host.gpus[1].mig] == ["1g.5gb"] * 3
    has(one, host, NOTICED)


def cut(host: Host) -> list[str]:
    """Return the profiles of the second GPU, which is one short for moments while it is cut."""
    host.adopt()
    return [mig.profile for mig in host.gpus[1].mig]


@pytest.mark.skipif(not turn(2, 1), reason="20 s, with every second commit, by turns with claims; GPUSHIM_LONG=1")
def test_a_layout_that_is_named_waits_for_its_gpu_alone(one: Plugin, host: Host) -> None:
    """By day and by night; pods on another GPU go on."""
    name = layout_file(one.env)
    name.with_name("mig.yaml").write_text(LAYOUT)
    host.set_mig(1, [])  # the plugin has GPUs open, so that their mode cannot change
    has(one, host)
    one.node.pod("other", {MIG: 1})
    others = one.node.held("other")[MIG]
    name.write_text("small")
    assert until(lambda: cut(host) == ["1g.5gb"] * 3, SECONDS), one.said()[-3000:]
    has(one, host)
    small = {mig.uuid for mig in host.gpus[1].mig}

    free = [uuid for uuid in one.node.allocatable(MIG) if uuid not in others]
    for number in range(len(free)):  # one of them is on the other GPU, too
        one.node.pod(f"day-{number}", {MIG: 1})
    name.write_text("large")
    assert until(lambda: not small & {*one.node.allocatable(MIG)}, SECONDS), one.said()[-3000:]
    assert {mig.uuid for mig in host.gpus[2].mig} <= {*one.node.allocatable(MIG)}
    assert until(lambda: "the GPU waits for its MIG layout, large" in one.said(), SECONDS)
    one.node.remove("day-0")
    one.stop(signal.SIGKILL)
    one.start()
    assert until(lambda: {mig.uuid for mig in host.gpus[2].mig} == {*one.node.allocatable(MIG)}, SECONDS)
    host.adopt()
    assert {mig.uuid for mig in host.gpus[1].mig} == small
    for number in range(1, len(free)):
        one.node.remove(f"day-{number}")
    assert until(lambda: cut(host) == ["7g.40gb"], SECONDS), one.said()[-3000:]
    has(one, host)
    assert host.gpus[1].mig[0].uuid in one.node.allocatable(LARGE)
    assert one.node.healths("other") == {others[0]: "Healthy"}
    name.write_text("small")
    assert until(lambda: cut(host) == ["1g.5gb"] * 3, SECONDS), one.said()[-3000:]
    has(one, host)
    assert one.node.wait("other").container
    name.unlink()


def test_nvml_that_fails_and_is_back(one: Plugin, host: Host) -> None:
    host.behave(fail=999)
    host.modify = not host.modify  # or the snapshot holds, and nobody asks NVML
    host.update()
    assert until(lambda: not any(one.node.everything().values()), SECONDS), one.said()[-3000:]
    assert "the GPUs' health is not known: NVML cannot be used" in one.said()  # not after a grace
    host.behave()
    has(one, host, 2 * NOTICED)  # while it fails, it is asked every few seconds


def test_a_driver_upgraded_underneath(one: Plugin, host: Host) -> None:
    """Nothing is given out while its halves differ; then a pod gets the new one's files.

    The CDI spec goes too, but not before the devices are unhealthy.
    """
    old, state = host.driver, one.env["GPUSHIM_STATE"]
    spec = Path(state, "cdi/nvidia.com-gpu.json")
    try:
        host.half_upgrade("550.54.14")
        assert until(lambda: not spec.exists(), 4 * NOTICED), one.said()[-3000:]
        status = json.loads(plugin_socket.exchange(state, plugin_socket.STATUS, SECONDS))
        assert not [each for one in status["resources"] for each in one["devices"] if each["healthy"]]
        assert until(lambda: not any(one.node.everything().values()), NOTICED), one.said()[-3000:]
        install(host, "550.54.14")
        has(one, host)
        assert spec.exists()
        one.node.create("upgraded", {GPU: 1})  # tried again by kubelet, should a file still have been missing
        assert until(lambda: (pod := one.node.status("upgraded")) is not None and pod.container != "", SECONDS), (
            one.node.status("upgraded")
        )
        container = one.node.wait("upgraded").container
        assert "libcuda.so.550.54.14" in one.node.run(container, ["sh", "-c", "ls /usr/lib/*/"])
    finally:
        install(host, old)


def install(host: Host, version: str) -> None:
    """Replace the driver, whose module is loaded again."""
    shutil.rmtree(host.lib_path)
    host.driver = host.module_version = version
    host.install(CACHE)
