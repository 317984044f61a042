"""A config.json as an engine makes it from a CDI spec of NVIDIA's tools, with our program for theirs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from e2e import recorder
from e2e.bundles import Bundle
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from fakehost import Host

LIBS = "/usr/lib/x86_64-linux-gnu"
ENV = ["NVIDIA_CTK_DEBUG=false"]
NAMES = ("nvidia-cdi-hook", "nvidia-ctk")
BY_PATH = "/dev/dri/by-path/pci-0000:01:00.0-card"
CARD = (226, 1)
# Says what the probe does not: links, configuration, the application profile, modes.
LOOK = """
import ctypes, json, os, subprocess, sys
def read(path):
    return open(path).read() if os.path.exists(path) else None
seen = {
    "links": {path: os.readlink(path) for path in sys.argv[1:] if os.path.islink(path)},
    "loads": {},
    "cache": subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout,
    "conf": {name: read("/etc/ld.so.conf.d/" + name) for name in sorted(os.listdir("/etc/ld.so.conf.d"))},
    "profile": read("/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"),
    "dri": os.path.exists("/dev/dri") and oct(os.stat("/dev/dri").st_mode & 0o7777),
    "drivers": read("/proc/tty/drivers"),
    "mounts": [line.split()[4] for line in open("/proc/self/mountinfo")],
}
for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
    try:
        ctypes.CDLL(name)
        seen["loads"][name] = [line.split()[-1] for line in open("/proc/self/maps") if name.split(".")[0] in line][0]
    except OSError as problem:
        seen["loads"][name] = str(problem)
json.dump(seen, sys.stdout)
"""


def hooks(host: Host, name: str = NAMES[0], path: str = "", stage: str = "createContainer") -> dict[str, Any]:
    """The hooks of a spec from `nvidia-ctk cdi generate`, in their order."""
    commands = [
        ["create-symlinks", "--link", f"libcuda.so.1::{LIBS}/libcuda.so"],
        ["enable-cuda-compat", f"--host-driver-version={host.driver}"],
        ["update-ldcache", "--ldconfig-path", "/sbin/ldconfig.real", "--folder", LIBS],
        ["disable-device-node-modification"],
        ["update-application-profile"],
        ["create-symlinks", "--link", f"../card1::{BY_PATH}"],
        ["chmod", "--mode", "711", "--path", "/dev/dri"],
        ["made-by-a-newer-toolkit", "--what", "ever"],
    ]
    first = [name, "hook"] if name == "nvidia-ctk" else [name]
    entry = {"path": path or str(TOP / "bin" / name), "env": ENV}
    return {stage: [{**entry, "args": [*first, *command]} for command in commands]}


def injected(bundle: Bundle, host: Host, devices: str, work: Path) -> dict[str, Any]:
    """What a spec gives a container besides hooks, as members of its config.json: the shim's own nodes and mounts."""
    work.mkdir()
    env, bundle.env = bundle.env, settings(work, host.root, str(recorder.build(work)))
    bundle.ask(f"NVIDIA_VISIBLE_DEVICES={devices}", args=["true"])
    bundle.call("create", "--bundle", str(bundle.directory), bundle.id)
    bundle.env = env
    members = {"mounts": bundle.spec["mounts"], "linux": bundle.spec["linux"]}
    card = {"path": "/dev/dri/card1", "type": "c", "major": CARD[0], "minor": CARD[1], "fileMode": 0o666}
    members["linux"]["devices"].append(card)
    return members


def run(bundle: Bundle, runtime: str = RUNC, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the container under the plain runtime."""
    command = [*bundle.prefix, runtime, f"--root={bundle.directory}/plain", "run", "--bundle", str(bundle.directory)]
    return subprocess.run([*command, bundle.id], check=check, capture_output=True, text=True, timeout=60)


def look(bundle: Bundle, runtime: str = RUNC) -> Any:
    """What the container says of itself."""
    spec = bundle.spec
    spec["process"]["args"] = ["python3", "-c", LOOK, f"{LIBS}/libcuda.so.1", f"{LIBS}/libcuda.so", BY_PATH]
    bundle.config.write_text(json.dumps(spec))
    return json.loads(run(bundle, runtime).stdout)


def is_complete(seen: Any, host: Host, indices: list[int]) -> None:
    """Assert that the container has all that the hooks are for."""
    assert seen["loads"] == {
        "libcuda.so.1": f"{LIBS}/libcuda.so.{host.driver}",
        "libcuda.so": f"{LIBS}/libcuda.so.{host.driver}",
        "libnvidia-ml.so.1": f"{LIBS}/libnvidia-ml.so.{host.driver}",
    }
    assert seen["links"] == {
        f"{LIBS}/libcuda.so.1": f"libcuda.so.{host.driver}",
        f"{LIBS}/libcuda.so": "libcuda.so.1",
        BY_PATH: "../card1",
    }
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"):
        paths = [line.split(" => ")[1] for line in seen["cache"].splitlines() if line.split()[0] == name]
        assert paths == [f"{LIBS}/{name}"]
    assert seen["conf"]["zz-gpushim.conf"] == f"{LIBS}\n"
    mask = sum(1 << host.gpus[index].minor for index in indices)
    assert json.loads(seen["profile"].replace(hex(mask), "7"))["profiles"][0]["settings"][1] == 7
    assert seen["dri"] == "0o711"


def params_hook(folder: Path) -> str:
    """Our program, with a file of every procfs for the driver's parameters, which this machine has not."""
    path = folder / "nvidia-cdi-hook"
    path.write_text(
        "#!/usr/bin/python3 -IBS\nimport sys\n"
        f"sys.path[:0] = ['{TOP}/hook', '{TOP}/shim']\n"
        "from gpuhook.inject import cover\nfrom gpuhook.nvidia import cdi_hook\n"
        "cover.PARAMS, cover.MODIFIES, cover.MODIFIES_NOT = '/proc/tty/drivers', b'/dev/tty ', b'/dev/gpu '\n"
        "cdi_hook.main(sys.argv)\n"
    )
    path.chmod(0o755)
    return str(path)
