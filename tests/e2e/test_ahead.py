"""The child of a create and gpushim-hook do the same: what one container sees is held against another."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import engines, lows, trees
from e2e.bundles import Bundle
from e2e.standalone import LOOK, volume
from e2e.trees import TOP
from e2e.views import CRUN, view
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


@contextlib.contextmanager
def rootless(prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """A user namespace of one user for runtime and container, as rootless engines have one."""
    command = [
        *prefix,
        "/usr/bin/unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "/bin/sh",
        "-c",
        "echo ready; read -r line",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        yield "/usr/bin/nsenter", f"--user=/proc/{holder.pid}/ns/user", f"--mount=/proc/{holder.pid}/ns/mnt", "--"
        holder.stdin.close()


def of_one_user(bundle: Bundle, work: Path) -> dict[str, Any]:
    mounts = [
        {**one, "options": [word for word in one.get("options", ()) if word != "gid=5"]}
        for one in bundle.plain["mounts"]
    ]
    return {"mounts": mounts}


def annotated(bundle: Bundle, work: Path) -> dict[str, Any]:
    """CDI's way to ask, which counts here instead of the variables."""
    return {"annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=0,nvidia.com/gpu=2"}}


CHANGES: dict[str, Change] = {
    "plain": lambda bundle, work: {},
    "read-only": lambda bundle, work: {"root": {**bundle.plain["root"], "readonly": True}},
    "a user namespace": mapped,
    "CDI": annotated,
    "rootless": of_one_user,
    "a volume at /etc/ld.so.conf.d": lambda bundle, work: with_volume(bundle, work, "/etc/ld.so.conf.d"),
    "a volume that is shared": lambda bundle, work: with_volume(bundle, work, "/srv", "rshared"),
}
IMAGES: dict[str, Callable[[Path], object]] = {
    "Debian": lambda root: None,
    "no cache": lambda root: (root / "etc/ld.so.cache").unlink(),
    "a damaged cache": lambda root: (root / "etc/ld.so.cache").write_text("x" * 5000),
    "musl": lambda root: (root / "etc/alpine-release").write_text("3.20\n"),
    "links to itself": lambda root: (root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.1"),
}


def seen(work: Path, tree: Path, host: Host, script: str, low: str, image: str, change: str) -> Any:
    """What the container sees, or why there is none."""
    work.mkdir()
    env = settings(work, host.root, lows.write(work / "low", script, low))
    engines.run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
    # There low-level runtimes bind the nodes of the host, which has them in /dev.
    nodes = f"mount -t overlay -o lowerdir={host.root}/dev:/dev overlay /dev" if change == "rootless" else ""
    with trees.overlay(tree, work) as root, view("v1" if low == CRUN else "hybrid", nodes) as prefix:
        IMAGES[image](root)
        bundle = Bundle(work / "bundle", root, env, prefix)
        bundle.ask(*ALL, args=["python3", "-c", LOOK], **CHANGES[change](bundle, work))
        with rootless(prefix) if change == "rootless" else contextlib.nullcontext(prefix) as bundle.prefix:
            done = bundle.live(check=False)
        return json.loads(done.stdout) if done.stdout else done.stderr.replace(str(work), "")


CASES = [(low, "Debian", change) for low in (RUNC, CRUN) for change in CHANGES]
CASES += [(RUNC, image, "plain") for image in IMAGES if image != "Debian"]


@pytest.mark.parametrize(("low", "image", "change"), CASES)
def test_any_container_is_the_same(
    debian_tree: Path, tmp_path: Path, gpu_host: Host, low: str, image: str, change: str
) -> None:
    ways = [
        seen(tmp_path / name, debian_tree, gpu_host, script, low, image, change)
        for name, script in (("lone", lows.LONE), ("ahead", lows.AHEAD))
    ]
    assert isinstance(ways[1], dict), ways
    for part in ("nodes", "links", "files", "rules"):
        assert ways[0][part] == ways[1][part]
    assert ways[0]["mounts"].keys() == ways[1]["mounts"].keys()
    assert any("libcuda" in path for path in ways[0]["mounts"])
