"""Other hosts of the machine, one after another: Grace-Hopper with MIG, Jetson. Each way gives exactly its nodes."""

from __future__ import annotations

import json
import os
from typing import Any

from machine.trials.rows import case, run, sh

CONFIG = "/etc/gpushim/config.toml"
BUNDLE, SPEC = "/srv/bundle-of-hosts", "/srv/bundle-of-hosts/config.json"
# Nodes that every container has.
COMMON = {"console", "full", "null", "pts/ptmx", "random", "tty", "urandom", "zero"}
LOOK = "busybox find /dev -type c; ls /usr/bin/nvidia-smi /lib/firmware/*/* 2>/dev/null; /sbin/ldconfig -p; {load}"
LOAD = "/lib/ld-linux-aarch64.so.1 --preload libcuda.so.1 /usr/bin/getconf PAGESIZE && echo loaded"


def bare(*env: str, hook: bool = False) -> str:
    """Run LOOK in a container of runc's without an engine.

    Args:
        env: variables.
        hook: call only the hook, by runc, without the shim.
    """
    run("rm", "-rf", BUNDLE)
    os.makedirs(f"{BUNDLE}/rootfs")
    run("tar", "-C", f"{BUNDLE}/rootfs", "-xf", "/srv/rootfs.tar")
    run("runc", "spec", "--bundle", BUNDLE)
    with open(SPEC) as file:
        spec = json.load(file)
    spec["root"]["readonly"] = False  # rootfs, beside config.json
    spec["process"] |= {"terminal": False, "args": ["sh", "-c", LOOK.format(load=LOAD)]}
    spec["process"]["env"] += env
    spec["linux"]["cgroupsPath"] = "/gpushim-of-hosts"  # no systemd: the hook replaces the cgroup's own program
    if hook:
        words = ["gpushim-hook", "prestart"]
        spec["hooks"] = {"prestart": [{"path": "/usr/bin/gpushim-hook", "args": words, "env": ["PATH=/usr/bin"]}]}
    with open(SPEC, "w") as file:
        json.dump(spec, file)
    runtime = "runc" if hook else "gpushim-runtime"
    return run(runtime, "--root", "/run/of-hosts", "run", "--bundle", BUNDLE, "of-hosts")


def docker(device: str) -> str:
    """Run LOOK in a container of Docker's with a CDI device."""
    words = ("docker", "run", "--rm", "--network=none", f"--device=nvidia.com/gpu={device}", "box", "sh", "-c")
    return run(*words, LOOK.format(load=LOAD))


def looked(name: str, said: str, nodes: list[str], expected: dict[str, Any]) -> None:
    """Check a container's nodes, one of its files, its cache, and that the loader loads libcuda."""
    lines = said.splitlines()
    found = {line.removeprefix("/dev/") for line in lines if line.startswith("/dev/")} - COMMON
    case(f"{name}: exactly its nodes", found == set(nodes), said[:2000])
    case(f"{name}: {expected['file']} is there", expected["file"] in lines, said[:2000])
    listed = [line.split(" => ")[1] for line in lines if line.split()[:2] == ["libcuda.so.1", "(libc6,AArch64)"]]
    case(f"{name}: ldconfig -p lists libcuda.so.1", listed[:1] == [expected["library"]], said[:4000])
    case(f"{name}: the loader loads it", lines[-1:] == ["loaded"], said[-1000:])


def host(name: str) -> None:
    """Try a host: gpushim-runtime, the hook alone and the CDI spec for each of its devices."""
    said = run("sed", "-i", f's#^root = .*#root = "/srv/{name}"#', CONFIG) + run("gpushim", "refresh", "--force")
    case(f"{name}: gpushim refresh", "[status" not in said, said)
    with open(f"/srv/{name}/expected.json") as file:
        expected = json.load(file)
    for device, nodes in expected["devices"].items():
        env = f"NVIDIA_VISIBLE_DEVICES={device}"
        looked(f"{name}: {device} by gpushim-runtime", bare(env), nodes, expected)
        looked(f"{name}: {device} by the hook alone", bare(env, hook=True), nodes, expected)
        nodes = [*nodes, *expected["cdi"]]
        looked(f"{name}: {device} by CDI", docker(device), nodes, expected)
    with open("/run/gpushim/inventory.json") as file:
        snapshot = json.load(file)
    found = [[gpu["model"], gpu["numa"], gpu["addressing"]] for gpu in snapshot["gpus"]]
    about = f"{snapshot['platform']}, driver {snapshot['driver']['version']}"
    case(f"{name}: {about}", found == expected["gpus"], repr(found))
    said = sh("gpushim doctor --all 2>&1 | grep platform")
    case(f"{name}: doctor knows the platform", expected["doctor"] in said, said)


def hosts() -> None:
    """Try each host."""
    for name in ("grace", "jetson"):
        host(name)
    run("sed", "-i", 's#^root = .*#root = "/srv/gpus"#', CONFIG)
    run("gpushim", "refresh", "--force")
