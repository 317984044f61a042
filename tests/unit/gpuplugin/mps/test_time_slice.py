"""Time slices by nvidia-smi: what it lists is understood, and what it refuses is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplugin.mps import time_slice
from gpushim.ground.errors import GpushimError

SAYS = {
    "as NVIDIA's": ("|   0     Timeslice         Long      |", 3),
    "otherwise": ("Time-slice: SHORT", 1),
    "the default": ("|   0     Timeslice         Default   |", 0),
    "nothing": ("", 0),
    "something else": ("Compute policies are not supported", 0),
}


def snapshot(root: Path, script: str) -> Any:
    program = root / "usr/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    files = {"utility": [{"path": "/usr/bin/nvidia-smi"}]}
    return {"driver": {"root": str(root)}, "files": files, "inputs": {"root": str(root)}}


@pytest.mark.parametrize(("line", "value"), SAYS.values(), ids=SAYS)
def test_what_it_lists(tmp_path: Path, line: str, value: int) -> None:
    found = snapshot(tmp_path, f'echo "$@" >>{tmp_path}/asked; echo "{line}"')
    assert time_slice.ask(found, 10, {"GPU-1": None}) == {"GPU-1": value}
    assert (tmp_path / "asked").read_text() == "compute-policy -i GPU-1 -l\n"


def test_each_gpu_is_told_its_own(tmp_path: Path) -> None:
    time_slice.ask(snapshot(tmp_path, f'echo "$@" >>{tmp_path}/asked'), 10, {"GPU-1": 3, "GPU-2": 0})
    assert (tmp_path / "asked").read_text().splitlines() == [
        "compute-policy -i GPU-1 --set-timeslice 3",
        "compute-policy -i GPU-2 --set-timeslice 0",
    ]


@pytest.mark.parametrize("script", ["echo Insufficient Permissions; exit 4", "sleep 60"])
def test_what_it_refuses(tmp_path: Path, script: str) -> None:
    with pytest.raises(GpushimError, match="nvidia-smi does not set the time slice of GPU-1: "):
        time_slice.ask(snapshot(tmp_path, script), 0.5, {"GPU-1": 3})


def test_setting_those_of_several_has_one_deadline(tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match="nvidia-smi does not set the time slice of GPU-2: "):
        time_slice.ask(snapshot(tmp_path, "sleep 1.1"), 2, {"GPU-1": 3, "GPU-2": 3})


def test_without_it(tmp_path: Path) -> None:
    found = snapshot(tmp_path, "")
    found["files"] = {}
    with pytest.raises(GpushimError, match=r"there is no nvidia-smi below .*; install it with the driver's packages"):
        time_slice.ask(found, 10, {"GPU-1": 3})
