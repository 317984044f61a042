"""Libraries with the note of NVIDIA's cuda-compat packages, made with gcc."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from pathlib import Path

SECTION = ".note.cuda.fwd_compatibility"
OWNER = "NVIDIA Corporation"
# What the note of the libcuda that came with CUDA 13.1 says.
FACTS = {"Format": 1, "CUDA Version": "13.1", "Driver": [535, 550, 570, 575, 580, 590], "Device": [1, 2, 7, 8, 9]}


@functools.cache
def library(text: str | None = None, owner: str = OWNER, align: int = 4, section: str = SECTION) -> bytes:
    """Make a shared library with a note, or without one.

    Args:
        text: the note's descriptor.
        owner: the note's name.
        align: to how many bytes the descriptor and the section are aligned.
        section: the section's name.
    """
    source = "int cuInit(void) { return 0; }\n"
    if text is not None:
        name = owner.encode() + b"\0"
        name += bytes(-len(name) % align)
        size = len(text.encode())
        numbers = b"".join(number.to_bytes(4, "little") for number in (len(owner) + 1, size, 1))
        data = numbers + name + text.encode() + bytes(-size % align)
        source += f'static const unsigned char note[] __attribute__((section("{section}"), used, aligned({align})))'
        source += " = {" + ",".join(map(str, data)) + "};\n"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lib"
        argv = ["/usr/bin/gcc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", str(path)]
        subprocess.run(argv, input=source.encode(), check=True)
        return path.read_bytes()


def libcuda(**changes: object) -> bytes:
    """Make a libcuda whose note says FACTS with changes; a change to None takes that fact away."""
    facts = {key: value for key, value in {**FACTS, **changes}.items() if value is not None}
    return library(json.dumps(facts))
