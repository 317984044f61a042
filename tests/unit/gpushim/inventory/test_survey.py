"""How long a snapshot holds: a table of what may be over in a moment."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from gpushim.inventory import ensure, procfs, survey
from gpushim.refresh import refresh

GPU = {"fabric_problem": "", "index": 0, "mig": False, "problem": None}
BOUND = {"0000:07:00.0": 4711}


def snapshot(**changes: Any) -> Any:
    facts = {"gpus": changes.pop("bound", BOUND)}
    healthy = {"platform": "native", "source": "nvml", "error": None, "missing": [], "gpus": [GPU], "mig": []}
    healthy["runtime"] = "/usr/bin/runc"
    return {**healthy, "notes": [], "inputs": {"times": True}, "stamp": facts, **changes}


@pytest.mark.parametrize(("changes", "took", "life"), [
    ({}, 0.3, survey.SETTLED),
    ({}, 12, 1200),
    ({}, 25, 1800),
    ({"source": "proc"}, 20, survey.PASSING),
    ({"error": {"sentence": "no driver", "code": 12}}, 0, survey.PASSING),
    ({"missing": ["GPU 1 is left out"]}, 0, survey.PASSING),
    ({"runtime": ""}, 0, survey.PASSING),
    ({"gpus": [{**GPU, "problem": "it fell off the bus"}]}, 0, survey.PASSING),
    ({"gpus": [{**GPU, "mig": True}]}, 0, survey.PASSING),
    ({"gpus": [{**GPU, "mig": True}], "mig": [{"gpu": 0}]}, 0, survey.SETTLED),
    ({"gpus": [{**GPU, "mig": True}], "mig": [{"gpu": 0}], "inputs": {"times": False}}, 0, survey.PASSING),
    ({"bound": {"0000:07:00.0": None}}, 0, survey.PASSING),
    ({"platform": "tegra", "source": "proc"}, 0, 0),
    ({"platform": "wsl", "error": {"sentence": "no library", "code": 12}}, 0, survey.PASSING),
])  # fmt: skip
def test_life(changes: dict[str, Any], took: float, life: int) -> None:
    assert survey.life(snapshot(**changes), took) == life


@pytest.mark.parametrize(("changes", "said"), [
    ({}, ""),
    ({"notes": ["Python's nvidia-ml-py cannot be used (it is not there)"], "source": "proc"}, ""),
    ({"notes": ["NVML cannot be used (Unknown Error)"], "source": "proc"}, "NVML cannot be used (Unknown Error)"),
    ({"missing": ["GPU 1 is left out"]}, "GPU 1 is left out"),
    ({"gpus": [{**GPU, "problem": "it fell off the bus"}]}, "GPU 0: it fell off the bus"),
    ({"gpus": [{**GPU, "mig": True}]}, ""),
])  # fmt: skip
def test_what_fails_a_refresh(changes: dict[str, Any], said: str) -> None:
    assert refresh.problem(snapshot(**changes)) == said


def test_a_kernel_that_keeps_no_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver/nvidia/capabilities/gpu0/mig/gi1/ci0").mkdir(parents=True)
    assert procfs.keeps_times(str(tmp_path), str(tmp_path))
    looks = itertools.count()
    monkeypatch.setattr(ensure, "_entry_identity", lambda status, times: [1, next(looks)])
    assert not procfs.keeps_times(str(tmp_path), str(tmp_path))


@pytest.mark.parametrize("changes", [1, 2])
def test_mig_instances_that_are_made_meanwhile_are_no_old_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    (tmp_path / "driver/nvidia/capabilities/gpu0/mig/gi1/ci0").mkdir(parents=True)
    looks = itertools.count()
    monkeypatch.setattr(ensure, "_entry_identity", lambda status, times: [1, min(next(looks), changes)])
    assert procfs.keeps_times(str(tmp_path), str(tmp_path))
