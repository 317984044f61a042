"""Faults of the host, planted one by one: each is found by the check that is there for it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim.doctor import checks
from gpushim.engines.processes import origin
from gpushim.engines.processes.running import Impostor
from gpushim.refresh import keep
from unit.gpushim.doctor.patient import NVIDIA_HOOK, Patient

pytestmark = pytest.mark.slow

FAULTS: list[tuple[str, str, str, Callable[[Patient], None]]] = []
SPEC = """{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
"devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "%s"}]}}]}"""


def fault(
    check: str, verdict: str, evidence: str
) -> Callable[[Callable[[Patient], None]], Callable[[Patient], None]]:
    def keep(plant: Callable[[Patient], None]) -> Callable[[Patient], None]:
        FAULTS.append((check, verdict, evidence, plant))
        return plant

    return keep


@fault("driver-module", "broken", "though there is a GPU")
def no_module(patient: Patient) -> None:
    patient.gpus.unload("nvidia")


@fault("driver-module", "broken", "nouveau")
def nouveau(patient: Patient) -> None:
    patient.gpus.unload("nvidia")
    patient.write("proc/modules", "nouveau 2506752 1 - Live 0x0000000000000000\n")


@fault("driver-module", "broken", "no NVIDIA GPU on the PCI bus")
def no_gpu(patient: Patient) -> None:
    patient.gpus.unload("nvidia")
    shutil.rmtree(patient.top / "sys/bus/pci/devices")
    (patient.top / "sys/bus/pci/devices").mkdir()


@fault("driver-libraries", "broken", "535.216.01")
def half_upgrade(patient: Patient) -> None:
    patient.gpus.half_upgrade("535.216.01")


@fault("driver-libraries", "broken", "there are no libraries")
def no_libraries(patient: Patient) -> None:
    shutil.rmtree(patient.gpus.lib_path)


@fault("nvml", "broken", "GPU 1 (00000000:")
def sick_gpu(patient: Patient) -> None:
    patient.gpus.behave(fail_gpu={1: 15})


@fault("nvml", "broken", "NVML cannot be used")
def nvml_fails(patient: Patient) -> None:
    patient.gpus.behave(fail=999)


@fault("nvml", "broken", "has not answered within")
def nvml_hangs(patient: Patient) -> None:
    patient.host_of(seconds=1)
    patient.reread()
    patient.patch.setattr("gpushim.doctor.driver.GRACE", 0.5)
    patient.gpus.behave(hang=True)


@fault("nvml", "warning", "s to initialise")
def nvml_is_slow(patient: Patient) -> None:
    patient.gpus.behave(delay_ms=2100)


@fault("more-modules", "broken", "nvidia_uvm is not loaded")
def no_uvm(patient: Patient) -> None:
    patient.gpus.unload("nvidia_uvm")


@fault("more-modules", "warning", "nvidia_modeset is not loaded")
def no_modeset(patient: Patient) -> None:
    patient.gpus.unload("nvidia_modeset")


@fault("persistence", "warning", "nobody listens")
def dead_persistenced(patient: Patient) -> None:
    patient.write("usr/lib/systemd/system/nvidia-persistenced.service", "")
    path = patient.top / "run/nvidia-persistenced"
    path.joinpath("socket").unlink()
    fd = os.open(path, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{fd}/socket")
    os.close(fd)


@fault("driver-libraries", "warning", "so programs in containers find no CUDA")
def no_libcuda(patient: Patient) -> None:
    for library in (patient.top / "usr/lib/x86_64-linux-gnu").glob("libcuda.so*"):
        library.unlink()


@fault("library-cache", "warning", "has no libcuda.so of")
def cache_of_before(patient: Patient) -> None:
    shutil.copy("/etc/ld.so.cache", patient.top / "etc/ld.so.cache")


@fault("library-cache", "warning", "is not used")
def damaged_cache(patient: Patient) -> None:
    patient.write("etc/ld.so.cache", "glibc-ld.so.cache1.1 and no more")


@fault("device-nodes", "broken", "/dev/nvidia1 is not there")
def no_node(patient: Patient) -> None:
    patient.gpus.remove_node("nvidia1")


@fault("device-nodes", "broken", "/dev/nvidia1 is not there")
def no_node_of_a_driver_that_keeps_them_to_itself(patient: Patient) -> None:
    patient.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    patient.gpus.remove_node("nvidia1")


@fault("device-nodes", "broken", "is 195:7, but the kernel has 508:0")
def wrong_major(patient: Patient) -> None:
    patient.gpus.remove_node("nvidia-uvm")
    os.mknod(patient.gpus.node("nvidia-uvm"), 0o20666, os.makedev(195, 7))


@fault("device-nodes", "broken", "is not a character device")
def file_for_a_node(patient: Patient) -> None:
    patient.gpus.remove_node("nvidiactl")
    Path(patient.gpus.node("nvidiactl")).touch()


@fault("device-nodes", "warning", "has mode 0600")
def narrow_mode(patient: Patient) -> None:
    os.chmod(patient.gpus.node("nvidia0"), 0o600)


@fault("dev-char-links", "warning", "/dev/char/195:0; after a daemon-reload")
def no_link(patient: Patient) -> None:
    os.unlink(patient.gpus.node("char/195:0"))


def add(patient: Patient, section: str, lines: str) -> None:
    """Write lines into a section of config.toml, at its beginning, and have them read."""
    config = Path(patient.config)
    text = config.read_text()
    head, _, rest = text.partition(f"[{section}]\n")
    config.write_text(f"{head}\n[{section}]\n{lines}\n{rest}")
    patient.reread()


@fault(
    "grants", "warning", "profile multi-tenant, but for [requests] accept-annotations-when-unprivileged: of itself"
)
def a_profile_with_a_hole(patient: Patient) -> None:
    add(patient, "requests", 'profile = "multi-tenant"\naccept-annotations-when-unprivileged = true')


@fault("config", "broken", "did you mean driver.root")
def wrong_config(patient: Patient) -> None:
    patient.configure("[driver]\nrot = 1\n")
    patient.reread()


@fault("state-directory", "broken", "cannot be trusted")
def open_state(patient: Patient) -> None:
    os.chmod(patient.state, 0o777)


@fault("state-directory", "broken", "user 1000 owns it")
def strangers_state(patient: Patient) -> None:
    os.chown(patient.state, 1000, 1000)


@fault("snapshot", "warning", "is stale: the device nodes or files changed")
def stale_snapshot(patient: Patient) -> None:
    os.chmod(patient.gpus.node("nvidia1"), 0o660)


@fault("snapshot", "warning", "there is no")
def no_snapshot(patient: Patient) -> None:
    os.unlink(f"{patient.state}/inventory.json")


@fault("snapshot", "warning", "does not count")
def damaged_snapshot(patient: Patient) -> None:
    Path(patient.state, "inventory.json").write_text('{"version": 4')


@fault("snapshot", "broken", "no NVIDIA driver is loaded")
def snapshot_without_a_driver(patient: Patient) -> None:
    patient.gpus.unload("nvidia")
    patient.configure(Path(patient.config).read_text().replace("[driver]", "[driver]\nload-kernel-modules = false"))
    patient.refresh()


@fault("log", "warning", "is no file and no FIFO: nothing is logged")
def log_is_a_directory(patient: Patient) -> None:
    (patient.top / "var/log/gpushim.log").mkdir()


@fault("log", "warning", "is user 65534's: nothing is logged")
def log_is_a_strangers(patient: Patient) -> None:
    log = patient.top / "var/log/gpushim.log"
    log.touch()
    os.chown(log, 65534, 65534)


@fault("space", "broken", "is full")
def no_space(patient: Patient) -> None:
    class Full:
        f_bavail, f_frsize, f_files, f_favail = 10, 4096, 1000, 100

    patient.patch.setattr(os, "statvfs", lambda path: Full)


@fault("space", "broken", "is full")
def no_inodes(patient: Patient) -> None:
    class Full:
        f_bavail, f_frsize, f_files, f_favail = 1 << 20, 4096, 1000, 0

    patient.patch.setattr(os, "statvfs", lambda path: Full)


@fault("code", "broken", "others than root can change")
def loose_code(patient: Patient) -> None:
    patient.write("usr/lib/gpushim/gpushim/create.py", "", 0o666)
    patient.host.code = f"{patient.root}/usr/lib/gpushim"


@fault("python", "broken", "does not run")
def no_python(patient: Patient) -> None:
    (patient.top / "usr/bin/python3").unlink()


@fault("python", "broken", "is 3.6.8")
def old_python(patient: Patient) -> None:
    patient.script("usr/bin/python3", "echo 3.6.8")


@fault("yaml", "warning", "PyYAML is missing")
def no_yaml(patient: Patient) -> None:
    patient.folder.joinpath("etc-cdi").mkdir()
    patient.folder.joinpath("etc-cdi/other.yaml").touch()
    patient.script("usr/bin/python3", "exit 1")


@fault("units", "warning", "is not installed")
def no_unit(patient: Patient) -> None:
    (patient.top / "etc/systemd/system/gpushim-refresh.service").unlink()


@fault("units", "warning", "gpushim-refresh.socket is installed, and /run/gpushim/refresh.sock is not there")
def nobody_takes_requests(patient: Patient) -> None:
    patient.write("usr/lib/systemd/system/gpushim-refresh.socket", "")


@fault("units", "warning", "its gpushim refresh --keep does not run")
def nobody_keeps_a_node(patient: Patient) -> None:
    no_unit(patient)
    patient.write(keep.RECORD[1:], "{}")


@fault("low-level-runtime", "broken", "no low-level runtime")
def no_runc(patient: Patient) -> None:
    (patient.top / "usr/sbin/runc").unlink()


@fault("low-level-runtime", "broken", "is gpushim-runtime itself")
def runc_is_ourselves(patient: Patient) -> None:
    (patient.top / "usr/sbin/runc").unlink()
    os.symlink("gpushim-runtime", patient.top / "usr/sbin/runc")


@fault("low-level-runtime", "broken", "too old")
def old_runc(patient: Patient) -> None:
    patient.script("usr/sbin/runc", "echo runc version 1.0.3")


@fault("low-level-runtime", "warning", "CVE-2025-31133")
def runc_with_flaws(patient: Patient) -> None:
    patient.script("usr/sbin/runc", "echo runc version 1.2.7")


@fault("low-level-runtime", "broken", "does not run")
def runc_that_hangs(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.processes.ask.program.__defaults__", (0.2, None))
    patient.script("usr/sbin/runc", "sleep 100")


@fault("cgroups", "broken", "neither cgroup v2 nor")
def no_cgroups(patient: Patient) -> None:
    (patient.top / "sys/fs/cgroup/cgroup.controllers").unlink()


@fault("selinux", "warning", "container_use_devices is off")
def selinux_forbids(patient: Patient) -> None:
    patient.write("sys/fs/selinux/enforce", "1")
    patient.write("sys/fs/selinux/booleans/container_use_devices", "0 0")


@fault("selinux", "warning", "its policy has no container_use_devices")
def selinux_without_containers(patient: Patient) -> None:
    patient.write("sys/fs/selinux/enforce", "1")


@fault("apparmor", "warning", "confines runc (enforce)")
def apparmor_confines(patient: Patient) -> None:
    patient.write("sys/module/apparmor/parameters/enabled", "Y\n")
    patient.write("sys/kernel/security/apparmor/profiles", "docker-default (enforce)\nrunc (enforce)\n")


@fault("platform", "broken", "WSL 1")
def wsl1(patient: Patient) -> None:
    patient.write("proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n")


@fault("platform", "warning", "none of devices.csv")
def tegra_without_lists(patient: Patient) -> None:
    patient.write("etc/nv_tegra_release", "# R35 (release), REVISION: 4.1\n")


@fault("cdi-spec", "warning", "is not there")
def no_spec(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")


@fault("cdi-spec", "broken", "is not of this driver")
def spec_of_before(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text().replace(patient.gpus.driver, "525.60.13"))


@fault("cdi-paths", "broken", "which is not there")
def spec_names_what_is_gone(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text().replace(patient.gpus.driver, "525.60.13"))


@fault("cdi-files", "broken", "its mode is 0666")
def untrusted_spec(patient: Patient) -> None:
    os.chmod(f"{patient.state}/cdi/nvidia.com-gpu.json", 0o666)


@fault("cdi-files", "warning", "broken.json")
def spec_that_is_none(patient: Patient) -> None:
    Path(patient.state, "cdi/broken.json").write_text("{")


@fault("cdi-conflicts", "broken", "engines refuse that device")
def device_twice(patient: Patient) -> None:
    Path(patient.state, "cdi/nvidia.json").write_text(SPEC % "/dev/null")


@fault("cdi-conflicts", "warning", "the last of the directories counts")
def stale_spec_elsewhere(patient: Patient) -> None:
    patient.folder.joinpath("etc-cdi").mkdir()
    patient.folder.joinpath("etc-cdi/nvidia.json").write_text(SPEC % "/dev/null")


@fault("cdi-versions", "warning", "podman 4.3 reads CDI up to 0.5.0")
def podman_of_before(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text().replace("0.5.0", "0.7.0"))
    patient.script("usr/bin/podman", "echo podman version 4.3.1")


@fault("nvidia-config", "warning", "gpushim does not read")
def settings_of_nvidias(patient: Patient) -> None:
    patient.write("etc/nvidia-container-runtime/config.toml", "disable-require = true\n")


@fault("nvidia-hook", "warning", "is NVIDIA's")
def hook_of_nvidias(patient: Patient) -> None:
    (patient.top / "usr/bin" / NVIDIA_HOOK).unlink()
    shutil.copy("/bin/true", patient.top / "usr/bin" / NVIDIA_HOOK)


@fault("nvidia-hooks-d", "warning", "call NVIDIA's hook")
def hooks_d_of_nvidias(patient: Patient) -> None:
    hook = '{"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-toolkit", "args": ["x", "prestart"]}}'
    patient.write("usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", hook)


@fault("nvidia-units", "warning", "a CDI spec of the same devices")
def units_of_nvidias(patient: Patient) -> None:
    patient.write("etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.path", "")


@fault("engine-processes", "warning", "process 7 bears the name dockerd and is not looked at: others could have made")
def a_dockerd_that_others_may_replace(patient: Patient) -> None:
    patient.host.impostors = [Impostor("dockerd", 7, 0, f"{origin.UNSAFE}, /opt/x/dockerd")]


# Of the others, test_fixes.py tries what fixes them, too.
NVIDIAS = [each for each in FAULTS if each[0].startswith("nvidia-")]


@pytest.mark.parametrize(
    ("check", "verdict", "evidence", "plant"), NVIDIAS, ids=[each[3].__name__ for each in NVIDIAS]
)
def test_fault(patient: Patient, check: str, verdict: str, evidence: str, plant: Callable[[Patient], None]) -> None:
    plant(patient)
    found = [each for each in patient.said(check) if each.verdict == verdict and evidence in each.evidence]
    assert found, patient.said(check)
    assert found[0].fix


def test_config_is_looked_at_first() -> None:
    assert next(iter(checks.table(()))) == "config"


@pytest.mark.parametrize("plant", [open_state, strangers_state])
def test_a_state_directory_of_others_is_one_finding(patient: Patient, plant: Callable[[Patient], None]) -> None:
    plant(patient)
    assert set(patient.complaints()) <= {"state-directory", "cdi-spec", "cdi-files"}
    assert [each.verdict for each in patient.said("snapshot")] == ["skipped"]


def test_a_configuration_that_is_a_link_to_nothing_is_broken(patient: Patient) -> None:
    config = Path(patient.config)
    config.unlink()
    config.symlink_to("none")
    patient.reread()
    (found,) = patient.said("config")
    assert (found.verdict, "is a link that leads nowhere; put there what it leads to" in found.evidence) == (
        "broken",
        True,
    )
    assert found.fix == f"correct {config}; then gpushim config check"


@pytest.mark.parametrize("check", checks.OF_THE_POLICY)
def test_nothing_is_said_by_a_policy_that_is_not_in_force(patient: Patient, check: str) -> None:
    wrong_config(patient)
    (found,) = patient.said(check)
    assert (found.verdict, found.evidence) == ("skipped", f"not looked at while {patient.config} is not valid")


@pytest.mark.parametrize("check", checks.OF_THE_DRIVER)
def test_nothing_is_said_of_a_driver_whose_root_does_not_exist(patient: Patient, check: str) -> None:
    patient.configure('[driver]\nroot = "/nonexistent"\n')
    patient.reread()
    (found,) = patient.said(check)
    told = "not looked at: driver.root is '/nonexistent', which is no directory of this host"
    assert (found.verdict, found.evidence) == ("skipped", told)
