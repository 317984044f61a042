"""Containers that turn on their runtime under the real runc: its open files, its own program, its device nodes.

These are the escapes of runc's own history; the shim and the hook must not bring one back.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.hostile import LIBS, Trap
from fakehost import Host


@pytest.mark.parametrize("number", [3, 5, 7, 8, 9, 12])
def test_a_working_directory_behind_an_open_file(trap: Trap, gpu_host: Host, number: int) -> None:
    """T-21626: whoever leaves a directory of the host open in runc gives it to the container."""
    climb = "../" * 9 + str(trap.canary / "secret")[1:]
    trap.ask("NVIDIA_VISIBLE_DEVICES=0", args=["/busybox", "cat", climb])
    spec = trap.bundle.spec
    spec["process"]["cwd"] = f"/proc/self/fd/{number}"
    trap.bundle.config.write_text(json.dumps(spec))
    with trap.harmless(gpu_host):
        done = trap.run()
    assert done.returncode
    assert trap.token not in done.stdout


def test_a_container_that_is_the_runtime_itself(trap: Trap, gpu_host: Host) -> None:
    """T-5736: its entry point is /proc/self/exe, and its libraries write to what runs them."""
    command = ["/usr/bin/gcc", "-shared", "-fPIC", "-o", str(trap.root / LIBS / "libseccomp.so.2")]
    subprocess.run([*command, str(Path(__file__).with_name("takeover.c"))], check=True)
    trap.write("entry", b"#!/proc/self/exe\n")
    (trap.root / "entry").chmod(0o755)
    trap.ask("NVIDIA_VISIBLE_DEVICES=all", args=["/entry"])
    with trap.harmless(gpu_host):
        done = trap.run()
    assert "taken over" in done.stdout, done.stderr


def special(mode: int) -> Callable[[Trap, str], None]:
    """A FIFO, or a node of /dev/zero."""

    def lay(trap: Trap, name: str) -> None:
        trap.remove(name)
        os.mknod(trap.root / name, mode, os.makedev(1, 5))

    return lay


NODE_KINDS: dict[str, Callable[[Trap, str], None]] = {
    "link": lambda trap, name: trap.link(name, trap.canary / "x"),
    "link up": lambda trap, name: trap.link(name, trap.up("new")),
    "file": lambda trap, name: trap.write(name, b""),
    "FIFO": special(stat.S_IFIFO | 0o666),
    "other node": special(stat.S_IFCHR | 0o666),
}


@pytest.mark.parametrize("kind", NODE_KINDS)
def test_an_images_own_nodes(trap: Trap, gpu_host: Host, kind: str) -> None:
    """T-31133: /dev is the image's, and what is in it is not what its names say."""
    names = ["nvidiactl", "nvidia-uvm", f"nvidia{gpu_host.gpus[0].minor}"]
    for name in [*names, "null"] if "link" in kind else names:
        NODE_KINDS[kind](trap, f"dev/{name}")
    mounts = [mount for mount in trap.bundle.plain["mounts"] if not mount["destination"].startswith("/dev")]
    trap.look("NVIDIA_VISIBLE_DEVICES=0", mounts=mounts)
    with trap.harmless(gpu_host):
        done = trap.run()
    if done.returncode:
        trap.refused(done)
    else:
        trap.saw_nothing(done, gpu_host)


def test_owner_and_mode_of_what_is_the_hosts(trap: Trap, gpu_host: Host) -> None:
    """T-OWNER: a service's socket, and a node that the hook binds, are every container's."""
    names = [f"/dev/nvidia{gpu_host.gpus[0].minor}", "/run/nvidia-persistenced/socket"]
    files = [Path(f"{gpu_host.root}{name}") for name in names]
    before = [(path.stat().st_mode, path.stat().st_gid) for path in files]
    script = "".join(f"test -e {name} || exit 7; chmod 0600 {name}; chgrp 6 {name};" for name in names)
    trap.ask("NVIDIA_VISIBLE_DEVICES=0", args=["/busybox", "sh", "-c", f"{script} :"])
    done = trap.run()
    assert done.returncode == 0, done.stderr
    after = [(path.stat().st_mode, path.stat().st_gid) for path in files]
    for path, (mode, gid) in zip(files, before):  # for other tests
        os.chown(path, 0, gid)
        path.chmod(mode & 0o7777)
    assert after == before
