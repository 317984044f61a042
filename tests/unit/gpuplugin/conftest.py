"""Before any test imports grpc: no handlers of forks, and one poller for as long as the process lives."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplugin.processes import counts, moments

# Python before 3.10 starts processes by fork(2), in which grpc's handlers abort; the plugin spawns its child.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc

# The last server or channel that the collector takes ends grpc's poller, and waits for ever where a test that failed
# has left a server running: the run would hang instead of saying which test failed. Ours is never taken.
grpc.aio.init_grpc_aio()


@pytest.fixture(autouse=True)
def looks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks come so long after the last: the moment of all would come by chance between two lines of a test."""
    monkeypatch.setattr(moments, "until", lambda: moments.EACH)


@pytest.fixture(autouse=True)
def counts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test count from nothing."""
    for name in ("counted", "timed"):
        monkeypatch.setattr(counts, name, {})


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory whose sockets have short paths."""
    path = Path(tempfile.mkdtemp(prefix="dp", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def bounded() -> Iterator[None]:
    """What else took for ever fails after 60 s of CPU time."""
    before = signal.signal(signal.SIGVTALRM, lambda *_: pytest.fail("it has no end"))
    signal.setitimer(signal.ITIMER_VIRTUAL, 60)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)
