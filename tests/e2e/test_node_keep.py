"""`gpushim-node keep`, which becomes the node's `gpushim refresh --keep`: what it sees, what it is asked, its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
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


KEPT, WAITS = "keeping the list", "waiting for one"


@contextlib.contextmanager
def kept(there: Node, *words: str, payload: Path | None = None, until_said: str = KEPT) -> Iterator[tuple[int, Path]]:
    """Run `gpushim-node keep` for the block; yields its process and its log."""
    log, command = there.state / "keep.log", there.command("keep", *words, payload=payload)
    with log.open("w") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
        try:
            assert until(lambda: until_said in log.read_text(), 20), log.read_text()
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


@pytest.fixture
def empty() -> Iterator[Node]:
    """A node without an NVIDIA device, of which nobody has asked anything."""
    with node.node(SUITE) as there:
        node.without_device(there.host)
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


def test_doctor_knows_who_keeps_the_list(bare: Node) -> None:
    def said() -> str:
        return bare.run("gpushim doctor --all", check=False).stdout

    with kept(bare):
        assert until(lambda: "gpushim refresh --keep runs, by gpushim-node" in said(), 20), said()
    assert "its gpushim refresh --keep does not run" in said()


def test_keep_ends_with_its_child_while_nvml_hangs(bare: Node) -> None:
    with kept(bare) as (pid, _):
        bare.host.behave(hang=True)
        bare.run(f"rm {INVENTORY}")
        assert until(lambda: children(pid) != [], 20)
        (child,) = children(pid)
    bare.host.behave()
    assert not Path(f"/proc/{child}").exists()


def test_a_node_without_a_device_is_left_alone_until_one_comes(empty: Node, payload: Path, tmp_path: Path) -> None:
    """Killed in the middle of what follows, it brings that to its end the next time; then it tells who asked."""
    before, told = empty.files(), tmp_path / "yes"
    words = ("--engine=none", f"--installed-file={told}")
    done = empty.call("install", "--restart", f"--installed-file={told}", payload=payload)
    assert done.stdout == "gpushim-node: this node has no NVIDIA device; nothing is installed\n"
    with kept(empty, *words, payload=payload, until_said=WAITS) as (pid, log):
        assert empty.files() == before
        assert log.read_text().count("\n") == 1
        spent = cpu(pid)
        time.sleep(1)  # not a bound on time: it sleeps
        assert cpu(pid) - spent < 0.2
    assert empty.files() == before
    with kept(empty, *words, payload=payload, until_said=WAITS) as (pid, log):
        assert not told.exists()
        node.with_device(empty.host)
        assert until(lambda: KEPT in log.read_text(), 25), log.read_text()
        assert len(listed(empty)["gpus"]) == 3
        assert told.exists()
    assert "gpushim-node.begun" not in empty.run("ls /run").stdout
    told.unlink()  # as after a kill before that
    with kept(empty, *words, payload=payload):
        assert told.exists()
    told.unlink()
    empty.run("touch /run/gpushim-node.begun; rm /usr/bin/gpushim")  # as after a kill before the end
    with kept(empty, *words, payload=payload):
        assert "gpushim-node.begun" not in empty.run("ls /run").stdout
        assert told.exists()
    told.unlink()
    node.without_device(empty.host)
    assert "was installed already" in empty.call("install", *words, payload=payload).stdout
    assert told.exists()
    assert "is removed" in empty.call("uninstall", payload=payload).stdout
    node.with_device(empty.host)


def cpu(pid: int) -> float:
    """Seconds of processor that a process has had."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
