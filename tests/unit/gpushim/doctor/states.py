"""More states of a host in which a general check finds a fault, beside those of test_faults.py."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

from gpushim.cdi.generate import written
from gpushim.engines.processes import origin
from gpushim.engines.processes.running import Impostor
from gpushim.refresh import keep
from unit.gpushim.doctor.patient import Patient
from unit.gpushim.doctor.test_faults import FAULTS, SPEC, fault, no_libcuda
from unit.gpushim.inventory.machine import told


@fault("config", "broken", "cannot be trusted")
def a_config_of_everybodys(patient: Patient) -> None:
    os.chmod(patient.config, 0o666)
    patient.reread()


@fault("config", "broken", "which is no directory of this host")
def no_driver_root(patient: Patient) -> None:
    text = Path(patient.config).read_text()
    patient.configure(text.replace(f'root = "{patient.root}"', f'root = "{patient.root}/gone"'))
    patient.reread()


@fault("config", "broken", "user 1000 owns it")
def a_config_of_a_users(patient: Patient) -> None:
    os.chown(patient.config, 1000, 1000)
    patient.reread()


@fault("driver-module", "broken", "does not tell a version")
def module_without_a_version(patient: Patient) -> None:
    patient.write("proc/driver/nvidia/version", "")


@fault("driver-libraries", "warning", "and also of 525.60.13")
def libraries_twice(patient: Patient) -> None:
    folder = Path(patient.gpus.lib_path)
    shutil.copy(folder / f"libcuda.so.{patient.gpus.driver}", folder / "libcuda.so.525.60.13")


@fault("nvml", "broken", "has not answered within")
def nvml_is_too_slow(patient: Patient) -> None:
    patient.host_of(seconds=1)
    patient.reread()
    patient.patch.setattr("gpushim.doctor.driver.GRACE", 0.5)
    patient.gpus.behave(delay_ms=2500)


@fault("nvml", "broken", "is not asked, for calls of it hang")
def hung_gpu(patient: Patient) -> None:
    """As the device plugin has found; a look that asked it would end at its deadline, with another sentence."""
    patient.listed()
    patient.gpus.hang(1)
    told(patient.state, patient.gpus.gpus[1].uuid)


@fault("nvml", "broken", "reboot, or reload")
def nvml_of_another_version(patient: Patient) -> None:
    patient.gpus.behave(fail=18)  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


@fault("nvml", "warning", "nvidia-ml-py")
def no_pynvml(patient: Patient) -> None:
    answer = {"error": "", "source": "proc", "notes": ["Python's nvidia-ml-py cannot be used"], "gpus": []}
    patient.patch.setattr("gpushim.doctor.driver._asked", lambda host: answer)


@fault("persistence", "warning", "persistence mode is off")
def no_persistenced(patient: Patient) -> None:
    os.unlink(patient.top / "run/nvidia-persistenced/socket")


@fault("persistence", "warning", "persistence mode is off")
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


@fault("state-directory", "warning", "is not there")
def no_state(patient: Patient) -> None:
    shutil.rmtree(patient.state)


@fault("state-directory", "broken", "is not a directory")
def file_for_the_state(patient: Patient) -> None:
    shutil.rmtree(patient.state)
    Path(patient.state).touch()


@fault("snapshot", "warning", "the snapshot notes: ")
def snapshot_with_a_note(patient: Patient) -> None:
    no_libcuda(patient)
    patient.refreshed()


@fault("snapshot", "broken", "which is no directory of this host")
def snapshot_without_a_driver_root(patient: Patient) -> None:
    no_driver_root(patient)
    patient.refresh()


@fault("log", "warning", "is not there: nothing is logged")
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


@fault("log", "warning", "or others than root own or may write")
def log_in_a_directory_of_everybodys(patient: Patient) -> None:
    os.chmod(patient.top / "var/log", 0o777)


@fault("log", "warning", "its file system is read-only")
def log_that_cannot_be_written(patient: Patient) -> None:
    place = f"{patient.root}/var/log"
    real = os.access
    patient.patch.setattr(os, "access", lambda path, mode: str(path) != place and real(path, mode))


@fault("programs", "broken", "is not an executable file")
def no_programs(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.settings.setup.PROGRAM", "gpushim-absent")


@fault("programs", "broken", "is not an executable file")
def no_programs_on_a_node(patient: Patient) -> None:
    patient.write(keep.RECORD[1:], "{}")
    no_programs(patient)


@fault("low-level-runtime", "broken", "is NVIDIA's")
def runc_is_nvidias(patient: Patient) -> None:
    patient.script("usr/sbin/nvidia-container-runtime", "exit 0")
    (patient.top / "usr/sbin/runc").unlink()
    os.symlink("nvidia-container-runtime", patient.top / "usr/sbin/runc")


@fault("low-level-runtime", "warning", "says nothing known")
def runc_that_says_nothing(patient: Patient) -> None:
    patient.script("usr/sbin/runc", "exit 0")


@fault("snapshot", "warning", "the snapshot notes: ")
def snapshot_of_a_sick_gpu(patient: Patient) -> None:
    patient.gpus.behave(fail_gpu={1: 15})
    patient.refresh("--force")


@fault("cdi-paths", "broken", "which is not there: containers do not start")
def library_removed(patient: Patient) -> None:
    os.unlink(f"{patient.gpus.lib_path}/libnvidia-ptxjitcompiler.so.{patient.gpus.driver}")


@fault("cdi-spec", "warning", "is not there")
def spec_in_a_directory_of_everybodys(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")
    os.chmod(f"{patient.state}/cdi", 0o777)


@fault("cdi-spec", "broken", "is not of this driver")
def spec_of_before_in_a_directory_of_everybodys(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text().replace(patient.gpus.driver, "525.60.13"))
    os.chown(path.parent, 1000, 1000)


@fault("cdi-files", "broken", "user 1000 owns it")
def spec_of_a_users(patient: Patient) -> None:
    path = patient.folder / "etc-cdi/theirs.json"
    path.parent.mkdir()
    path.write_text(SPEC % "/dev/null")
    os.chown(path, 1000, 1000)


@fault("cdi-files", "broken", "its mode is")
def directory_of_specs_of_everybodys(patient: Patient) -> None:
    patient.folder.joinpath("etc-cdi").mkdir()
    os.chmod(patient.folder / "etc-cdi", 0o777)


@fault("cdi-spec", "warning", "is not there")
def spec_in_a_directory_like_tmp(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")
    os.chmod(f"{patient.state}/cdi", 0o1777)


@fault("cdi-spec", "warning", "stays as it was")
def spec_with_more_than_can_be_listed(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    spec = json.loads(path.read_text())
    patient.gpus.behave(fail=999)
    patient.refresh("--force")
    spec["devices"].append({"name": "9", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}})
    path.write_text(json.dumps(spec))
    written.note(str(path), path.read_text())


@fault("cdi-files", "warning", "its devices do not count")
def our_spec_damaged(patient: Patient) -> None:
    Path(patient.state, "cdi/nvidia.com-gpu.json").write_text("{")


@fault("cdi-files", "broken", "its mode is")
def directory_of_specs_like_tmp(patient: Patient) -> None:
    patient.folder.joinpath("etc-cdi").mkdir()
    os.chmod(patient.folder / "etc-cdi", 0o1777)


@fault("cdi-conflicts", "warning", "the last of the directories counts")
def spec_of_others_that_comes_last(patient: Patient) -> None:
    patient.folder.joinpath("last").mkdir()
    patient.folder.joinpath("last/nvidia.json").write_text(SPEC % "/dev/null")
    text = Path(patient.config).read_text()
    patient.configure(text.replace('/state/cdi"]', f'/state/cdi", "{patient.folder}/last"]'))
    patient.reread()
    patient.refreshed()


@fault("cdi-paths", "broken", "which is not there")
def spec_of_others_names_what_is_gone(patient: Patient) -> None:
    Path(patient.state, "cdi/other.json").write_text((SPEC % "/dev/gone").replace("nvidia.com", "vendor.com"))


@fault("cdi-hooks", "warning", "LD_PRELOAD too (CVE-2025-23266)")
def hook_of_an_old_program_without_an_environment(patient: Patient) -> None:
    hook = {"hookName": "createContainer", "path": "/bin/true"}
    spec = {**json.loads(SPEC % "/dev/null"), "kind": "vendor.com/gpu", "containerEdits": {"hooks": [hook]}}
    Path(patient.state, "cdi/other.json").write_text(json.dumps(spec))


@fault("cdi-conflicts", "warning", "may find a device twice")
def spec_that_may_have_any_device(patient: Patient) -> None:
    Path(patient.state, "cdi/broken.json").write_text("{")


@fault("grants", "warning", "accept-env-when-unprivileged = false alone closes half")
def variables_closed_and_annotations_not(patient: Patient) -> None:
    patient.configure(Path(patient.config).read_text() + "[requests]\naccept-env-when-unprivileged = false\n")
    patient.reread()


@fault("engine-processes", "warning", "is not looked at: others could have made")
def a_dockerd_of_everybodys(patient: Patient) -> None:
    program = patient.script("opt/our programs/dockerd", "")
    os.chmod(program, 0o777)
    patient.host.impostors = [Impostor("dockerd", 7, 0, f"{origin.UNSAFE}, {program}")]


@fault("engine-processes", "warning", "is not looked at: others could have made")
def a_dockerd_in_a_directory_of_its_group(patient: Patient) -> None:
    a_dockerd_of_everybodys(patient)
    program = patient.top / "opt/our programs/dockerd"
    os.chmod(program, 0o755)
    os.chmod(program.parent, 0o2775)


@fault("cdi-spec", "warning", "nor engines by themselves look for CDI devices")
def spec_where_nobody_looks(patient: Patient) -> None:
    written_to(patient, f"{patient.folder}/elsewhere")
    patient.refreshed()


@fault("cdi-spec", "warning", "is not there, or cannot be used")
def file_for_the_directory_of_specs(patient: Patient) -> None:
    written_at_a_file(patient, "")


def written_at_a_file(patient: Patient, below: str) -> None:
    (patient.folder / "file").touch()
    patient.patch.setattr("gpushim.cdi.specs.DIRECTORIES", (f"{patient.folder}/file{below}",))
    written_to(patient, f"{patient.folder}/file{below}")
    patient.refresh("--force")


@fault("cdi-spec", "warning", "is not there, or cannot be used")
def file_above_the_directory_of_specs(patient: Patient) -> None:
    written_at_a_file(patient, "/cdi")


@fault("cdi-spec", "warning", "is not there, or cannot be used")
def link_for_the_spec(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")
    os.symlink("/nonexistent", f"{patient.state}/cdi/nvidia.com-gpu.json")


@fault("cdi-spec", "warning", "is not there, or cannot be used")
def directory_for_the_spec(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")
    os.mkdir(f"{patient.state}/cdi/nvidia.com-gpu.json")


@fault("cdi-files", "broken", "its mode is")
def directory_of_our_specs_like_tmp(patient: Patient) -> None:
    (patient.folder / "like-tmp").mkdir()
    os.chmod(patient.folder / "like-tmp", 0o1777)
    written_to(patient, f"{patient.folder}/like-tmp")


def written_to(patient: Patient, folder: str) -> None:
    """Have refresh write its spec to a directory."""
    text = Path(patient.config).read_text()
    patient.configure(text.replace("[cdi]\n", f'[cdi]\noutput-directory = "{folder}"\n'))
    patient.reread()


@fault("low-level-runtime", "broken", "no low-level runtime: none of /nope/runc")
def another_path_of_runc(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.processes.programs.DIRECTORIES", ("/usr/sbin",))
    patient.configure(Path(patient.config).read_text().replace(f"{patient.root}/usr/sbin/runc", "/nope/runc"))
    patient.reread()


@fault("low-level-runtime", "broken", "no low-level runtime: none of /nope/runc")
def a_path_where_no_package_puts_runc(patient: Patient) -> None:
    another_path_of_runc(patient)
    (patient.top / "usr/sbin/runc").unlink()


STATES = [state for state in FAULTS if not state[0].startswith("nvidia-")]
