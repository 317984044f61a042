"""Checks of gpushim's DRA driver, of the devices of claims, and of engines that give those to containers."""

from __future__ import annotations

import json
import os
import shlex
import socket
from typing import TYPE_CHECKING, Any

from gpushim import __version__
from gpushim.config.kubeconfig import Kubeconfig
from gpushim.containers import kubelet
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.doctor import (
    OK,
    REFRESH,
    broken,
    check_containerd,
    check_crio,
    corrected,
    listing,
    ok,
    pods,
    skipped,
    some,
    warning,
)
from gpushim.doctor.check_driver import inside
from gpushim.doctor.check_kubelet import again, setting
from gpushim.engines.processes import ask
from gpushim.ground.errors import GpushimError, quote, visible
from gpushim.inventory import ensure
from gpushim.refresh import plugin_socket

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpushim.doctor import Finding, Host

SECONDS = 5.0  # for the driver's answer
UNIT, HALF = "gpushim-device-plugin", "gpushim-dra-driver-cluster"  # the half at the API server
FRONTS = 'fronts = ["device-plugin", "dra"]'
POD_AGAIN = "delete the DRA driver's pod on this node with kubectl: its daemon set makes another"
ANOTHER = f"another driver named {OWN_DRIVER} runs on this node"
REMOVE = (
    "remove one of them from this node: uninstall NVIDIA's chart with helm, or set dra.enabled=false in gpushim's"
)
GONE = "delete its pods with kubectl, and the claim if it was not made for one of them: the next get another device"
NEWER = "upgrade containerd to 2.0 or newer, which does CDI by itself"


def driver(host: Host) -> Iterator[Finding]:
    """Check that gpushim's DRA driver works, if claims have GPUs by it."""
    if not os.path.isdir(host.kubelet):
        return
    yield from _kubeconfig(host)
    if runs(host):
        yield from _ask_driver(host)
        return
    try:
        names = sorted({_name(claim) for claim in _own_claims(host)})
    except ValueError:  # of which `claims` tells
        names = []
    if socket_path := _listening_socket(host, is_ours=False):
        yield skipped(f"a driver named {OWN_DRIVER} that is not gpushim's listens at {socket_path}")
    elif names:
        evidence = f"claims have GPUs here, such as {names[0]}, and no gpushim-dra-driver runs: kubelet cannot end "
        yield broken(f"{evidence}their pods", _start_fix(host))
    else:
        yield skipped("no gpushim-dra-driver gives out GPUs by claim here")


def _kubeconfig(host: Host) -> Iterator[Finding]:
    """Check the kubeconfig of a package's driver, whether that runs or not; a pod's has another.

    Raises:
        PermissionError: an ordinary user may not read it, or a file that it names, as the driver may.
    """
    path = str(host.settings["device-plugin"]["kubeconfig"]) if host.unit(f"{UNIT}.service") else ""
    try:
        Kubeconfig().look(path)
    except GpushimError as error:
        if isinstance(error.__cause__, PermissionError) and os.geteuid():
            raise error.__cause__ from None
        fix = f"{corrected(path)}, or name another under [device-plugin] in {shlex.quote(host.config)}"
        yield broken(f"gpushim-dra-driver cannot ask the API server: {visible(str(error))}", fix)


def runs(host: Host) -> bool:
    """Return whether gpushim's DRA driver listens for kubelet, or runs beside another of its name."""
    return bool(_listening_socket(host, is_ours=True)) or "dra" in plugin_socket.status(host.state, SECONDS)


def _listening_socket(host: Host, is_ours: bool) -> str:
    """Return a socket at which gpushim's driver listens, or another of its name; "" if none does."""
    paths = listing(f"{host.kubelet}/plugins/{OWN_DRIVER}")
    sockets = (path for path in paths if os.path.basename(path).startswith("gpushim-") == is_ours)
    return next((path for path in sockets if ask.listens(path)), "")


def _start_fix(host: Host) -> str:
    if not host.unit(f"{UNIT}.service"):
        return pods("device-plugin")
    if "dra" not in host.settings["device-plugin"]["fronts"]:
        return f"{setting(host, 'device-plugin', FRONTS)}; then systemctl restart {UNIT}"
    return f"see with `journalctl -u {UNIT}` why it does not run; then systemctl restart {UNIT}"


def _restart_fix(host: Host) -> str:
    return f"systemctl restart {UNIT}" if host.unit(f"{UNIT}.service") else POD_AGAIN


def _ask_driver(host: Host) -> Iterator[Finding]:
    path = f"{host.state}/{plugin_socket.SOCKET}"
    try:
        whole = json.loads(plugin_socket.exchange(host.state, plugin_socket.STATUS, SECONDS))
        answer = {**whole["dra"], "version": whole["version"], "released": whole["released"]}
        number, published = int(answer["devices"]), dict(answer["published"])
    except PermissionError:
        raise
    except socket.timeout:
        yield warning(f"gpushim-dra-driver does not answer at {path} within {SECONDS:g} s", _restart_fix(host))
        return
    except OSError as error:
        reason = error.strerror or error
        yield warning(f"gpushim-dra-driver runs, and cannot be asked at {path}: {reason}", _restart_fix(host))
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        yield warning(f"what gpushim-dra-driver answers at {path} is not understood", _restart_fix(host))
        return
    findings = [*_check_answer(host, answer, published)]
    yield from findings
    if not findings:
        suffix = ", beside gpushim-device-plugin" if "device-plugin" in whole.get("fronts", ()) else ""
        yield ok(f"kubelet has gpushim-dra-driver{suffix}, and {number} devices are offered to claims")


def _check_answer(host: Host, answer: dict[str, Any], published: dict[str, Any]) -> Iterator[Finding]:
    version, problem = str(answer.get("version")), str(answer.get("problem") or "")
    if version != __version__:
        evidence = f"the gpushim-dra-driver that runs is version {quote(version)}, and this is {__version__}"
        yield warning(evidence, _restart_fix(host))
    if answer.get("rival"):
        path = quote(str(answer["rival"]))
        yield broken(f"{ANOTHER}, at {path}, so gpushim-dra-driver gives out none", REMOVE)
    elif not answer.get("registered") and not _kubelet(host):
        yield skipped("gpushim-dra-driver waits for kubelet, which does not listen")
    elif not answer.get("registered"):
        reason = f": {visible(str(answer['refused']))}" if answer.get("refused") else ""
        yield broken(f"kubelet has not registered gpushim-dra-driver{reason}", _restart_fix(host))
    elif answer.get("publishes") and (published.get("problem") or not published.get("generation")):
        reason = visible(str(published.get("problem") or "its container cluster does not say that they are"))
        yield broken(f"the ResourceSlices of this node are not published: {reason}", _log_fix(host))
    if answer.get("released"):
        yield warning("gpushim-dra-driver has released the GPUs", "gpushim device-plugin take")
    elif problem:
        yield broken(f"gpushim-dra-driver gives nothing out: {visible(problem)}", REFRESH)
    elif answer.get("lacks"):
        yield broken(visible(str(answer["lacks"])), _spec_fix(host))
    elif answer.get("unhealthy"):
        yield _unhealthy(host, answer["unhealthy"], answer["devices"])


def _kubelet(host: Host) -> bool:
    return ask.listens(f"{kubelet.plugins(host.kubelet, host.top)}/{kubelet.KUBELET_SOCKET}")


def _unhealthy(host: Host, rows: Sequence[Mapping[str, Any]], number: int) -> Finding:
    device = {key: visible(str(rows[0].get(key, ""))) for key in ("uuid", "gpu", "why", "cure", "until")}
    evidence = f"{len(rows)} of {number} devices for claims are unhealthy, such as {device['uuid']}: {device['why']}"
    gpu = shlex.quote(device["gpu"])
    reset = inside(host, f"nvidia-smi --gpu-reset -i {gpu}")
    fixes = {
        "exchange": f"exchange {gpu} (RMA)",
        "nvml": "do what nvml says, or reboot where that is ok",
        "end": f"end what uses {gpu} together with other GPUs",
        "reset": f"reboot, or end what uses {gpu}; then gpushim device-plugin release && {reset}; "
        "gpushim device-plugin take",
        "wait": f"wait until it is over, {device['until']}",
    }
    return warning(evidence, fixes.get(device["cure"], "reboot"))


def _spec_fix(host: Host) -> str:
    cdi = host.settings["cdi"]
    lines = ["write-spec = true"] * (not cdi["write-spec"])
    if "uuid" not in cdi["device-names"]:
        lines.append(f"device-names = {json.dumps([*cdi['device-names'], 'uuid'])}")
    return "; then ".join([*(setting(host, "cdi", line) for line in lines), REFRESH])


def _log_fix(host: Host) -> str:
    """Return where the log of the half that asks the API server is."""
    if host.unit(f"{UNIT}.service"):
        return f"see with `journalctl -u {UNIT} -u {HALF}` why, and mend that; then systemctl restart {UNIT}"
    return f"see in the log of its pod's container cluster why, and mend that; then {POD_AGAIN}"


def claims(host: Host) -> Iterator[Finding]:
    """Check that the GPUs of claims in kubelet's checkpoint still exist."""
    path = f"{host.kubelet}/{kubelet.CLAIMS}"
    if not os.path.isdir(host.kubelet):
        return
    inventory, stale = ensure.last(host.config, host.state)
    try:
        own_claims = _own_claims(host)
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        evidence = (
            f"{path} cannot be used: {reason}; a kubelet that starts with it does not know which claims pods have"
        )
        fix = f"drain this node with kubectl; then rm -f {shlex.quote(path)} && {again(host, 'restart')}"
        yield warning(evidence, fix)
        return
    if not own_claims:
        yield skipped(f"no pod here has a claim of {OWN_DRIVER}")
        return
    if stale == "policy" or inventory["platform"] != "native":
        yield skipped(f"there is no snapshot of GPUs to hold {path} against")
        return
    uuids = {claim["uuid"] for claim in (*inventory["gpus"], *inventory["mig"])}
    lost = {_name(claim): uuid for claim in own_claims for uuid in _uuids(claim) if uuid not in uuids}
    for name, uuid in lost.items():
        evidence = f"the claim {name} has {quote(uuid)}, which this host does not have any more"
        yield warning(evidence, GONE)
    if not lost:
        yield ok(f"what the claims of {OWN_DRIVER} here have is there: {some(sorted({*map(_name, own_claims)}))}")


def _own_claims(host: Host) -> list[kubelet.Claim]:
    return [claim for claim in kubelet.claims(host.kubelet) if claim.driver == OWN_DRIVER]


def _name(claim: kubelet.Claim) -> str:
    return quote(f"{claim.namespace}/{claim.name}")


def _uuids(claim: kubelet.Claim) -> list[str]:
    """List the UUIDs in a claim's CDI names of gpushim's driver; NVIDIA's has none."""
    names = (name.partition("=")[2] for name in claim.cdi)
    return [name for name in names if name.startswith(("GPU-", "MIG-"))]


def engines(host: Host) -> Iterator[Finding]:
    """Check that engines inject CDI devices, which claims need."""
    if not os.path.isdir(host.kubelet):
        return
    if not runs(host):
        yield skipped("no gpushim-dra-driver gives out GPUs by claim here")
        return
    failures = [*without_cdi(host)]
    for engine, finding in failures:
        evidence = f"{engine} does not serve claims, so their containers start without a GPU: {finding.evidence}"
        yield broken(evidence, finding.fix or NEWER)
    if not failures:
        yield ok("the engine injects what claims give to containers")


def without_cdi(host: Host) -> Iterator[tuple[str, Finding]]:
    """List engines for pods that inject no CDI devices, with the finding of their own check."""
    for engine, check in (("containerd", check_containerd.devices), ("CRI-O", check_crio.devices)):
        yield from ((engine, finding) for finding in check(host) if finding.verdict != OK)


CHECKS = {"kubernetes-dra-driver": driver, "kubernetes-claims": claims, "kubernetes-dra-engine": engines}
