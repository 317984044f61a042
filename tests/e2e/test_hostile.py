"""Hostile images under the real runc: whatever is in one, nothing of the host changes, by the shim and by the hook.

Each image lays its traps for one route that is known from a published escape, and is named for it: T-0132 is
CVE-2024-0132. Races are in test_races.py, an image's programs and variables in test_hostile_code.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.hostile import Trap
from e2e.hostile_layouts import REFUSED, TRAPS
from fakehost import Host


@pytest.mark.parametrize("name", TRAPS)
def test_an_image_of_links_harms_nothing(trap: Trap, gpu_host: Host, name: str) -> None:
    TRAPS[name](trap, gpu_host)
    trap.look("NVIDIA_VISIBLE_DEVICES=all")
    given = trap.bundle.spec["mounts"]
    with trap.harmless(gpu_host):
        done = trap.run()
    if name in REFUSED:
        trap.refused(done)
    else:
        trap.saw_nothing(done, gpu_host)
    added = [mount for mount in trap.bundle.spec["mounts"] if mount not in given]
    assert bool(added) == (trap.way == "shim")
    assert all(mount["source"].startswith(f"{gpu_host.root}/") for mount in added)


@pytest.mark.parametrize("inside", ["etc", "etc/ld.so.conf.d"])
def test_what_the_user_mounts_is_not_written_to(trap: Trap, gpu_host: Host, inside: str) -> None:
    mount = {"destination": f"/{inside}", "source": str(trap.canary / inside), "type": "bind", "options": ["rbind"]}
    mounts = [*trap.bundle.plain["mounts"], mount]
    log = Path(trap.bundle.env["GPUSHIM_CONFIG"]).with_name("gpushim.log")
    known = len(log.read_bytes()) if log.exists() else 0
    trap.ask("NVIDIA_VISIBLE_DEVICES=1", args=["/busybox", "ls", "/dev"], mounts=mounts)
    with trap.harmless(gpu_host):
        done = trap.run()
    assert f"nvidia{gpu_host.gpus[1].minor}" in done.stdout.split(), done.stderr
    assert f"skipped /{inside}".encode() in log.read_bytes()[known:]


@pytest.mark.parametrize("text", ["absolute", "up"])
def test_dev_as_a_link(trap: Trap, gpu_host: Host, text: str) -> None:
    """T-0133, T-41579: this runc makes its own links again behind such a /dev; we add nothing to them."""
    behind = trap.work / "behind"
    behind.mkdir()
    trap.link("dev", behind if text == "absolute" else "../" * 40 + str(behind)[1:])
    trap.ask(args=["/busybox", "true"])
    assert trap.run().returncode == 0
    before = names_in(behind)
    assert "ptmx" in before
    trap.look("NVIDIA_VISIBLE_DEVICES=all")
    with trap.harmless(gpu_host):
        done = trap.run()
    trap.saw_nothing(done, gpu_host)
    assert names_in(behind) == before


def names_in(folder: Path) -> dict[str, str]:
    """Return what is in a directory, and where its links lead."""
    return {path.name: os.readlink(path) if path.is_symlink() else "" for path in folder.iterdir()}
