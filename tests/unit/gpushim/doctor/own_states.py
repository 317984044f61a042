"""States in which the checks of gpushim's own things find a fault: configuration, snapshot, log, files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gpushim.refresh import keep
from unit.gpushim.doctor import hands, host_states
from unit.gpushim.doctor.fault import State, into
from unit.gpushim.doctor.patient import Patient

STATES: list[State] = []
fault = into(STATES)


def add(patient: Patient, section: str, lines: str) -> None:
    """Write lines into a section of config.toml, at its beginning, and have them read."""
    config = Path(patient.config)
    text = config.read_text()
    head, _, rest = text.partition(f"[{section}]\n")
    config.write_text(f"{head}\n[{section}]\n{lines}\n{rest}")
    patient.reread()


@fault(
    "grants",
    "warning",
    "profile multi-tenant, but for [requests] accept-annotations-when-unprivileged: of itself",
    by=hands.close_the_hole,
)
def a_profile_with_a_hole(patient: Patient) -> None:
    add(patient, "requests", 'profile = "multi-tenant"\naccept-annotations-when-unprivileged = true')


@fault("config", "broken", "did you mean driver.root", by=hands.correct_config)
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


@fault("snapshot", "warning", "is not used: ")
def damaged_snapshot(patient: Patient) -> None:
    Path(patient.state, "inventory.json").write_text('{"version": 4')


@fault("snapshot", "broken", "no NVIDIA driver is loaded", by=hands.load_the_driver)
def snapshot_without_a_driver(patient: Patient) -> None:
    patient.gpus.unload("nvidia")
    patient.configure(Path(patient.config).read_text().replace("[driver]", "[driver]\nload-kernel-modules = false"))
    patient.refresh()


@fault("log", "warning", "is neither a file nor a FIFO: nothing is logged")
def log_is_a_directory(patient: Patient) -> None:
    (patient.top / "var/log/gpushim.log").mkdir()


@fault("log", "warning", "is user 65534's: nothing is logged")
def log_is_a_strangers(patient: Patient) -> None:
    log = patient.top / "var/log/gpushim.log"
    log.touch()
    os.chown(log, 65534, 65534)


@fault("space", "broken", "is full", by=hands.make_room)
def no_space(patient: Patient) -> None:
    class Full:
        f_bavail, f_frsize, f_files, f_favail = 10, 4096, 1000, 100

    patient.patch.setattr(os, "statvfs", lambda path: Full)


@fault("space", "broken", "is full", by=hands.make_room)
def no_inodes(patient: Patient) -> None:
    class Full:
        f_bavail, f_frsize, f_files, f_favail = 1 << 20, 4096, 1000, 0

    patient.patch.setattr(os, "statvfs", lambda path: Full)


@fault("space", "warning", "is full (`df -h` or `df -i` shows it): nothing is logged", by=hands.make_room)
def no_space_for_the_log(patient: Patient) -> None:
    class Full:
        f_bavail, f_frsize, f_files, f_favail = 0, 4096, 1000, 100

    statvfs, log = os.statvfs, f"{patient.root}/var/log"
    patient.patch.setattr(os, "statvfs", lambda path: Full if path == log else statvfs(path))


@fault("device-rules", "warning", "cannot open them: NVML says Unknown Error", by=hands.let_the_hook_change_rules)
def no_device_rules_by_the_hook(patient: Patient) -> None:
    add(patient, "hook", "device-rules = false")


@fault("code", "broken", "users other than root can change", by=hands.install_the_code_again)
def loose_code(patient: Patient) -> None:
    patient.write("usr/lib/gpushim/gpushim/create.py", "", 0o666)
    patient.host.code = f"{patient.root}/usr/lib/gpushim"


@fault("python", "broken", "does not run", by=hands.install_python)
def no_python(patient: Patient) -> None:
    (patient.top / "usr/bin/python3").unlink()


@fault("python", "broken", "is 3.6.8", by=hands.install_python)
def old_python(patient: Patient) -> None:
    patient.script("usr/bin/python3", "echo 3.6.8")


@fault("yaml", "warning", "PyYAML is missing", by=hands.install_yaml)
def no_yaml(patient: Patient) -> None:
    patient.folder.joinpath("etc-cdi").mkdir()
    patient.folder.joinpath("etc-cdi/other.yaml").touch()
    patient.script("usr/bin/python3", "exit 1")


@fault("units", "warning", "is not installed", by=hands.install_the_unit)
def no_unit(patient: Patient) -> None:
    (patient.top / "etc/systemd/system/gpushim-refresh.service").unlink()


@fault("units", "warning", "gpushim-refresh.socket is installed, and /run/gpushim/refresh.sock is not there")
def nobody_takes_requests(patient: Patient) -> None:
    patient.write("usr/lib/systemd/system/gpushim-refresh.socket", "")


@fault("units", "warning", "its gpushim refresh --keep does not run", by=hands.let_the_pod_run)
def nobody_keeps_a_node(patient: Patient) -> None:
    no_unit(patient)
    patient.write(keep.RECORD[1:], "{}")


@fault("config", "broken", "cannot be trusted")
def a_config_of_everybodys(patient: Patient) -> None:
    os.chmod(patient.config, 0o666)
    patient.reread()


@fault("config", "broken", "which is no directory of this host", by=hands.correct_the_root)
def no_driver_root(patient: Patient) -> None:
    text = Path(patient.config).read_text()
    patient.configure(text.replace(f'root = "{patient.root}"', f'root = "{patient.root}/gone"'))
    patient.reread()


@fault("config", "broken", "user 1000 owns it")
def a_config_of_a_users(patient: Patient) -> None:
    os.chown(patient.config, 1000, 1000)
    patient.reread()


@fault("state-directory", "warning", "does not exist")
def no_state(patient: Patient) -> None:
    shutil.rmtree(patient.state)


@fault("state-directory", "broken", "is not a directory")
def file_for_the_state(patient: Patient) -> None:
    shutil.rmtree(patient.state)
    Path(patient.state).touch()


@fault("snapshot", "warning", "the snapshot notes: ", by=hands.install_the_driver)
def snapshot_with_a_note(patient: Patient) -> None:
    host_states.no_libcuda(patient)
    patient.refreshed()


@fault("snapshot", "broken", "which is no directory of this host", by=hands.correct_the_root)
def snapshot_without_a_driver_root(patient: Patient) -> None:
    no_driver_root(patient)
    patient.refresh()


@fault("log", "warning", "does not exist: nothing is logged")
def no_directory_of_the_log(patient: Patient) -> None:
    shutil.rmtree(patient.top / "var/log")


@fault("log", "warning", "is a link: nothing is logged")
def log_is_a_link(patient: Patient) -> None:
    os.symlink("/dev/null", patient.top / "var/log/gpushim.log")


@fault("log", "warning", "has 2 names: nothing is logged")
def log_with_a_second_name(patient: Patient) -> None:
    (patient.top / "var/log/gpushim.log").touch()
    os.link(patient.top / "var/log/gpushim.log", patient.top / "var/log/other.log")


@fault("log", "warning", "has mode 0666: everybody can")
def log_of_everybodys(patient: Patient) -> None:
    patient.write("var/log/gpushim.log", "", 0o666)


@fault("log", "warning", "or users other than root own or can write to", by=hands.another_log)
def log_in_a_directory_of_everybodys(patient: Patient) -> None:
    os.chmod(patient.top / "var/log", 0o777)


@fault("log", "warning", "its file system is read-only", by=hands.another_log)
def log_that_cannot_be_written(patient: Patient) -> None:
    place = f"{patient.root}/var/log"
    real = os.access
    patient.patch.setattr(os, "access", lambda path, mode: str(path) != place and real(path, mode))


@fault("programs", "broken", "is not an executable file", by=hands.install_gpushim)
def no_programs(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.settings.setup.PROGRAM", "gpushim-absent")


@fault("programs", "broken", "is not an executable file", by=hands.install_gpushim)
def no_programs_on_a_node(patient: Patient) -> None:
    patient.write(keep.RECORD[1:], "{}")
    no_programs(patient)


@fault("snapshot", "warning", "the snapshot notes: ", by=hands.reset)
def snapshot_of_a_sick_gpu(patient: Patient) -> None:
    patient.gpus.behave(fail_gpu={1: 15})
    patient.refresh("--force")


@fault("grants", "warning", "accept-env-when-unprivileged = false alone closes half", by=hands.close_annotations_too)
def variables_closed_and_annotations_not(patient: Patient) -> None:
    patient.configure(Path(patient.config).read_text() + "[requests]\naccept-env-when-unprivileged = false\n")
    patient.reread()
