"""A simulated GPU host: driver files, device nodes and an NVML, for tests and for a first look without a GPU.

It looks like a Debian machine with NVIDIA's driver, or one of the other kinds in layouts.py, to whoever reads its
files or loads its libraries. Out of scope: computing anything.
"""

from __future__ import annotations

from fakehost import layouts, smallelf
from fakehost.gpus import A30, A100_80, B200, GH200, H100, H200, RTX_PRO_6000, Gpu, Mig, ci_cap, gi_cap
from fakehost.host import Host, build

__all__ = [
    "A30",
    "A100_80",
    "B200",
    "GH200",
    "H100",
    "H200",
    "RTX_PRO_6000",
    "Gpu",
    "Host",
    "Mig",
    "build",
    "ci_cap",
    "gi_cap",
    "layouts",
    "smallelf",
]
