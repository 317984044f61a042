"""The program of the children that watch GPUs: it asks NVML, which may hang or crash, and prints what it learns.

A line of JSON each (child.py reads them; health.py judges):
    {"asks": UUID}                                       before calls that may hang
    {"alive": 1}                                         it still runs; nothing is being asked
    {"failed": why}                                      its last line
  mode events, which sleeps in the driver until there is one:
    {"watching": [UUID], "unwatched": {UUID: why}, "unsupported": [UUID]}   when it changes
    {"xid": 79, "gpu": UUID or null, "gi": 1 or null, "ci": 0 or null}
    {"ecc": true, ...}                                   an error of two bits; the rest as of an XID
  mode polls, every POLL seconds:
    {"poll": {UUID: {"lost", "recovery", "rows", "mig", "error"}}, "gpus": [UUID], "migs": [UUID] or null}
"gpus" are those that the kernel lists: an unknown one by its PCI address. "migs" is null if a GPU did not tell them.

A GPU is looked up by its PCI address: by its UUID, NVML looks at other GPUs too, of which one may hang. Functions
that the driver does not have are no error. Budget: 16 MiB, and 0.2 % of a core.
Out of scope: whether what it learns matters.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from gpushim.inventory import procfs, rooted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpushim.model import Snapshot

EVENTS, POLLS = "events", "polls"
SILENCE = {EVENTS: 10.0, POLLS: 6.0}  # seconds after which each hangs, if it prints nothing
WAIT_MS = 5000  # in the driver for an event
POLL = 3.0  # seconds
AGAIN = {EVENTS: 60.0, POLLS: 15.0}  # seconds after which a GPU that hung is asked again, and NVML opened anew
RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
XID, DOUBLE_BIT_ECC = 0x8, 0x2  # nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError
NO_INSTANCE = 0xFFFFFFFF
TEXT_LIMIT = 200  # characters of an error
HUNG = "its calls hang"
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # prctl(2)
_CALL = "import sys; sys.path[:] = sys.argv[1].split(':'); from MODULE import main; main(*sys.argv[2:])"


def command(mode: str, snapshot: Snapshot, proc: str, suspects: Collection[str]) -> list[str]:
    """Return the command line of a child.

    Args:
        mode: EVENTS or POLLS.
        snapshot: what the host has; GPUs whose UUID it does not tell are not watched.
        proc: stamp.proc_dir.
        suspects: UUIDs of GPUs whose calls hung.
    """
    gpus = [[gpu["uuid"], gpu["pci"], gpu["uuid"] in suspects] for gpu in snapshot["gpus"] if gpu["uuid"]]
    return program("gpuplugin.watching", mode, library(snapshot), proc, json.dumps(gpus))


def program(module: str, *words: str) -> list[str]:
    """Return a command line that calls a module's `main`: this Python, and the code that this process has."""
    places = ":".join(path for path in sys.path if path.startswith("/"))
    call = _CALL.replace("MODULE", module)
    return [sys.executable or "/usr/bin/python3", "-ISB", "-c", call, places, *words]


def library(snapshot: Snapshot) -> str:
    """Return the path of a host's NVML, or the name by which the loader may find it, as that of a pod does."""
    paths = [file["path"] for file in snapshot["files"].get("utility", ()) if _is_nvml(file["path"])]
    path = rooted.inside(snapshot["inputs"]["root"], paths[0]) if paths else ""
    return path if os.path.exists(path) else "libnvidia-ml.so.1"


def _is_nvml(path: str) -> bool:
    return path.rpartition("/")[2].startswith("libnvidia-ml.so.")


def main(mode: str, library: str, proc: str, gpus: str) -> None:
    """Watch until the parent is gone or NVML fails."""
    from gpushim.inventory import nvml as nvml_session  # not with `command`, which the plugin's own process calls

    belong(mode)
    known = [Gpu(uuid, pci, time.monotonic() + AGAIN[mode] if hung else 0.0) for uuid, pci, hung in json.loads(gpus)]
    try:
        while True:
            tell(asks="")
            with nvml_session.session(library, lambda what: None) as nvml:
                watch = Events(nvml, known) if mode == EVENTS else Polls(nvml, known, proc)
                watch.watch()
    except nvml_session.UnusableError as error:
        tell(failed=str(error))
    except BrokenPipeError:
        pass
    except Exception as error:  # noqa: BLE001 - said, and tried again by the parent
        tell(failed=f"{type(error).__name__}: {error}")
    os._exit(1)  # without a shutdown, which may hang; the kernel lets go of the GPUs


def belong(name: str) -> None:
    """Have this process end with its parent, and named by what it does."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NAME, f"gpushim-{name}".encode())


def tell(**line: Any) -> None:
    """Print a line; BrokenPipeError if nobody reads any more."""
    os.write(1, json.dumps(line, separators=(",", ":")).encode() + b"\n")


class Gpu:
    """One GPU to watch: its UUID, its PCI address, and when it may be asked first (time.monotonic)."""

    def __init__(self, uuid: str, pci: str, since: float) -> None:
        self.uuid, self.pci, self._since = uuid, pci, since

    @property
    def hung(self) -> bool:
        """Say whether it is too early to ask it."""
        return time.monotonic() < self._since

    def handle(self, nvml: Any) -> Any:
        """Look it up; NVMLError if it does not answer or is not there."""
        tell(asks=self.uuid)
        handle = nvml.nvmlDeviceGetHandleByPciBusId(self.pci.encode())
        if nvml.nvmlDeviceGetUUID(handle) != self.uuid:
            raise nvml.NVMLError_NotFound
        return handle


def _unsupported(nvml: Any) -> tuple[type[Exception], ...]:
    return nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound


def _text(nvml: Any, error: Exception) -> str:
    """Say what an error is; nvidia-ml-py calls a reset a restart."""
    return "the GPU must be reset" if isinstance(error, nvml.NVMLError_ResetRequired) else str(error)[:TEXT_LIMIT]


class Events:
    """An event set with all GPUs that can be in it."""

    def __init__(self, nvml: Any, gpus: list[Gpu]) -> None:
        self._nvml, self._gpus = nvml, gpus
        self._uuids: dict[int | None, str] = {}  # by handle
        self._unwatched: dict[str, str] = {}
        self._unsupported: set[str] = set()
        self._said: object = None
        self._set: Any = None

    def watch(self) -> None:
        """Print events, until it is time to open NVML anew for those that cannot be watched; NVMLError otherwise."""
        nvml, until = self._nvml, time.monotonic() + AGAIN[EVENTS]
        self._register()
        while not self._unwatched or time.monotonic() < until:
            tell(alive=1)
            try:
                if self._set is None:
                    time.sleep(WAIT_MS / 1000)
                else:
                    self._print(nvml.nvmlEventSetWait_v2(self._set, WAIT_MS))
            except nvml.NVMLError_Timeout:
                self._register_failed()
            except nvml.NVMLError_GpuIsLost:
                self._anew()

    def _register(self) -> None:
        """Make a set, and put all GPUs into it but those that hung."""
        self._unwatched = {gpu.uuid: HUNG for gpu in self._gpus if gpu.hung}
        self._uuids.clear()
        try:
            self._set = self._nvml.nvmlEventSetCreate()
        except _unsupported(self._nvml):
            self._unsupported = {gpu.uuid for gpu in self._gpus}
        for gpu in self._gpus if self._set is not None else ():
            self._add(gpu)
        self._say()

    def _register_failed(self) -> None:
        for gpu in self._gpus:
            if gpu.uuid in self._unwatched:
                self._add(gpu)
        self._say()

    def _anew(self) -> None:
        """Leave lost GPUs out, for NVML ends every wait while one is in the set."""
        before = dict(self._unwatched)
        self._nvml.nvmlEventSetFree(self._set)
        self._register()
        if self._unwatched == before:  # it does not say which
            time.sleep(1)

    def _add(self, gpu: Gpu) -> None:
        nvml = self._nvml
        if gpu.hung:
            return
        try:
            handle = gpu.handle(nvml)
            wanted = nvml.nvmlDeviceGetSupportedEventTypes(handle) & (XID | DOUBLE_BIT_ECC)
            nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except _unsupported(nvml):
            self._unsupported.add(gpu.uuid)
        except nvml.NVMLError as error:
            self._unwatched[gpu.uuid] = _text(nvml, error)
            return
        else:
            self._uuids[_address(handle)] = gpu.uuid
        self._unwatched.pop(gpu.uuid, None)

    def _say(self) -> None:
        line = {
            "watching": sorted(self._uuids.values()),
            "unwatched": dict(self._unwatched),
            "unsupported": sorted(self._unsupported),
        }
        if line != self._said:
            self._said = line
            tell(**line)

    def _print(self, event: Any) -> None:
        kind = {"xid": event.eventData} if event.eventType & XID else {"ecc": True}
        gi, ci = (None if one == NO_INSTANCE else one for one in (event.gpuInstanceId, event.computeInstanceId))
        tell(**kind, gpu=self._uuids.get(_address(event.device)), gi=gi, ci=ci)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class Polls:
    """What is asked every few seconds."""

    def __init__(self, nvml: Any, gpus: list[Gpu], proc: str) -> None:
        self._nvml, self._gpus, self._proc = nvml, gpus, proc

    def watch(self) -> None:
        """Print what is so, until it is time to open NVML anew, which may know no better of a GPU in trouble."""
        until = time.monotonic() + AGAIN[POLLS]
        while self._round() or time.monotonic() < until:
            time.sleep(POLL)

    def _round(self) -> bool:
        """Ask each GPU but those that hung; returns whether all is well with them."""
        found: dict[str, dict[str, Any]] = {}
        migs: list[str] = []
        listed = self._listed()
        asked = [gpu for gpu in self._gpus if not gpu.hung]
        for gpu in asked:
            found[gpu.uuid], instances = self._ask(gpu)
            migs += instances
        trouble = any(one["lost"] or one["error"] for one in found.values())
        whole = len(asked) == len(self._gpus) and not trouble
        gpus = [gpu.uuid for gpu in self._gpus] if listed is None else listed
        tell(poll=found, gpus=gpus, migs=migs if whole else None)
        return not trouble

    def _ask(self, gpu: Gpu) -> tuple[dict[str, Any], list[str]]:
        nvml, migs = self._nvml, []
        found: dict[str, Any] = {"lost": False, "recovery": None, "rows": None, "mig": None, "error": ""}
        try:
            handle = gpu.handle(nvml)
            with contextlib.suppress(*_unsupported(nvml)):
                found["recovery"] = self._recovery(handle)
            with contextlib.suppress(*_unsupported(nvml)):
                found["rows"] = [*nvml.nvmlDeviceGetRemappedRows(handle)[2:]]
            with contextlib.suppress(*_unsupported(nvml)):
                found["mig"] = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
            migs = [*self._migs(handle)] if found["mig"] else []
        except nvml.NVMLError as error:
            found["lost"] = isinstance(error, (nvml.NVMLError_GpuIsLost, nvml.NVMLError_NotFound))
            found["error"] = _text(nvml, error)
        return found, migs

    def _recovery(self, handle: Any) -> int | None:
        (value,) = self._nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])
        return int(value.value.uiVal) if value.nvmlReturn == self._nvml.NVML_SUCCESS else None

    def _migs(self, handle: Any) -> Iterator[str]:
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                yield nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))

    def _listed(self) -> list[str] | None:
        """Return the GPUs that the kernel lists; None where it has no list, as in WSL2."""
        try:
            names = sorted(os.listdir(f"{self._proc}/driver/nvidia/gpus"))
        except OSError:
            return None
        uuids = {gpu.pci: gpu.uuid for gpu in self._gpus}
        addresses = [procfs.pci_address(name) for name in names]  # with four digits of domain there, eight here
        return [uuids.get(address, address) for address in addresses]
