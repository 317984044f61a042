"""GPUs whose calls hang, in a file that another instance writes too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuplugin.health import hung_file
from gpushim.ground import system
from gpushim.inventory import earlier


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    (tmp_path / "device-plugin").mkdir(mode=0o700)
    return tmp_path


def test_one_is_new_once_and_ends_with_its_answer(state: Path) -> None:
    assert [hung_file.add(uuid) for uuid in ("GPU-0", "GPU-1", "GPU-0")] == [True, True, False]
    assert (state / earlier.HUNG).stat().st_mode & 0o777 == 0o600
    hung_file.remove({"GPU-0": {}, "GPU-2": {}})
    assert [*earlier.hanging(str(state))] == ["GPU-1"]
    hung_file.remove(["GPU-1"])
    assert not (state / earlier.HUNG).exists()


def test_it_is_renewed_each_time_and_new_after_it_was_old(state: Path) -> None:
    old = system.clock() - earlier.GOOD + 1
    (state / earlier.HUNG).write_text(json.dumps({"boot": system.boot(), "gpus": {"GPU-0": old, "GPU-1": old - 9}}))
    assert not hung_file.add("GPU-0")
    assert hung_file.add("GPU-1")
    assert min(earlier.hanging(str(state)).values()) > old + 1


def test_of_many_the_last_are_told(state: Path) -> None:
    for number in range(hung_file.MOST + 1):
        hung_file.add(f"GPU-{number}")
    assert [*earlier.hanging(str(state))] == [f"GPU-{number}" for number in range(1, hung_file.MOST + 1)]


def test_a_directory_that_cannot_be_written_is_said(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    (state / "device-plugin").rmdir()
    assert hung_file.add("GPU-0")
    assert "device-plugin/hung cannot be written" in caplog.text
