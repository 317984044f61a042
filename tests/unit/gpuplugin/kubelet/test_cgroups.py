"""Whether a process of a pod is left, by cgroups as kubelet and systemd make them."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import gpushim
from gpuplugin.kubelet import cgroups

POD, OTHER = "0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000002"
STATIC = "0123456789abcdef0123456789abcdef"
SLICE = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice"
SEES = f"""
import sys
sys.path[:0] = [sys.argv[1], {str(Path(gpushim.__file__).parents[1])!r}]
from gpuplugin.kubelet import cgroups
print(cgroups.running(["{POD}"]))
"""
PLACES = {
    "cgroupfs": "kubepods/besteffort/pod{}",
    "guaranteed": "kubepods/pod{}",
    "systemd": SLICE,
    "kind": "docker/" + "0" * 64 + "/kubelet.slice/kubelet-" + SLICE.replace("/kube", "/kubelet-kube"),
    "below cgroup-root": "some/root/kubepods/burstable/pod{}",
}


def made(top: Path, place: str, uid: str, populated: bool, version: int) -> None:
    pod = top / place.format(uid.replace("-", "_") if ".slice" in place else uid)
    box = pod / "cri-containerd-1.scope"
    box.mkdir(parents=True)
    for folder in (pod, box):
        mine = populated and folder == box
        (folder / "cgroup.procs").write_text("0\n" if mine and version == 2 else "")  # of another PID namespace
        if version == 2:
            (folder / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
        else:
            (folder / "pids.current").write_text(f"{int(populated)}\n")


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("uid", [POD, STATIC])
def test_a_pod_whose_cgroup_has_a_process_runs(tmp_path: Path, place: str, version: int, uid: str) -> None:
    top = tmp_path / ("pids" if version == 1 else "")
    top.mkdir(exist_ok=True)
    if version == 2:
        (top / "cgroup.controllers").touch()
    made(top, place, uid, True, version)
    made(top, place, OTHER, False, version)
    made(top, "user.slice/app.service/pod{}", "not-kubelets", True, version)
    assert cgroups.running([uid, OTHER, "gone"], [str(tmp_path / "missing"), str(tmp_path)]) == {uid}


@pytest.mark.parametrize("uids", [[POD], []])
def test_where_no_cgroup_is_seen_nothing_is_said(tmp_path: Path, uids: list[str]) -> None:
    assert cgroups.running(uids, [str(tmp_path / "missing")]) == cgroups.running(uids, [str(tmp_path)]) == set()


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_runs_as_long_as_the_kernel_cannot_tell(tmp_path: Path, version: int) -> None:
    """No descriptor is left: that shows the end of no process."""
    top = tmp_path / ("pids" if version == 1 else "")
    top.mkdir(exist_ok=True)
    if version == 2:
        (top / "cgroup.controllers").touch()
    made(top, SLICE, POD, True, version)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    answers = []
    for spare in range(8):  # descriptors: for directories, which are listed within one another, and files
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(spare + 1)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(fds), limits[1]))
        for fd in fds:
            os.close(fd)
        try:
            answers.append(cgroups.running([POD], [str(tmp_path)]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert answers == [{POD}] * 8


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_runs_whose_file_cannot_be_read_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Its directory could be listed a moment before."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENFILE, "Too many open files in system")

    top = tmp_path / ("pids" if version == 1 else "")
    top.mkdir(exist_ok=True)
    if version == 2:
        (top / "cgroup.controllers").touch()
    made(top, SLICE, POD, False, version)
    monkeypatch.setattr(cgroups, "open", fail, raising=False)
    assert cgroups.running([POD], [str(tmp_path)]) == {POD}


def test_a_cgroup_of_the_kernels_is_empty_when_its_process_has_ended() -> None:
    top = Path("/sys/fs/cgroup")
    top = top if (top / "cgroup.controllers").exists() else top / "pids"
    pod = top / f"gpushim-test-{os.getpid()}" / f"pod{POD}"
    try:
        (pod / "box").mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        assert not cgroups.running([POD])
        with subprocess.Popen(["sleep", "100"]) as sleeps:
            (pod / "box" / "cgroup.procs").write_text(str(sleeps.pid))
            assert cgroups.running([POD]) == {POD}
            sleeps.kill()
        assert not cgroups.running([POD])
        ns = [
            "/usr/bin/unshare",
            "--pid",
            "--fork",
            sys.executable,
            "-IBc",
            SEES,
            str(Path(cgroups.__file__).parents[2]),
        ]
        with subprocess.Popen(["sleep", "100"]) as sleeps:
            (pod / "box" / "cgroup.procs").write_text(str(sleeps.pid))
            done = subprocess.run(ns, capture_output=True, text=True, check=True)
            assert done.stdout == f"frozenset({{'{POD}'}})\n"  # as a pod sees another
            sleeps.kill()
    finally:
        for folder in (pod / "box", pod, pod.parent):
            folder.rmdir()
