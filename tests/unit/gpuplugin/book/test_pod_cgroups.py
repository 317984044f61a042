"""Which pods run, by cgroups as kubelet makes them: both versions, both drivers, each class of service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplugin.book import pod_cgroups
from gpuplugin.book.pod_cgroups import PodCgroups

UID = "6e0cd0a0-1f4e-4d8c-9a0f-3a1b7b3d2c11"
UNDER = UID.replace("-", "_")
PLACES = {
    "cgroupfs": f"kubepods/pod{UID}",
    "cgroupfs, burstable": f"kubepods/burstable/pod{UID}",
    "systemd": f"kubepods.slice/kubepods-pod{UNDER}.slice",
    "systemd, besteffort": f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice",
    "below another": f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{UNDER}.slice",
    "below others": f"a/b/kubepods/burstable/pod{UID}",
}


def v2(top: Path, place: str, runs: bool) -> None:
    """Have a pod's cgroup of version 2."""
    (top / place).mkdir(parents=True, exist_ok=True)
    (top / "cgroup.controllers").write_text("pids\n")
    (top / place / "cgroup.events").write_text(f"populated {runs:d}\nfrozen 0\n")


def v1(top: Path, place: str, runs: bool) -> None:
    """Have a pod's cgroups of version 1, seen from another PID namespace."""
    for name in ("pids", "devices"):
        (top / name / place / "box").mkdir(parents=True, exist_ok=True)
        (top / name / place / "box" / "cgroup.procs").write_text("")
    (top / "pids" / place / "pids.current").write_text(f"{runs:d}\n")


def without_pids(top: Path, place: str, runs: bool) -> None:
    """Have those of a kernel without that controller."""
    (top / "devices" / place / "box").mkdir(parents=True, exist_ok=True)
    (top / "devices" / place / "box" / "cgroup.procs").write_text("1\n" * runs)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("make", [v2, v1, without_pids])
def test_a_pod_runs_until_its_last_process_has_ended(tmp_path: Path, make: object, place: str) -> None:
    assert callable(make)
    make(tmp_path, place, True)
    found = PodCgroups(str(tmp_path))
    assert (found.sees(UID), found.runs(UID)) == (True, True)
    make(tmp_path, place, False)
    assert (found.sees(UID), found.runs(UID)) == (True, False)
    assert (found.sees("another"), found.runs("another")) == (False, False)


@pytest.mark.parametrize("before", ["other", PLACES["systemd, besteffort"]], ids=["nobody", "another kubelet"])
def test_who_looks_before_kubelet_comes_sees_it_later(
    tmp_path: Path, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    v2(tmp_path, before.replace(UNDER, "x"), True)
    found = PodCgroups(str(tmp_path))
    assert (found.runs(UID), found.there()) == (False, "kube" in before)
    v2(tmp_path, PLACES["cgroupfs"], True)
    assert not found.runs(UID)  # it looked just now
    monkeypatch.setattr(pod_cgroups, "AGAIN", 0.0)
    assert (found.runs(UID), found.there()) == (True, True)


@pytest.mark.parametrize("uid", ["", "..", f"x/../pod{UID}", "a" * 200])
def test_what_is_no_uid_is_no_path(tmp_path: Path, uid: str) -> None:
    v2(tmp_path, f"kubepods/pod{uid[:100]}", True)
    assert not PodCgroups(str(tmp_path)).sees(uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_anothers_cgroups_are_not_believed(tmp_path: Path) -> None:
    v2(tmp_path, f"user.slice/kubepods/pod{UID}", True)
    os.chown(tmp_path / "user.slice", 1000, 1000)
    assert not PodCgroups(str(tmp_path)).sees(UID)
