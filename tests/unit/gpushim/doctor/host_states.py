"""States of a host in which the checks of the driver, and of what is beneath the engines, find a fault."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import fakehost
from gpushim.engines.processes import origin
from gpushim.engines.processes.running import Impostor
from unit.gpushim import labels
from unit.gpushim.doctor import hands
from unit.gpushim.doctor.fault import State, into
from unit.gpushim.doctor.patient import NVIDIA_HOOK, Patient
from unit.gpushim.inventory.machine import told

STATES: list[State] = []
fault = into(STATES)


@fault("driver-module", "broken", "though there is a GPU")
def no_module(patient: Patient) -> None:
    patient.gpus.unload("nvidia")


@fault("driver-module", "broken", "nouveau", by=hands.reboot)
def nouveau(patient: Patient) -> None:
    patient.gpus.unload("nvidia")
    patient.write("proc/modules", "nouveau 2506752 1 - Live 0x0000000000000000\n")


@fault("driver-module", "broken", "no NVIDIA GPU on the PCI bus", by=hands.plug_in)
def no_gpu(patient: Patient) -> None:
    patient.gpus.unload("nvidia")
    shutil.rmtree(patient.top / "sys/bus/pci/devices")
    (patient.top / "sys/bus/pci/devices").mkdir()


@fault("driver-libraries", "broken", "535.216.01", by=hands.reboot)
def half_upgrade(patient: Patient) -> None:
    patient.gpus.half_upgrade("535.216.01")


@fault("driver-libraries", "broken", "there are no libraries", by=hands.install_the_driver)
def no_libraries(patient: Patient) -> None:
    shutil.rmtree(patient.gpus.lib_path)


@fault("nvml", "broken", "GPU 1 (00000000:", by=hands.reset)
def sick_gpu(patient: Patient) -> None:
    patient.gpus.behave(fail_gpu={1: 15})


@fault("nvml", "broken", "NVML cannot be used", by=hands.well_again)
def nvml_fails(patient: Patient) -> None:
    patient.gpus.behave(fail=999)


@fault("nvml", "broken", "has not answered within", by=hands.well_again)
def nvml_hangs(patient: Patient) -> None:
    patient.host_of(seconds=1)
    patient.reread()
    patient.patch.setattr("gpushim.doctor.check_driver.GRACE", 0.5)
    patient.gpus.behave(hang=True)


@fault("nvml", "warning", "s to initialise")
def nvml_is_slow(patient: Patient) -> None:
    patient.gpus.behave(delay_ms=2100)


@fault("fabric", "broken", "CUDA fails there with error 802: it is being made", by=hands.fabric_manager)
def fabric_is_not_ready(patient: Patient) -> None:
    patient.gpus.fabric_state(1, 2)


@fault("more-modules", "broken", "nvidia_uvm is not loaded")
def no_uvm(patient: Patient) -> None:
    patient.gpus.unload("nvidia_uvm")


@fault("more-modules", "warning", "nvidia_modeset is not loaded")
def no_modeset(patient: Patient) -> None:
    patient.gpus.unload("nvidia_modeset")


@fault("persistence", "warning", "nobody listens", effect=hands.persistenced)
def dead_persistenced(patient: Patient) -> None:
    patient.write("usr/lib/systemd/system/nvidia-persistenced.service", "")
    path = patient.top / "run/nvidia-persistenced"
    path.joinpath("socket").unlink()
    fd = os.open(path, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{fd}/socket")
    os.close(fd)


@fault("driver-libraries", "broken", "so programs in containers find no CUDA", by=hands.install_the_driver)
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


@fault("low-level-runtime", "broken", "no low-level runtime", by=hands.install_runc)
def no_runc(patient: Patient) -> None:
    (patient.top / "usr/sbin/runc").unlink()


@fault("low-level-runtime", "broken", "is gpushim-runtime itself", by=hands.install_runc)
def runc_is_ourselves(patient: Patient) -> None:
    (patient.top / "usr/sbin/runc").unlink()
    os.symlink("gpushim-runtime", patient.top / "usr/sbin/runc")


@fault("low-level-runtime", "broken", "too old", by=hands.install_what_is_named)
def old_runc(patient: Patient) -> None:
    patient.script("usr/sbin/runc", "echo runc version 1.0.3")


@fault("low-level-runtime", "warning", "CVE-2025-31133", by=hands.install_what_is_named)
def runc_with_flaws(patient: Patient) -> None:
    patient.script("usr/sbin/runc", "echo runc version 1.2.7")


@fault("low-level-runtime", "broken", "does not run", by=hands.install_runc)
def runc_that_hangs(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.processes.ask.program.__defaults__", (0.2, None))
    patient.script("usr/sbin/runc", "sleep 100")


@fault("cgroups", "broken", "neither cgroup v2 nor")
def no_cgroups(patient: Patient) -> None:
    (patient.top / "sys/fs/cgroup/cgroup.controllers").unlink()


def selinux(patient: Patient, *booleans: str, value: str = "0 0") -> None:
    patient.write("sys/fs/selinux/enforce", "1")
    for name in booleans:
        patient.write(f"sys/fs/selinux/booleans/{name}", value)


@fault("selinux", "warning", "container_use_xserver_devices is off: containers with the hook alone (Podman's)")
def selinux_forbids_the_hook_of_podman(patient: Patient) -> None:
    selinux(patient, "container_use_devices", "container_use_xserver_devices")
    hook = f'{{"version": "1.0.0", "hook": {{"path": "/usr/bin/{NVIDIA_HOOK}"}}, "when": {{"always": true}}}}'
    patient.write("usr/share/containers/oci/hooks.d/99-gpushim.json", hook)


@fault("selinux", "warning", "container_use_devices is off: containers with the hook alone (Docker's)")
def selinux_forbids_the_hook_of_docker(patient: Patient) -> None:
    selinux(patient, "container_use_devices")
    patient.info["Runtimes"].pop("nvidia")


@fault("selinux", "warning", "container_use_xserver_devices is off: containers of rootless engines may not")
def selinux_forbids_a_rootless_engine(patient: Patient) -> None:
    selinux(patient, "container_use_xserver_devices")
    patient.host.engines = [replace(engine, uid=1000) for engine in patient.host.engines]


@fault("selinux", "warning", "/params, which is var_run_t")
def selinux_hides_the_parameters(patient: Patient) -> None:
    selinux(patient, "container_use_xserver_devices")
    labels.label(f"{patient.state}/params", labels.RUN)


@fault("selinux", "warning", "its policy has no container_use_devices", by=hands.install_container_selinux)
def selinux_without_containers(patient: Patient) -> None:
    selinux(patient)


@fault("apparmor", "warning", "confines runc (enforce)")
def apparmor_confines(patient: Patient) -> None:
    patient.write("sys/module/apparmor/parameters/enabled", "Y\n")
    patient.write("sys/kernel/security/apparmor/profiles", "docker-default (enforce)\nrunc (enforce)\n")


@fault("platform", "broken", "WSL 1", by=hands.a_new_wsl)
def wsl1(patient: Patient) -> None:
    patient.write("proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n")


@fault("platform", "warning", "none of devices.csv", by=hands.a_tegra_with_lists)
def tegra_without_lists(patient: Patient) -> None:
    patient.write("etc/nv_tegra_release", "# R35 (release), REVISION: 4.1\n")


@fault("platform", "broken", "no line of the Tegra CSV files leads to one", by=hands.correct_its_lists)
def tegra_without_a_node(patient: Patient) -> None:
    hands.a_tegra_with_lists(patient)
    patient.write(f"{fakehost.platforms.CSV[1:]}/devices.csv", "dev, /dev/nvgpu/*/power\ndev, /dev/nvmap\n")


@fault(
    "engine-processes",
    "warning",
    "process 7 is named dockerd but is ignored: others could have made",
    by=hands.start_it_from_elsewhere,
)
def a_dockerd_that_others_may_replace(patient: Patient) -> None:
    patient.host.impostors = [Impostor("dockerd", 7, 0, f"{origin.UNSAFE}, /opt/x/dockerd")]


@fault("driver-module", "broken", "names no version", by=hands.reboot)
def module_without_a_version(patient: Patient) -> None:
    patient.write("proc/driver/nvidia/version", "")


@fault("driver-libraries", "warning", "and also of 525.60.13", by=hands.remove_the_other)
def libraries_twice(patient: Patient) -> None:
    folder = Path(patient.gpus.lib_path)
    shutil.copy(folder / f"libcuda.so.{patient.gpus.driver}", folder / "libcuda.so.525.60.13")


@fault("nvml", "broken", "has not answered within", by=hands.well_again)
def nvml_is_too_slow(patient: Patient) -> None:
    patient.host_of(seconds=1)
    patient.reread()
    patient.patch.setattr("gpushim.doctor.check_driver.GRACE", 0.5)
    patient.gpus.behave(delay_ms=2500)


@fault("nvml", "broken", "is not asked, for calls of it hang", by=hands.reset_what_hangs)
def hung_gpu(patient: Patient) -> None:
    """As the device plugin has found; a look that asked it would end at its deadline, with another sentence."""
    patient.listed()
    patient.gpus.hang(1)
    told(patient.state, patient.gpus.gpus[1].uuid)


@fault("nvml", "broken", "reboot, or reload", by=hands.well_again)
def nvml_of_another_version(patient: Patient) -> None:
    patient.gpus.behave(fail=18)  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


@fault("nvml", "warning", "nvidia-ml-py", by=hands.with_pynvml)
def no_pynvml(patient: Patient) -> None:
    answer = {"error": "", "source": "proc", "notes": ["Python's nvidia-ml-py cannot be used"], "gpus": []}
    patient.patch.setattr("gpushim.doctor.check_driver._ask_nvml", lambda host: answer)


@fault("persistence", "warning", "persistence mode is off", effect=hands.persistent)
def no_persistenced(patient: Patient) -> None:
    os.unlink(patient.top / "run/nvidia-persistenced/socket")


@fault("persistence", "warning", "persistence mode is off", effect=hands.persistenced)
def persistenced_not_started(patient: Patient) -> None:
    patient.write("usr/lib/systemd/system/nvidia-persistenced.service", "")
    os.unlink(patient.top / "run/nvidia-persistenced/socket")


@fault("library-cache", "warning", "has no libcuda.so of")
def libraries_where_the_loader_does_not_look(patient: Patient) -> None:
    theirs = Path(patient.gpus.lib_path, "nvidia/current")
    theirs.mkdir(parents=True)
    for library in Path(patient.gpus.lib_path).glob(f"lib*.{patient.gpus.driver}"):
        library.rename(theirs / library.name)
    subprocess.run(["ldconfig", "-r", patient.root], check=True)


@fault("device-nodes", "broken", "is not a character device")
def folder_for_a_node_that_the_driver_keeps_to_itself(patient: Patient) -> None:
    patient.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    patient.gpus.remove_node("nvidia1")
    Path(patient.gpus.node("nvidia1")).mkdir()


@fault("device-nodes", "broken", "but the kernel has 195:1")
def wrong_number_where_the_driver_keeps_nodes_to_itself(patient: Patient) -> None:
    patient.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    patient.gpus.remove_node("nvidia1")
    os.mknod(patient.gpus.node("nvidia1"), stat.S_IFCHR | 0o666, os.makedev(195, 9))


@fault("dev-char-links", "warning", "missing")
def wrong_link(patient: Patient) -> None:
    os.unlink(patient.gpus.node("char/195:0"))
    os.symlink("../nvidia1", patient.gpus.node("char/195:0"))


@fault("dev-char-links", "warning", "missing")
def no_link_where_the_driver_keeps_nodes_to_itself(patient: Patient) -> None:
    patient.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    os.unlink(patient.gpus.node("char/195:0"))


@fault("low-level-runtime", "broken", "is NVIDIA's", by=hands.install_runc)
def runc_is_nvidias(patient: Patient) -> None:
    patient.script("usr/sbin/nvidia-container-runtime", "exit 0")
    (patient.top / "usr/sbin/runc").unlink()
    os.symlink("nvidia-container-runtime", patient.top / "usr/sbin/runc")


@fault("low-level-runtime", "warning", "says nothing known", by=hands.install_runc)
def runc_that_says_nothing(patient: Patient) -> None:
    patient.script("usr/sbin/runc", "exit 0")


@fault("engine-processes", "warning", "is ignored: others could have made", by=hands.install_dockerd_again)
def a_dockerd_of_everybodys(patient: Patient) -> None:
    program = patient.script("opt/our programs/dockerd", "")
    os.chmod(program, 0o777)
    patient.host.impostors = [Impostor("dockerd", 7, 0, f"{origin.UNSAFE}, {program}")]


@fault("engine-processes", "warning", "is ignored: others could have made", effect=hands.judged_anew)
def a_dockerd_in_a_directory_of_its_group(patient: Patient) -> None:
    a_dockerd_of_everybodys(patient)
    program = patient.top / "opt/our programs/dockerd"
    os.chmod(program, 0o755)
    os.chmod(program.parent, 0o2775)


@fault("low-level-runtime", "broken", "no low-level runtime: none of /nope/runc", by=hands.set_the_path)
def another_path_of_runc(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.processes.programs.DIRECTORIES", ("/usr/sbin",))
    patient.configure(Path(patient.config).read_text().replace(f"{patient.root}/usr/sbin/runc", "/nope/runc"))
    patient.reread()


@fault("low-level-runtime", "broken", "no low-level runtime: none of /nope/runc", by=hands.set_the_path)
def a_path_where_no_package_puts_runc(patient: Patient) -> None:
    another_path_of_runc(patient)
    (patient.top / "usr/sbin/runc").unlink()
