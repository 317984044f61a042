"""A simulated GPU host: driver files, device nodes and an NVML, for tests and for a first look without a GPU.

It looks like a Debian machine with NVIDIA's driver to whoever reads its files or loads its libraries. Out of
scope: computing anything.
"""

from __future__ import annotations

from fakehost.gpus import Gpu, Mig, ci_cap, gi_cap
from fakehost.host import Host, build

__all__ = ["Gpu", "Host", "Mig", "build", "ci_cap", "gi_cap"]
