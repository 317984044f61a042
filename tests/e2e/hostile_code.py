"""Images full of code that tells when a process of the host runs it, and the variables that lead there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e.hostile import Trap

# Every variable by which a dynamic program, a shell or Python can be led to foreign code.
VARIABLES = {
    "/proc/self/cwd/poc.so": ["LD_PRELOAD", "LD_AUDIT"],
    "/proc/self/cwd": ["LD_LIBRARY_PATH", "GCONV_PATH", "LOCPATH", "NLSPATH", "HOME", "TMPDIR", "PYTHONHOME",
                       "PYTHONPATH", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "XDG_CONFIG_HOME", "PERL5LIB"],
    "/proc/self/cwd/trap.py": ["PYTHONSTARTUP"],
    "/proc/self/cwd/trap.sh": ["BASH_ENV", "ENV"],
    "/proc/self/cwd/traps": ["PATH"],
    "glibc.malloc.check=3": ["GLIBC_TUNABLES"],
    "traps": ["PYTHONPLATLIBDIR"],
    "os.trap": ["PYTHONBREAKPOINT"],
    "error::os.Trap": ["PYTHONWARNINGS"],
    "1": ["PYTHONINSPECT", "PYTHONVERBOSE", "SHELLOPTS", "IFS", "GPUSHIM_CONFIG", "GPUSHIM_STATE"],
}  # fmt: skip
PROGRAMS = ("python3", "sh", "grep", "runc", "ldconfig", "ldconfig.real", "env", "mount")
MODULES = ("json", "os", "posix", "sitecustomize", "encodings/__init__", "site", "trap", "gpuhook/__init__", "stub")


@pytest.fixture
def marker(trap: Trap) -> Path:
    """What an image's code makes when a process of the host runs it: the image is full of such code."""
    arm(trap.root, trap.work / "owned")
    return trap.work / "owned"


def library(path: Path, marker: Path) -> None:
    """Compile one whose constructor makes the marker."""
    command = ["/usr/bin/gcc", "-shared", "-fPIC", f'-DMARKER="{marker}"', "-o", str(path)]
    subprocess.run([*command, str(Path(__file__).with_name("poc.c"))], check=True)


def arm(root: Path, marker: Path) -> None:
    """Fill an image with code that makes the marker when a process of the host runs it."""
    library(root / "poc.so", marker)
    python = f"import _io\ntry: _io.open({str(marker)!r}, 'w')\nexcept OSError: pass\n"
    for name in (*MODULES, "gpushim/__init__", "lib/python3.11/os", "traps/python3.11/os"):
        (root / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.py").write_text(python)
    shell = f"#!/bin/sh\n: >{marker}\n"
    for name in ("trap.sh", *(f"traps/{program}" for program in PROGRAMS)):
        (root / name).write_text(shell)
        (root / name).chmod(0o755)
