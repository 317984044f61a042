"""Many at once (group 33 of docs/testing.md): creates beside each other, and beside what else writes.

Out of scope: a driver that changes under them (test_bad_host.py), and who is killed on the way (test_fault*.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.bad_input import ALL, BIN, Scene, complete, listing
from fakehost import Host
from unit.gpuhook.sandbox import running

RUNTIME, COMMAND = str(BIN / "gpushim-runtime"), str(BIN / "gpushim")
Process = subprocess.Popen[bytes]


@pytest.fixture
def scene(gpu_host: Host, low: Path, tmp_path: Path) -> Scene:
    return Scene(tmp_path, gpu_host, low)


@contextlib.contextmanager
def started(scene: Scene, *words: object) -> Iterator[Process]:
    """Start a program with the scene's variables."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **scene.env}
    command = [str(word) for word in words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process


def ended(processes: list[Process]) -> list[tuple[int | None, bytes]]:
    """Wait for all; return each one's code and what it said on stderr."""
    said = [process.communicate(timeout=120)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said)]


@pytest.mark.parametrize(("number", "first"), [(200, False), (8, True)], ids=["after another", "the first ones"])
def test_many_creates(scene: Scene, number: int, first: bool) -> None:
    """Without a snapshot, one of them makes it, and the others wait for that."""
    scene.ask(ALL)
    if not first:
        scene.answers(0)
        scene.ask(ALL)
        (scene.work / "gpushim.log").unlink()
    before = scene.config.read_bytes()
    bundles = [scene.work / f"bundle{each}" for each in range(number)]
    with contextlib.ExitStack() as stack:
        for bundle in bundles:
            shutil.copytree(scene.bundle, bundle)
        creates = [
            stack.enter_context(started(scene, RUNTIME, "create", "-b", bundle, bundle.name)) for bundle in bundles
        ]
        assert {*ended(creates)} == {(0, b"")}
    assert len({(bundle / "config.json").read_bytes() for bundle in bundles}) == 1
    complete(before, (bundles[0] / "config.json").read_bytes())
    assert {name for bundle in bundles for name in listing(bundle)} == {"config.json"}
    assert len((scene.work / "gpushim.log").read_text().splitlines()) == len(bundles)


def test_creates_on_one_bundle(scene: Scene) -> None:
    scene.ask(ALL)
    before = scene.config.read_bytes()
    with contextlib.ExitStack() as stack:
        creates = [stack.enter_context(started(scene, RUNTIME, *scene.words())) for _ in range(12)]
        assert {*ended(creates)} == {(0, b"")}
    complete(before, scene.config.read_bytes())
    once = scene.spec
    scene.untouched()
    assert scene.spec == once
    assert len(scene.nodes) == 3


def test_a_create_beside_a_delete(scene: Scene) -> None:
    """An engine that gives up removes the bundle under it."""
    scene.ask(ALL)
    scene.answers(0)
    text = scene.config.read_bytes()

    def remove_and_restore() -> None:
        shutil.rmtree(scene.bundle)
        scene.bundle.mkdir()
        scene.config.write_bytes(text)

    with running(remove_and_restore):
        for _ in range(30):
            done = scene.call(RUNTIME, *scene.words())
            assert done.code in (0, 14)
            assert "internal" not in done.stderr
            assert "Traceback" not in done.stderr


def test_creates_beside_refreshes_and_specs(scene: Scene) -> None:
    scene.ask(ALL)
    spec = scene.work / "spec.json"
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(started(scene, COMMAND, "refresh", "--force")) for _ in range(2)]
        others += [
            stack.enter_context(started(scene, COMMAND, "cdi", "generate", "--output", spec)) for _ in range(2)
        ]
        for _ in range(12):
            scene.ask(ALL)
            scene.answers(0)
            assert len(scene.nodes) == 3
        assert [code for code, _ in ended(others)] == [0] * 4
    assert json.loads(spec.read_text())["devices"]
    litter = [name for name in os.listdir(scene.state) if "tmp" in name or "gpushim-" in name]
    assert not litter


def test_two_that_configure(scene: Scene) -> None:
    """Each has its way whole or says that the other was there."""
    config = scene.work / "daemon.json"
    config.write_text(json.dumps({"log-driver": "journald"}))
    with contextlib.ExitStack() as stack:
        words = [COMMAND, "configure", "docker", "--config", config, "--runtime-path", RUNTIME]
        both = [stack.enter_context(started(scene, *words, "--runtime-name", name)) for name in ("one", "two", "one")]
        done = ended(both)
    given = json.loads(config.read_text())
    assert given.pop("log-driver") == "journald"
    assert {*given["runtimes"]} <= {"one", "two"}
    for (code, said), name in zip(done, ("one", "two", "one")):
        assert name in given["runtimes"] if not code else b"changed by somebody else" in said, said
