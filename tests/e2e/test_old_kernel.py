"""The hook where openat2(2) and the new mount calls are denied: tests that look and mount, once more.

Left out is what holds the hook against these very calls, and what neither looks below a rootfs nor mounts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import scratch
from e2e.trees import TOP
from sample import share

LAUNCHER = Path(__file__).with_name("nosyscalls.py")
UNIT = TOP / "tests/unit"
MOUNTING = (
    "gpuhook/inject/test_apply",
    "gpuhook/inject/test_mounts",
    "gpuhook/inject/test_cover",
    "gpuhook/test_standalone",
)
LOOKING = ("gpushim/paths/test_rootfs", "gpushim/paths/test_walk", "gpuhook/loader/test_finish_hard")
# Random trees and edges are compared with openat2's answers; the way "new" is that of the new calls.
WITHOUT = "not (test_random_trees or test_edges or openat2 or (test_mounts and (node_on_a_nodev or window) and new))"
CONTAINERS = ("the_gpus_asked_for", "(the_same_as and all)", "user_namespace", "rslave", "rshared", "volume")


def denied(error: str, *words: str) -> int:
    """Run tests where the calls give an error; return how many passed."""
    pytest_words = ["-m", "pytest", "--quiet", "-p", "no:cacheprovider", *words]
    command = [sys.executable, str(LAUNCHER), error, sys.executable, *pytest_words]
    with scratch.nested() as env:
        done = subprocess.run(
            command, cwd=TOP, env={**os.environ, **env}, capture_output=True, text=True, timeout=600, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"^(\d+) passed", done.stdout, re.MULTILINE)
    return int(passed)


@pytest.mark.parametrize(("error", "names"), [("ENOSYS", MOUNTING + LOOKING), *share([("EPERM", MOUNTING)], 2)])
def test_the_hooks_own_tests(error: str, names: tuple[str, ...]) -> None:
    assert denied(error, "-k", WITHOUT, *(str(UNIT / f"{name}.py") for name in names)) > 100


def test_containers() -> None:
    """Without the calls at all; EPERM leads to the same (mounts.ABSENT), which the hook's own tests show."""
    names = " or ".join(CONTAINERS)
    assert denied("ENOSYS", "-k", names, "tests/e2e/test_standalone.py") >= 10


def test_the_calls_are_denied() -> None:
    code = (
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall(437, 0, 0, 0, 0); print(ctypes.get_errno())"
    )
    command = [sys.executable, str(LAUNCHER), "ENOSYS", sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"38\n"
