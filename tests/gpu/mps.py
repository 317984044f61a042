"""A client of MPS that meets its limit of memory, on the first of this machine's GPUs; gpushim runs the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from gpu.machine import PATH, TOP, run

GROUP, REPLICAS = "gpu", 8
SECONDS = 60.0
INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside.py")
CLIENT = 'mount --bind "$1" /dev/shm && shift && exec "$@"'
NO_MOUNTS = ("mount of", "unshare failed")


class NoMountsError(Exception):
    """This machine lets nobody mount, which a daemon of MPS needs."""


@contextlib.contextmanager
def served(directory: str, env: dict[str, str]) -> Iterator[str]:
    """Run the supervisor of a group; yields the directory of the group.

    Raises:
        NoMountsError: it cannot be seen here.
        RuntimeError: it does not serve, and why.
    """
    file, top = f"{directory}/sharing.json", f"{env['GPUSHIM_STATE']}/mps/{GROUP}"
    rows = [{"name": "gpu", "devices": [0], "replicas": REPLICAS}]
    with open(file, "w") as text:
        json.dump({"version": "v1", "sharing": {"mps": {"resources": rows}}}, text)
    words = [sys.executable, "-B", f"{TOP}/bin/gpushim-device-plugin", f"--config-file={file}", "--mps", GROUP]
    with open(f"{directory}/mps.log", "w+") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env={"PATH": PATH, **env})
        try:
            late = time.monotonic() + SECONDS
            while not os.path.exists(f"{top}/state.json"):
                if process.poll() is not None or time.monotonic() > late:
                    log.seek(0)
                    said = log.read().strip()
                    raise (NoMountsError if any(word in said for word in NO_MOUNTS) else RuntimeError)(said)
                time.sleep(0.1)
            yield top
        finally:
            process.terminate()
            process.wait(SECONDS)
            subprocess.run(
                ["umount", "--lazy", f"{top}/private/shm"], env={"PATH": PATH}, stderr=subprocess.DEVNULL, check=False
            )


def allocated(top: str, library_path: str) -> int:
    """Let a client take memory until it gets no more; returns MiB."""
    env = {"PATH": PATH, "CUDA_MPS_PIPE_DIRECTORY": f"{top}/pipe"}
    env["LD_LIBRARY_PATH"] = library_path
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CLIENT, "sh", f"{top}/private/shm"]
    return int(run([*words, sys.executable, "-IBS", INSIDE, "fill"], env=env))


def limit(top: str) -> int:
    """The limit that the daemon has been told, MiB."""
    with open(f"{top}/state.json") as file:
        return int(json.load(file)["memory"])
