"""A group that a supervisor serves: GPUs that share one MPS daemon, or one time slice, with their limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MpsGpu:
    """A GPU of a group, or a MIG instance: its UUID, its index, and its memory in MiB, 0 if that is not known."""

    uuid: str
    index: int
    memory: int


@dataclass(frozen=True)
class MpsGroup:
    """An MPS group as its daemon serves it.

    Attributes:
        name: of its directory and its unit.
        gpus: in the order of indices.
        memory: MiB that a client process may have of each GPU at most; None if it is not known how much a GPU has.
        threads: percent of a GPU's threads that a client process may use at most.
        multi_user: one server for clients of all users.
        each: MiB of each GPU, None for no limit, where they differ; else it is empty, and `memory` counts.
        interval: of time slices, 1 to 3, for a group that has these and no daemon; else 0.
    """

    name: str
    gpus: tuple[MpsGpu, ...]
    memory: int | None
    threads: int
    multi_user: bool
    each: tuple[int | None, ...] = ()
    interval: int = 0

    @property
    def limits(self) -> tuple[int | None, ...]:
        """Return the MiB that a client process may have of each GPU, in their order."""
        return self.each or (self.memory,) * len(self.gpus)

    @property
    def exclusive(self) -> list[str]:
        """Return UUIDs of the GPUs that its daemon alone may use; NVML has no compute mode of MIG instances."""
        return [] if self.interval else [gpu.uuid for gpu in self.gpus if not gpu.uuid.startswith("MIG-")]
