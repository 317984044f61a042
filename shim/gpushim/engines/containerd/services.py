"""k3s, rke2, k0s and MicroK8s, which run a containerd of their own: where its settings and its program are.

Each writes the settings at each start, from what generated.py knows.
Out of scope: those that run, whose command lines tell (running.py); installations in other directories, which only a
running one tells.
"""

from __future__ import annotations

import os
import posixpath

from gpushim.config.policy import ENGINES
from gpushim.engines.processes import programs

RANCHER = ("k3s", "rke2")
# The settings of each one's containerd, in which order `--remove` looks at them.
CONFIGS = {
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "k0s": "/etc/k0s/containerd.toml",
    "microk8s": "/var/snap/microk8s/current/args/containerd.toml",
}
# Its units, and those of OpenRC.
_K0S = [
    f"/etc/{place}"
    for role in ("controller", "worker")
    for place in (f"systemd/system/k0s{role}.service", f"init.d/k0s{role}")
]
_PROGRAMS = {name: f"{ENGINES[name]}/containerd" for name in CONFIGS}


def installed(top: str = "") -> list[str]:
    """List the services that are installed here, running or not; `top` stands before the host's directories.

    `k0s reset` leaves its program and /etc/k0s, and takes away its service and its other directories.
    """
    places = {name: config if name == "k0s" else posixpath.dirname(config) for name, config in CONFIGS.items()}
    found = [name for name, place in places.items() if os.path.exists(top + place) or programs.lying(name, top)]
    used = any(os.path.lexists(top + each) for each in (_PROGRAMS["k0s"], *_K0S))
    return [name for name in found if name != "k0s" or used]


def of(config: str) -> str:
    """Return whose settings a file is by its absolute path: a name of CONFIGS, or "" for a containerd on its own."""
    for name in CONFIGS:
        if posixpath.basename(config) == posixpath.basename(CONFIGS[name]) and f"/{name}/" in config:
            return name
    return ""


def unit(name: str, top: str = "") -> str:
    """Return the systemd unit of a service: that of a server, unless the one of an agent is enabled."""
    if name == "k0s":
        controls = os.path.lexists(f"{top}/etc/systemd/system/k0scontroller.service")
        return "k0scontroller.service" if controls else "k0sworker.service"
    if name not in RANCHER:
        return "snap.microk8s.daemon-containerd.service"
    agent = f"{name}-agent.service"
    if os.path.lexists(f"{top}/etc/systemd/system/multi-user.target.wants/{agent}"):
        return agent
    return "k3s.service" if name == "k3s" else "rke2-server.service"


def program(config: str) -> str:
    """Return the containerd that reads a service's file, by the file's absolute path; "" for others."""
    return _PROGRAMS.get(of(config), "")
