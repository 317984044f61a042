"""States of a node of Kubernetes in which its checks find a fault, and what kubelet and the device plugin are then.

A plugin that answers is played by a thread of the test; kubelet's checkpoint is written as kubelet does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpushim
from gpushim.containers.kubelet import CHECKPOINT
from gpushim.doctor import check_device_plugin
from gpushim.refresh import keep
from unit.gpushim.doctor.fault import State, into
from unit.gpushim.doctor.patient import Patient

STATES: list[State] = []
fault = into(STATES)
KUBELET = "var/lib/kubelet"
PLUGINS = f"{KUBELET}/device-plugins"
GPU = "nvidia.com/gpu"
GONE = "GPU-00000000-0000-0000-0000-000000000000"
ANSWER: dict[str, Any] = {
    "version": gpushim.__version__,
    "released": None,
    "problem": "",
    "resources": [{"name": GPU, "registered": True, "devices": [{"healthy": True}, {"healthy": True}]}],
}


def bound(path: Path) -> socket.socket:
    """Listen at a path, however long it is, in the place of what is there."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    fd = os.open(path.parent, os.O_PATH)
    server.bind(f"/proc/self/fd/{fd}/{path.name}")
    os.close(fd)
    server.listen()
    return server


@contextlib.contextmanager
def answering(path: Path, answer: bytes | None) -> Iterator[None]:
    """Answer whoever asks at a path; with None, never."""
    with bound(path) as server:
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client = server.accept()[0]
                    if answer is None:
                        kept.append(client)
                        continue
                    with client, contextlib.suppress(OSError):  # who only looks whether somebody listens is gone
                        client.recv(4096)
                        client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for client in kept:
                client.close()


def our_plugin(patient: Patient, until: contextlib.ExitStack, answer: Any = ANSWER) -> None:
    """Let gpushim's plugin listen for kubelet, in the place of NVIDIA's, and answer."""
    (patient.top / PLUGINS / "nvidia-gpu.sock").unlink(missing_ok=True)
    until.enter_context(bound(patient.top / PLUGINS / "gpushim-gpu.sock"))
    os.makedirs(patient.state, 0o755, exist_ok=True)
    data = answer if answer is None or isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n"
    until.enter_context(answering(Path(patient.state, "device-plugin.sock"), data))
    patient.write("usr/lib/systemd/system/gpushim-device-plugin.service", "")


def plays(patient: Patient, **more: Any) -> None:
    our_plugin(patient, held(patient), {**ANSWER, **more})


def held(patient: Patient) -> contextlib.ExitStack:
    assert patient.kept_open
    return patient.kept_open


def checkpoint(patient: Patient, *given: str, registered: list[str] | None = None) -> None:
    """Write kubelet's checkpoint, with these ids given to a container; the host's are registered, or those named."""
    patient.listed()
    known = [gpu["uuid"] for gpu in patient.saved()["gpus"]] if registered is None else registered
    entries = [
        {"PodUID": "u", "ContainerName": "c", "ResourceName": GPU, "DeviceIDs": {"0": [*given]}, "AllocResp": ""}
    ]
    data = {"PodDeviceEntries": entries if given else None, "RegisteredDevices": {GPU: known, "amd.com/gpu": ["0"]}}
    patient.write(f"{PLUGINS}/{CHECKPOINT}", json.dumps({"Data": data, "Checksum": 1}))


def configure(patient: Patient, section: str, line: str) -> None:
    """Let a section of config.toml have a line, in the place of one with the same key."""
    text, head, key = Path(patient.config).read_text(), f"[{section}]\n", line.partition(" ")[0]
    kept = "".join(each for each in text.splitlines(keepends=True) if each.partition(" ")[0] != key)
    patient.configure(kept.replace(head, f"{head}{line}\n") if head in kept else f"{kept}\n{head}{line}\n")
    patient.reread()


@fault("kubernetes-node", "broken", "and kubelet-dir under [device-plugin] is")
def kubelet_is_that_of_k0s(patient: Patient) -> None:
    configure(patient, "device-plugin", 'kubelet-dir = "/var/lib/nowhere"')


@fault("kubernetes-node", "broken", "the kubelet of this node has the directory /data/kubelet")
def kubelet_was_told_another_directory(patient: Patient) -> None:
    configure(patient, "device-plugin", 'kubelet-dir = "/var/lib/kubelet"')
    (patient.top / "data").mkdir()
    (patient.top / KUBELET).rename(patient.top / "data/kubelet")
    (patient.top / PLUGINS).mkdir(parents=True)
    patient.host.kubelet_root_dir = "/data/kubelet"


@fault("kubernetes-kubelet", "broken", "no kubelet runs")
def kubelet_does_not_run(patient: Patient) -> None:
    (patient.top / PLUGINS / "kubelet.sock").unlink()


@fault("kubernetes-kubelet", "broken", "nobody listens on")
def kubelet_was_killed(patient: Patient) -> None:
    plays(patient, resources=[{**ANSWER["resources"][0], "registered": False}])
    (patient.top / PLUGINS / "kubelet.sock").unlink(missing_ok=True)
    bound(patient.top / PLUGINS / "kubelet.sock").close()


@fault("kubernetes-kubelet", "broken", "is not a socket")
def a_file_has_the_sockets_place(patient: Patient) -> None:
    (patient.top / PLUGINS / "kubelet.sock").unlink()
    patient.write(f"{PLUGINS}/kubelet.sock", "")


@fault("kubernetes-device-plugin", "warning", "nobody listens")
def gpushims_device_plugin_has_ended(patient: Patient) -> None:
    (patient.top / PLUGINS / "nvidia-gpu.sock").unlink()
    bound(patient.top / PLUGINS / "gpushim-gpu.sock").close()
    patient.write("usr/lib/systemd/system/gpushim-device-plugin.service", "")


@fault("kubernetes-device-plugin", "warning", "nvidia-mig-1g.10gb.sock")
def a_socket_was_left_by_one_of_others(patient: Patient) -> None:
    plays(patient)
    bound(patient.top / PLUGINS / "nvidia-mig-1g.10gb.sock").close()


@fault("kubernetes-device-plugin", "broken", "two device plugins offer nvidia.com/gpu")
def nvidias_runs_beside_ours(patient: Patient) -> None:
    plays(patient)
    held(patient).enter_context(bound(patient.top / PLUGINS / "nvidia-gpu.sock"))


@fault("kubernetes-device-plugin", "broken", "two device plugins offer nvidia.com/gpu")
def nvidias_runs_beside_our_pod(patient: Patient) -> None:
    nvidias_runs_beside_ours(patient)
    (patient.top / "usr/lib/systemd/system/gpushim-device-plugin.service").unlink()


@fault("kubernetes-device-plugin", "warning", "no device plugin for GPUs has a socket")
def a_node_without_a_pod_of_ours(patient: Patient) -> None:
    (patient.top / PLUGINS / "nvidia-gpu.sock").unlink()
    patient.write(keep.RECORD[1:], "{}")


@fault("kubernetes-device-plugin", "warning", "no device plugin for GPUs has a socket")
def ours_ends_again_and_again(patient: Patient) -> None:
    (patient.top / PLUGINS / "nvidia-gpu.sock").unlink()
    patient.write("usr/lib/systemd/system/gpushim-device-plugin.service", "")


@fault("kubernetes-device-plugin", "warning", "cannot be asked")
def ours_has_no_socket_of_its_own(patient: Patient) -> None:
    plays(patient)
    Path(patient.state, "device-plugin.sock").unlink()


@fault("kubernetes-device-plugin", "warning", "does not answer at")
def ours_is_stopped(patient: Patient) -> None:
    patient.patch.setattr(check_device_plugin, "SECONDS", 0.2)
    our_plugin(patient, held(patient), None)


@fault("kubernetes-device-plugin", "warning", "is not understood")
def something_else_answers(patient: Patient) -> None:
    our_plugin(patient, held(patient), b'{"resources": [{"name": 3}]}\n')


@fault("kubernetes-device-plugin", "warning", "that runs is version 0.0.1")
def ours_is_older(patient: Patient) -> None:
    plays(patient, version="0.0.1")


@fault("kubernetes-device-plugin", "warning", "has released the GPUs")
def ours_has_let_go(patient: Patient) -> None:
    plays(patient, released=1.0)


@fault(
    "kubernetes-device-plugin", "broken", "the DRA driver x gives out this node's GPUs, too: gpushim-device-plugin"
)
def a_dra_driver_beside_ours(patient: Patient) -> None:
    plays(patient, givers=["the DRA driver x gives out this node's GPUs, too"])


@fault("kubernetes-device-plugin", "broken", "gives nothing out: no snapshot")
def ours_has_no_snapshot(patient: Patient) -> None:
    plays(patient, problem="no snapshot", resources=[])


@fault("kubernetes-device-plugin", "broken", "gives nothing out while ")
def ours_under_a_wrong_config(patient: Patient) -> None:
    configure(patient, "device-plugin", "x = 1")
    plays(patient, problem="x is not a known key", resources=[])


@fault("kubernetes-device-plugin", "warning", "kubelet does not know nvidia.com/gpu")
def ours_is_not_registered(patient: Patient) -> None:
    plays(patient, resources=[{**ANSWER["resources"][0], "registered": False}])


@fault("kubernetes-checkpoint", "warning", "kubelet would give out what the snapshot does not have: GPU-0000")
def kubelet_knows_a_gpu_that_is_gone(patient: Patient) -> None:
    plays(patient)
    checkpoint(patient, registered=[f"{GONE}::{number}" for number in range(9)])


@fault("kubernetes-checkpoint", "warning", "container c of the pod with the UID u was given GPU-0000")
def a_pod_has_a_gpu_that_is_gone(patient: Patient) -> None:
    checkpoint(patient, f"{GONE}::3")


@fault("kubernetes-checkpoint", "warning", "cannot be used: it is not as kubelet writes it")
def the_checkpoint_is_damaged(patient: Patient) -> None:
    patient.listed()
    patient.write(f"{PLUGINS}/{CHECKPOINT}", '{"Data": 3}')


@fault("kubernetes-strategy", "broken", "accept-volume-mounts is false")
def mounts_are_refused(patient: Patient) -> None:
    configure(patient, "device-plugin", 'device-list-strategy = ["volume-mounts"]')
    configure(patient, "requests", "accept-volume-mounts = false")


@fault("kubernetes-strategy", "broken", "unprivileged pods get no GPU")
def variables_are_refused(patient: Patient) -> None:
    configure(patient, "device-plugin", 'device-list-strategy = ["envvar"]')
    configure(patient, "requests", "accept-env-when-unprivileged = false")


@fault("kubernetes-strategy", "broken", "which kubelet hands on since 1.29, and this one is 1.28")
def kubelet_is_too_old_where_variables_are_refused(patient: Patient) -> None:
    configure(patient, "device-plugin", 'device-list-strategy = ["cdi-cri"]')
    configure(patient, "requests", "accept-env-when-unprivileged = false")
    patient.script("usr/bin/kubelet", "echo Kubernetes v1.28.3")


@fault("kubernetes-strategy", "broken", "and containerd does not serve it: enable_cdi of containerd is false")
def the_engine_does_no_cdi(patient: Patient) -> None:
    configure(patient, "device-plugin", 'device-list-strategy = ["cdi-cri"]')
    path = patient.top / "containerd.toml"
    path.write_text(path.read_text().replace("enable_cdi = true", "enable_cdi = false"))


@fault("kubernetes-strategy", "broken", "which kubelet hands on since 1.29, and this one is 1.27")
def kubelet_is_too_old(patient: Patient) -> None:
    configure(patient, "device-plugin", 'device-list-strategy = ["cdi-cri"]')
    patient.script("usr/bin/kubelet", "echo Kubernetes v1.27.16")


@fault("kubernetes-runtime-class", "warning", "has no RuntimeClass with the handler gpushim")
def the_handler_has_another_name(patient: Patient) -> None:
    path = patient.top / "containerd.toml"
    path.write_text(path.read_text().replace("runtimes.nvidia", "runtimes.gpushim"))
    classes = patient.top / "classes"
    get = f"""echo "{{\\"items\\": [{{\\"handler\\": \\"nvidia\\"}}$(sed s/^/,/ '{classes}' 2>/dev/null)]}}" """
    patient.script("usr/bin/kubectl", f"case $* in *apply*) cat >'{classes}' ;; *) {get};; esac")
