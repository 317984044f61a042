"""XIDs that the kernel's log has, for the time in which nobody listened to NVML's events.

The driver writes each XID into it: "NVRM: Xid (PCI:0000:3b:00): 48, ...". What follows the number, programs of pods
may choose, and programs may write into the log: so only records of the kernel itself count, and only the beginning
of each. Reading it needs CAP_SYSLOG and the device; a pod has neither as a rule.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from gpushim.ground import system
from gpushim.inventory import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuplugin.health.nvml_lines import Since

RECORD = 8192  # bytes, the longest that the kernel hands out; less is refused
LIMIT = 1 << 26  # bytes in one look: the largest log that is usual, twice
SECONDS = 3.0  # for one look: less than the silence after which the child is killed
# A driver that is loaded has none of the troubles of the one before. This is longer than a process's name, with which
# the kernel begins what it says of one that crashes.
LOADED = b"NVRM: loading NVIDIA "
# priority, sequence, microseconds, flags; below 8 the kernel itself speaks (LOG_KERN). A MIG instance may follow the
# address: the XID then counts for the whole GPU, which is never too little.
_XID = re.compile(
    rb"[0-7],\d+,(\d{1,18}),[^;]{0,200};NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
    rb"(?:\.[0-7])?(?: [^()]{0,64})?\): (\d{1,10}),"
)
_LOADED = re.compile(rb"[0-7],\d+,(\d{1,18}),[^;]{0,200};" + LOADED)


def path(proc: str) -> str:
    """Return the log of the host whose driver a /proc shows."""
    return proc.rpartition("/proc")[0] + "/dev/kmsg"


def missed(log: Log, gpus: Iterable[tuple[str, str, Since]]) -> Iterator[dict[str, object]]:
    """Yield the lines, as a child that listens prints them, of XIDs that nobody has heard.

    Args:
        log: is read first.
        gpus: of each the PCI address, the UUID, and which XIDs count.
    """
    by_pci = {pci: (uuid, since) for pci, uuid, since in gpus}
    for (pci, xid), at in log.xids().items():
        uuid, since = by_pci.get(pci, ("", None))
        if since and _counts(at, since, log.loaded):
            yield {"xid": xid, "gpu": uuid, "gi": None, "ci": None, "at": round(min(at, system.clock()), 3)}


def _counts(at: float, since: Since, loaded: float) -> bool:
    """Return whether an XID counts: one from after the driver was loaded does if that load is what bound the GPU."""
    return at >= since.heard and (at >= since.bound or since.heard <= loaded <= since.bound)


class Log:
    """The log, from its oldest record on; each look goes on where the last one ended.

    Attributes:
        loaded: when the driver was loaded last, as xids has times; 0: the log does not have it.
    """

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            self._fd = -1
        self._partial = b""
        self.loaded = 0.0
        self._xids: dict[tuple[str, int], float] = {}

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def xids(self) -> dict[tuple[str, int], float]:
        """Return when each GPU had each XID last, since the driver was loaded.

        Returns:
            by PCI address and XID: seconds since boot, suspends included, and never too early.
        """
        ahead = system.clock() - time.clock_gettime(time.CLOCK_MONOTONIC)  # the log's clock stops in a suspend
        read, end = 0, time.monotonic() + SECONDS
        while self._fd >= 0 and read < LIMIT and time.monotonic() < end:
            try:
                data = os.read(self._fd, RECORD)
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except OSError:  # BlockingIOError: that was all
                break
            if not data:
                break
            read += len(data)
            *lines, self._partial = (self._partial[-RECORD:] + data).split(b"\n")
            for line in lines:
                self._take(line, ahead)
        return self._xids

    def _take(self, line: bytes, ahead: float) -> None:
        if b"NVRM: " not in line:
            return
        if match := _XID.match(line):
            pci = procfs.pci_address(f"{match[2].decode()}.0")
            self._xids[pci, int(match[3])] = int(match[1]) / 1e6 + ahead
        elif match := _LOADED.match(line):
            self._xids.clear()
            self.loaded = int(match[1]) / 1e6 + ahead
