"""The program of the children that watch GPUs: it asks NVML, which may hang or crash, and prints what it learns.

Its frame is that of all children of the plugin that ask NVML: what tells one driver from another, and the end.

A line of JSON each (child.py reads them; health.py judges):
    {"asks": UUID}                                       before calls that may hang
    {"alive": 1}                                         it still runs; nothing is being asked
    {"failed": why}                                      its last line
  mode events, which sleeps in the driver until there is one:
    {"watching": [UUID], "unwatched": {UUID: why}, "unsupported": [UUID]}   when it changes
    ... "asked": {UUID: as "poll" has it}}               of those that it has begun to listen to
    {"xid": 79, "gpu": UUID or null, "gi": 1 or null, "ci": 0 or null}
    ... "at": seconds since boot}                        from the kernel's log: nobody listened then
    {"ecc": true, ...}                                   an error of two bits; the rest as of an XID
  mode polls, every few seconds:
    {"poll": {UUID: as nvml_lines.ask has it}, "gpus": [UUID], "migs": [UUID] or null}
"gpus" are those that the kernel lists: an unknown one by its PCI address. "migs" is null if a GPU did not tell them.

A GPU is looked up by its PCI address: by its UUID, NVML looks at other GPUs too, of which one may hang. Functions
that the driver does not have are no error. Budget: 16 MiB, and 0.2 % of a core.
Out of scope: listening to events (event_loop.py), and whether what it learns matters.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.health import event_loop, kmsg, nvml_lines
from gpuplugin.health.nvml_lines import EVENTS, POLLS, Gpu, tell
from gpuplugin.processes import moments
from gpushim.inventory import nvml_program, procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpuplugin.health.nvml_lines import Since
    from gpushim.ground.model import Snapshot

SILENCE = {EVENTS: 10.0, POLLS: 8.0}  # seconds after which each hangs, if it prints nothing
# Seconds after which NVML is opened again while a GPU is in trouble: at the next moment, if opening it took less than
# one; so its return is seen within 10.
REOPEN = moments.EACH - 1.0
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # prctl(2)


def command(
    mode: str, snapshot: Snapshot, proc: str, suspects: Collection[str], heard: Mapping[str, Since] | None = None
) -> list[str]:
    """Return the command line of a child.

    Args:
        mode: EVENTS or POLLS.
        snapshot: what the host has; GPUs whose UUID it does not tell are not watched.
        proc: ensure.proc_dir.
        suspects: UUIDs of GPUs whose calls hung.
        heard: by UUID, until when GPUs were listened to; none of those that never were.
    """
    known = heard or {}
    gpus = [
        [gpu["uuid"], gpu["pci"], gpu["uuid"] in suspects, known.get(gpu["uuid"], nvml_lines.NEVER)]
        for gpu in snapshot["gpus"]
        if gpu["uuid"]
    ]
    words = (mode, nvml_program.library(snapshot), proc, json.dumps(gpus))
    return nvml_program.program("gpuplugin.health.nvml_child", *words)


def opens(snapshot: Snapshot) -> object:
    """Return what children have open, to tell one driver from another; None where there is nothing to ask.

    That is elsewhere than on a plain host, and without a driver. An NVML that is open knows of no other GPUs.
    """
    facts = snapshot["stamp"]
    if snapshot["platform"] != "native" or facts["module"] is None:
        return None
    gpus = [(gpu["uuid"], gpu["pci"]) for gpu in snapshot["gpus"] if gpu["uuid"]]
    return facts["module"], facts["gpus"], snapshot["inputs"]["root"], nvml_program.library(snapshot), gpus


def main(mode: str, library: str, proc: str, gpus: str) -> None:
    """Watch until the parent is gone or NVML fails."""
    watched = [
        Gpu(uuid, pci, time.monotonic() + nvml_lines.AGAIN[mode] if hung else 0.0, nvml_lines.Since(*since))
        for uuid, pci, hung, since in json.loads(gpus)
    ]
    log = kmsg.Log(kmsg.path(proc) if mode == EVENTS else "")

    def watch(nvml: Any) -> None:
        (event_loop.Events(nvml, watched, log) if mode == EVENTS else Polls(nvml, watched, proc)).watch()

    run(mode, library, watch)


def run(name: str, library: str, work: Callable[[Any], object]) -> None:
    """Run as a child: work with an open NVML, again and again, until that or the parent ends it.

    Args:
        library: NVML's.
        work: returns to have NVML opened anew; EOFError is the end.
    """
    from gpushim.inventory import nvml  # not with `command`, which the plugin's own process calls

    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NAME, f"gpushim-{name}".encode())
    try:
        while True:
            tell(asks="")
            with nvml.session(library, lambda step: None) as session:
                work(session)
    except nvml.UnusableError as error:
        tell(failed=str(error))
    except (BrokenPipeError, EOFError):
        pass
    except Exception as error:  # noqa: BLE001 - said, and tried again by the parent
        tell(failed=f"{type(error).__name__}: {error}")
    os._exit(1)  # without a shutdown, which may hang; the kernel lets go of the GPUs


class Polls:
    """The questions of every few seconds."""

    def __init__(self, nvml: Any, gpus: list[Gpu], proc: str) -> None:
        self._nvml, self._gpus, self._proc = nvml, gpus, proc

    def watch(self) -> None:
        """Print the answers, until it is time to open NVML again, which may know no better of a GPU in trouble."""
        end = time.monotonic() + REOPEN
        while self._round() or time.monotonic() < end:
            time.sleep(moments.until())

    def _round(self) -> bool:
        """Ask each GPU but those that hung; return whether all is well with them."""
        answers: dict[str, dict[str, Any]] = {}
        migs: list[str] = []
        listed = self._listed()
        awake = [gpu for gpu in self._gpus if not gpu.hung]
        for gpu in awake:
            answers[gpu.uuid], instances = nvml_lines.ask(self._nvml, gpu)
            migs += instances
        problem = any(answer["lost"] or answer["error"] for answer in answers.values())
        is_complete = len(awake) == len(self._gpus) and not problem
        gpus = [gpu.uuid for gpu in self._gpus] if listed is None else listed
        tell(poll=answers, gpus=gpus, migs=migs if is_complete else None)
        return not problem

    def _listed(self) -> list[str] | None:
        """Return the GPUs that the kernel lists; None where it has no list, as in WSL2."""
        try:
            names = sorted(os.listdir(f"{self._proc}/driver/nvidia/gpus"))
        except OSError:
            return None
        uuids = {gpu.pci: gpu.uuid for gpu in self._gpus}
        addresses = [procfs.pci_address(name) for name in names]  # with four digits of domain there, eight here
        return [uuids.get(address, address) for address in addresses]
