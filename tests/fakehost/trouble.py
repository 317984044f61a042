"""What goes wrong with GPUs while processes have NVML open: see nvml_live.c and nvml_events.c.

GPUs are told by their index on the host. Out of scope: what NVML does from its next start on (`Host.behave`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from fakehost.gpus import Gpu

XID, DOUBLE_BIT_ECC = 0x8, 0x2  # nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError
GPU_IS_LOST, NOT_SUPPORTED = 15, 3


class Trouble:
    """The part of a host that is in trouble; each call is noticed at once by whoever has NVML open."""

    root: str
    gpus: list[Gpu]
    troubles: dict[str, str]  # by what a line is about: "lost = UUID", "lacks = FUNCTION"; its value

    def xid(self, gpu: int, code: int, gi: Optional[int] = None, ci: Optional[int] = None) -> None:
        """Let the driver report an XID, of a GPU or of one of its GPU instances and compute instances."""
        self._event(gpu, XID, code, gi, ci)

    def ecc(self, gpu: int, gi: Optional[int] = None, ci: Optional[int] = None) -> None:
        """Let the driver report a double-bit ECC error."""
        self._event(gpu, DOUBLE_BIT_ECC, 0, gi, ci)

    def recovery(self, gpu: int, action: int) -> None:
        """Set the recovery action (field 230); drivers before 570 know it from then on too."""
        self._set(gpu, "recovery", str(action))

    def rows(self, gpu: int, pending: int = 0, failed: int = 0) -> None:
        """Set whether remapped rows wait for a reset, and whether remapping has failed."""
        self._set(gpu, "rows", f"{pending} {failed}")

    def fabric_state(self, gpu: int, state: int, status: int = 0) -> None:
        """Set how far the NVLink fabric is: 1 not begun, 2 being made, 3 made, or failed with a status; 0: none."""
        self._set(gpu, "fabric_state", f"{state} {status}")

    def lose(self, gpu: int, code: int = GPU_IS_LOST) -> None:
        """Let every call on a GPU answer an error, such as 15 (lost) or 16 (reset required)."""
        self._set(gpu, "lost", str(code))

    def find(self, gpu: int) -> None:
        """Take `lose` back."""
        self._set(gpu, "lost", None)

    def hang(self, gpu: Optional[int]) -> None:
        """Let every call on a GPU hang; None lets all go on that hang."""
        for about in [about for about in self.troubles if about.startswith("hang_gpu = ")]:
            del self.troubles[about]
        if gpu is None:
            self._write_conf()
        else:
            self._set(gpu, "hang_gpu", "1")

    def refuse_reset(self, gpu: int) -> None:
        """Let NVML be unable to reset a GPU, as one that is passed through: a change of Ampere's MIG mode waits."""
        self._set(gpu, "no_reset", "1")

    def refuse_events(self, gpu: int, code: int) -> None:
        """Answer an error to who registers for a GPU's events; 0 for none."""
        self._set(gpu, "no_events", str(code))

    def lack(self, *functions: str, code: int = NOT_SUPPORTED) -> None:
        """Let exactly these functions about health answer an error, as an old driver does; none for all well."""
        self.troubles = {about: value for about, value in self.troubles.items() if not about.startswith("lacks = ")}
        self.troubles.update({f"lacks = {function}": str(code) for function in functions})
        self._write_conf()

    def figure(self, gpu: int, gi: Optional[int] = None, **values: Optional[int]) -> None:
        """Set figures as NVML has them (mW, bytes) of a GPU, or a GPU instance of it; None takes one back.

        Their names are those in nvml_figures.c.
        """
        instance = "" if gi is None else f"@{gi}"
        for name, value in values.items():
            about = f"figure {name}{instance} = {self.gpus[gpu].uuid}"
            self.troubles.pop(about, None)
            if value is not None:
                self.troubles[about] = str(value)
        self._write_conf()

    def _set(self, gpu: int, what: str, value: Optional[str]) -> None:
        """Set or take back something of a GPU, by its UUID: an index may be another's after the next change."""
        about = f"{what} = {self.gpus[gpu].uuid}"
        if value is None:
            self.troubles.pop(about, None)
        else:
            self.troubles[about] = value
        self._write_conf()

    def _lines(self) -> list[str]:
        """Return the lines of fakehost.conf, which knows GPUs by index; those that are gone have no more trouble."""
        places = {gpu.uuid: str(gpu.index) for gpu in self.gpus}
        told = [(*about.split(" = "), value) for about, value in self.troubles.items()]
        return [f"{what} = {places.get(who, who)} {value}" for what, who, value in told if not self._gone(who)]

    def _gone(self, who: str) -> bool:
        return who.startswith("GPU-") and who not in {gpu.uuid for gpu in self.gpus}

    def _event(self, gpu: int, kind: int, code: int, gi: Optional[int], ci: Optional[int]) -> None:
        instance, compute = (-1 if number is None else number for number in (gi, ci))
        line = f"gpu={self.gpus[gpu].uuid} type={kind:x} data={code} gi={instance} ci={compute}\n"
        fd = os.open(f"{self.root}/etc/fakehost.events", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, line.encode())  # in one: a reader never sees half
        finally:
            os.close(fd)

    def _write_conf(self) -> None:
        raise NotImplementedError
