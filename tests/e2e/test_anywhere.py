"""A clone may lie anywhere: the demo, and tests of each kind, from a path with a space and a letter beyond ASCII.

It is this checkout, mounted there. Units, other users and containers do not see all such paths: tests/checkout.py.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import scratch
from e2e.engines import SYSTEM_PATH
from e2e.trees import TOP
from sample import VARIABLES, share

KINDS = (
    "tests/e2e/test_dra_service.py",  # a machine with systemd
    "tests/e2e/test_userns.py::test_docker_userns_remap[ways0]",
    "tests/e2e/test_chroot_cri.py::test_a_pod_with_a_user_namespace[asked2-crun-sid]",
)
# The demo lays an overlay over what is below /run, which is a layer itself where tests are kept apart.
THERE = 'mount --bind "$0" "$1" && mount -t tmpfs -o mode=755 none /run && cd "$1" && shift && exec "$@"'
PYTEST = (".venv/bin/python", "-m", "pytest", "--quiet", "-p", "no:cacheprovider")


@pytest.fixture(params=share(["/tmp", "/root", "/home"], 3))
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory for a clone."""
    with tempfile.TemporaryDirectory(prefix="a ü ", dir=request.param) as name:
        yield Path(name)


def run(place: Path, *words: str) -> str:
    """Run a command of the checkout there; returns what it prints."""
    command = ["/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-c", THERE, str(TOP), str(place)]
    command += words
    env = {"PATH": SYSTEM_PATH, "HOME": "/root", **dict(word.split("=") for word in VARIABLES.split())}
    with scratch.nested() as more:
        done = subprocess.run(command, capture_output=True, text=True, env={**env, **more}, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo(place: Path) -> None:
    assert "== gpushim's own line about this container:" in run(place, "tools/demo")


@pytest.mark.parametrize("tests", [("tests/unit/test_install.py",), KINDS], ids=["unit", "e2e"])
def test_tests_of_each_kind(place: Path, tests: tuple[str, ...]) -> None:
    said = run(place, *PYTEST, *tests)
    assert "skipped" not in said
    assert "passed" in said
