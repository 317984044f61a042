"""Bad files of gpushim's own: settings, logs, snapshot, and its code.

A container that asks for no GPU meets none of it; one that asks is told which file is wrong, or what can be made
again is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.bad_input import ALL, BIN, Scene
from fakehost import Host


@pytest.fixture
def scene(gpu_host: Host, low: Path, tmp_path: Path) -> Scene:
    """A scene whose state is up to date."""
    scene = Scene(tmp_path, gpu_host, low)
    scene.ask(ALL)
    scene.answers(0)
    scene.ask(ALL)
    return scene


# Group 38.
def appended(data: bytes) -> Callable[[Path], object]:
    """Write settings behind those of the scene."""
    return lambda path: path.write_bytes(path.read_bytes() + data)


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in the place of the file."""

    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


SETTINGS: dict[str, tuple[Callable[[Path], object], int]] = {
    "unknown key": (appended(b"[refresh]\ndeadlin-seconds = 3\n"), 15),
    "escape sequence": (appended(b'["\\u001b[2J"]\n'), 15),
    "tabs": (lambda path: path.write_bytes(path.read_bytes().replace(b" = ", b"\t=\t")), 0),
    "FIFO": (instead(os.mkfifo), 15),
    "anybody's to write": (lambda path: path.chmod(0o666), 15),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(scene: Scene, case: str) -> None:
    spoil, code = SETTINGS[case]
    if case in ("not root's", "anybody's to write"):
        shutil.rmtree(scene.state)  # in which is what it said when nobody else could write it
    spoil(scene.toml)
    done = scene.answers(code)
    assert not code or str(scene.toml) in done.stderr
    assert bool(scene.nodes) == (not code)
    scene.ask("NVIDIA_VISIBLE_DEVICES=void")
    before = scene.config.read_bytes()
    # A wrong file cannot tell which runtime is meant: it may be the host's.
    done = scene.call(BIN / "gpushim-runtime", *scene.words("--version"))
    assert (done.code, done.stderr) == (0, "")
    assert scene.config.read_bytes() == before


@pytest.mark.parametrize("name", ["GPUSHIM_CONFIG", "GPUSHIM_STATE"])
@pytest.mark.parametrize("path", ["relative", "./x", "~/x", "\udcff"])
def test_variables_that_name_no_path(scene: Scene, name: str, path: str) -> None:
    env = {"GPUSHIM_STATE": str(scene.state), "GPUSHIM_CONFIG": str(scene.toml), name: path}
    done = scene.call(BIN / "gpushim-runtime", *scene.words(), env=env)
    assert (done.code, done.record) == (15, None)
    assert f"gpushim: {name} is " in done.stderr


LOGS: dict[str, str] = {
    "no directory": "/nowhere/x/log",
    "directory": "/",
    "full": "/dev/full",
    "FIFO without a reader": "FIFO",
    "link to itself": "LOOP",
    "not a path": "/a\\u0000b",
}


@pytest.mark.parametrize("case", LOGS)
def test_logs(scene: Scene, case: str) -> None:
    os.mkfifo(scene.work / "fifo")
    (scene.work / "loop").symlink_to("loop")
    name = LOGS[case].replace("FIFO", str(scene.work / "fifo")).replace("LOOP", str(scene.work / "loop"))
    scene.toml.write_text(scene.toml.read_text().replace(str(scene.work / "gpushim.log"), name))
    if case == "not a path":
        scene.answers(0, 15)
        return
    scene.answers(0)
    assert scene.nodes
    scene.ask("NVIDIA_VISIBLE_DEVICES=99")
    done = scene.call(BIN / "gpushim-runtime", "--log", name, "create", "-b", scene.bundle, "x")
    assert (done.code, done.stderr.count("\n")) == (10, 1)


# Group 39.
def changed(**members: Any) -> Callable[[Path], object]:
    """Write the snapshot with other members."""
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


SNAPSHOTS: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "of another machine": lambda path: changed(stamp=[None] * 8)(path),
    "directory": instead(Path.mkdir),
}


@pytest.mark.parametrize("case", SNAPSHOTS)
def test_snapshots_are_made_anew(scene: Scene, case: str) -> None:
    SNAPSHOTS[case](scene.state / "inventory.json")
    scene.ask("NVIDIA_VISIBLE_DEVICES=void")
    scene.untouched()
    scene.ask(ALL)
    if case == "directory":  # which a file cannot replace
        scene.answers(1, 12)
        return
    scene.answers(0)
    assert len(scene.nodes) == 3


def without(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in the place of the directory."""

    def put(path: Path) -> None:
        shutil.rmtree(path)
        make(path)

    return put


STATES: dict[str, tuple[Callable[[Path], object], int]] = {
    "file": (without(Path.touch), 12),
    "dangling link": (without(lambda path: path.symlink_to("nowhere")), 12),
    "gone": (shutil.rmtree, 0),
    "runtime garbage": (lambda path: (path / "runtime").write_bytes(b"\xff\0\n" * 99), 0),
    "runtime is a FIFO": (lambda path: instead(os.mkfifo)(path / "runtime"), 0),
    "lock is held by nobody": (lambda path: (path / "lock").write_bytes(b"x" * 999), 0),
    "triggers garbage": (lambda path: (path / "triggers").write_bytes(b"\xff\0\n\n" * 99), 0),
}


@pytest.mark.parametrize("case", STATES)
def test_states(scene: Scene, case: str) -> None:
    spoil, code = STATES[case]
    spoil(scene.state)
    scene.answers(*{0, code})
