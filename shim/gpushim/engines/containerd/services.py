"""k3s, rke2, k0s and MicroK8s, which run a containerd of their own, and write its settings again at each start.

Where its settings and its program are, and what the settings are made of:
- k3s and rke2 make config.toml from a Go template: config-v3.toml.tmpl for version 3, config.toml.tmpl for version 2,
  or a built-in one, for which `{{ template "base" . }}` stands (since k3s 1.24.17, 1.25.13, 1.26.8, 1.27.5; see its
  documentation under "Configuring containerd"). What goes into a template is text at its end, which counts where they
  have no runtime of that name by themselves.
- MicroK8s makes containerd.toml of containerd-template.toml, where it is text at the end, too.
- k0s makes them of the files in a directory beside its own, which it imports, or before its containerd was 2.0 merged
  into one in /run (since 1.27.1; see its documentation under "k0s managed dynamic runtime configuration").
Out of scope: those that run, whose command lines tell (running.py); installations in other directories, which only a
running one tells.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
from typing import Any

from gpushim.config.policy import ENGINES
from gpushim.engines.processes import programs
from gpushim.engines.settings import files, own, toml
from gpushim.engines.settings.files import Change
from gpushim.ground.errors import GpushimError

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
    f"/etc/{name}"
    for role in ("controller", "worker")
    for name in (f"systemd/system/k0s{role}.service", f"init.d/k0s{role}")
]
_PROGRAMS = {name: f"{ENGINES[name]}/containerd" for name in CONFIGS}
BASE = '{{ template "base" . }}\n'
BEGIN = "# gpushim: `gpushim configure containerd --remove` takes this away, down to the end mark"
END = "# gpushim: end"
MICROK8S = "containerd-template.toml"
K0S = (
    "# k0s_managed=true"  # its first line; without it k0s leaves the file alone. Before 1.30 an empty one comes first
)
# What is between the marks, and its digest, which blocks lack that were written before gpushim had drop-in files.
_BLOCK = re.compile(
    rf"(?:\r?\n)?{re.escape(BEGIN)}\r?\n(.*?){re.escape(END)}(?: ([0-9a-f]+))?[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_GENERATED = "/agent/etc/containerd/config.toml"


def installed(top: str = "") -> list[str]:
    """List the services that are installed here, running or not; `top` stands before the host's directories.

    `k0s reset` leaves its program and /etc/k0s, and takes away its service and its other directories.
    """
    folders = {name: config if name == "k0s" else posixpath.dirname(config) for name, config in CONFIGS.items()}
    names = [name for name, folder in folders.items() if os.path.exists(top + folder) or programs.lying(name, top)]
    used = any(os.path.lexists(top + file) for file in (_PROGRAMS["k0s"], *_K0S))
    return [name for name in names if name != "k0s" or used]


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


def templates(config: str) -> dict[int, str]:
    """Return the templates of a generated file of k3s or rke2, by its path, under their versions; {} for others."""
    folder = posixpath.dirname(config)
    names = {2: "config.toml.tmpl", 3: "config-v3.toml.tmpl"} if config.endswith(_GENERATED) else {}
    return {version: posixpath.join(folder, name) for version, name in names.items()}


def source(config: str, host_path: str) -> str:
    """Return the template of settings that MicroK8s generates, else `config` itself.

    `config` is their path within containerd's root, `host_path` as this process opens it.
    """
    if posixpath.basename(config) == "containerd.toml" and os.path.exists(
        posixpath.join(posixpath.dirname(host_path), MICROK8S)
    ):
        return posixpath.join(posixpath.dirname(config), MICROK8S)
    return config


def directory(config: str, host_path: str) -> str:
    """Return the directory that k0s takes settings from; "" if it does not make these.

    Args:
        config: their path within containerd's root.
        host_path: the same as this process opens it.
    """
    lines = (files.read(host_path) or b"").decode("utf-8", "replace").splitlines()[:2]
    return config.removesuffix(".toml") + ".d" if K0S in lines else ""


def at_each_start(config: str, host_path: str) -> bool:
    """Return whether a service writes settings before it starts containerd; arguments as of `directory`."""
    return bool(templates(config) or directory(config, host_path))


def title(config: str) -> str:
    """Return the name of the service that generates a file, for messages."""
    if posixpath.basename(config) == MICROK8S:
        return "MicroK8s"
    return "rke2" if "/rke2/" in config else "k3s"


def without_ours(text: str) -> str:
    """Return a template, or what is made of it, without gpushim's runtime."""
    return _BLOCK.sub("", text)


def has(path: str, name: str) -> bool:
    """Return whether a template has a runtime of gpushim's of this name."""
    text = toml.decoded(files.read(path) or b"", path)
    return any(f"runtimes.{name}" in block.replace('"', "") for block, _ in _BLOCK.findall(text))


def plan_block(path: str, keys: tuple[str, ...], entry: dict[str, Any]) -> Change:
    """Return the change after which a template has a runtime at its end.

    Args:
        path: of the template, which need not exist.
        keys: of the runtime's table.
        entry: its members.

    Raises:
        GpushimError: the template has a runtime of this name that is not gpushim's.
    """
    removal = plan_removal(path)
    old = removal.old
    text = BASE if old is None else toml.decoded(old, path)
    name = re.escape(keys[-1])
    if re.search(rf"""(?m)^[^#\n]*runtimes\.(?:"{name}"|'{name}'|{name})[].]""", without_ours(text)):
        raise GpushimError(
            f"{path} has a runtime {keys[-1]} already; choose another --runtime-name, or remove that one first"
        )
    block = toml.written(entry, keys).lstrip("\n")
    if posixpath.basename(path) != MICROK8S:
        # k3s names what it finds on its PATH by itself, maybe later; a table that stands twice would end containerd.
        block = f"{{{{ if not (index .ExtraRuntimes {json.dumps(keys[-1])}).BinaryName }}}}\n{block}{{{{ end }}}}\n"
    block = f"\n{BEGIN}\n{block}{END} {own.digest(block)}\n"
    match = _BLOCK.search(text)
    if match:
        new = text[: match.start()] + block + text[match.end() :]
    else:
        new = text + ("" if text.endswith("\n") or not text else "\n") + block
    return Change(path, old, new.encode(), removal.copy)


def by_hand(change: Change) -> list[str]:
    """Return the command that does without gpushim what a change of `plan_removal` does to a template of others."""
    if not change.new or change.new == change.old or BEGIN.encode() not in (change.old or b""):
        return []
    return [shlex.join(["sed", "-i", f"/^{BEGIN[:20]}/,/^{END}/d", change.path])]


def plan_removal(path: str) -> Change:
    """Return the change after which a template is without gpushim's runtime; one that has nothing else goes.

    Raises:
        GpushimError: one of the marks around the runtime is missing.
    """
    old = files.read(path)
    if old is None:
        return Change(path, None, None)
    text = toml.decoded(old, path)
    blocks = _BLOCK.findall(text)
    if not len(blocks) == text.count(BEGIN) == text.count(END) or any(BEGIN in block for block, _ in blocks):
        raise GpushimError(f"{path} lacks one of the two marks around gpushim's runtime; remove the runtime by hand")
    edited = any(digest and digest != own.digest(block) for block, digest in blocks)
    new = without_ours(text)
    return Change(path, old, None if blocks and new == BASE else new.encode(), files.EDITED if edited else "")
