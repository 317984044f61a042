"""The hooks of a CDI spec that NVIDIA's tools made, in hostile images and over the user's mounts.

Each image is held against a canary of the host, as in test_hostile.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e.bundles import Bundle
from e2e.cdihooks import LIBS, hooks, injected, params_hook, run
from e2e.hostile import Trap
from e2e.hostile_layouts import TRAPS
from fakehost import Host

# From test_hostile.py, what is on the way of a hook; and what these hooks touch besides.
OUT = {
    name: TRAPS[name]
    for name in TRAPS
    if name.startswith(("T-0134", "T-23267"))
    and not name.endswith(
        ("root", "dangles", "file", "FIFO", "lines", "text", "many", "itself", "aux-cache", "sparse")
    )
}
OWN = {
    "profiles": ("etc/nvidia/nvidia-application-profiles-rc.d", "etc"),
    "profile": ("etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf", "x"),
    "compat folder": ("usr/local/cuda/compat", "lib"),
    "compat conf": ("etc/ld.so.conf.d/00-gpushim-compat.conf", "etc/ld.so.conf"),
    "link": (f"{LIBS[1:]}/libcuda.so", "secret"),
    "cache of compat": ("etc/ld.so.cache", "etc/ld.so.cache"),
}


@pytest.mark.parametrize("name", [*OUT, *(f"{name}{how}" for name in OWN for how in ("", ", up"))])
def test_an_image_of_links_harms_nothing(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, name: str
) -> None:
    trap = Trap(tmp_path, debian_root, gpushim_env, "cdi")
    members = injected(trap.bundle, gpu_host, "all", tmp_path / "plan")
    if name in OUT:
        OUT[name](trap, gpu_host)
    else:
        place, inside = OWN[name.partition(",")[0]]
        trap.link(place, trap.up(inside) if "," in name else trap.canary / inside)
    trap.look(hooks=hooks(gpu_host, path=params_hook(tmp_path)), **members)
    with trap.harmless(gpu_host):
        done = trap.run()
    if name == "T-0134 library directory loops":  # the mounts cannot be made either
        trap.refused(done)
    else:
        trap.saw_nothing(done, gpu_host)


@pytest.mark.parametrize("place", ["/etc", "/etc/ld.so.conf.d", "/dev/dri", "/etc/nvidia"])
@pytest.mark.parametrize("stage", ["createContainer", "prestart"])
def test_what_the_user_mounts_is_not_written_to(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, place: str, stage: str
) -> None:
    trap = Trap(tmp_path, debian_root, gpushim_env, "cdi")
    members = injected(trap.bundle, gpu_host, "all", tmp_path / "plan")
    source = trap.canary / ("" if place == "/dev/dri" else place[1:])
    source.mkdir(exist_ok=True, parents=True)
    mount = {"destination": place, "source": str(source), "type": "bind", "options": ["rbind"]}
    members["mounts"].append(mount)
    if place == "/dev/dri":
        members["linux"]["devices"].pop()
        (source / "card1").touch()
    trap.look(hooks=hooks(gpu_host, stage=stage), **members)
    with trap.harmless(gpu_host):
        done = trap.run()
    assert done.stdout.rstrip().endswith("-- end"), done.stderr


@pytest.mark.parametrize("kind", ["tmpfs", "directory"])
@pytest.mark.parametrize("stage", ["createContainer", "prestart"])
def test_a_dev_of_the_hosts(bundle: Bundle, gpu_host: Host, tmp_path: Path, kind: str, stage: str) -> None:
    """`-v /dev:/dev`: a tmpfs that the host has, too, is not the container's own."""
    dev = tmp_path / "dev"
    dev.mkdir()
    members = injected(bundle, gpu_host, "0", tmp_path / "plan")
    if kind == "tmpfs":
        subprocess.run(["/bin/mount", "-t", "tmpfs", "none", str(dev)], check=True)
    try:
        (dev / "dri").mkdir(mode=0o755)
        for one in members["linux"]["devices"]:
            (dev / one["path"][5:]).touch()
        members["linux"]["devices"] = []
        mount = {"destination": "/dev", "source": str(dev), "type": "bind", "options": ["rbind"]}
        members["mounts"] = [mount, *(one for one in members["mounts"] if not one["destination"].startswith("/dev"))]
        bundle.ask(args=["true"], hooks=hooks(gpu_host, stage=stage), **members)
        run(bundle, check=False)
        assert [path.name for path in (dev / "dri").iterdir()] == ["card1"]
        assert (dev / "dri").stat().st_mode & 0o777 == 0o755
    finally:
        if kind == "tmpfs":
            subprocess.run(["/bin/umount", str(dev)], check=True)
