"""The main job, once, for people to see: a Debian container asks for GPUs 0 and 2 (or all) and lists what it got."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path += [str(TOP / "tests"), str(TOP / "vendor")]

import fakehost  # noqa: E402
from e2e import trees  # noqa: E402

INSIDE = """
echo '# ls -l /dev | grep nvidia';       ls -l /dev | grep nvidia
echo '# ldconfig -p | grep -e cuda -e nvidia-ml'; ldconfig -p | grep -e cuda -e nvidia-ml
echo '# nvidia-smi -L';                  nvidia-smi -L
echo '# python3: libcuda.so.1 by name, then NVML through nvidia-ml-py'
python3 -c '
import ctypes, pynvml
print(ctypes.CDLL("libcuda.so.1"))
pynvml.nvmlInit()
for i in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(i)
    print(i, pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetName(gpu))'
"""


def main() -> int:
    """Run the container; returns its exit status."""
    asked = sys.argv[1] if len(sys.argv) > 1 else None
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/run", prefix="gpushim-demo-")))
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        if os.path.exists("/proc/driver/nvidia/version"):
            say("this host has an NVIDIA driver; the container gets its GPUs")
        else:
            say("this host has no NVIDIA driver; building a simulated one with three GPUs")
            host = fakehost.build(str(work / "driver"), 3)
            (work / "config.toml").write_text(f'[driver]\nroot = "{host.root}"\n[log]\nfile = "{work}/gpushim.log"\n')
            env.update(GPUSHIM_CONFIG=str(work / "config.toml"), GPUSHIM_STATE=str(work / "state"))
            asked = asked or "0,2"
        say("Debian root filesystem (built once, below .cache)")
        rootfs = stack.enter_context(trees.overlay(trees.debian(), scratch(work)))
        bundle(work, rootfs, asked or "all")
        runtime = [TOP / "bin" / "gpushim-runtime", "--root", work / "runc", "run", "--bundle", work, "gpushim-demo"]
        say(" ".join(map(str, runtime)))
        done = subprocess.run(runtime, env=env, check=False)
        if (work / "gpushim.log").exists():
            say("gpushim's own line about this container:")
            print((work / "gpushim.log").read_text(), end="")
        return done.returncode


def scratch(work: Path) -> Path:
    """Make the directory of the overlay's upper layer."""
    (work / "overlay").mkdir()
    return work / "overlay"


def bundle(work: Path, rootfs: Path, asked: str) -> None:
    """Write the bundle's config.json as an engine would."""
    subprocess.run(["/usr/sbin/runc", "spec", "--bundle", work], check=True)
    spec = json.loads((work / "config.json").read_text())
    spec["root"] = {"path": str(rootfs)}
    spec["process"].update(terminal=False, args=["/bin/sh", "-c", INSIDE])
    spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={asked}")
    (work / "config.json").write_text(json.dumps(spec))
    say(f"the container asks with NVIDIA_VISIBLE_DEVICES={asked}")


def say(sentence: str) -> None:
    """Print what happens next."""
    print(f"== {sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
