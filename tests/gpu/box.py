"""Containers for the suite: a root filesystem of this machine's own Python, and bundles that ask for little.

The bundles have no more namespaces and mounts than a small kernel offers, also within a container.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sysconfig
from typing import Any

from gpu.machine import PATH, run

PYTHON = "/usr/bin/python3"
INSIDE = "/inside.py"
TRUE = "/usr/bin/true"
CAPABILITIES = ["CAP_MKNOD", "CAP_DAC_OVERRIDE"]
FOLDERS = ("dev", "proc", "sys", "tmp", "etc", "run")
# With these or without: what a low-level runtime needs where it may not use cgroups.
OPTIONS = ((), ("--rootless", "true"))


def _needed(program: str) -> list[str]:
    """List the libraries that a program or a library needs, its loader among them."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, env={"PATH": PATH}, check=False)
    return re.findall(r"(?:=> |^\s*)(/[^ ]+)", done.stdout, re.MULTILINE)


def rootfs(dest: str) -> str:
    """Build a root filesystem with Python, nothing else of this machine's; its standard library is mounted.

    Returns:
        The directory of the standard library, to be mounted at the same place.
    """
    for folder in FOLDERS:
        os.makedirs(f"{dest}/{folder}")
    library = sysconfig.get_paths()["stdlib"]
    real = os.path.realpath(PYTHON)
    modules = glob.glob(f"{library}/lib-dynload/*.so")
    files = {TRUE, real, *(path for each in (TRUE, real, *modules) for path in _needed(each))}
    for path in sorted(files):
        target = dest + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(path, target)
    os.makedirs(dest + library, exist_ok=True)
    os.makedirs(f"{dest}/usr/bin", exist_ok=True)
    if not os.path.exists(dest + PYTHON):
        os.symlink(real, dest + PYTHON)
    # What is not in a directory that the loader knows by itself is in its cache, as on the machine.
    folders = sorted({os.path.dirname(path) for path in files if ".so" in path})
    with open(f"{dest}/etc/ld.so.conf", "w") as file:
        file.write("".join(f"{folder}\n" for folder in folders))
    run(["/sbin/ldconfig", "-r", dest])
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside.py"), dest + INSIDE)
    return library


class Box:
    """One bundle and the runtimes for it.

    Args:
        directory: existing, with `rootfs` in it; for the bundle and the runtimes' state.
        library: of Python, from `rootfs`.
        env: the engine's environment, with the shim's settings.
    """

    def __init__(self, directory: str, library: str, env: dict[str, str]) -> None:
        self.directory, self.env = directory, {"PATH": PATH, **env}
        # NVML and CUDA read /sys; bound, for not everybody may mount one.
        host = [{"destination": path, "source": path, "type": "bind"} for path in (library, "/sys")]
        self.plain: dict[str, Any] = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "cwd": "/",
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES),
            },
            "root": {"path": f"{directory}/rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
                *({**mount, "options": ["rbind", "ro"]} for mount in host),
            ],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "mount"}],
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            },
        }

    def ask(self, *args: str, visible: str = "") -> None:
        """Write a config.json for this command, with a request for GPUs if one is given."""
        spec = json.loads(json.dumps(self.plain))
        spec["process"] |= {"args": list(args), "env": [f"PATH={PATH}"]}
        spec["process"]["env"] += [f"NVIDIA_VISIBLE_DEVICES={visible}"] if visible else []
        with open(f"{self.directory}/config.json", "w") as file:
            json.dump(spec, file)

    def call(self, runtime: list[str], *words: str) -> str:
        """Call a runtime with a state directory of the suite's own."""
        return run([*runtime, "--root", f"{self.directory}/state", *words], env=self.env)

    def run(self, runtime: list[str], *args: str, visible: str = "") -> str:
        """Run a container to its end; returns what it prints."""
        self.ask(*args, visible=visible)
        return self.call(runtime, "run", "--bundle", self.directory, f"gpushim-gpu-{os.getpid()}")
