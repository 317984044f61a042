"""Run the node's gpushim to configure its container engine, restart it if needed, and verify its settings.

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


def find_running() -> str:
    """Return the name of the engine that runs for kubelet on this node.

    Raises:
        GpushimError: no engine runs, or several do.
    """
    names = {CRI[engine.name] for engine in _list_engines()}
    if len(names) == 1:
        return names.pop()
    problem = "containerd and CRI-O both run" if names else "neither containerd nor CRI-O runs"
    raise GpushimError(f"{problem} on this node; choose one with --engine, or none")


def _list_engines() -> list[running.Engine]:
    engines = running.find()
    dockers = {engine.pid for engine in engines if engine.name == "dockerd"}
    return [engine for engine in engines if engine.name in CRI and engine.parent not in dockers]


def _explain_no_restart(words: list[str]) -> list[str]:
    """Return a sentence if an engine cannot be restarted by systemd, or does not run and is being removed."""
    name = words[0]
    engine = next((candidate for candidate in _list_engines() if CRI[candidate.name] == name), None)
    unit = table.ENGINES[name].unit
    if engine is None and REMOVE in words:
        return [f"{name} does not run here, so it is not restarted"]
    if units.systemctl("restart", unit, engine):
        return []
    return [f"systemd does not run {name} here, so do this on the node: {units.fix('restart', unit, engine)}"]


def check_settings(words: list[str]) -> None:
    """Raise if gpushim would refuse to configure an engine; nothing is changed.

    Raises:
        GpushimError: gpushim refuses.
    """
    _run_configure([*words, "--dry-run"], SECONDS)


def configure(words: list[str], restart: bool) -> list[str]:
    """Configure an engine, or remove its settings.

    Args:
        words: the engine, and options of `gpushim configure`.
        restart: restart the engine if its settings have changed or are not loaded, and systemd runs it: a process
            that an init script starts here would end with this pod.

    Returns:
        names of gpushim's runtimes that should have been removed, but that containers need.

    Raises:
        GpushimError: gpushim refuses, or the engine has not loaded the settings although it was restarted, which is
            done once for the same words.
    """
    report = json.loads(_run_configure(words, SECONDS).out)
    for change in report["changes"]:
        say(f"gpushim-node: {change['done']} {change['path']}")
    remaining_runtimes = report.get("stays", {})  # earlier builds of gpushim do not report it
    for sentence in remaining_runtimes.values():
        say(f"gpushim-node: {sentence}")
    by_hand = _explain_no_restart(words) if restart else []
    restart = restart and not by_hand
    verified_words = [word for word in words if word not in _NOT_VERIFIED]
    verification = ask.program([PROGRAM, "configure", *verified_words, "--verify"], SECONDS)
    if not verification.code:
        _forget_restart()
    elif restart and not report["changed"] and _read_tried() == words:
        raise GpushimError(
            f"{words[0]} was restarted once for this and is not restarted again: "
            f"{verification.last.removeprefix('gpushim: ')}; fix that on the node, then restart it by hand"
        )
    if restart and (report["changed"] or verification.code):
        # First: the restart may fail, and this container runs again and again.
        replace(TRIED, json.dumps(words).encode())
        for line in _run_configure([*words, "--restart"], RESTART, "text").out.splitlines():
            say(f"gpushim-node: {line}")
        _forget_restart()
    elif verification.code:
        for note in (report["notes"] or [verification.last]) + by_hand:
            say(f"gpushim-node: note: {note}", error=True)
    return [*remaining_runtimes]


def _read_tried() -> Any:
    """Return the words of the last restart in vain since the node has booted; None if there was none."""
    with contextlib.suppress(ValueError):
        return json.loads(content(TRIED, LIMIT) or b"null")
    return None


def _forget_restart() -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(TRIED)


def refresh() -> None:
    """List the node's GPUs; a node without the driver is no failure."""
    answer = ask.program([PROGRAM, "refresh"], RESTART)
    say(
        f"gpushim-node: gpushim refresh: {answer.last if answer.code else answer.out.strip()}",
        error=bool(answer.code),
    )


def _run_configure(words: list[str], seconds: int, form: str = "json") -> ask.Answer:
    command = " ".join(words)
    answer = ask.program([PROGRAM, "configure", *words, f"--format={form}"], seconds)
    if answer.code:
        reason = answer.last.removeprefix("gpushim: ")
        raise GpushimError(f"gpushim configure {command} failed on the node: {reason}", answer.code)
    if answer.code is None:
        raise GpushimError(f"gpushim configure {command} did not end on the node: {answer.last}")
    return answer


_NOT_VERIFIED = ("--force",)
