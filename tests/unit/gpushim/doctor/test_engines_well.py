"""States of engines that are well, however unlike the usual ones they look."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from gpushim.nvidia.migrate import migrate
from gpushim.refresh import keep
from unit.gpushim.doctor.engine_states import CONTAINERD, DAEMON, K3S, change, edit
from unit.gpushim.doctor.patient import RUNTIME, Patient

COMPAT = "nvidia-container-runtime"
STATES: list[tuple[str, str, Callable[[Patient], None]]] = []


def well(check: str, evidence: str) -> Callable[[Callable[[Patient], None]], Callable[[Patient], None]]:
    def keep(make: Callable[[Patient], None]) -> Callable[[Patient], None]:
        STATES.append((check, evidence, make))
        return make

    return keep


def compat(patient: Patient) -> str:
    """Install the link of the compat package; returns its path as the patient's engines have it."""
    link = patient.top / "usr/bin" / COMPAT
    link.symlink_to(RUNTIME)
    return str(link)


@well("docker-runtime", "dockerd knows the runtime nvidia")
@well("docker-program", f"dockerd can execute {COMPAT}")
@well("docker-restart", "dockerd started after all")
def dockerd_has_a_name_of_the_compat_package(patient: Patient) -> None:
    compat(patient)
    patient.write(DAEMON, json.dumps({"runtimes": {"nvidia": {"path": COMPAT, "runtimeArgs": []}}}))
    patient.info["Runtimes"]["nvidia"] = {"path": COMPAT}


@well("docker-runtime", "dockerd knows the runtime nvidia")
@well("docker-program", f"dockerd can execute {RUNTIME}")
@well("docker-restart", "dockerd started after all")
def dockerd_has_it_by_type(patient: Patient) -> None:
    """dockerd then tells its name alone, as 26.1 and 28.5 were seen to."""
    entry = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": str(RUNTIME)}}
    patient.write(DAEMON, json.dumps({"runtimes": {"nvidia": entry}}))
    patient.info["Runtimes"]["nvidia"] = {}


@well("docker-restart", "dockerd started after all")
def an_upgrade_has_laid_the_hook_down_anew(patient: Patient) -> None:
    change(patient, 0, started=1e9)


@well("docker-restart", "dockerd started after all")
def dockerd_has_it_by_its_command_line(patient: Patient) -> None:
    patient.write(DAEMON, "{}")
    change(patient, 0, argv=("dockerd", f"--add-runtime=nvidia={RUNTIME}"))


@well("containerd-runtime", "containerd's handler nvidia is")
@well("containerd-cgroups", "both use systemd's cgroups")
def containerd_has_a_name_of_the_compat_package(patient: Patient) -> None:
    edit(patient, CONTAINERD, str(RUNTIME), compat(patient))


@well("containerd-daemon", "with its built-in settings: there is no")
def containerd_without_a_file(patient: Patient) -> None:
    patient.patch.setattr(
        "gpushim.engines.containerd.process.SYSTEM_CONFIG", f"{patient.root}/etc/containerd/config.toml"
    )
    patient.patch.setattr("gpushim.engines.processes.programs.DIRECTORIES", (f"{patient.root}/usr/bin",))
    patient.script("usr/bin/containerd", '[ "$*" = "config default" ] && echo version = 2')
    change(patient, 1, config="")


@well("podman-runtime", "Podman's runtime nvidia is /usr/bin/nvidia-container-runtime")
def podman_has_a_name_of_the_compat_package(patient: Patient) -> None:
    compat(patient)
    patient.write("etc/containers/containers.conf", f'[engine.runtimes]\nnvidia = ["/usr/bin/{COMPAT}"]\n')


@well("kubernetes-template", "config-v3.toml.d/99-gpushim.toml has gpushim-runtime")
def k3s_imports_it(patient: Patient) -> None:
    patient.write(f"{K3S}/config.toml", 'version = 3\nimports = ["config-v3.toml.d/*.toml"]\n')
    patient.write(f"{K3S}/config-v3.toml.d/99-gpushim.toml", "BinaryName = '/usr/bin/gpushim-runtime'")


@well("units", "gpushim refresh --keep runs, by gpushim-node")
def a_node_that_is_kept(patient: Patient) -> None:
    kept(patient)
    patient.write(keep.RECORD[1:], "{}")


@well("units", "gpushim-refresh.service is installed")
def a_socket_that_the_administrator_does_not_want(patient: Patient) -> None:
    os.symlink("/dev/null", patient.top / "etc/systemd/system/gpushim-refresh.socket")


@well("units", "gpushim refresh --keep runs")
def a_host_with_another_init(patient: Patient) -> None:
    kept(patient)
    (patient.top / "run/systemd/system").rmdir()


def kept(patient: Patient) -> None:
    (patient.top / "etc/systemd/system/gpushim-refresh.service").unlink()
    os.makedirs(patient.state, exist_ok=True)
    patient.keeper = keep.Lock(patient.state)
    patient.keeper.take()


@well("nvidia-units", "no nvidia-cdi-refresh is enabled")
def units_that_are_only_installed(patient: Patient) -> None:
    patient.write("usr/lib/systemd/system/nvidia-cdi-refresh.service", "")


def nvidias(patient: Patient, text: str) -> None:
    patient.write(migrate.SYSTEM_CONFIG.lstrip("/"), text)


@well("nvidia-config", "no settings of NVIDIA's toolkit wait")
def settings_that_are_the_default_here(patient: Patient) -> None:
    nvidias(patient, "disable-require = false\naccept-nvidia-visible-devices-envvar-when-unprivileged = true\n")


@well("nvidia-config", "no settings of NVIDIA's toolkit wait")
def a_hardening_switch_that_was_decided_otherwise(patient: Patient) -> None:
    nvidias(patient, "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    with open(patient.config, "a", encoding="utf-8") as file:
        file.write("[requests]\naccept-env-when-unprivileged = true\n")
    patient.reread()


@well("nvidia-config", "no settings of NVIDIA's toolkit wait")
def a_hardening_switch_that_a_profile_has(patient: Patient) -> None:
    nvidias(patient, "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    with open(patient.config, "a", encoding="utf-8") as file:
        file.write('[requests]\nprofile = "multi-tenant"\n')
    patient.reread()


@pytest.mark.parametrize(
    ("check", "evidence", "make"), STATES, ids=[f"{each[0]}-{each[2].__name__}" for each in STATES]
)
def test_well(unlisted: Patient, check: str, evidence: str, make: Callable[[Patient], None]) -> None:
    make(unlisted)
    found = unlisted.said(check)
    assert [each.verdict for each in found] == ["ok"], found
    assert evidence in found[0].evidence


def test_settings_of_nvidias_that_nobody_can_read(unlisted: Patient) -> None:
    nvidias(unlisted, "disable-require =")
    (found,) = unlisted.said("nvidia-config")
    assert (found.verdict, found.fix.startswith("correct ")) == ("warning", True)


def test_nothing_is_compared_with_a_configuration_that_is_not_valid(unlisted: Patient) -> None:
    nvidias(unlisted, "disable-require = true\n")
    unlisted.configure("[")
    unlisted.reread()
    assert [found.verdict for found in unlisted.said("nvidia-config")] == ["skipped"]


def test_a_handler_that_nobody_asks_for(unlisted: Patient) -> None:
    """One of NVIDIA's whose program is gone, where no Kubernetes is."""
    edit(unlisted, CONTAINERD, str(RUNTIME), "/usr/bin/nvidia-container-runtime.old")
    os.rename(unlisted.top / "var/lib/kubelet", unlisted.top / "var/lib/no")
    assert [found.verdict for found in unlisted.said("containerd-runtime")] == ["skipped"]
