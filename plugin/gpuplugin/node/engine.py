"""Have the node's gpushim configure its container engine, restart it if that is needed, and ask it.

Out of scope: how an engine is configured, restarted and asked (`gpushim configure`).
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from gpushim.cli.show import say
from gpushim.engines.processes import ask, running, table, units
from gpushim.ground.errors import GpushimError
from gpushim.paths.replace import content, replace

PROGRAM = "/usr/bin/gpushim"
SECONDS, RESTART = 60, 300
TRIED = "/run/gpushim-node.restarted"
REMOVE = "--remove"
LIMIT = 1 << 16  # bytes of it
# Names of processes, and the engine whose settings a CRI client's containers get.
CRI = {"crio": "crio", "containerd": "containerd", "k3s": "containerd", "rke2": "containerd"}


def running_one() -> str:
    """Return the engine that runs for kubelet here.

    Raises:
        GpushimError: there is none, or there are several.
    """
    names = {CRI[engine.name] for engine in _engines()}
    if len(names) == 1:
        return names.pop()
    which = "containerd and CRI-O both run" if names else "neither containerd nor CRI-O runs"
    raise GpushimError(f"{which} on this node; choose one with --engine, or none")


def _engines() -> list[running.Engine]:
    found = running.find()
    dockers = {engine.pid for engine in found if engine.name == "dockerd"}
    return [engine for engine in found if engine.name in CRI and engine.parent not in dockers]


def _by_hand(words: list[str]) -> list[str]:
    """Say why an engine is not restarted from here: it is not systemd's, or nothing is to run without gpushim."""
    name = words[0]
    engine, unit = next((each for each in _engines() if CRI[each.name] == name), None), table.ENGINES[name].unit
    if engine is None and REMOVE in words:
        return [f"{name} does not run here, so it is not restarted"]
    if units.systemctl("restart", unit, engine):
        return []
    return [f"systemd does not run {name} here, so do this on the node: {units.fix('restart', unit, engine)}"]


def check(words: list[str]) -> None:
    """Have gpushim say whether it would configure an engine so; nothing is changed.

    Raises:
        GpushimError: it refuses.
    """
    _gpushim([*words, "--dry-run"], SECONDS)


def configure(words: list[str], restart: bool) -> list[str]:
    """Configure an engine, or take that back.

    Args:
        words: the engine, and options of `gpushim configure`.
        restart: restart it, if its settings have changed or it does not know them, and systemd runs it: this process
            is in a pod, with which would end what an init's script starts here.

    Returns:
        names of gpushim's other runtimes, or of all that were to go, that are left because containers need them.

    Raises:
        GpushimError: gpushim refuses, or the engine does not know it although it has been restarted, which is done
            once for what it is configured with.
    """
    report = json.loads(_gpushim(words, SECONDS).out)
    for change in report["changes"]:
        say(f"gpushim-node: {change['done']} {change['path']}")
    stays = report.get("stays", {})  # which a gpushim of an earlier build, that this one takes back, does not tell
    for sentence in stays.values():
        say(f"gpushim-node: {sentence}")
    by_hand = _by_hand(words) if restart else []
    restart = restart and not by_hand
    asking = [word for word in words if word not in _NOT_ASKED]
    known = ask.program([PROGRAM, "configure", *asking, "--verify"], SECONDS)
    if not known.code:
        _forget()
    elif restart and not report["changed"] and _tried() == words:
        raise GpushimError(
            f"{words[0]} was restarted once for this and is not restarted again: "
            f"{known.last.removeprefix('gpushim: ')}; fix that on the node, then restart it by hand"
        )
    if restart and (report["changed"] or known.code):
        replace(TRIED, json.dumps(words).encode())  # first: it may fail, and this container is run again and again
        for line in _gpushim([*words, "--restart"], RESTART, "text").out.splitlines():
            say(f"gpushim-node: {line}")
        _forget()
    elif known.code:
        for note in (report["notes"] or [known.last]) + by_hand:
            say(f"gpushim-node: note: {note}", error=True)
    return [*stays]


def _tried() -> Any:
    """Return with what words an engine was restarted last in vain since the node has booted; None if it was not."""
    with contextlib.suppress(ValueError):
        return json.loads(content(TRIED, LIMIT) or b"null")
    return None


def _forget() -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(TRIED)


def refresh() -> None:
    """Have the GPUs listed; a node without the driver is no failure."""
    answer = ask.program([PROGRAM, "refresh"], RESTART)
    say(
        f"gpushim-node: gpushim refresh: {answer.last if answer.code else answer.out.strip()}",
        error=bool(answer.code),
    )


def _gpushim(words: list[str], seconds: int, form: str = "json") -> ask.Answer:
    shown = " ".join(words)
    answer = ask.program([PROGRAM, "configure", *words, f"--format={form}"], seconds)
    if answer.code:
        reason = answer.last.removeprefix("gpushim: ")
        raise GpushimError(f"gpushim configure {shown} failed on the node: {reason}", answer.code)
    if answer.code is None:
        raise GpushimError(f"gpushim configure {shown} did not end on the node: {answer.last}")
    return answer


_NOT_ASKED = ("--force",)
