"""What people, and programs that are not here, do on a simulated host when doctor says so.

The states name them: `by` does what the sentence of a fix says, `effect` what a program does that only acts as if.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path

import fakehost.platforms
from gpushim.doctor import check_driver
from gpushim.inventory import earlier
from gpushim.paths import trust
from gpushim.refresh import keep
from unit.gpushim.doctor.patient import Patient

REAL_STATVFS = os.statvfs
# Programs that act as if, each with what it does in the host's root; their calls are written down.
PROGRAMS = {
    "setsebool": 'echo "1 1" >"$TOP/sys/fs/selinux/booleans/$2"',
    "aa-complain": 'sed -i "s|^$1 (enforce)|$1 (complain)|" "$TOP/sys/kernel/security/apparmor/profiles"',
    "mount": 'test "$1 $2 $3" = "-t cgroup2 cgroup2" && echo cpu >"$4/cgroup.controllers"',
    "systemctl": (
        'case "$*" in "restart nvidia-persistenced" | "enable --now nvidia-persistenced") ;; '
        '"enable gpushim-refresh.socket") ;; "restart gpushim-refresh.socket") '
        'mkdir -p "$TOP/run/gpushim" && : >"$TOP/run/gpushim/refresh.sock" ;; *) exit 1 ;; esac'
    ),
}


def a_new_wsl(patient: Patient) -> None:
    patient.write("proc/sys/kernel/osrelease", "5.15.90.1-microsoft-standard-WSL2\n")
    fakehost.platforms.to_wsl(patient.gpus)


def a_tegra_with_lists(patient: Patient) -> None:
    fakehost.platforms.to_tegra(patient.gpus)


def correct_its_lists(patient: Patient) -> None:
    patient.write(f"{fakehost.platforms.CSV[1:]}/devices.csv", "dev, /dev/nvhost-*\n")


def reboot(patient: Patient) -> None:
    patient.gpus.unloaded, patient.gpus.module_version = (), patient.gpus.driver
    fakehost.build(patient.root, 2)


def plug_in(patient: Patient) -> None:
    patient.gpus.update()


def install_the_driver(patient: Patient) -> None:
    fakehost.build(patient.root, 2)


def remove_the_other(patient: Patient) -> None:
    os.unlink(f"{patient.gpus.lib_path}/libcuda.so.525.60.13")


def well_again(patient: Patient) -> None:
    """A reboot, a reset, or for a slow one persistence mode."""
    patient.host_of(seconds=20)
    patient.gpus.behave()


def reset(patient: Patient) -> None:
    patient.gpus.behave()


def reset_what_hangs(patient: Patient) -> None:
    """The plugin finds out that it answers."""
    patient.gpus.hang(None)
    os.unlink(f"{patient.state}/{earlier.HUNG}")


def with_pynvml(patient: Patient) -> None:
    patient.patch.undo()


def persistenced(patient: Patient) -> None:
    path = patient.top / "run/nvidia-persistenced"
    path.joinpath("socket").unlink(missing_ok=True)
    patient.kept = server = socket.socket(socket.AF_UNIX)
    fd = os.open(path, os.O_PATH)
    server.bind(f"/proc/self/fd/{fd}/socket")
    os.close(fd)
    server.listen()


def persistent(patient: Patient) -> None:
    answer = {**check_driver.asked(patient.host), "persistence": [True, True]}
    patient.patch.setattr("gpushim.doctor.check_driver._ask_nvml", lambda host: answer)


def correct_the_root(patient: Patient) -> None:
    patient.configure(Path(patient.config).read_text().replace("/gone", ""))


def correct_config(patient: Patient) -> None:
    patient.host_of(seconds=20)


def close_the_hole(patient: Patient) -> None:
    patient.configure(Path(patient.config).read_text().replace("accept-annotations-when-unprivileged = true\n", ""))


def load_the_driver(patient: Patient) -> None:
    patient.gpus.unloaded = ()
    fakehost.build(patient.root, 2)


def another_log(patient: Patient) -> None:
    (patient.top / "logs").mkdir()
    patient.configure(Path(patient.config).read_text().replace("/var/log/", "/logs/"))


def let_the_hook_change_rules(patient: Patient) -> None:
    patient.configure(Path(patient.config).read_text().replace("device-rules = false\n", ""))


def make_room(patient: Patient) -> None:
    patient.patch.setattr(os, "statvfs", REAL_STATVFS)


def install_gpushim(patient: Patient) -> None:
    (found,) = patient.said("programs")
    assert ("package" not in found.fix) == patient.host.by_node
    patient.patch.undo()


def install_python(patient: Patient) -> None:
    (patient.top / "usr/bin/python3").unlink(missing_ok=True)
    os.symlink("/usr/bin/python3", patient.top / "usr/bin/python3")


def install_yaml(patient: Patient) -> None:
    install_python(patient)


def install_the_unit(patient: Patient) -> None:
    patient.write("etc/systemd/system/gpushim-refresh.service", "")


def let_the_pod_run(patient: Patient) -> None:
    (found,) = patient.said("units")
    assert "app.kubernetes.io/component=node" in found.fix
    patient.keeper = keep.Lock(patient.state)
    os.makedirs(patient.state, exist_ok=True)
    patient.keeper.take()


def install_runc(patient: Patient) -> None:
    patient.script("usr/sbin/runc", "echo runc version 1.3.6")


def install_what_is_named(patient: Patient) -> None:
    (found,) = patient.said("low-level-runtime")
    named = re.search(r"install runc ([\d.]+)", found.fix)
    assert named
    patient.script("usr/sbin/runc", f"echo runc version {named[1]}")


def install_container_selinux(patient: Patient) -> None:
    patient.write("sys/fs/selinux/booleans/container_use_devices", "1 1")


def write_specs_where_they_were(patient: Patient) -> None:
    """As the fix says; directories that are in no list cannot be taken out of it."""
    fixes = [each.fix for check in ("cdi-spec", "cdi-files") for each in patient.said(check) if each.fix]
    assert any("output-directory under [cdi]" in fix for fix in fixes), fixes
    assert not any("out of spec-dirs" in fix for fix in fixes), fixes
    patient.configure(re.sub("output-directory = .*", "", Path(patient.config).read_text()))


def set_the_path(patient: Patient) -> None:
    """As it is named; runc is installed if that is said."""
    (found,) = patient.said("low-level-runtime")
    named = re.search(r"set low-level under \[runtime\] in \S+ to '\[\"(.*)\"\]'", found.fix)
    assert named
    assert found.fix.startswith("install runc (package runc), and") != os.path.exists(f"{patient.top}/usr/sbin/runc")
    patient.script("usr/sbin/runc", "echo runc version 1.3.6")
    path = named[1] if "/" in named[1] else f"{patient.root}/usr/sbin/runc"
    patient.configure(Path(patient.config).read_text().replace("/nope/runc", path))


def write_specs_elsewhere(patient: Patient) -> None:
    text = Path(patient.config).read_text()
    os.rmdir(f"{patient.state}/cdi")
    patient.configure(text.replace("[cdi]\n", f'[cdi]\noutput-directory = "{patient.folder}/etc-cdi"\n'))


def close_annotations_too(patient: Patient) -> None:
    text = Path(patient.config).read_text()
    patient.configure(text.replace("[requests]\n", "[requests]\naccept-annotations-when-unprivileged = false\n"))


def remove_the_spec(patient: Patient) -> None:
    for name in ("broken.json", "other.json"):
        Path(patient.state, "cdi", name).unlink(missing_ok=True)


def read_no_specs_there(patient: Patient) -> None:
    text = Path(patient.config).read_text()
    patient.configure(text.replace(f'"{patient.folder}/etc-cdi", ', ""))


def upgrade_podman(patient: Patient) -> None:
    patient.script("usr/bin/podman", "echo podman version 5.4.2")


def start_it_from_elsewhere(patient: Patient) -> None:
    patient.host.impostors = []


def install_dockerd_again(patient: Patient) -> None:
    (patient.top / "opt/our programs/dockerd").unlink()
    patient.script("opt/our programs/dockerd", "")
    judged_anew(patient)


def install_the_code_again(patient: Patient) -> None:
    shutil.rmtree(patient.host.code)
    patient.write("usr/lib/gpushim/gpushim/create.py", "")


def judged_anew(patient: Patient) -> None:
    """What origin.py goes by."""
    program = patient.top / "opt/our programs/dockerd"
    assert not any(trust.others_may(os.stat(path)) for path in (program, program.parent))
    patient.host.impostors = []


def programs(patient: Patient) -> str:
    """Make the programs that act as if; returns their directory."""
    for name, action in PROGRAMS.items():
        patient.script(f"../as-if/{name}", f"TOP={patient.top}\n{action}")
    shutil.copy("/bin/busybox", patient.top / "busybox")
    # It works in a chroot of the host's.
    slow = "/busybox sed -i /^delay_ms/d /etc/fakehost.conf"
    patient.write("usr/bin/nvidia-smi", f'#!/busybox sh\n[ "$*" = "-pm 1" ] && {slow}\n', 0o755)
    return f"{patient.folder}/as-if"


def fabric_manager(patient: Patient) -> None:
    for gpu in patient.gpus.gpus:
        patient.gpus.fabric_state(gpu.index, 3)
