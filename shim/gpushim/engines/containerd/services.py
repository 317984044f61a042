"""k3s, rke2 and MicroK8s, which run a containerd of their own: where its settings and its program are.

Each of them writes the settings at each start; what they are made of is in generated.py.
Out of scope: those that run, whose command lines tell (running.py); installations in other directories, which only a
running one tells.
"""

from __future__ import annotations

import os
import posixpath

from gpushim.engines import programs
from gpushim.policy import ENGINES

RANCHER = ("k3s", "rke2")
# The settings of each one's containerd, in which order `--remove` looks at them.
CONFIGS = {
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "microk8s": "/var/snap/microk8s/current/args/containerd.toml",
}
_PROGRAMS = {name: f"{ENGINES[name]}/containerd" for name in CONFIGS}


def installed(top: str = "") -> list[str]:
    """List those that are installed here, running or not.

    Args:
        top: what stands before the host's directories: "" but for tests.
    """
    return [
        name
        for name, config in CONFIGS.items()
        if os.path.isdir(top + posixpath.dirname(config)) or programs.lying(name, top)
    ]


def of(config: str) -> str:
    """Return whose settings a file is: a name of CONFIGS, or "" for a containerd that stands alone.

    Args:
        config: absolute path of containerd's settings.
    """
    for name in CONFIGS:
        if posixpath.basename(config) == posixpath.basename(CONFIGS[name]) and f"/{name}/" in config:
            return name
    return ""


def unit(name: str, top: str = "") -> str:
    """Return the systemd unit of one of these: that of a server, unless the one of an agent is enabled.

    Args:
        name: of CONFIGS.
        top: as `installed` takes it.
    """
    if name not in RANCHER:
        return "snap.microk8s.daemon-containerd.service"
    agent = f"{name}-agent.service"
    if os.path.lexists(f"{top}/etc/systemd/system/multi-user.target.wants/{agent}"):
        return agent
    return "k3s.service" if name == "k3s" else "rke2-server.service"


def program(config: str) -> str:
    """Return where the containerd is that reads a file of one of these; "" for others.

    Args:
        config: absolute path of containerd's settings.
    """
    return _PROGRAMS.get(of(config), "")
