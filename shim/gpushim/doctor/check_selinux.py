"""SELinux: whether it lets containers open the GPUs and read gpushim's files.

gpushim-runtime and CDI of root's engines need no boolean: nodes are made in the container, and have its label. The
hook alone, and rootless engines, mount the host's, which container-selinux opens by a boolean.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from gpushim.doctor import REFRESH, Finding, Host, check_docker, check_podman, entries, ok, skipped, text, warning
from gpushim.engines import crio
from gpushim.paths import selinux

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOLEANS = ("container_use_xserver_devices", "container_use_devices")  # of container-selinux, the narrow one first
ENFORCING = "SELinux is enforcing"
PERMISSIVE = "write SELINUX=permissive to /etc/selinux/config (there is no container-selinux here); then setenforce 0"


def labels(host: Host) -> Iterator[Finding]:
    """Check the labels of containers' files, and the booleans for containers that get the host's nodes."""
    folder = f"{host.top}/sys/fs/selinux"
    enforce = text(f"{folder}/enforce").strip()
    if enforce != "1":
        yield ok("SELinux is permissive") if enforce else skipped("SELinux is off")
        return
    values = {name: text(f"{folder}/booleans/{name}") for name in BOOLEANS}
    booleans = [name for name in BOOLEANS if values[name]]
    on = [name for name in booleans if values[name].startswith("1")]
    needing = _mounting_engines(host)
    closed = _unreadable_file(host)
    if not booleans:
        evidence = f"{ENFORCING}, and its policy has no {BOOLEANS[-1]}, so it knows nothing of containers"
        yield warning(evidence, _policy_fix(host, "install container-selinux"))
    elif closed:
        lacks = (
            "" if selinux.knows(selinux.READABLE, closed[0], host.top) else f"; its policy has no {selinux.READABLE}"
        )
        evidence = f"{ENFORCING}, and containers may not read {closed[0]}, which is {closed[1]}{lacks}"
        yield warning(
            evidence, _policy_fix(host, f"install a newer container-selinux; then {REFRESH}") if lacks else REFRESH
        )
    elif on:
        yield ok(f"{ENFORCING}, and {on[0]} is on")
    elif needing:
        evidence = f"{ENFORCING}, and {booleans[0]} is off: {needing} may not open the GPUs"
        yield warning(evidence, f"setsebool -P {booleans[0]} on")
    else:
        subjects = "rootless engines and the hook alone, as with docker run --gpus before 29.2"
        yield ok(f"{ENFORCING}, and {booleans[0]} is off, which only {subjects}, need")


def _policy_fix(host: Host, fix: str) -> str:
    """Return how this host gets a policy with rules for containers; Debian's kin have no package of one."""
    release = text(f"{host.top}/etc/os-release")
    return PERMISSIVE if re.search(r"^ID(?:_LIKE)?=.*\b(?:debian|ubuntu)\b", release, re.MULTILINE) else fix


def _unreadable_file(host: Host) -> tuple[str, str] | None:
    """Return path and type of a file that containers get and may not read."""
    for path in (f"{host.state}/params", f"{host.state}/empty"):
        kind = selinux.type_of(path)
        if kind not in ("", selinux.READABLE, selinux.WRITABLE):
            return path, kind
    return None


def _mounting_engines(host: Host) -> str:
    """Return a text about the containers that get the host's nodes mounted; "" if none are known."""
    if os.geteuid() or any(engine.uid for engine in host.engines):
        return "containers of rootless engines"
    engines = []
    for engine in host.running("dockerd"):
        if check_docker.hook_alone(host, engine) and check_docker.version_of(host, engine) < check_docker.CDI_GPUS:
            engines.append("Docker's")
    for engine in host.running("crio"):
        if entries.has_own_hook(crio.hook_directories(crio.settings(engine)), engine.host_path):
            engines.append("CRI-O's")
    if host.program("podman") and entries.has_own_hook(check_podman.hook_directories(host), lambda at: host.top + at):
        engines.append("Podman's")
    return f"containers with the hook alone ({', '.join(dict.fromkeys(engines))})" if engines else ""
