"""Images whose files are links to what the host's root may read and the container may not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from e2e.cdihooks import hooks, injected
from e2e.hostile import WAYS, Trap
from fakehost import Host

MUSL, CONF, CACHE = "etc/ld-musl-x86_64.path", "etc/ld.so.conf.d/zz-gpushim.conf", "etc/ld.so.cache"
PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
COMPAT = "usr/local/cuda/compat"
# Places in an image that are read, and what makes the hook read them.
PLACES = {
    MUSL: "etc/alpine-release",
    CONF: "",
    "etc/ld.so.conf.d/00-gpushim.conf": "",
    CACHE: "",
    "etc/ld.so.conf": "",
    PROFILE: "",
    "etc/ld.so.conf.d/00-gpushim-compat.conf": "",
    f"{COMPAT}/libcuda.so.999.1": "",
    COMPAT: "",
    "usr/lib/x86_64-linux-gnu/libx.so": "",
}


@pytest.fixture(params=[*WAYS, "cdi"])
def trap(request: pytest.FixtureRequest, debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str]) -> Trap:
    """A Debian image to lay traps in."""
    return Trap(tmp_path, debian_root, gpushim_env, request.param)


def ask(trap: Trap, host: Host, *mounts: dict[str, Any], args: tuple[str, ...] = ("/busybox", "true")) -> None:
    """Write config.json for a GPU container of the trap's way, with more mounts."""
    members = {"mounts": trap.bundle.plain["mounts"], "linux": trap.bundle.plain["linux"]}
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    if trap.way == "cdi":
        members, env = injected(trap.bundle, host, "all", trap.work / "plan"), []
        members["hooks"] = hooks(host, path=str(trap.place.top / "bin/nvidia-cdi-hook"))
        trap.bundle.ask(args=list(args), **{**members, "mounts": [*members["mounts"], *mounts]})
    else:
        trap.ask(*env, args=list(args), mounts=[*members["mounts"], *mounts])


def volume(trap: Trap, destination: str = "/volume") -> dict[str, Any]:
    """A volume with a file that root alone may read."""
    folder = trap.work / "volume"
    folder.mkdir(exist_ok=True)
    (folder / "secret").write_text(f"/the user's own {trap.token}\n")
    (folder / "secret").chmod(0o600)
    if not (folder / "fifo").exists():
        os.mkfifo(folder / "fifo")
    return {"destination": destination, "source": str(folder), "type": "bind", "options": ["rbind"]}
