"""States in which the checks of CDI specs find a fault."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gpushim.cdi.generate import written
from unit.gpushim.doctor import hands
from unit.gpushim.doctor.engine_states import of_a_user
from unit.gpushim.doctor.fault import State, into
from unit.gpushim.doctor.patient import HOOK, Patient

STATES: list[State] = []
fault = into(STATES)
SPEC = """{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
"devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "%s"}]}}]}"""


def written_to(patient: Patient, folder: str) -> None:
    """Have refresh write its spec to a directory."""
    text = Path(patient.config).read_text()
    patient.configure(text.replace("[cdi]\n", f'[cdi]\noutput-directory = "{folder}"\n'))
    patient.reread()


def written_at_a_file(patient: Patient, below: str) -> None:
    (patient.folder / "file").touch()
    patient.patch.setattr("gpushim.cdi.specs.DIRECTORIES", (f"{patient.folder}/file{below}",))
    written_to(patient, f"{patient.folder}/file{below}")
    patient.refresh("--force")


@fault("cdi-spec", "warning", "is missing or unusable")
def no_spec(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")


@fault("cdi-spec", "broken", "is not of this driver")
def spec_of_before(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text().replace(patient.gpus.driver, "525.60.13"))


@fault("cdi-versions", "warning", "podman 4.9 reads CDI up to 0.6.0 and drops the groups", by=hands.upgrade_podman)
def nodes_of_a_group(patient: Patient) -> None:
    for gpu in patient.gpus.gpus:
        node = patient.gpus.node(f"nvidia{gpu.minor}")
        os.chown(node, 0, 44)
        os.chmod(node, 0o660)
    patient.refresh("--force")
    patient.script("usr/bin/podman", "echo podman version 4.9.3")


@fault("cdi-paths", "broken", "which does not exist")
def spec_names_what_is_gone(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text().replace(patient.gpus.driver, "525.60.13"))


@fault("cdi-files", "broken", "its mode is 0666")
def untrusted_spec(patient: Patient) -> None:
    os.chmod(f"{patient.state}/cdi/nvidia.com-gpu.json", 0o666)


@fault("cdi-files", "warning", "broken.json", by=hands.remove_the_spec)
def spec_that_is_none(patient: Patient) -> None:
    Path(patient.state, "cdi/broken.json").write_text("{")


@fault("cdi-conflicts", "broken", "engines refuse that device")
def device_twice(patient: Patient) -> None:
    Path(patient.state, "cdi/nvidia.json").write_text(SPEC % "/dev/null")


@fault("cdi-conflicts", "warning", "the last directory takes precedence")
def stale_spec_elsewhere(patient: Patient) -> None:
    patient.folder.joinpath("etc-cdi").mkdir()
    patient.folder.joinpath("etc-cdi/nvidia.json").write_text(SPEC % "/dev/null")


@fault("cdi-versions", "warning", "podman 4.3 reads CDI up to 0.5.0", by=hands.upgrade_podman)
def podman_of_before(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text().replace("0.5.0", "0.7.0"))
    patient.script("usr/bin/podman", "echo podman version 4.3.1")


@fault("cdi-paths", "broken", "which does not exist: containers do not start")
def library_removed(patient: Patient) -> None:
    os.unlink(f"{patient.gpus.lib_path}/libnvidia-ptxjitcompiler.so.{patient.gpus.driver}")


@fault("cdi-spec", "warning", "is missing or unusable")
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


@fault("cdi-spec", "warning", "is missing or unusable", by=hands.write_specs_elsewhere)
def spec_in_a_directory_like_tmp(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")
    os.chmod(f"{patient.state}/cdi", 0o1777)


@fault("cdi-spec", "warning", "stays as it was", by=hands.well_again)
def spec_with_more_than_can_be_listed(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    spec = json.loads(path.read_text())
    patient.gpus.behave(fail=999)
    patient.refresh("--force")
    spec["devices"].append({"name": "9", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}})
    path.write_text(json.dumps(spec))
    written.note(str(path), path.read_text())


@fault("cdi-files", "warning", "its devices are ignored")
def our_spec_damaged(patient: Patient) -> None:
    Path(patient.state, "cdi/nvidia.com-gpu.json").write_text("{")


@fault("cdi-files", "broken", "its mode is", by=hands.read_no_specs_there)
def directory_of_specs_like_tmp(patient: Patient) -> None:
    patient.folder.joinpath("etc-cdi").mkdir()
    os.chmod(patient.folder / "etc-cdi", 0o1777)


@fault("cdi-conflicts", "warning", "the last directory takes precedence")
def spec_of_others_that_comes_last(patient: Patient) -> None:
    patient.folder.joinpath("last").mkdir()
    patient.folder.joinpath("last/nvidia.json").write_text(SPEC % "/dev/null")
    text = Path(patient.config).read_text()
    patient.configure(text.replace('/state/cdi"]', f'/state/cdi", "{patient.folder}/last"]'))
    patient.reread()
    patient.refreshed()


@fault("cdi-paths", "broken", "which does not exist", by=hands.remove_the_spec)
def spec_of_others_names_what_is_gone(patient: Patient) -> None:
    Path(patient.state, "cdi/other.json").write_text((SPEC % "/dev/gone").replace("nvidia.com", "vendor.com"))


@fault("cdi-hooks", "warning", "LD_PRELOAD too (CVE-2025-23266)", by=hands.remove_the_spec)
def hook_of_an_old_program_without_an_environment(patient: Patient) -> None:
    hook = {"hookName": "createContainer", "path": "/bin/true"}
    spec = {**json.loads(SPEC % "/dev/null"), "kind": "vendor.com/gpu", "containerEdits": {"hooks": [hook]}}
    Path(patient.state, "cdi/other.json").write_text(json.dumps(spec))


@fault("cdi-conflicts", "warning", "may find a device twice", by=hands.remove_the_spec)
def spec_that_may_have_any_device(patient: Patient) -> None:
    Path(patient.state, "cdi/broken.json").write_text("{")


@fault("cdi-spec", "warning", "nor engines by themselves look for CDI devices", by=hands.write_specs_where_they_were)
def spec_where_nobody_looks(patient: Patient) -> None:
    written_to(patient, f"{patient.folder}/elsewhere")
    patient.refreshed()


@fault("cdi-spec", "warning", "is missing or unusable", by=hands.write_specs_where_they_were)
def file_for_the_directory_of_specs(patient: Patient) -> None:
    written_at_a_file(patient, "")


@fault("cdi-spec", "warning", "is missing or unusable", by=hands.write_specs_where_they_were)
def file_above_the_directory_of_specs(patient: Patient) -> None:
    written_at_a_file(patient, "/cdi")


@fault("cdi-spec", "warning", "is missing or unusable")
def link_for_the_spec(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")
    os.symlink("/nonexistent", f"{patient.state}/cdi/nvidia.com-gpu.json")


@fault("cdi-spec", "warning", "is missing or unusable")
def directory_for_the_spec(patient: Patient) -> None:
    os.unlink(f"{patient.state}/cdi/nvidia.com-gpu.json")
    os.mkdir(f"{patient.state}/cdi/nvidia.com-gpu.json")


@fault("cdi-files", "broken", "its mode is", by=hands.write_specs_where_they_were)
def directory_of_our_specs_like_tmp(patient: Patient) -> None:
    (patient.folder / "like-tmp").mkdir()
    os.chmod(patient.folder / "like-tmp", 0o1777)
    written_to(patient, f"{patient.folder}/like-tmp")


@fault("cdi-spec", "broken", "though no GPU can be given out: engines use it", by=hands.reboot)
def edited_spec_beside_a_half_upgrade(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text() + "\n")
    patient.gpus.half_upgrade("535.216.01")
    patient.refresh("--force")


@fault("cdi-hooks", "broken", "which runs with every container, and others could change it: ")
def spec_names_a_hook_of_a_users(patient: Patient) -> None:
    path = Path(patient.state, "cdi/nvidia.com-gpu.json")
    path.write_text(path.read_text().replace(str(HOOK), of_a_user(patient, HOOK)))
