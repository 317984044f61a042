"""What checks of engines say of hosts on which something is unusual; engine_states.py has their faults."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushim.doctor import check_host, checks
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import origin
from gpushim.engines.processes.running import Impostor
from unit.gpushim.doctor import engine_states
from unit.gpushim.doctor.engine_states import CONTAINERD, change, edit
from unit.gpushim.doctor.patient import NVIDIA_HOOK, Patient


def test_every_check_of_an_engine_finds_a_fault() -> None:
    known = {name for engine, names in checks.ENGINES.items() for name in names if engine != "crio"}  # test_crio.py
    assert not known - {state.check for state in engine_states.STATES}


@pytest.mark.parametrize("engine", checks.ENGINES)
def test_an_engine_that_was_named_and_is_not_there(unlisted: Patient, engine: str) -> None:
    unlisted.host.engines.clear()
    for name in ("usr/bin/podman", "usr/bin/dockerd"):
        (unlisted.top / name).unlink()
    shutil.rmtree(unlisted.top / "var/lib/kubelet")
    first = next(iter(checks.ENGINES[engine]))
    assert [found.verdict for found in unlisted.said(first, engine)] == ["broken"]
    assert [found.verdict for found in unlisted.said(first)] == ["skipped"]


def test_a_rootless_dockerd_is_asked_where_it_listens(unlisted: Patient) -> None:
    asked: list[str] = []

    def answer(path: str, *_: Any) -> dict[str, Any]:
        asked.append(path)
        return unlisted.info

    unlisted.patch.setattr("gpushim.engines.docker.dockerd.ask", answer)
    change(unlisted, 0, uid=1000, environ={"XDG_RUNTIME_DIR": "/run/user/1000"})
    unlisted.said("docker-daemon")
    assert asked == ["/run/user/1000/docker.sock"]


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_stranger_is_told_and_no_fault(unlisted: Patient, uid: int) -> None:
    unlisted.host.engines.clear()
    unlisted.host.impostors = [Impostor("dockerd", 7, uid, "its cgroup is /docker/7")]
    (found,) = unlisted.said("engine-processes")
    assert (found.verdict, found.evidence[-23:]) == ("skipped", "its cgroup is /docker/7")
    assert [found.verdict for found in unlisted.said("docker-daemon")] == ["skipped"]


def test_podman_does_without_a_runtime_where_cdi_knows_the_gpus(patient: Patient) -> None:
    os.unlink(patient.top / "etc/containers/containers.conf")
    (found,) = patient.said("podman-runtime", "podman")
    assert (found.verdict, "--device nvidia.com/gpu=all" in found.evidence) == ("ok", True)


def test_another_home_is_no_fault_of_podmans_program(unlisted: Patient) -> None:
    unlisted.patch.setenv("HOME", "/nonexistent")
    unlisted.script("usr/bin/podman", 'echo "cannot resolve home: $HOME" >&2; exit 1')
    (found,) = unlisted.said("podman-program")
    assert found.fix.startswith("export HOME=")


def without_specs(state: Path) -> None:
    shutil.rmtree(state / "cdi")
    state.chmod(0o777)


def a_file(state: Path) -> None:
    shutil.rmtree(state)
    state.touch()


@pytest.mark.parametrize("spoil", [without_specs, a_file])
def test_podman_needs_no_runtime_for_a_spec_that_a_refresh_will_write(
    patient: Patient, spoil: Callable[[Path], object]
) -> None:
    """The state directory is what is to be fixed; then CDI knows the GPUs."""
    os.unlink(patient.top / "etc/containers/containers.conf")
    spoil(Path(patient.state))
    assert [found.verdict for found in patient.said("podman-runtime")] == ["skipped"]
    (found,) = patient.said("state-directory")
    subprocess.run(["/bin/sh", "-c", found.fix.partition(" && ")[0]], check=True)
    patient.refreshed()
    assert [found.verdict for found in patient.said("podman-runtime")] == ["ok"]


def test_containerd_without_kubernetes_needs_no_handler(unlisted: Patient) -> None:
    edit(unlisted, CONTAINERD, "gpushim-runtime", "runc")
    shutil.rmtree(unlisted.top / "var/lib/kubelet")
    assert [found.verdict for found in unlisted.said("containerd-runtime")] == ["skipped"]


def test_dockers_own_containerd_is_not_ours_to_judge(unlisted: Patient) -> None:
    edit(unlisted, CONTAINERD, "gpushim-runtime", "runc")
    change(unlisted, 1, parent=40)
    assert unlisted.said("containerd-runtime") == []


def test_the_containerd_of_k3s_has_one_file(unlisted: Patient) -> None:
    change(unlisted, 1, exe="/var/lib/rancher/k3s/data/current/bin/k3s")
    assert [found.verdict for found in unlisted.said("containerd-runtime")] == ["ok"]


@pytest.mark.parametrize(("version", "verdict"), [("29.1.0", "warning"), ("29.2.0", "ok"), ("", "warning")])
def test_since_29_2_the_name_of_the_cdi_hook_will_do(unlisted: Patient, version: str, verdict: str) -> None:
    (unlisted.top / "usr/bin" / NVIDIA_HOOK).rename(unlisted.top / "usr/bin/nvidia-cdi-hook")
    unlisted.info["ServerVersion"] = version
    assert [found.verdict for found in unlisted.said("docker-hook")] == [verdict]


@pytest.mark.parametrize(
    ("version", "name", "says"),
    [
        ("29.7.2", "nvidia-cdi-hook", "AMD CDI spec not found"),
        ("29.1.5", NVIDIA_HOOK, "could not select device driver"),
    ],
)
def test_what_gpus_needs_is_told_by_version(unlisted: Patient, version: str, name: str, says: str) -> None:
    (unlisted.top / "usr/bin" / NVIDIA_HOOK).unlink()
    unlisted.info["ServerVersion"] = version
    (found,) = unlisted.said("docker-hook")
    assert (found.verdict, found.evidence.split()[0], says in found.evidence) == ("warning", name, True)


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("{top}/local:{top}/usr/bin", "gpushim configure docker --restart"),
        ("{top}/usr/bin", "put {top}/local on the PATH of dockerd; then gpushim configure docker --restart"),
    ],
)
def test_the_fix_of_gpus_is_one_that_dockerds_path_allows(
    unlisted: Patient, monkeypatch: pytest.MonkeyPatch, path: str, fix: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(dockerd, "LINKS", f"{unlisted.top}/local")
    (unlisted.top / "usr/bin" / NVIDIA_HOOK).unlink()
    change(unlisted, 0, environ={"PATH": path.format(top=unlisted.top)})
    assert [found.fix for found in unlisted.said("docker-hook")] == [fix.format(top=unlisted.top)]


def test_a_dockerd_that_was_told_to_reload_is_not_too_old(unlisted: Patient) -> None:
    (unlisted.top / "usr/bin" / NVIDIA_HOOK).unlink()
    change(unlisted, 0, started=1e9)
    assert [found.verdict for found in unlisted.said("docker-restart")] == ["ok"]


def test_strangers_without_end_do_not_bury_the_rest(patient: Patient) -> None:
    patient.host.impostors = [Impostor("dockerd", pid, 1000, "it is user 1000's") for pid in range(5000)]
    patient.host.impostors.append(Impostor("dockerd", 5001, 0, f"{origin.UNSAFE}, /opt/x/dockerd"))
    found = list(check_host.impostors(patient.host))
    assert found[0].verdict == "warning"
    assert len(found) == check_host.SHOWN + 1
    assert found[-1].evidence == f"so do {5001 - check_host.SHOWN} more processes"
