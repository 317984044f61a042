"""Limits of GPU memory: what the doctor says of a host that can keep them, and of one that cannot."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from gpushim.decision import memory
from gpushim.doctor import Finding, check_memory, checks
from gpushim.inventory import ensure
from unit.gpushim.doctor.patient import Patient

OLD, NEW = "535.183.01", "615.71"
MOST = {"memory-limit-most": "8Gi"}


@pytest.fixture
def look(patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what a host is told that has this driver, these settings and these controllers."""

    def look(driver: str, controllers: str | None, **requests: str) -> Finding:
        snapshot = copy.deepcopy(ensure.last(patient.host.config, patient.host.state)[0])
        snapshot["driver"]["version"] = driver
        snapshot["policy"]["requests"].update(requests)  # type: ignore[typeddict-item]
        monkeypatch.setattr(ensure, "last", lambda config, state: (snapshot, ""))
        monkeypatch.setattr(memory, "CONTROLLERS", str(tmp_path / "controllers"))
        if controllers is not None:
            (tmp_path / "controllers").write_text(controllers)
        (finding,) = check_memory.limits(patient.host)
        return finding

    return look


@pytest.mark.parametrize(
    ("driver", "controllers", "requests", "verdict", "words"),
    [
        (NEW, "cpu dmem", {}, "ok", "kept by the kernel (dmem)"),
        (NEW, "cpu", MOST, "ok", "kept by the driver itself"),
        (OLD, "cpu dmem", {}, "ok", f"refused: the driver {OLD} keeps none"),
        (NEW, None, {}, "ok", "is not cgroup v2 alone"),
        (OLD, "cpu", MOST, "broken", "containers with a whole GPU are refused: memory-limit-most"),
        (NEW, None, {**MOST, "memory-limits": "wanted"}, "ok", "is not cgroup v2 alone"),
    ],
)
def test_who_keeps_limits(
    look: Any, driver: str, controllers: str | None, requests: dict[str, str], verdict: str, words: str
) -> None:
    finding = look(driver, controllers, **requests)
    assert (finding.verdict, words in finding.evidence) == (verdict, True), finding


def test_both_ways_out_of_a_limit_that_refuses_containers(look: Any, patient: Patient) -> None:
    config = Path(patient.host.config)
    text = config.read_text()
    config.write_text(f'{text}[requests]\nmemory-limit-most = "8Gi"\n')
    for way in ('memory-limits = "wanted"\n', ""):
        assert patient.refresh("--force")[0] == 0
        (finding,) = check_memory.limits(patient.host)
        assert finding.verdict == "broken"
        assert 'memory-limits = "wanted" under [requests]' in finding.fix
        limited = '[requests]\nmemory-limit-most = "8Gi"\n' if way else ""
        config.write_text(f"{text}{limited}{way}")
        assert patient.refresh("--force")[0] == 0
        assert next(check_memory.limits(patient.host)).verdict == "ok"
        config.write_text(f'{text}[requests]\nmemory-limit-most = "8Gi"\n')
    assert checks.table(())["memory-limits"] is check_memory.limits
