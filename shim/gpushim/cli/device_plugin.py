"""`gpushim device-plugin`: ask the device plugin of this node, which may be absent, by its socket."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import click

from gpushim.cli import show
from gpushim.containers import holders
from gpushim.decision.decide import hook_program
from gpushim.ground import system
from gpushim.ground.errors import FAILED, GpushimError, quote
from gpushim.inventory import ensure
from gpushim.refresh import plugin_socket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

PLUGIN, DRIVER = "gpushim-device-plugin", "gpushim-dra-driver"
CLAIMS = "dra"  # the front, of the answer's fronts
DEADLINE = 40.0  # seconds; letting go may take 20
DEVICES = ("RESOURCE", "INDEX", "DEVICE", "REPLICAS", "HELD", "HEALTH", "SINCE", "BECAUSE")
PODS = ("NAMESPACE", "POD", "CONTAINER", "RESOURCE", "DEVICES")
CONTAINERS = ("CONTAINER", "NAME", "ENGINE", "PID", "DEVICES")
LAST = ("ALLOCATED", "RESOURCE", "DEVICES")
SHOWN = 4  # device ids of a cell

_FORM = show.format_option("table", "json")


def become(*words: str, program: str = "gpushim-device-plugin") -> NoReturn:
    """Execute a program of the plugin's, which imports gpushim, and never the reverse.

    Raises:
        GpushimError: it is not there.
    """
    program = f"{os.path.dirname(hook_program())}/{program}"
    try:
        os.execv(program, [program, *words])  # noqa: S606 - no shell is meant
    except OSError as error:
        raise GpushimError(
            f"{program} cannot be executed: {error.strerror}; install gpushim-device-plugin, which answers kubelet"
        ) from None


@click.group("device-plugin", cls=show.Commands)
def device_plugin() -> None:
    """Ask this node's gpushim-device-plugin, and release GPUs."""


@device_plugin.command()
@_FORM
def status(form: str) -> None:
    """Show the devices that kubelet has, why devices are unhealthy and since when, and who has what.

    Pods are those that kubelet tells; containers are those of `gpushim ps`, whoever made them.
    """
    answer = _ask("status")
    if answer.get("fronts") == [CLAIMS]:
        raise GpushimError(
            f"no {PLUGIN} runs here: {DRIVER} gives out the GPUs of this node by claims; see gpushim ps and {DRIVER} "
            "--check",
            FAILED,
        )
    answer["containers"] = _containers(answer["notes"])
    if form == "json":
        show.emit("json", answer)
        return
    for note in [*_states(answer), *answer["notes"]]:
        show.say(note, first="note: ", error=True)
    if not answer["resources"]:
        suffix = f" in {answer['kubelet_dir']}" if answer.get("kubelet_dir") else ""
        show.say(f"nothing is registered at kubelet{suffix}")
    for head, rows in (
        (DEVICES, [*_device_rows(answer["resources"])]),
        (PODS, [*_pod_rows(answer["pods"] or []), *_claim_rows(answer.get("claims", []))]),
        (CONTAINERS, [*_holder_rows(answer["containers"])]),
        (LAST, [*_last_rows(answer["resources"])]),
    ):
        if rows:
            show.table(head, rows)
            click.echo()


@device_plugin.command()
@_FORM
def release(form: str) -> None:
    """Release all GPUs, so that they can be reset or divided, or the driver be unloaded.

    Devices are unhealthy for kubelet until `gpushim device-plugin take`, or until the driver was away and is back.
    Pods keep what they have: those that still hold a GPU are named.
    """
    answer = _ask("release")
    if form == "json":
        show.emit("json", answer)
        return
    show.say("all GPUs are released; gpushim device-plugin take ends that")
    rows = [*_pod_rows(answer["pods"] or []), *_claim_rows(answer.get("claims", []))]
    if answer["pods"] is None:
        show.say("kubelet does not report which pods hold GPUs", first="note: ", error=True)
    elif rows:
        show.say("These pods still hold GPUs:")
        show.table(PODS, rows)


@device_plugin.command()
@_FORM
def take(form: str) -> None:
    """Take the GPUs again after `release`."""
    answer = _ask("take")
    if form == "json":
        show.emit("json", answer)
    else:
        show.say("the GPUs are given out again")


def _ask(do: str) -> dict[str, Any]:
    """Send a request to the plugin.

    Raises:
        GpushimError: it is not there, or refuses.
    """
    path = f"{system.state_dir()}/{plugin_socket.SOCKET}"
    try:
        data = plugin_socket.exchange(system.state_dir(), json.dumps({"do": do}).encode() + b"\n", DEADLINE)
        answer = json.loads(data)
    except PermissionError:
        raise GpushimError(f"{path} is root's; run this as root", FAILED) from None
    except (FileNotFoundError, NotADirectoryError, ConnectionError):
        raise GpushimError(
            f"no {PLUGIN} listens at {path}; start it, as root: systemctl start {PLUGIN}, "
            "or see with kubectl why its pod on this node does not run",
            FAILED,
        ) from None
    except socket.timeout:
        raise GpushimError(f"{PLUGIN} does not answer within {DEADLINE:g} s; its log says why", FAILED) from None
    except OSError as error:
        raise GpushimError(f"{path} cannot be asked: {error.strerror or error}", FAILED) from None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise GpushimError(f"what listens at {path} is not {PLUGIN}: {quote(str(data[:80]))}", FAILED)
    if "error" in answer:
        raise GpushimError(str(answer["error"]), FAILED)
    return answer


def _states(answer: dict[str, Any]) -> Iterator[str]:
    if answer["released"]:
        closed = "" if answer["closed"] else ", though not all handles are closed yet"
        since = f"the GPUs have been released since {_when(answer['released'])}{closed}"
        yield f"{since}; gpushim device-plugin take ends that"
    if answer["problem"] and not any(answer["problem"] in note for note in answer["notes"]):
        yield answer["problem"]
    if answer["pods"] is None:
        yield "kubelet does not report which pods hold GPUs"


def _containers(notes: list[str]) -> list[dict[str, Any]]:
    """List containers that have a GPU, without asking NVML: the GPUs may be released."""
    snapshot, stale = ensure.last(system.config_path(), system.state_dir())
    if stale == "policy":
        return []
    rows, holder_notes = holders.holders(snapshot)
    notes += holder_notes
    return rows


def _device_rows(resources: list[dict[str, Any]]) -> Iterator[list[object]]:
    for resource in resources:
        for device in resource["devices"]:
            since = min((reason["since"] for reason in device["reasons"]), default=device.get("since"))
            health = "healthy" if device["healthy"] else "unhealthy"
            first = [resource["name"], device["index"], device["uuid"], device["replicas"], device["held"]]
            yield [*first, health, since and _when(since), device["problem"]]


def _pod_rows(pods: list[dict[str, Any]]) -> Iterator[list[object]]:
    for pod in pods:
        yield [pod["namespace"], pod["pod"], pod["container"], pod["resource"], _ids(pod["devices"])]


def _claim_rows(claims: list[dict[str, Any]]) -> Iterator[list[object]]:
    for claim in claims:
        yield [
            claim["namespace"],
            claim["pod"],
            claim["container"],
            f"claim {claim['name']} of {claim['driver']}",
            claim["device"],
        ]


def _holder_rows(containers: list[dict[str, Any]]) -> Iterator[list[object]]:
    for holder in containers:
        yield [
            holder["id"][:12],
            holders.called(holder),
            holder["engine"],
            holder["pid"],
            ",".join(holder["devices"]),
        ]


def _last_rows(resources: list[dict[str, Any]]) -> Iterator[list[object]]:
    for resource in resources:
        for allocation in resource["allocated"][:1]:
            yield [_when(allocation["at"]), resource["name"], _ids(allocation["devices"])]


def _ids(ids: list[str]) -> str:
    return ",".join(ids[:SHOWN]) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
