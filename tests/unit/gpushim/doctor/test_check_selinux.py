"""What SELinux forbids: nothing to containers whose nodes are made in them, by gpushim-runtime or CDI."""

from __future__ import annotations

import pytest

from unit.gpushim import labels
from unit.gpushim.doctor import host_states
from unit.gpushim.doctor.patient import Patient

NARROW = "container_use_xserver_devices"


def test_gpushim_runtime_and_cdi_need_no_boolean(patient: Patient) -> None:
    host_states.selinux(patient, "container_use_devices", NARROW)
    (found,) = patient.said("selinux")
    assert (found.verdict, found.fix) == ("ok", "")
    assert NARROW in found.evidence


def test_dockers_hook_needs_none_where_docker_takes_gpus_from_cdi(patient: Patient) -> None:
    host_states.selinux(patient, NARROW)
    patient.info["Runtimes"].pop("nvidia")
    patient.info["ServerVersion"] = "29.2.0"
    assert [each.verdict for each in patient.said("selinux")] == ["ok"]


@pytest.mark.parametrize("kind", ["container_ro_file_t", "container_file_t"])
def test_files_that_containers_may_read_are_well(patient: Patient, kind: str) -> None:
    host_states.selinux(patient, NARROW)
    for name in ("params", "empty"):
        labels.label(f"{patient.state}/{name}", kind)
    assert [each.verdict for each in patient.said("selinux")] == ["ok"]


def test_a_permissive_policy_forbids_nothing(patient: Patient) -> None:
    host_states.selinux_hides_the_parameters(patient)
    patient.write("sys/fs/selinux/enforce", "0")
    (found,) = patient.said("selinux")
    assert (found.verdict, found.evidence) == ("ok", "SELinux is permissive")


def test_a_policy_that_knows_no_containers_is_the_first_thing_to_mend(patient: Patient) -> None:
    host_states.selinux(patient)
    labels.label(f"{patient.state}/params", labels.RUN)  # no refresh can give it another one
    assert [each.fix for each in patient.said("selinux")] == ["install container-selinux"]


@pytest.mark.parametrize("release", ["ID=debian\n", 'ID=pop\nID_LIKE="ubuntu debian"\n'])
def test_a_distribution_without_that_package(patient: Patient, release: str) -> None:
    host_states.selinux(patient)
    patient.write("etc/os-release", release)
    (found,) = patient.said("selinux")
    assert found.fix.endswith("; then setenforce 0")
    assert "install" not in found.fix


@pytest.mark.parametrize("knows", [True, False])
def test_a_refresh_is_no_fix_where_the_policy_lacks_the_label_that_it_gives(patient: Patient, knows: bool) -> None:
    host_states.selinux_hides_the_parameters(patient)
    context = patient.write("sys/fs/selinux/context", "")
    if not knows:  # as the kernel answers, here by another file of its own
        context.unlink()
        context.symlink_to("/proc/self/oom_score_adj")
    (found,) = patient.said("selinux")
    assert ("its policy has no container_ro_file_t" in found.evidence) != knows
    assert found.fix == ("" if knows else "install a newer container-selinux; then ") + "gpushim refresh"
