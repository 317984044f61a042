"""Say, from inside a container, what it has of the host's GPUs: one JSON object on stdout.

Run as `python3 probe.py [MAJOR:MINOR...]`: each pair named is also made with mknod in a directory of the
container's own and opened, which is how a process would try to reach a GPU that it was not given.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import json
import os
import stat
import subprocess
import sys
import tempfile

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")


def opened(path: str) -> str:
    """Name what opening a node gives: `opens`, or the errno's name."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as problem:
        return errno.errorcode[problem.errno or 0]
    return "opens"


def nodes() -> dict[str, str]:
    """Open every character device below /dev that comes with GPUs."""
    found = [
        path for name in ("nvidia*", "nvidia*/*", "gdrdrv", "infiniband/*") for path in glob.glob("/dev/" + name)
    ]
    return {path: opened(path) for path in sorted(found) if stat.S_ISCHR(os.stat(path).st_mode)}


def made(pair: str) -> str:
    """Make a node as MAJOR:MINOR and open it."""
    major, minor = (int(number) for number in pair.split(":"))
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "node")
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(major, minor))
        return opened(path)


def loaded(library: str) -> str:
    """Load a library by name through the container's own loader."""
    try:
        ctypes.CDLL(library)
    except OSError as problem:
        return str(problem)
    return "loads"


def uuids() -> list[str]:
    """List the GPUs that NVIDIA's own bindings report, or the one error they raise."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
    except pynvml.NVMLError as problem:
        return [f"error: {problem}"]


def said(*command: str) -> str:
    """Run a command found on PATH and return all it says."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        return f"error: {problem}"
    return done.stdout + done.stderr


def main(pairs: list[str]) -> None:
    """Print the report."""
    report = {
        "nodes": nodes(),
        "made": {pair: made(pair) for pair in pairs},
        "libraries": {library: loaded(library) for library in LIBRARIES},
        "uuids": uuids(),
        "nvidia-smi": said("nvidia-smi", "-L"),
        "ldconfig": said("ldconfig", "-p"),
        "env": {name: value for name, value in os.environ.items() if "NVIDIA" in name or "GPUSHIM" in name},
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
