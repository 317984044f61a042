"""What a refresh tells the launcher, and when that no longer holds: real runc and refreshes, no container misled."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.hostile_places import Place
from e2e.told import Node
from gpushim.ground.errors import CONFIG

Nodes = Callable[[Place], Node]
STRANGER = 4711
LONG = "/" + "x" * 5000
MOST = 1500  # characters of a sentence


def test_a_word_of_the_configuration_asks(place: Place, nodes: Nodes) -> None:
    node = nodes(place)
    assert node.gpus() == 3


def test_a_configuration_with_an_old_time_counts(place: Place, nodes: Nodes) -> None:
    """As `cp -p`, `rsync -t` and images bring it."""
    node = nodes(place)
    node.configure("ANOTHER_GPU")
    node.bundle.ask(args=["/bin/true"])
    node.bundle.run()
    node.configure("A_GPU")
    os.utime(node.toml, (10**9, 10**9))
    assert node.gpus() == 3


def test_a_configuration_from_the_future_starts_python_once(place: Place, nodes: Nodes) -> None:
    node = nodes(place)
    os.utime(node.toml, (4 * 10**9, 4 * 10**9))
    assert node.gpus() == 3
    assert "python" not in node.starts("state", "x")


GONE = ["triggers", "runtime", "config"]


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_harms_one_create(place: Place, nodes: Nodes, name: str) -> None:
    node = nodes(place)
    (node.state / name).unlink()
    assert node.gpus() == 3
    assert "python" not in node.starts("state", "x")


def test_words_that_are_gone_come_back_without_a_request(place: Place, nodes: Nodes) -> None:
    node = nodes(place)
    (node.state / "triggers").unlink()
    node.bundle.ask(args=["/bin/true"])
    words = ("run", "--bundle", str(node.bundle.directory), node.bundle.id)
    assert "python" in node.starts(*words)
    assert "python" not in node.starts(*words)


@pytest.mark.parametrize("error", ["EIO"])  # in each shell, and others: unit/gpushim/create/test_launcher_state
@pytest.mark.parametrize("file", ["bundle/config.json", "state/triggers"])
def test_a_look_that_fails_never_costs_the_gpus(place: Place, nodes: Nodes, file: str, error: str) -> None:
    """It is the launcher's alone: what it executes is not traced any more."""
    node = nodes(place)
    path = str(node.state.parent / file)
    strace = ("/usr/bin/strace", "-b", "execve", "-qq", "-o", "/dev/null", "-P", path, "-e", "trace=%file")
    bundle = node.bundle
    bundle.ask("A_GPU=all", args=["/bin/ls", "/dev"])
    bundle.prefix = (*strace, "-e", f"inject=newfstatat,stat:error={error}:when=1")
    done = bundle.run(check=False)
    assert "nvidia0" in done.stdout or (done.returncode, done.stdout) == (14, ""), done


def evil(state: Path, marker: Path) -> None:
    """Let `runtime` name a program that leaves a mark, with the time that it had."""
    script, runtime = marker.with_name("evil"), state / "runtime"
    script.write_text(f"#!/bin/sh\n: >{marker}\n")
    script.chmod(0o755)
    status = runtime.stat()
    runtime.unlink()
    runtime.write_text(f"{script}\n")
    os.utime(runtime, ns=(status.st_mtime_ns, status.st_mtime_ns))


STRANGERS: dict[str, Callable[[Path], object]] = {
    "file": lambda state: os.chown(state / "runtime", STRANGER, STRANGER),
    "directory": lambda state: os.chown(state, STRANGER, STRANGER),
    "link": lambda state: (state / "runtime").symlink_to((state / "runtime").rename(state / "x")),
}


@pytest.mark.parametrize("words", [("state", "x"), ("create", "--bundle", "/nowhere", "x")], ids=["state", "create"])
@pytest.mark.parametrize("whose", STRANGERS)
def test_what_a_stranger_wrote_down_is_not_executed(
    place: Place, nodes: Nodes, tmp_path: Path, whose: str, words: tuple[str, ...]
) -> None:
    node = nodes(place)
    evil(node.state, tmp_path / "owned")
    STRANGERS[whose](node.state)
    done = node.bundle.call(*words, check=False)
    assert not (tmp_path / "owned").exists()
    assert done.returncode == 1  # runc's: there is no such container, or bundle


@pytest.mark.parametrize("name", ["GPUSHIM_STATE", "GPUSHIM_CONFIG"])
def test_a_path_that_is_too_long_is_not_repeated(place: Place, nodes: Nodes, name: str) -> None:
    node = nodes(place)
    node.bundle.ask("NVIDIA_VISIBLE_DEVICES=all", args=["/bin/true"])
    done = node.bundle.run(check=False, env={**node.bundle.env, name: LONG})
    assert done.returncode != 0
    assert done.stderr.startswith("gpushim: ")
    assert len(done.stderr) <= MOST


def test_a_bundle_whose_path_is_too_long(place: Place, nodes: Nodes) -> None:
    node = nodes(place)
    done = node.bundle.call("create", "--bundle", LONG, "x", check=False)
    assert (done.returncode, done.stderr.count("\n")) == (14, 1)
    assert "File name too long" in done.stderr
    assert len(done.stderr) <= MOST


def test_who_may_ask_under_a_wrong_configuration_is_refused(place: Place, nodes: Nodes) -> None:
    node = nodes(place)
    node.toml.write_text(node.toml.read_text() + "no-such-key = true\n")
    node.bundle.ask("A_GPU=all", args=["/bin/true"])
    assert node.bundle.run(check=False).returncode == CONFIG
    node.bundle.ask("B_GPU=all", args=["/bin/true"])
    assert node.bundle.run(check=False).returncode == 0
