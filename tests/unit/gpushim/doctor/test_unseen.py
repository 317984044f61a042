"""As an ordinary user: what may not be looked at is said by a warning, and never called absent or well."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushim.doctor import Finding, check_podman, checks
from gpushim.engines.processes.running import Impostor
from gpushim.ground.errors import GpushimError
from unit import ordinary
from unit.gpushim.config.kubeconfigs import kubeconfig
from unit.gpushim.doctor.dra_states import UNIT
from unit.gpushim.doctor.patient import Patient

# What is hidden, by the check that would need it.
HIDDEN = {
    "apparmor": "sys/kernel/security/apparmor/profiles",
    "nvidia-config": "etc/nvidia-container-runtime",
    "nvidia-hooks-d": "etc/containers/oci/hooks.d",
    "nvidia-units": "etc/systemd/system",
    "kubernetes-device-plugin": "var/lib/kubelet",
    "kubernetes-kubelet": "var/lib/kubelet/device-plugins",
    "kubernetes-checkpoint": "var/lib/kubelet/device-plugins",
    "kubernetes-dra-driver": "var/lib/kubelet/plugins/gpu.nvidia.com",
    "kubernetes-dra-engine": "var/lib/kubelet/plugins",
    "kubernetes-claims": "var/lib/kubelet",
    "kubernetes-template": "var/lib/rancher/k3s/agent",
    "podman-hooks": "usr/share/containers/oci/hooks.d",
    "cdi-paths": "opt/driver",
    "device-nodes": "dev",
    "dev-char-links": "dev/char",
}


@pytest.fixture(scope="module")
def patient() -> Iterator[Patient]:
    with ordinary.folder() as folder:
        found = Patient(folder)
        found.write("sys/module/apparmor/parameters/enabled", "Y\n")
        found.write("sys/kernel/security/apparmor/profiles", "x (enforce)\n")
        for name in HIDDEN.values():
            if not (found.top / name).exists():
                (found.top / name).mkdir(parents=True)
        edits = {"mounts": [{"hostPath": f"{found.root}/opt/driver/x", "containerPath": "/x"}]}
        spec = {"cdiVersion": "0.5.0", "kind": "a.b/c", "devices": [{"name": "0", "containerEdits": edits}]}
        (folder / "etc-cdi").mkdir()
        (folder / "etc-cdi/x.json").write_text(json.dumps(spec))
        yield found


def found(patient: Patient, check: str) -> list[Finding]:
    patient.said(check)  # imports what it needs, of a Python that root alone may be able to read
    patient.host.answers.clear()
    with ordinary.user():
        return checks._run_within(60, checks.table(())[check], patient.host)


@pytest.mark.parametrize("check", HIDDEN)
def test_what_is_hidden(patient: Patient, check: str) -> None:
    with ordinary.hidden(patient.top / HIDDEN[check]):
        said = found(patient, check)
    assert (said[-1].verdict, said[-1].fix) == ("warning", "run this as root"), said
    assert "cannot read" in said[-1].evidence
    assert not any(each.verdict in ("ok", "skipped", "broken") for each in said)


@pytest.mark.parametrize("check", sorted({*HIDDEN} - {"cdi-paths"}))
def test_the_same_check_where_nothing_is_hidden(patient: Patient, check: str) -> None:
    assert not any("cannot read" in each.evidence for each in found(patient, check))


@pytest.mark.parametrize("name", ["kubeconfig", "key"])
def test_a_kubeconfig_that_root_alone_may_read(patient: Patient, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Or a file that it names: the driver is root's, and may."""
    user = {"client-certificate-data": "YQ==", "client-key": "key"}
    patient.write(UNIT, "")
    patient.write("kubeconfig", json.dumps(kubeconfig(user)))
    patient.write("key", "k")
    monkeypatch.setitem(patient.host.settings["device-plugin"], "kubeconfig", f"{patient.top}/kubeconfig")
    assert not any("cannot" in each.evidence for each in found(patient, "kubernetes-dra-driver"))
    with ordinary.hidden(patient.top / name):
        (said,) = found(patient, "kubernetes-dra-driver")
    assert (said.verdict, said.fix) == ("warning", "run this as root")
    assert f"cannot read {patient.top}/{name}" in said.evidence


def test_engines_of_root(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient.host, "engines", [])
    monkeypatch.setattr(patient.host, "impostors", [Impostor("containerd", 7, 0, "it is user 0's")])
    monkeypatch.setattr(patient.host, "named", ("containerd",))
    (daemon,) = found(patient, "containerd-daemon")
    (process,) = found(patient, "engine-processes")
    assert daemon.evidence == "no containerd of this user runs (see engine-processes)"
    assert (process.verdict, process.fix) == ("warning", "run this as root")
    assert "cannot read containerd (process 7), which is root's" in process.evidence


def test_a_report_says_what_is_hidden(patient: Patient) -> None:
    from gpushim.doctor import report

    report.gathered(patient.host, [])
    with ordinary.hidden(Path(patient.config)), ordinary.user():
        try:
            sections = report.gathered(patient.host, [])
        except GpushimError as error:  # pragma: no cover
            pytest.fail(str(error))
    assert "cannot read" in sections["config.toml"][0]


def test_a_driver_root_that_this_user_may_not_look_up(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    above = patient.folder / "of root"
    above.joinpath("driver").mkdir(parents=True)
    monkeypatch.setitem(patient.host.driver, "root", f"{above}/driver")
    with ordinary.hidden(above):
        (config,) = found(patient, "config")
        with ordinary.user():
            (module,) = checks.judge("driver-module", checks.GENERAL["driver-module"], patient.host)
    assert (config.verdict, config.fix) == ("warning", "run this as root")
    assert (module.verdict, "cannot read" in module.evidence) == ("skipped", True)


@pytest.mark.parametrize("home", ["/root", "/nonexistent"])
def test_podman_with_directories_of_somebody_else(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    """As su leaves them; the fix is run by a shell of that user's."""
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with ordinary.folder() as folder:
        (folder / "own").mkdir()
        (folder / "own").chmod(0o777)
        with ordinary.user():
            fix = check_podman._environment()
        look = fix.replace("gpushim doctor podman", 'test -O "$HOME" && test -O "$XDG_RUNTIME_DIR"')
        environment = {"PATH": "/usr/bin:/bin", "TMPDIR": f"{folder}/own"}
        user = None if os.geteuid() else ordinary.UID
        assert subprocess.run(["/bin/sh", "-c", look], env=environment, user=user, check=False).returncode == 0, fix


def test_processes_of_root_are_one_finding(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    impostors = [Impostor("containerd", pid, 0, "it is user 0's") for pid in (7, 8)]
    monkeypatch.setattr(patient.host, "impostors", impostors)
    with ordinary.user():
        (told,) = checks.judge("engine-processes", checks.table(())["engine-processes"], patient.host)
    assert told.fix == "run this as root"
    assert "(process 7), which is root's, containerd (process 8)" in told.evidence
