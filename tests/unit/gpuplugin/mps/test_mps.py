"""Whether the plugin takes an MPS daemon for one that serves: only where a supervisor of root's holds its lock."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.mps import mps, of_claims

GROUP = MpsGroup("gpu.dev", (MpsGpu("GPU-1", 0, 40960), MpsGpu("GPU-2", 1, 40960)), 10240, 25, False)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[mps.Folders]:
    """A group whose supervisor is this process, and whose daemon serves."""
    place = mps.Folders(str(tmp_path), GROUP.name)
    os.makedirs(place.top, 0o755)
    Path(place.state).write_text(json.dumps({**of_claims.describe(GROUP), "pid": 1, "daemon": "x"}))
    fd = os.open(place.lock, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield place
    os.close(fd)


def test_a_daemon_that_serves_is_ready(served: mps.Folders) -> None:
    assert mps.unready_reason(served.state_dir, GROUP) == ""


def test_it_is_not_without_a_supervisor(served: mps.Folders, tmp_path: Path) -> None:
    """Whatever its file says: who was killed leaves it behind."""
    os.rename(served.lock, tmp_path / "held")
    Path(served.lock).touch(0o600)
    why = mps.unready_reason(served.state_dir, GROUP)
    assert why.startswith("the MPS daemon of gpu.dev does not run; start it with systemctl start gpushim-mps@gpu.dev")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda place: os.chown(place.lock, 1, 1),
        lambda place: os.chmod(place.lock, 0o666),
        lambda place: os.chmod(place.top, 0o777),
        lambda place: os.chown(os.path.dirname(place.top), 1, 1),
        lambda place: os.chmod(place.state_dir, 0o777),
        lambda place: os.symlink(shutil.move(place.lock, place.lock + "2"), place.lock),
    ],
)
def test_what_others_can_make_is_no_supervisor(served: mps.Folders, spoil: Callable[[mps.Folders], object]) -> None:
    spoil(served)
    assert "does not run" in mps.unready_reason(served.state_dir, GROUP)


@pytest.mark.parametrize("text", ["", "[]", '{"group"', "null"])
def test_it_is_not_before_it_has_a_state(served: mps.Folders, text: str) -> None:
    Path(served.state).write_text(text)
    assert "is starting" in mps.unready_reason(served.state_dir, GROUP)


def test_a_state_of_others_counts_for_nothing(served: mps.Folders) -> None:
    os.chmod(served.state, 0o666)
    assert "is starting" in mps.unready_reason(served.state_dir, GROUP)


@pytest.mark.parametrize(
    ("key", "value"), [("gpus", ["GPU-1"]), ("memory", 20480), ("threads", 50), ("multi_user", True), ("group", "x")]
)
def test_another_group_than_the_settings_have_is_none(served: mps.Folders, key: str, value: object) -> None:
    state = json.loads(Path(served.state).read_text())
    Path(served.state).write_text(json.dumps({**state, key: value}))
    why = mps.unready_reason(served.state_dir, GROUP)
    assert "has other GPUs or limits than the settings" in why
    assert "systemctl restart gpushim-mps@gpu.dev.service" in why


def test_units_are_missing_where_nobody_supervises(served: mps.Folders) -> None:
    other = MpsGroup("gpu-2", GROUP.gpus, None, 50, False)
    assert mps.missing(served.state_dir, [GROUP.name, other.name]) == ["gpushim-mps@gpu-2.service"]
    assert mps.missing(served.state_dir, [GROUP.name]) == []
