"""The child of a create and gpushim-hook do the same: what one container sees is held against another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e import engines, lows, trees
from e2e.bundles import Bundle
from e2e.test_standalone import CRUN, LOOK, volume
from e2e.trees import TOP
from e2e.views import view
from e2e.witness import RUNC, settings
from fakehost import Host

ALL = ("NVIDIA_VISIBLE_DEVICES=0,2", "NVIDIA_DRIVER_CAPABILITIES=all")
Change = Callable[[Bundle, Path], dict[str, Any]]


def mapped(bundle: Bundle, work: Path) -> dict[str, Any]:
    """A user namespace in which the host's root is root."""
    mappings = [{"containerID": 0, "hostID": 0, "size": 65536}]
    namespaces = [*bundle.plain["linux"]["namespaces"], {"type": "user"}]
    linux = {**bundle.plain["linux"], "uidMappings": mappings, "gidMappings": mappings, "namespaces": namespaces}
    return {"linux": linux}


def with_volume(bundle: Bundle, work: Path, place: str, propagation: str | None = None) -> dict[str, Any]:
    (work / "volume").mkdir(exist_ok=True)
    linux = {**bundle.plain["linux"], **({"rootfsPropagation": propagation} if propagation else {})}
    return {"mounts": [*bundle.plain["mounts"], volume(work / "volume", place)], "linux": linux}


CHANGES: dict[str, Change] = {
    "plain": lambda bundle, work: {},
    "read-only": lambda bundle, work: {"root": {**bundle.plain["root"], "readonly": True}},
    "a user namespace": mapped,
    "a volume at /etc/ld.so.conf.d": lambda bundle, work: with_volume(bundle, work, "/etc/ld.so.conf.d"),
    "a volume that is shared": lambda bundle, work: with_volume(bundle, work, "/srv", "rshared"),
}
IMAGES: dict[str, Callable[[Path], object]] = {
    "Debian": lambda root: None,
    "no cache": lambda root: (root / "etc/ld.so.cache").unlink(),
    "a damaged cache": lambda root: (root / "etc/ld.so.cache").write_text("x" * 5000),
    "links to itself": lambda root: (root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.1"),
}


def seen(work: Path, tree: Path, host: Host, script: str, low: str, image: str, change: Change) -> Any:
    """What the container sees, or why there is none."""
    work.mkdir()
    env = settings(work, host.root, lows.write(work / "low", script, low))
    engines.run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
    with trees.overlay(tree, work) as root, view("v1" if low == CRUN else "hybrid") as prefix:
        IMAGES[image](root)
        bundle = Bundle(work / "bundle", root, env, prefix)
        bundle.ask(*ALL, args=["python3", "-c", LOOK], **change(bundle, work))
        done = bundle.live(check=False)
        return json.loads(done.stdout) if done.stdout else done.stderr.replace(str(work), "")


CASES = [(low, "Debian", change) for low in (RUNC, CRUN) for change in CHANGES]
CASES += [(RUNC, image, "plain") for image in IMAGES if image != "Debian"]


@pytest.mark.parametrize(("low", "image", "change"), CASES)
def test_any_container_is_the_same(
    debian_tree: Path, tmp_path: Path, gpu_host: Host, low: str, image: str, change: str
) -> None:
    ways = [
        seen(tmp_path / name, debian_tree, gpu_host, script, low, image, CHANGES[change])
        for name, script in (("lone", lows.LONE), ("ahead", lows.AHEAD))
    ]
    assert isinstance(ways[1], dict), ways
    for part in ("nodes", "links", "files", "rules"):
        assert ways[0][part] == ways[1][part]
    assert ways[0]["mounts"].keys() == ways[1]["mounts"].keys()
    assert any("libcuda" in path for path in ways[0]["mounts"])
