"""Faults of engines' settings, planted one by one, and what each check says of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushim.doctor import checks, host
from gpushim.engines.docker import on_path
from gpushim.engines.processes import origin, programs
from gpushim.engines.processes.running import Impostor
from unit.gpushim.doctor import nodes
from unit.gpushim.doctor.patient import NVIDIA_HOOK, Patient

FAULTS: list[tuple[str, str, str, Callable[[Patient], None]]] = []
DAEMON, CONTAINERD = "etc/docker/daemon.json", "containerd.toml"
K3S = "var/lib/rancher/k3s/agent/etc/containerd"


def fault(
    check: str, verdict: str, evidence: str
) -> Callable[[Callable[[Patient], None]], Callable[[Patient], None]]:
    def keep(plant: Callable[[Patient], None]) -> Callable[[Patient], None]:
        FAULTS.append((check, verdict, evidence, plant))
        return plant

    return keep


def change(patient: Patient, number: int, **facts: Any) -> None:
    """Change an engine: 0 is dockerd, 1 containerd."""
    patient.host.engines[number] = replace(patient.host.engines[number], **facts)


def edit(patient: Patient, name: str, old: str, new: str) -> None:
    path = patient.top / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def only_runc(patient: Patient) -> None:
    patient.info["Runtimes"] = {"runc": {"path": "runc"}}


@fault("docker-daemon", "broken", "does not answer")
def dockerd_is_deaf(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.docker.dockerd.ask", deaf)


def deaf(*_: Any) -> dict[str, Any]:
    raise TimeoutError("timed out")


@fault("docker-daemon", "warning", "no dockerd runs")
def dockerd_is_down(patient: Patient) -> None:
    del patient.host.engines[0]


@fault("docker-runtime", "broken", "which the running dockerd does not know")
def dockerd_has_not_read_it(patient: Patient) -> None:
    only_runc(patient)


@fault("docker-runtime", "warning", "does not name gpushim-runtime")
def runtime_in_no_file(patient: Patient) -> None:
    only_runc(patient)
    patient.write(DAEMON, "{}")


@fault("docker-runtime", "warning", "its nvidia is nvidia-container-runtime")
def runtime_of_nvidias(patient: Patient) -> None:
    only_runc(patient)
    patient.write(DAEMON, '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}')


@fault("docker-runtime", "broken", "srv.json")
def dockerd_reads_another_file(patient: Patient) -> None:
    only_runc(patient)
    (patient.top / "usr/bin" / NVIDIA_HOOK).unlink()
    change(patient, 0, config=f"{patient.root}/srv.json")


@fault("docker-runtime", "broken", "daemon.json")
def daemon_json_is_cut_off(patient: Patient) -> None:
    patient.write(DAEMON, '{"runtimes": {')


@fault("docker-program", "broken", "is not an executable file")
def program_is_gone(patient: Patient) -> None:
    patient.write(DAEMON, json.dumps({"runtimes": {"nvidia": {"path": "/gone/gpushim-runtime"}}}))


@fault("docker-program", "broken", "in dockerd's own root")
def snap_does_not_see_it(patient: Patient) -> None:
    # A root in which nothing is: the plain path means another directory there.
    (patient.folder / "snap/srv").mkdir(parents=True)
    (patient.folder / "snap/srv/daemon.json").write_text(
        json.dumps({"runtimes": {"x": {"path": "/opt/gpushim-runtime"}}})
    )
    change(patient, 0, root=str(patient.folder / "snap"), config="/srv/daemon.json")


@fault("docker-hook", "warning", "docker run --gpus fails")
def hook_is_not_on_that_path(patient: Patient) -> None:
    change(patient, 0, environ={"PATH": f"{patient.root}/snap/bin"})


@fault("docker-hook", "warning", "is not gpushim's")
def hook_of_nvidias_is_first(patient: Patient) -> None:
    shutil.copy("/bin/true", patient.top / "usr/sbin" / NVIDIA_HOOK)


@fault("docker-restart", "warning", "was installed")
def hook_is_newer(patient: Patient) -> None:
    change(patient, 0, started=1e9)


@fault("docker-restart", "warning", "daemon.json was changed after")
def settings_are_newer(patient: Patient) -> None:
    only_runc(patient)
    (patient.top / "usr/bin" / NVIDIA_HOOK).unlink()
    change(patient, 0, started=1e9)


@fault("docker-cdi", "warning", "does not do CDI")
def docker_cdi_is_off(patient: Patient) -> None:
    patient.info.update(ServerVersion="26.1.5", CDISpecDirs=None)


@fault("docker-cdi", "warning", "finds no nvidia.com/gpu")
def docker_finds_no_device(patient: Patient) -> None:
    patient.info["DiscoveredDevices"] = None


@fault("docker-hook-alone", "warning", "cgroup driver is systemd")
def hook_alone(patient: Patient) -> None:
    only_runc(patient)


@fault("containerd-daemon", "broken", "cannot be used")
def containerd_dumps_nothing(patient: Patient) -> None:
    patient.patch.setattr(programs, "DIRECTORIES", (f"{patient.root}/usr/bin",))
    config = patient.write(CONTAINERD, "[[")
    patient.script(
        "usr/bin/containerd", f"grep -q version '{config}' && exec cat '{config}'; echo toml: line 1 >&2; exit 1"
    )


@fault("containerd-runtime", "broken", "do not name gpushim-runtime")
def handler_is_missing(patient: Patient) -> None:
    edit(patient, CONTAINERD, "gpushim-runtime", "runc")


@fault("containerd-runtime", "broken", "is not an executable file")
def handler_is_gone(patient: Patient) -> None:
    edit(patient, CONTAINERD, 'BinaryName = "', 'BinaryName = "/gone')


@fault("containerd-cgroups", "broken", "SystemdCgroup of the handler nvidia is false, of runc true")
def cgroup_drivers_differ(patient: Patient) -> None:
    edit(patient, CONTAINERD, 'runtime"\nSystemdCgroup = true', 'runtime"\nSystemdCgroup = false')


@fault("containerd-restart", "warning", "was changed after containerd")
def containerd_is_older(patient: Patient) -> None:
    change(patient, 1, started=1e9)


@fault("containerd-cdi", "warning", "enable_cdi of containerd is false")
def containerd_cdi_is_off(patient: Patient) -> None:
    edit(patient, CONTAINERD, "enable_cdi = true", "enable_cdi = false")


@fault("podman-program", "broken", "does not run")
def podman_is_broken(patient: Patient) -> None:
    patient.script("usr/bin/podman", "exit 125")


@fault("podman-runtime", "broken", "is not an executable file")
def podman_runtime_is_gone(patient: Patient) -> None:
    edit(patient, "etc/containers/containers.conf", "/usr/bin", "/gone")


@fault("podman-runtime", "warning", "does not name gpushim-runtime")
def podman_is_not_configured(patient: Patient) -> None:
    (patient.top / "etc/containers/containers.conf").unlink()


@fault("podman-hooks", "broken", "which is not there")
def podman_hook_is_gone(patient: Patient) -> None:
    hook = '{"version": "1.0.0", "hook": {"path": "/gone/gpushim-hook"}, "when": {"always": true}}'
    patient.write("usr/share/containers/oci/hooks.d/99-gpushim.json", hook)


@fault("kubernetes-device-plugin", "warning", "no device plugin")
def no_device_plugin(patient: Patient) -> None:
    (patient.top / "var/lib/kubelet/device-plugins/nvidia-gpu.sock").unlink()


@fault("kubernetes-runtime-class", "warning", "no RuntimeClass")
def no_runtime_class(patient: Patient) -> None:
    classes = patient.top / "classes"
    patient.script(
        "usr/bin/kubectl",
        f"""\
case "$*" in
  *apply*) cat >'{classes}' ;;
  *) echo "{{\\"items\\": [$(cat '{classes}' 2>/dev/null)]}}" ;;
esac""",
    )


@fault("kubernetes-template", "broken", "no template")
def k3s_forgets(patient: Patient) -> None:
    patient.write(f"{K3S}/config.toml", "BinaryName = '/usr/bin/gpushim-runtime'")


@fault("kubernetes-template", "warning", "does not have what")
def k3s_has_not_read_it(patient: Patient) -> None:
    patient.write(f"{K3S}/config.toml", "")
    patient.write(f"{K3S}/config.toml.tmpl", "BinaryName = '/usr/bin/gpushim-runtime'")


@pytest.mark.parametrize(("check", "verdict", "evidence", "plant"), FAULTS, ids=[each[3].__name__ for each in FAULTS])
def test_fault(unlisted: Patient, check: str, verdict: str, evidence: str, plant: Callable[[Patient], None]) -> None:
    plant(unlisted)
    found = [each for each in unlisted.said(check) if each.verdict == verdict and evidence in each.evidence]
    assert found, unlisted.said(check)
    assert found[0].fix


def test_every_check_of_an_engine_finds_a_fault() -> None:
    known = {name for engine, names in checks.ENGINES.items() for name in names if engine != "crio"}  # test_crio.py
    assert known == {check for check, *_ in (*FAULTS, *nodes.FAULTS)}


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
    monkeypatch.setattr(on_path, "SYSTEM", f"{unlisted.top}/local")
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
    found = list(host.impostors(patient.host))
    assert found[0].verdict == "warning"
    assert len(found) == host.SHOWN + 1
    assert found[-1].evidence == f"so do {5001 - host.SHOWN} more processes"
