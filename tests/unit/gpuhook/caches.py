"""Real libraries, made with gcc, and real caches, made with the machine's ldconfig."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import tempfile
from pathlib import Path

from gpuhook.loader.ldcache import FLAGS

OURS = FLAGS[platform.machine()]
LIBRARIES = (
    "libc.so.6",
    "libcuda.so.1",
    "libfoo.so.2",
    "libfoo.so.10",
    "libfoo.so.9",
    "libnvidia-ml.so.1",
    "libz.so.1",
    "lib9.so.1",
)
# In glibc's order of preference; the loader looks at those that the processor can run.
HWCAPS = ("x86-64-v2", "x86-64-v3") if platform.machine() == "x86_64" else ()


def library(path: Path, soname: str, text: str = "") -> Path:
    """Make a shared library that has a SONAME and a string of its own in `name`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = f'const char name[] = "{text or path}";'
    argv = ["/usr/bin/gcc", "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-x", "c", "-", "-o", str(path)]
    subprocess.run(argv, input=source.encode(), check=True)
    return path


@functools.cache
def _blank() -> bytes:
    """One library's bytes with room for any SONAME: gcc is too slow for dozens."""
    with tempfile.TemporaryDirectory() as directory:
        return library(Path(directory) / "lib", "S" * 40, "text").read_bytes()


def quick_library(path: Path, soname: str) -> Path:
    """Make a library that ldconfig takes, without running gcc again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_blank().replace(b"S" * 40, soname.encode().ljust(40, b"\0")))
    return path


def image(top: Path, names: tuple[str, ...] = LIBRARIES) -> Path:
    """Make a tree with libraries in /opt/lib, some in glibc-hwcaps directories, and ldconfig's configuration."""
    for name in names:
        quick_library(top / "opt" / "lib" / name, name)
    for hwcap in HWCAPS:
        for name in names[:4]:
            quick_library(top / "opt" / "lib" / "glibc-hwcaps" / hwcap / name, name)
    (top / "etc").mkdir(exist_ok=True)
    (top / "etc" / "ld.so.conf").write_text("/opt/lib\n")
    return top


def ldconfig(top: Path, form: str = "new") -> bytes:
    """Have the real ldconfig write the tree's cache; `form` is new, compat or old."""
    command = ["/sbin/ldconfig", "-X", "-c", form, "-r", str(top)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return (top / "etc" / "ld.so.cache").read_bytes()


def listing(cache: bytes) -> list[str]:
    """What the real ldconfig reads in a cache: `NAME (KIND) => PATH` lines in their order."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(cache)
        file.flush()
        output = subprocess.run(
            ["/sbin/ldconfig", "-p", "-C", file.name],
            check=True,
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    return [line.strip() for line in output.stdout.decode().splitlines() if " => " in line]
