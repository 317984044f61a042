"""`gpushim-node keep`, which becomes the node's `gpushim refresh --keep`: what it sees, what it is asked, its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import node
from e2e.leftovers import until
from e2e.node import Node
from gpushim.inventory import ensure

SUITE = "trixie"
INVENTORY = f"/run/gpushim/{ensure.SNAPSHOT}"


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node.payload(tmp_path_factory.mktemp("payload"))


@contextlib.contextmanager
def kept(there: Node) -> Iterator[tuple[int, Path]]:
    """Run `gpushim-node keep` for the block; yields its process and its log."""
    log = there.state / "keep.log"
    with log.open("w") as said, subprocess.Popen(there.command("keep"), stdout=said, stderr=said) as process:
        try:
            assert until(lambda: "is kept true" in log.read_text(), 20), log.read_text()
            (pid,) = children(process.pid)
            yield pid, log
            os.kill(pid, signal.SIGTERM)
            assert process.wait(5) == 0
        finally:
            for left in children(process.pid) if process.poll() is None else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)
            process.kill()


def children(pid: int) -> list[int]:
    """List the children of a process; none of one that has ended."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@pytest.fixture(scope="module")
def bare(payload: Path) -> Iterator[Node]:
    """A node with gpushim, of which no engine knows."""
    with node.node(SUITE) as there:
        there.call("install", "--engine=none", payload=payload)
        yield there


def listed(there: Node) -> dict[str, Any]:
    done = there.run(f"cat {INVENTORY}", check=False)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def test_keep_lists_a_gpu_that_goes_and_one_that_comes_back(bare: Node) -> None:
    with kept(bare) as (_, log):
        gone = bare.host.gpus.pop()
        bare.host.update()
        assert until(lambda: len(listed(bare).get("gpus", ())) == 2, 20), log.read_text()
        bare.host.gpus.append(gone)
        bare.host.update()
        assert until(lambda: len(listed(bare).get("gpus", ())) == 3, 20), log.read_text()
        assert log.read_text().count("2 GPUs and 0 MIG instances listed") == 1


def test_keep_lists_gpus_when_the_plugin_asks(bare: Node) -> None:
    with kept(bare) as (_, log):
        before = listed(bare)["looked"]
        bare.write("/run/gpushim/device-plugin/wanted", '{"refresh": true, "units": []}')
        assert until(lambda: listed(bare)["looked"] > before, 20), log.read_text()


def test_keep_ends_with_its_child_while_nvml_hangs(bare: Node) -> None:
    with kept(bare) as (pid, _):
        bare.host.behave(hang=True)
        bare.run(f"rm {INVENTORY}")
        assert until(lambda: children(pid) != [], 20)
        (child,) = children(pid)
    bare.host.behave()
    assert not Path(f"/proc/{child}").exists()
