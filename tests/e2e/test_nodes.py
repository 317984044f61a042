"""A host as it is after a boot, and one that changes, behind the real shim and runc: nodes, modules, MIG, DRM."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import trees
from e2e.bundles import Bundle
from e2e.expect import INSIDE, sees_exactly
from e2e.witness import settings
from fakehost import Host, kernel

ALL = "NVIDIA_VISIBLE_DEVICES=all"
CAPS = "/dev/nvidia-caps/nvidia-cap"


def build(folder: Path, gpus: Any, **options: Any) -> Host:
    cache = str(trees.TOP / ".cache" / "fakehost")
    return fakehost.build(str(folder / "host"), gpus, compile_cache=cache, **options)


def make_bundle(folder: Path, rootfs: Path, host: Host, more: str = "") -> Bundle:
    env = settings(folder, host.root)
    config = Path(env["GPUSHIM_CONFIG"])
    config.write_text(config.read_text().replace("[driver]\n", "[driver]\n" + more))
    return Bundle(folder / "bundle", rootfs, env)


def refused(bundle: Bundle) -> str:
    bundle.ask(ALL, args=["true"])
    assert bundle.run(check=False).returncode != 0
    return str(bundle.logged()["msg"])


@pytest.mark.parametrize(
    ("more", "broken"), [("load-kernel-modules = false\n", False), ("", True)], ids=["not allowed", "not possible"]
)
def test_compute_without_the_uvm_node_is_refused(debian_root: Path, tmp_path: Path, more: str, broken: bool) -> None:
    host = build(tmp_path, 1)
    host.unload("nvidia_uvm")
    if broken:
        Path(host.root + kernel.BROKEN).touch()
    bundle = make_bundle(tmp_path, debian_root, host, more)
    assert "/dev/nvidia-uvm is not on this host, or is not that device (CUDA needs it)" in refused(bundle)
    bundle.ask(ALL, "NVIDIA_DRIVER_CAPABILITIES=utility", args=["python3", INSIDE])
    nodes = json.loads(bundle.run().stdout)["nodes"]
    assert nodes == dict.fromkeys(["/dev/nvidia1", "/dev/nvidiactl"], "ENXIO")


WATCHES = "NVIDIA_VISIBLE_DEVICES=all-usable", "NVIDIA_DRIVER_CAPABILITIES=utility"


@pytest.mark.parametrize("lost", [[], [1], [0, 1]], ids=str)
def test_who_watches_has_the_nodes_of_lost_gpus_too(debian_root: Path, tmp_path: Path, lost: list[int]) -> None:
    host = build(tmp_path, 2)
    for index in lost:
        host.lose(index)
    bundle = make_bundle(tmp_path, debian_root, host)
    if lost:
        assert "not all can be used" in refused(bundle)
    bundle.ask(*WATCHES, args=["python3", INSIDE])
    nodes = ["/dev/nvidiactl", *(f"/dev/nvidia{gpu.minor}" for gpu in host.gpus)]
    assert json.loads(bundle.run().stdout)["nodes"] == dict.fromkeys(nodes, "ENXIO")


def test_who_watches_starts_without_the_node_of_a_gpu(debian_root: Path, tmp_path: Path) -> None:
    host = build(tmp_path, 2, modify=False)
    host.remove_node(f"nvidia{host.gpus[0].minor}")
    bundle = make_bundle(tmp_path, debian_root, host)
    bundle.ask(*WATCHES, args=["python3", INSIDE])
    nodes = ["/dev/nvidiactl", f"/dev/nvidia{host.gpus[1].minor}"]
    assert json.loads(bundle.run().stdout)["nodes"] == dict.fromkeys(nodes, "ENXIO")


@pytest.mark.parametrize("gone", [("nvidia_uvm",), ("nvidia",)])
def test_the_first_container_after_a_boot_works(debian_root: Path, tmp_path: Path, gone: tuple[str, ...]) -> None:
    host = build(tmp_path, 2)
    host.unload(*gone)
    bundle = make_bundle(tmp_path, debian_root, host)
    sees_exactly(bundle.look(host, [0], "NVIDIA_VISIBLE_DEVICES=0"), host, [0])
    assert kernel.loads(host.root)[0] == gone[0]


@pytest.mark.parametrize("how", ["missing", "wrong"])
def test_nodes_are_mended_on_the_way(debian_root: Path, tmp_path: Path, how: str) -> None:
    host = build(tmp_path, 2)
    bundle = make_bundle(tmp_path, debian_root, host)
    sees_exactly(bundle.look(host, [0, 1], ALL), host, [0, 1])
    for name in ("nvidia0", "nvidia-uvm"):
        host.remove_node(name)
        if how == "wrong":
            os.mknod(host.node(name), 0o020666, os.makedev(1, 3))
    sees_exactly(bundle.look(host, [0, 1], ALL), host, [0, 1])


def test_nothing_is_mended_where_the_driver_forbids_it(debian_root: Path, tmp_path: Path) -> None:
    host = build(tmp_path, 1, modify=False)
    host.remove_node("nvidia-uvm")
    assert "/dev/nvidia-uvm is not on this host" in refused(make_bundle(tmp_path, debian_root, host))
    assert not os.path.lexists(host.node("nvidia-uvm"))


def caps(host: Host) -> list[str]:
    """Return the capability nodes of all MIG instances."""
    gpu = host.gpus[0]
    minors = {fakehost.gi_cap(gpu.minor, mig.gi) for mig in gpu.mig}
    return sorted(CAPS + str(m) for m in minors | {fakehost.ci_cap(gpu.minor, mig.gi, mig.ci) for mig in gpu.mig})


def test_a_new_mig_layout_counts_from_the_next_create_on(debian_root: Path, tmp_path: Path) -> None:
    host = build(tmp_path, [{**fakehost.H100, "mig": ["3g.40gb", "1g.10gb"]}])
    bundle = make_bundle(tmp_path, debian_root, host)
    first = json.loads(bundle.look(host, [0], ALL))
    assert [path for path in sorted(first["nodes"]) if "caps" in path] == caps(host)
    host.nodes = False  # the shim makes the new instances' nodes
    host.set_mig(0, ["2g.20gb", "1g.20gb", "1g.10gb+me"])
    second = json.loads(bundle.look(host, [0], ALL))
    assert [path for path in sorted(second["nodes"]) if "caps" in path] == caps(host)
    assert all(mig.uuid in second["nvidia-smi"] for mig in host.gpus[0].mig)


LOOK = 'cd /dev/dri; echo $(ls | grep -v by); for link in by-path/*; do echo "$link" "$(readlink "$link")"; done'


@pytest.mark.parametrize("index", [0, 1])
def test_drm_nodes_and_links_are_those_of_the_gpu(debian_root: Path, tmp_path: Path, index: int) -> None:
    host = build(tmp_path, 2, drm=True)
    bundle = make_bundle(tmp_path, debian_root, host)
    variables = f"NVIDIA_VISIBLE_DEVICES={index}", "NVIDIA_DRIVER_CAPABILITIES=all"
    bundle.ask(*variables, args=["/bin/sh", "-c", LOOK])
    card, render = kernel.drm_names(host.gpus[index], 2)
    pci = host.gpus[index].pci
    assert bundle.run().stdout.splitlines() == [
        f"{card} {render}",
        f"by-path/pci-{pci}-card ../{card}",
        f"by-path/pci-{pci}-render ../{render}",
    ]
