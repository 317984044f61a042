"""States of engines in which their checks find a fault, and what NVIDIA's toolkit has left."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushim.engines import containerd
from gpushim.engines.containerd.imports import CRI
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import programs, running
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import Options
from unit.gpushim.doctor import dra_states, nodes
from unit.gpushim.doctor.fault import State, into
from unit.gpushim.doctor.patient import HOOK, NVIDIA_HOOK, RUNTIME, Patient

STATES: list[State] = []
fault = into(STATES)
DAEMON, CONTAINERD = "etc/docker/daemon.json", "containerd.toml"
K3S = "var/lib/rancher/k3s/agent/etc/containerd"
BY_TYPE = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/gone/gpushim-runtime"}}
NVIDIAS = "/usr/bin/nvidia-container-runtime"


def both(patient: Patient, path: str) -> None:
    """Have a runtime nvidia in the file and in the dockerd that runs."""
    daemon(patient, runtimes={"nvidia": {"path": path}})
    patient.info["Runtimes"]["nvidia"] = {"path": path}


def daemon(patient: Patient, **settings: object) -> None:
    patient.write(DAEMON, json.dumps(settings))


def deaf(*_: Any) -> dict[str, Any]:
    raise TimeoutError("timed out")


def only_runc(patient: Patient) -> None:
    patient.info["Runtimes"] = {"runc": {"path": "runc"}}


def edit(patient: Patient, name: str, old: str, new: str) -> None:
    path = patient.top / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def change(patient: Patient, number: int, **facts: Any) -> None:
    """Change an engine: 0 is dockerd, 1 containerd."""
    patient.host.engines[number] = replace(patient.host.engines[number], **facts)


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


@fault("docker-daemon", "broken", "does not answer")
def dockerd_is_deaf(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.docker.dockerd.ask", deaf)


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
def link_of_configures_is_newer(patient: Patient) -> None:
    patient.patch.setattr(dockerd, "LINKS", f"{patient.top}/usr/bin")
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


def has_its_own_run(patient: Patient) -> Path:
    """Give dockerd a root of its own, as rootlesskit does; return where it sees the state."""
    patient.refreshed()
    change(patient, 0, root=str(patient.folder / "own"))
    place = Path(patient.host.engines[0].host_path(patient.state))
    place.parent.mkdir(parents=True)
    return place


@fault("docker-view", "broken", "is not there, as it was not when dockerd started")
def rootless_dockerd_is_older_than_gpushim(patient: Patient) -> None:
    has_its_own_run(patient)


@fault("docker-view", "broken", "cannot be trusted")
def rootless_dockerd_sees_a_link_into_the_void(patient: Patient) -> None:
    has_its_own_run(patient).symlink_to("gone")


@fault("docker-cdi", "warning", "is a link, in which Docker 26.1 finds no spec")
def rootless_dockerd_sees_a_link_to_specs(patient: Patient) -> None:
    has_its_own_run(patient).with_name("cdi").symlink_to("elsewhere")
    patient.info.update(ServerVersion="26.1.5", CDISpecDirs=[str(Path(patient.state).with_name("cdi"))])


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


@fault("containerd-runtime", "warning", "is of version 2, in which containerd ignores the runtimes of plugins cri")
def runtimes_in_a_table_of_before(patient: Patient) -> None:
    path = patient.top / CONTAINERD
    path.write_text(path.read_text() + '[plugins.cri.containerd.runtimes.other]\nruntime_type = "x"\n')


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


@fault("docker-daemon", "warning", "none would start")
def dockerd_is_down_for_its_file(patient: Patient) -> None:
    patient.write("etc/docker/daemon.json", '{"runtimes":')
    patient.patch.setattr("gpushim.engines.docker.dockerd.default_config", lambda *_: "/etc/docker/daemon.json")
    del patient.host.engines[0]


@fault("docker-daemon", "warning", "there is no runtime nvidia")
def dockerd_is_down_for_its_default(patient: Patient) -> None:
    daemon(patient, **{"default-runtime": "nvidia"})
    patient.patch.setattr("gpushim.engines.docker.dockerd.default_config", lambda *_: "/etc/docker/daemon.json")
    del patient.host.engines[0]


@fault("docker-runtime", "broken", "features.cdi is neither true nor false")
def dockerd_would_not_start_with_its_file(patient: Patient) -> None:
    daemon(patient, runtimes={"nvidia": {"path": str(RUNTIME)}}, features={"cdi": "true"})


@fault("docker-restart", "warning", "does not have any more")
def dockerds_file_was_emptied(patient: Patient) -> None:
    daemon(patient)
    patient.info["DefaultRuntime"] = "nvidia"


@fault("docker-restart", "warning", "and the dockerd that runs has")
def dockerds_file_names_another_program(patient: Patient) -> None:
    daemon(patient, runtimes={"nvidia": {"path": "/usr/bin/other"}})


@fault("docker-program", "broken", "default runtime runc is runc")
def runc_of_docker_is_gone(patient: Patient) -> None:
    (patient.top / "usr/sbin/runc").unlink()


@fault("docker-runtime", "broken", "would not start again: ")
def dockerd_lost_its_default(patient: Patient) -> None:
    daemon(patient, runtimes={"nvidia": {"path": str(RUNTIME)}}, **{"default-runtime": "kata"})


@fault("docker-runtime", "warning", "its nvidia is /usr/bin/other")
def runtime_of_somebodys_by_type(patient: Patient) -> None:
    only_runc(patient)
    entry = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/usr/bin/other"}}
    daemon(patient, runtimes={"nvidia": entry})


@fault("docker-runtime", "warning", "does not name gpushim-runtime")
def runtimes_on_the_command_line(patient: Patient) -> None:
    only_runc(patient)
    daemon(patient)
    change(patient, 0, argv=("dockerd", "--add-runtime=kata=/usr/bin/kata"))


@fault("docker-program", "broken", "the runtime nvidia is /gone/gpushim-runtime")
def program_by_type_is_gone(patient: Patient) -> None:
    daemon(patient, runtimes={"nvidia": BY_TYPE})
    patient.info["Runtimes"]["nvidia"] = {}


@fault("docker-program", "broken", "which is not an executable file here")
def nvidias_toolkit_was_removed(patient: Patient) -> None:
    both(patient, f"{patient.root}{NVIDIAS}")


@fault("docker-program", "broken", "which is not an executable file on dockerd's PATH")
def nvidias_name_leads_nowhere(patient: Patient) -> None:
    both(patient, "nvidia-container-runtime")


@fault("docker-program", "broken", "the runtime gpu is /gone/gpushim-runtime")
def program_of_another_name_is_gone(patient: Patient) -> None:
    daemon(patient, runtimes={"gpu": {"path": "/gone/gpushim-runtime"}})
    patient.info["Runtimes"] = {"gpu": {"path": "/gone/gpushim-runtime"}}


@fault("docker-restart", "warning", "and the dockerd that runs has /old/gpushim-runtime")
def runtime_was_changed_since(patient: Patient) -> None:
    patient.info["Runtimes"]["nvidia"] = {"path": "/old/gpushim-runtime"}


@fault("docker-restart", "warning", "does not have any more")
def runtime_was_removed_since(patient: Patient) -> None:
    daemon(patient)


@fault("docker-restart", "warning", "default-runtime of")
def default_was_changed_since(patient: Patient) -> None:
    daemon(patient, runtimes={"nvidia": {"path": str(RUNTIME)}}, **{"default-runtime": "nvidia"})


@fault("docker-restart", "warning", "nvidia-container-runtime-hook was installed")
def compat_package_came_since(patient: Patient) -> None:
    """The link is new; what it leads to has been there."""
    only_runc(patient)
    change(patient, 0, started=os.stat(RUNTIME.with_name("gpushim-hook")).st_ctime + 1)


@fault("docker-cdi", "warning", "features.cdi is false")
def docker_was_told_not_to_do_cdi(patient: Patient) -> None:
    daemon(patient, runtimes={"nvidia": {"path": str(RUNTIME)}}, features={"cdi": False})
    patient.info.update(ServerVersion="29.7.2", CDISpecDirs=[], DiscoveredDevices=None)


@fault("docker-cdi", "warning", "finds no nvidia.com/gpu")
def no_spec_yet(patient: Patient) -> None:
    patient.info.update(CDISpecDirs=[f"{patient.state}/cdi"], DiscoveredDevices=None)


@fault("docker-cdi", "warning", "finds no nvidia.com/gpu")
def no_spec_is_written(patient: Patient) -> None:
    patient.configure(Path(patient.config).read_text().replace("[cdi]\n", "[cdi]\nwrite-spec = false\n"))
    patient.reread()
    patient.info.update(CDISpecDirs=[f"{patient.state}/cdi"], DiscoveredDevices=None)


@fault("containerd-daemon", "broken", "which no longer exists")
def containerds_file_is_gone(patient: Patient) -> None:
    (patient.top / CONTAINERD).unlink()
    config = f"{patient.top}/{CONTAINERD}"
    built_in = '[ "$*" = "config default" ] && echo version = 2'  # a file that is named must be there
    ours = f"{patient.top}/conf.d/99-gpushim.toml"
    patient.script(
        "usr/bin/containerd", f"cat '{ours}' 2>/dev/null || cat '{config}' 2>/dev/null || {{ {built_in}; }}"
    )
    patient.patch.setattr("gpushim.engines.processes.programs.DIRECTORIES", (f"{patient.root}/usr/bin",))


@fault("containerd-runtime", "broken", "their nvidia is")
def handler_of_nvidias(patient: Patient) -> None:
    other = patient.script("usr/bin/nvidia-container-runtime", "exec true")
    edit(patient, CONTAINERD, str(RUNTIME), str(other))


@fault("containerd-runtime", "broken", "which is not an executable file")
def handler_of_nvidias_is_gone(patient: Patient) -> None:
    edit(patient, CONTAINERD, str(RUNTIME), f"{patient.root}{NVIDIAS}")


@fault("containerd-runtime", "broken", "is disabled, so there are no pods")
def cri_is_disabled(patient: Patient) -> None:
    edit(patient, CONTAINERD, "version = 2\n", 'version = 2\ndisabled_plugins = ["cri"]\n')


@fault("containerd-restart", "warning", "the CRI's settings were changed since")
def the_copy_of_the_cris_settings_is_old(patient: Patient) -> None:
    patient.patch.setattr("gpushim.engines.containerd.process._version", lambda *_: (1, 7))
    config = patient.top / CONTAINERD
    options = Options(str(RUNTIME), config=str(config), force=True)
    config.write_text(f'version = 2\n[plugins."{CRI[2]}"]\nenable_cdi = true\nsandbox_image = "old"\n')
    files.apply(containerd.plan(options).changes)
    config.write_text(config.read_text().replace("old", "new"))


@fault("containerd-restart", "warning", "more.toml was changed after containerd")
def an_import_is_newer(patient: Patient) -> None:
    more = patient.write("elsewhere/more.toml", "")
    edit(patient, CONTAINERD, "version = 2\n", f'version = 2\nimports = ["{more}"]\n')
    os.utime(more, (1e9, 1e9))  # as packages keep it
    change(patient, 1, started=1e9)
    changed = running.changed
    patient.patch.setattr(running, "changed", lambda path: changed(path) if "more" in path else 0.0)


@fault("containerd-cdi", "warning", "and the spec is in")
def containerd_looks_elsewhere(patient: Patient) -> None:
    edit(patient, CONTAINERD, "enable_cdi = true", f'enable_cdi = true\ncdi_spec_dirs = ["{patient.state}/cdi"]')
    text = Path(patient.config).read_text()
    patient.configure(text.replace("[cdi]\n", f'[cdi]\noutput-directory = "{patient.folder}/elsewhere"\n'))
    patient.reread()


@fault("podman-program", "broken", "cannot resolve home")
def podman_without_a_home(patient: Patient) -> None:
    patient.patch.setenv("HOME", "/nonexistent")
    known = '[ -d "$HOME" ] || { echo "cannot resolve home: $HOME" >&2; exit 1; }'
    patient.script("usr/bin/podman", f"{known}; echo podman version 5.4.2")


@fault("podman-runtime", "broken", "which is not an executable file")
def podman_runtime_of_nvidias_is_gone(patient: Patient) -> None:
    patient.write("etc/containers/containers.conf", f'[engine.runtimes]\nnvidia = ["{NVIDIAS}"]\n')


@fault("podman-program", "warning", "is not executed: others could have put it there")
def podman_that_others_may_write(patient: Patient) -> None:
    (patient.top / "usr/bin/podman").chmod(0o777)


@fault("podman-program", "broken", "correct me")
def podmans_file_is_broken(patient: Patient) -> None:
    patient.write("etc/containers/containers.conf", "[")


@fault("podman-hooks", "warning", "which is not gpushim's")
def podman_hook_of_nvidias(patient: Patient) -> None:
    patient.script("usr/bin/nvidia-container-toolkit", "exec true")
    hook = '{"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-toolkit"}, "when": {"always": true}}'
    patient.write("usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", hook)


@fault("kubernetes-device-plugin", "warning", "nobody listens")
def the_device_plugin_has_ended(patient: Patient) -> None:
    ended = os.stat(patient.top / "var/lib/kubelet/device-plugins/nvidia-gpu.sock").st_ctime
    patient.patch.setattr(
        "gpushim.engines.processes.ask.listens", lambda path: os.path.exists(path) and os.stat(path).st_ctime > ended
    )


@fault("kubernetes-template", "broken", "does not know gpushim-runtime")
def k3s_is_not_configured(patient: Patient) -> None:
    patient.write(
        f"{K3S}/config.toml", 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
    )


@fault("nvidia-config", "broken", "accept-nvidia-visible-devices-envvar-when-unprivileged = false has no effect")
def a_hardening_switch_left_behind(patient: Patient) -> None:
    line = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    patient.write("etc/nvidia-container-runtime/config.toml", line)


@fault(
    "nvidia-config", "broken", 'allows less than is in force: supported-driver-capabilities = "utility", nvidia-co'
)
def a_hardening_that_cannot_be_taken_over(patient: Patient) -> None:
    lines = 'supported-driver-capabilities = "utility"\n[nvidia-container-runtime]\nmode = "cdi"\n'
    patient.write("etc/nvidia-container-runtime/config.toml", lines)


@fault("nvidia-config", "warning", 'nvidia-container-cli.ldcache = "/x", nvidia-container-cli.no-cgroups = true')
def settings_of_which_one_cannot_be_taken_over(patient: Patient) -> None:
    lines = '[nvidia-container-cli]\nldcache = "/x"\nno-cgroups = true\n'
    patient.write("etc/nvidia-container-runtime/config.toml", lines)


STATES += [*nodes.STATES, *dra_states.STATES]


def of_a_user(patient: Patient, program: Path) -> str:
    """Copy one of gpushim's programs into a user's home; returns its path."""
    copy = patient.folder / "home" / program.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(program, copy)
    os.chown(copy, 1000, 1000)
    return str(copy)


@fault("docker-program", "broken", "which runs with every container, and others could change it: ")
def program_of_a_users(patient: Patient) -> None:
    both(patient, of_a_user(patient, RUNTIME))


@fault("docker-hook", "broken", "which runs with every container, and others could change it: ")
def hook_of_a_users(patient: Patient) -> None:
    (patient.top / "usr/sbin" / NVIDIA_HOOK).symlink_to(of_a_user(patient, HOOK))


@fault("containerd-runtime", "broken", "which runs with every container, and others could change it: ")
def handler_of_a_users(patient: Patient) -> None:
    edit(patient, CONTAINERD, str(RUNTIME), of_a_user(patient, RUNTIME))


@fault("podman-runtime", "broken", "which runs with every container, and others could change it: ")
def podman_program_of_a_users(patient: Patient) -> None:
    (patient.top / "usr/bin/gpushim-runtime").unlink()
    shutil.move(of_a_user(patient, RUNTIME), patient.top / "usr/bin/gpushim-runtime")


@fault("podman-hooks", "broken", "which runs with every container, and others could change it: ")
def podman_hook_of_a_users(patient: Patient) -> None:
    shutil.move(of_a_user(patient, HOOK), patient.top / "usr/bin/gpushim-hook")
    hook = '{"version": "1.0.0", "hook": {"path": "/usr/bin/gpushim-hook"}, "when": {"always": true}}'
    patient.write("usr/share/containers/oci/hooks.d/99-gpushim.json", hook)
