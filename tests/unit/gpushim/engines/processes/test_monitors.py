"""Containers of pods whose monitor calls a program, from a /proc that the test makes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.engines.processes import monitors
from gpushim.engines.settings.setup import is_ours
from unit.gpushim.engines.processes.test_kubelets import proc, process

__all__ = ["proc"]
NAME = "k8s_main_one_default_8d1c_0"
OURS = ("-b", "/b", "-c", "0123", "-n", NAME, "-r", "/usr/bin/gpushim-runtime", "--runtime-arg", "--root=/run/crun")


def watches(proc: Path, pid: int, *words: str, **facts: object) -> None:
    facts = {"exe": "conmon", "cgroup": "crio-conmon-0123.scope", **facts}
    process(proc, pid, "/usr/libexec/crio/conmon", *words, **facts)  # type: ignore[arg-type]


def test_they_are_found_wherever_the_monitor_is(proc: Path) -> None:
    """In CRI-O's cgroup or in the pod's; others call other programs."""
    watches(proc, 7, *OURS)
    watches(proc, 8, *(word.replace("0123", "4567") for word in OURS), cgroup="crio.service")
    watches(proc, 9, *(word.replace("gpushim-runtime", "crun") for word in OURS))
    assert monitors.calling(is_ours, str(proc)) == ["0123", "4567"]


@pytest.mark.parametrize("facts", [{"uid": 1000}, {"ns": "pid"}, {"ns": "mnt"}, {"ns": "user"}, {"exe": "x"}])
def test_strangers_and_podmans_are_not(proc: Path, facts: dict[str, object]) -> None:
    watches(proc, 7, *OURS, **facts)
    watches(proc, 8, *(word.replace("k8s_", "") for word in OURS))
    watches(proc, 9, "-c")
    assert monitors.calling(is_ours, str(proc)) == []
