"""Checks of the kubelet of this node: its directory, its socket, and what its checkpoint says it has given out.

Out of scope: device plugins (check_device_plugin.py); the cluster (check_kubernetes.py).
"""

from __future__ import annotations

import os
import shlex
import stat
from typing import TYPE_CHECKING

from gpushim.containers import kubelet
from gpushim.doctor import REFRESH, broken, ok, skipped, some, then, warning
from gpushim.engines.containerd import services
from gpushim.engines.processes import ask, units
from gpushim.ground import seen
from gpushim.ground.errors import quote
from gpushim.inventory import ensure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.containers.kubelet import Checkpoint
    from gpushim.doctor import Finding, Host
    from gpushim.ground.model import Snapshot

# Where kubelet keeps its directory: as it comes, in k0s, in MicroK8s.
PLACES = ("/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")
# Units that run a kubelet, the usual one first.
UNITS = ("kubelet", *services.RANCHER, "rke2-server", "rke2-agent", "k3s-agent", "k0sworker", "k0scontroller")
MICROK8S = "snap.microk8s.daemon-kubelite"
PLUGIN_UNIT = "gpushim-device-plugin"
POD_AGAIN = "delete the device plugin's pod on this node with kubectl: its daemon set makes another"
PREFIX = "nvidia.com/"  # of the resources that this host's GPUs are


def node(host: Host) -> Iterator[Finding]:
    """Check that this is a node, whose kubelet has the directory that the device plugin looks into."""
    elsewhere = next((place for place in _elsewhere(host) if os.path.isdir(host.top + place)), "")
    there = os.path.isdir(host.kubelet)
    if host.problem and not there:
        yield skipped(f"not looked at while {host.config} is not valid, which may say where kubelet's directory is")
    elif elsewhere and (not there or host.kubelet_root_dir):
        has = (
            f"has the directory {elsewhere}" if host.kubelet_root_dir else f"seems to have the directory {elsewhere}"
        )
        evidence = f"the kubelet of this node {has}, and kubelet-dir under [device-plugin] is {host.kubelet}"
        yield broken(evidence, then_plugin(host, setting(host, "device-plugin", f'kubelet-dir = "{elsewhere}"')))
    elif there:
        yield ok(f"this is a Kubernetes node: {host.kubelet} is there")
    elif "kubernetes" in host.named:
        yield broken(f"there is no {host.kubelet}: this is no node", "run this on a node of the cluster")
    else:
        yield skipped("this is not a Kubernetes node")


def _elsewhere(host: Host) -> list[str]:
    """List the directories that kubelet may have instead of the one in config.toml, the surest first."""
    folder = host.kubelet_root_dir
    if folder and os.path.realpath(host.top + folder) == os.path.realpath(host.kubelet):
        return []
    return [folder] if folder else [place for place in PLACES if host.top + place != host.kubelet]


def listens(host: Host) -> Iterator[Finding]:
    """Check that kubelet listens where device plugins register."""
    path = f"{kubelet.plugins(host.kubelet, host.top)}/{kubelet.KUBELET_SOCKET}"
    if not os.path.isdir(host.kubelet):
        return
    if not seen.exists(path):
        evidence = f"there is no {path}: no kubelet runs, or its directory is another than kubelet-dir"
        yield broken(evidence, again(host, "start"))
    elif not stat.S_ISSOCK(os.stat(path).st_mode):
        yield broken(f"{path} is not a socket", f"rm {shlex.quote(path)} && {again(host, 'restart')}")
    elif not ask.listens(path):
        yield broken(f"nobody listens on {path}: the kubelet that made it has ended", again(host, "start"))
    else:
        yield ok(f"kubelet listens on {path}")


def checkpoint(host: Host) -> Iterator[Finding]:
    """Check that kubelet gives out, and has given out, what the snapshot has."""
    path = f"{kubelet.plugins(host.kubelet, host.top)}/{kubelet.CHECKPOINT}"
    if not os.path.isdir(host.kubelet):
        return
    inventory, stale = ensure.last(host.config, host.state)
    try:
        found = kubelet.checkpoint(host.kubelet, host.top)
    except FileNotFoundError:
        yield skipped(f"kubelet has not written {path} yet: no device plugin has registered")
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        evidence = f"{path} cannot be used: {why}; a kubelet that starts with it forgets which pod has which device"
        fix = f"drain this node with kubectl; then rm -f {shlex.quote(path)} && {again(host, 'restart')}"
        yield warning(evidence, fix)
    else:
        if stale == "policy" or inventory["platform"] != "native":
            yield skipped(f"there is no snapshot of GPUs to hold {path} against")
        else:
            yield from _compared(host, found, inventory)


def _compared(host: Host, found: Checkpoint, inventory: Snapshot) -> Iterator[Finding]:
    known = {one["uuid"] for one in (*inventory["gpus"], *inventory["mig"])}
    ours = {name: ids for name, ids in found.registered.items() if name.startswith(PREFIX)}
    others = sorted({*found.registered} - {*ours})
    lost = sorted({_device(one) for ids in ours.values() for one in ids} - known)
    if lost:
        evidence = f"kubelet would give out what the snapshot does not have: {_shown(lost)}"
        yield warning(evidence, then(REFRESH, plugin_again(host)))
    held = [
        (one, {_device(each) for each in one.devices} - known)
        for one in found.given
        if one.resource.startswith(PREFIX)
    ]
    for one, gone in held:
        if gone and not gone & {*lost}:
            evidence = f"container {quote(one.container)} of the pod with the UID {quote(one.uid)} was given"
            evidence = (
                f"{evidence} {_shown(sorted(gone))} of {quote(one.resource)}, which this host does not have any more"
            )
            yield warning(evidence, "delete that pod with kubectl: its successor gets another device")
    if not lost and not any(gone for _, gone in held):
        counted = ", ".join(f"{len(ids)} of {quote(name)}" for name, ids in sorted(ours.items())) or "no GPU"
        more = f"; others have {_shown(others)}" if others else ""
        yield ok(f"kubelet gives out {counted}, and {sum(len(one.devices) for one, _ in held)} are given out{more}")


def _device(identity: str) -> str:
    """Return the UUID of an id, which has :: and a number after it if the device is shared."""
    return identity.partition("::")[0]


def _shown(names: list[str]) -> str:
    return some([quote(name) for name in names])


def again(host: Host, verb: str) -> str:
    """Say how kubelet is started or restarted."""
    name = next((each for each in (*UNITS, MICROK8S) if host.unit(f"{each}.service")), UNITS[0])
    return units.fix(verb, f"{name}.service", top=host.top)


def setting(host: Host, section: str, line: str) -> str:
    """Say which line config.toml needs."""
    return f"set {shlex.quote(line)} under [{section}] in {shlex.quote(host.config)}"


def plugin_again(host: Host) -> str:
    """Say how gpushim's device plugin is restarted: by systemd, or by its pod."""
    if host.unit(f"{PLUGIN_UNIT}.service"):
        return f"systemctl restart {PLUGIN_UNIT}"
    return POD_AGAIN


def then_plugin(host: Host, fix: str) -> str:
    """Say that the device plugin is restarted after something else was done."""
    return f"{fix}; then {plugin_again(host)}"
