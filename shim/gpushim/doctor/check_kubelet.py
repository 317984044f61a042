"""Checks of the kubelet of this node: its directory, its socket, and the devices in its checkpoint."""

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

# Kubelet's directory: the default, k0s's, MicroK8s's.
DIRECTORIES = ("/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")
# Units that run a kubelet, the usual one first.
UNITS = ("kubelet", *services.RANCHER, "rke2-server", "rke2-agent", "k3s-agent", "k0sworker", "k0scontroller")
MICROK8S = "snap.microk8s.daemon-kubelite"
PLUGIN_UNIT = "gpushim-device-plugin"
POD_AGAIN = "delete the device plugin's pod on this node with kubectl: its daemon set makes another"
PREFIX = "nvidia.com/"  # of the resources that this host's GPUs are


def node(host: Host) -> Iterator[Finding]:
    """Check that this is a node, with kubelet's directory where the plugin looks."""
    elsewhere = next((folder for folder in _other_directories(host) if os.path.isdir(host.top + folder)), "")
    exists = os.path.isdir(host.kubelet)
    if host.problem and not exists:
        yield skipped(f"not looked at while {host.config} is not valid, which may say where kubelet's directory is")
    elif elsewhere and (not exists or host.kubelet_root_dir):
        has = (
            f"has the directory {elsewhere}" if host.kubelet_root_dir else f"seems to have the directory {elsewhere}"
        )
        evidence = f"the kubelet of this node {has}, and kubelet-dir under [device-plugin] is {host.kubelet}"
        yield broken(evidence, then_plugin(host, setting(host, "device-plugin", f'kubelet-dir = "{elsewhere}"')))
    elif exists:
        yield ok(f"this is a Kubernetes node: {host.kubelet} is there")
    elif "kubernetes" in host.named:
        yield broken(f"there is no {host.kubelet}: this is no node", "run this on a node of the cluster")
    else:
        yield skipped("this is not a Kubernetes node")


def _other_directories(host: Host) -> list[str]:
    """List the directories that kubelet may have instead of the one in config.toml, the surest first."""
    folder = host.kubelet_root_dir
    if folder and os.path.realpath(host.top + folder) == os.path.realpath(host.kubelet):
        return []
    return [folder] if folder else [path for path in DIRECTORIES if host.top + path != host.kubelet]


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
    """Check that the devices in kubelet's checkpoint are in the snapshot."""
    path = f"{kubelet.plugins(host.kubelet, host.top)}/{kubelet.CHECKPOINT}"
    if not os.path.isdir(host.kubelet):
        return
    inventory, stale = ensure.last(host.config, host.state)
    try:
        saved = kubelet.checkpoint(host.kubelet, host.top)
    except FileNotFoundError:
        yield skipped(f"kubelet has not written {path} yet: no device plugin has registered")
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        evidence = (
            f"{path} cannot be used: {reason}; a kubelet that starts with it forgets which pod has which device"
        )
        fix = f"drain this node with kubectl; then rm -f {shlex.quote(path)} && {again(host, 'restart')}"
        yield warning(evidence, fix)
    else:
        if stale == "policy" or inventory["platform"] != "native":
            yield skipped(f"there is no snapshot of GPUs to hold {path} against")
        else:
            yield from _compare(host, saved, inventory)


def _compare(host: Host, saved: Checkpoint, inventory: Snapshot) -> Iterator[Finding]:
    uuids = {grant["uuid"] for grant in (*inventory["gpus"], *inventory["mig"])}
    own_resources = {name: ids for name, ids in saved.registered.items() if name.startswith(PREFIX)}
    other_resources = sorted({*saved.registered} - {*own_resources})
    lost = sorted({_device(grant) for ids in own_resources.values() for grant in ids} - uuids)
    if lost:
        evidence = f"kubelet would give out what the snapshot does not have: {_join(lost)}"
        yield warning(evidence, then(REFRESH, plugin_again(host)))
    grants = [
        (grant, {_device(device) for device in grant.devices} - uuids)
        for grant in saved.given
        if grant.resource.startswith(PREFIX)
    ]
    for grant, missing in grants:
        if missing and not missing & {*lost}:
            evidence = f"container {quote(grant.container)} of the pod with the UID {quote(grant.uid)} was given"
            evidence += (
                f" {_join(sorted(missing))} of {quote(grant.resource)}, which this host does not have any more"
            )
            yield warning(evidence, "delete that pod with kubectl: its successor gets another device")
    if not lost and not any(missing for _, missing in grants):
        counted = ", ".join(f"{len(ids)} of {quote(name)}" for name, ids in sorted(own_resources.items())) or "no GPU"
        suffix = f"; others have {_join(other_resources)}" if other_resources else ""
        yield ok(
            f"kubelet gives out {counted}, and {sum(len(grant.devices) for grant, _ in grants)} are given out{suffix}"
        )


def _device(identity: str) -> str:
    """Return the UUID of an id, which has :: and a number after it if the device is shared."""
    return identity.partition("::")[0]


def _join(names: list[str]) -> str:
    return some([quote(name) for name in names])


def again(host: Host, verb: str) -> str:
    """Return the fix that starts or restarts kubelet."""
    name = next((unit for unit in (*UNITS, MICROK8S) if host.unit(f"{unit}.service")), UNITS[0])
    return units.fix(verb, f"{name}.service", top=host.top)


def setting(host: Host, section: str, line: str) -> str:
    return f"set {shlex.quote(line)} under [{section}] in {shlex.quote(host.config)}"


def plugin_again(host: Host) -> str:
    """Return the fix that restarts gpushim's device plugin: by systemd, or by its pod."""
    if host.unit(f"{PLUGIN_UNIT}.service"):
        return f"systemctl restart {PLUGIN_UNIT}"
    return POD_AGAIN


def then_plugin(host: Host, fix: str) -> str:
    return f"{fix}; then {plugin_again(host)}"
