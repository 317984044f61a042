"""Checks of device plugins, gpushim's own and others beside it, and of how containers learn their devices."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import stat
from typing import TYPE_CHECKING, Any

from gpushim import __version__
from gpushim.containers.kubelet import KUBELET_SOCKET, plugins
from gpushim.doctor import (
    REFRESH,
    Finding,
    Host,
    broken,
    check_dra,
    corrected,
    listing,
    ok,
    pods,
    skipped,
    some,
    then,
    warning,
)
from gpushim.doctor.check_kubelet import PLUGIN_UNIT, POD_AGAIN, plugin_again, setting, then_plugin
from gpushim.engines.processes import ask
from gpushim.ground import seen
from gpushim.ground.errors import quote, visible
from gpushim.refresh import plugin_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 5.0  # for the plugin's answer
OURS, NVIDIAS = "gpushim-", "nvidia-"  # beginnings of the sockets' names; a resource follows
LEAST = (1, 29)  # of kubelet, that hands CDI devices on by itself
BY = 'device-list-strategy = ["{}"]'
ACCEPT = "accept-volume-mounts = true"


def registered(host: Host) -> Iterator[Finding]:
    """Check that a device plugin for GPUs has registered, one for each resource."""
    folder = plugins(host.kubelet, host.top)
    if not seen.exists(folder):
        return
    names = [path for path in listing(folder) if stat.S_ISSOCK(os.lstat(path).st_mode)]
    sockets = [path for path in names if any(word in os.path.basename(path) for word in ("nvidia", "gpu"))]
    alive = [path for path in sockets if ask.listens(path)]
    own_sockets = [path for path in alive if os.path.basename(path).startswith(OURS)]
    if not sockets and check_dra.runs(host):
        yield skipped("no device plugin for GPUs has a socket: claims alone give them out")
    elif not sockets:
        yield warning(
            f"no device plugin for GPUs has a socket in {folder}: pods cannot ask for nvidia.com/gpu",
            _start_fix(host)
            or "install gpushim-device-plugin or NVIDIA's k8s-device-plugin; `kubectl get pods -A -o wide` says "
            "whether one of NVIDIA's runs on this node",
        )
    for path in sockets if alive else sockets[:1]:
        if path not in alive:
            yield _ended_finding(host, path, bool(alive))
    shared = sorted(
        {_resource(path) for path in own_sockets} & {_resource(path) for path in {*alive} - {*own_sockets}}
    )
    if shared:
        evidence = f"two device plugins offer nvidia.com/{', nvidia.com/'.join(shared)}: kubelet takes the one that "
        evidence += "registered last, and two pods may get one GPU"
        yield broken(evidence, _keep_one_fix(host))
    if own_sockets:
        yield from _ask_plugin(host)
    elif alive:
        yield ok("a device plugin for GPUs listens")


def _start_fix(host: Host) -> str:
    """Return the fix for gpushim's plugin that is installed and has no socket; "" if it is not installed."""
    if host.by_node:
        return pods("device-plugin")
    if host.unit(f"{PLUGIN_UNIT}.service"):
        return then_plugin(host, f"see with `journalctl -u {PLUGIN_UNIT}` why it does not run")
    return ""


def _keep_one_fix(host: Host) -> str:
    stop = f"systemctl disable --now {PLUGIN_UNIT}, or delete NVIDIA's daemon set with kubectl"
    if not host.unit(f"{PLUGIN_UNIT}.service"):
        stop = "delete NVIDIA's daemon set with kubectl, or gpushim-device-plugin's"
    return f"keep one of them: {stop}"


def _resource(path: str) -> str:
    return os.path.basename(path).removeprefix(OURS).removeprefix(NVIDIAS).removesuffix(".sock")


def _ended_finding(host: Host, path: str, has_others: bool) -> Finding:
    evidence = f"nobody listens on {path}: the device plugin that made it has ended"
    if has_others:
        return warning(evidence, f"rm {shlex.quote(path)}")
    return warning(evidence, plugin_again(host) if os.path.basename(path).startswith(OURS) else POD_AGAIN)


def _ask_plugin(host: Host) -> Iterator[Finding]:
    """Ask gpushim's own plugin, which may run in a pod that shares the state directory."""
    path = f"{host.state}/{plugin_socket.SOCKET}"
    try:
        data = plugin_socket.exchange(host.state, plugin_socket.STATUS, SECONDS)
        answer = json.loads(data)
        names = [
            (str(resource["name"]), bool(resource["registered"]), resource["devices"])
            for resource in answer["resources"]
        ]
        sick = sum(not device["healthy"] for _, _, devices in names for device in devices)
    except PermissionError:
        raise
    except socket.timeout:
        yield warning(f"gpushim-device-plugin does not answer at {path} within {SECONDS:g} s", plugin_again(host))
        return
    except OSError as error:
        evidence = (
            f"gpushim-device-plugin listens for kubelet, and cannot be asked at {path}: {error.strerror or error}"
        )
        yield warning(evidence, plugin_again(host))
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        yield warning(f"what gpushim-device-plugin answers at {path} is not understood", plugin_again(host))
        return
    yield from _check_answer(host, answer, [name for name, at, _ in names if not at])
    if answer.get("version", __version__) == __version__ and all(at for _, at, _ in names):
        detail = f", {sick} unhealthy: gpushim device-plugin status says why" if sick else ""
        counted = ", ".join(f"{len(devices)} of {quote(name)}" for name, _, devices in names) or "nothing"
        yield ok(f"gpushim-device-plugin listens, and kubelet knows {counted}{detail}")


def _check_answer(host: Host, answer: dict[str, Any], missing: list[str]) -> Iterator[Finding]:
    version = str(answer.get("version", __version__))
    if version != __version__:
        evidence = f"the gpushim-device-plugin that runs is version {quote(version)}, and this is {__version__}"
        yield warning(evidence, plugin_again(host))
    if answer.get("released"):
        yield warning("gpushim-device-plugin has released the GPUs", "gpushim device-plugin take")
    for owner in answer.get("givers") or ():
        serves = host.settings["device-plugin"]["other-givers"] == "serve"
        then_what = "two pods may get one GPU" if serves else "gpushim-device-plugin gives out none beside it"
        yield (warning if serves else broken)(f"{visible(str(owner))}: {then_what}", _keep_one_fix(host))
    if missing and ask.listens(f"{plugins(host.kubelet, host.top)}/{KUBELET_SOCKET}"):  # else that is what to mend
        evidence = f"kubelet does not know {some([quote(name) for name in missing])} of gpushim-device-plugin"
        yield warning(evidence, plugin_again(host))
    if answer.get("problem") and host.problem:
        evidence = f"gpushim-device-plugin gives nothing out while {host.config} is not valid"
        yield broken(evidence, f"{corrected(host.config)}; then gpushim config check")
    elif answer.get("problem"):
        evidence = f"gpushim-device-plugin gives nothing out: {quote(str(answer['problem']))}"
        yield broken(evidence, REFRESH)


def strategy(host: Host) -> Iterator[Finding]:
    """Check that runtime, engine and kubelet understand how containers are told their devices."""
    strategies, requests = host.settings["device-plugin"]["device-list-strategy"], host.settings["requests"]
    if not os.path.isdir(host.kubelet):
        return
    if "volume-mounts" in strategies and not requests["accept-volume-mounts"]:
        evidence = (
            "device-list-strategy has volume-mounts, and accept-volume-mounts is false: such containers are refused"
        )
        yield broken(evidence, f"{setting(host, 'requests', ACCEPT)}; then {REFRESH}")
    elif strategies == ["envvar"] and not requests["accept-env-when-unprivileged"]:
        evidence = (
            "device-list-strategy is envvar, and accept-env-when-unprivileged is false: unprivileged pods get no GPU"
        )
        yield broken(evidence, _strategy_fix(host))
    else:
        problem = next(_check_cdi(host, strategies), None)
        yield problem or ok(f"pods get their devices by {' and '.join(strategies)}, which is understood here")


def _check_cdi(host: Host, strategies: list[str]) -> Iterator[Finding]:
    """List the engines and kubelets without CDI, where containers are told by nothing else."""
    by_cdi = [strategy for strategy in strategies if strategy.startswith("cdi-")]
    if not by_cdi or len(by_cdi) < len(strategies):
        return
    for engine, finding in check_dra.without_cdi(host):
        evidence = f"device-list-strategy is {by_cdi[0]}, and {engine} does not serve it: {finding.evidence}"
        yield broken(evidence, finding.fix or _strategy_fix(host))
    version = _kubelet(host)
    if by_cdi == ["cdi-cri"] and version and version < LEAST:
        evidence = (
            f"device-list-strategy is cdi-cri, which kubelet hands on since {LEAST[0]}.{LEAST[1]}, and this one is "
        )
        evidence += ".".join(map(str, version))
        yield broken(evidence, _strategy_fix(host))


def _strategy_fix(host: Host) -> str:
    """Return the setting by which containers are told without CDI, in a way that the policy accepts."""
    if host.settings["requests"]["accept-env-when-unprivileged"]:
        return then_plugin(host, setting(host, "device-plugin", BY.format("envvar")))
    line, accept = shlex.quote(BY.format("volume-mounts")), setting(host, "requests", ACCEPT).removeprefix("set ")
    return f"set {line} under [device-plugin] and {accept}; then {then(REFRESH, plugin_again(host))}"


def _kubelet(host: Host) -> tuple[int, ...]:
    """Ask the system's kubelet, or k3s, for its version; () if there is none. The running one is not executed."""
    program = host.program("kubelet", "k3s", "rke2")
    answer = ask.program([program, "--version"]) if program else None
    match = re.search(r"\bv(\d{1,3})\.(\d{1,3})\.", answer.out) if answer else None
    return tuple(map(int, match.groups())) if match else ()
