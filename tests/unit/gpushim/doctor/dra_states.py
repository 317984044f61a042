"""States of a node with claims in which its checks find a fault; gpushim's DRA driver is played by a thread."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import gpushim
from gpushim.containers.kubelet import CLAIMS, OWN_DRIVER
from gpushim.doctor import check_dra
from gpushim.refresh import plugin_socket
from unit.gpushim.doctor.fault import State, into
from unit.gpushim.doctor.nodes import GONE, KUBELET, answering, bound, configure, held
from unit.gpushim.doctor.patient import Patient

STATES: list[State] = []
fault = into(STATES)
PLUGINS, UNIT = f"{KUBELET}/plugins/{OWN_DRIVER}", "usr/lib/systemd/system/gpushim-device-plugin.service"
ANSWER: dict[str, Any] = {
    "version": gpushim.__version__,
    "registered": True,
    "refused": "",
    "rival": "",
    "released": False,
    "problem": "",
    "lacks": "",
    "devices": 2,
    "publishes": True,
    "published": {"generation": 3, "problem": "", "dropped": []},
}


def our_driver(patient: Patient, until: contextlib.ExitStack, answer: Any = ANSWER) -> None:
    """Let gpushim's driver listen for kubelet, and answer."""
    folder = patient.top / PLUGINS
    folder.mkdir(parents=True, exist_ok=True)
    until.enter_context(bound(folder / "gpushim-c0ffee.sock"))
    os.makedirs(patient.state, 0o755, exist_ok=True)
    if isinstance(answer, dict):
        answer = json.dumps(whole(answer)).encode() + b"\n"
    until.enter_context(answering(Path(patient.state, plugin_socket.SOCKET), answer))


def whole(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with what the process says of itself, which has no other front."""
    common = {name: answer[name] for name in ("version", "released")}
    return {**common, "fronts": ["dra"], "resources": [], "problem": "", "dra": answer}


def plays(patient: Patient, unit: bool = True, **more: Any) -> None:
    our_driver(patient, held(patient), {**ANSWER, **more})
    if unit:
        patient.write(UNIT, "")


def asked(patient: Patient) -> dict[str, Any] | None:
    """Return what the driver says of itself; None if there is none."""
    return plugin_socket.status(patient.state, 5).get("dra")


def unhealthy(patient: Patient) -> list[dict[str, str]]:
    """Ask the driver for its unhealthy devices."""
    found: list[dict[str, str]] = (asked(patient) or {}).get("unhealthy", [])
    return found


def claimed(patient: Patient, *uuids: str) -> None:
    """Have kubelet keep claims with these GPUs, as pkg/kubelet/cm/dra/state writes them."""
    patient.listed()
    devices = [
        {"PoolName": "n", "DeviceName": one.lower(), "CDIDeviceIDs": [f"nvidia.com/gpu={one}"]} for one in uuids
    ]
    entry = {"ClaimUID": "k", "ClaimName": "gpu", "Namespace": "ns", "PodUIDs": {"u": {}}}
    rows = [{**entry, "DriverState": {OWN_DRIVER: {"Devices": devices}}}]
    patient.write(
        f"{KUBELET}/{CLAIMS}", json.dumps({"Data": json.dumps({"ClaimInfoStateList": rows}), "Checksum": 1})
    )


def first(patient: Patient) -> str:
    patient.listed()
    return str(patient.saved()["gpus"][0]["uuid"])


@fault("kubernetes-dra-driver", "broken", "claims have GPUs here, such as ns/gpu, and no gpushim-dra-driver runs")
def claims_without_their_driver(patient: Patient) -> None:
    claimed(patient, first(patient))


@fault("kubernetes-dra-driver", "broken", "and no gpushim-dra-driver runs: kubelet cannot end their pods")
def claims_without_their_unit(patient: Patient) -> None:
    claimed(patient, first(patient))
    patient.write(UNIT, "")
    (patient.top / PLUGINS).mkdir(parents=True)
    bound(patient.top / PLUGINS / "gpushim-dead.sock").close()
    configure(patient, "device-plugin", 'fronts = ["dra"]')


@fault("kubernetes-dra-driver", "broken", "and no gpushim-dra-driver runs: kubelet cannot end their pods")
def claims_that_the_settings_do_not_serve(patient: Patient) -> None:
    claimed(patient, first(patient))
    patient.write(UNIT, "")
    (patient.top / PLUGINS).mkdir(parents=True)


@fault("kubernetes-dra-driver", "broken", "another driver named gpu.nvidia.com runs on this node, at /x")
def another_driver_of_the_name(patient: Patient) -> None:
    plays(patient, rival="/x", registered=False)


@fault("kubernetes-dra-driver", "broken", "another driver named gpu.nvidia.com runs on this node, at /x")
def gpushims_has_no_socket_for_kubelet_beside_another(patient: Patient) -> None:
    plays(patient, rival="/x", registered=False)
    folder = patient.top / PLUGINS
    (folder / "gpushim-c0ffee.sock").unlink()
    held(patient).enter_context(bound(folder / "dra.sock"))


@fault("kubernetes-dra-driver", "broken", "kubelet has not registered gpushim-dra-driver: no such version")
def kubelet_does_not_have_it(patient: Patient) -> None:
    plays(patient, registered=False, refused="no such version")


@fault("kubernetes-dra-driver", "broken", "kubelet has not registered gpushim-dra-driver")
def kubelet_does_not_have_the_pod(patient: Patient) -> None:
    plays(patient, unit=False, registered=False)


@fault("kubernetes-dra-driver", "broken", "are not published: the API server refuses that")
def slices_are_refused(patient: Patient) -> None:
    plays(patient, published={"generation": 3, "problem": "the API server refuses that"})


@fault("kubernetes-dra-driver", "broken", "are not published: its container cluster does not say that they are")
def the_other_half_is_away(patient: Patient) -> None:
    plays(patient, unit=False, published={})


@fault("kubernetes-dra-driver", "broken", "cannot ask the API server: the kubeconfig /")
def the_kubeconfig_names_no_context(patient: Patient) -> None:
    path = patient.top / "kubeconfig"
    path.write_text("current-context: none")
    configure(patient, "device-plugin", f'kubeconfig = "{path}"')
    plays(patient)


@fault("kubernetes-dra-driver", "broken", "cannot be read: No such file or directory")
def there_is_no_kubeconfig_and_no_driver_runs(patient: Patient) -> None:
    configure(patient, "device-plugin", f'kubeconfig = "{patient.top}/none"')
    patient.write(UNIT, "")


@fault("kubernetes-dra-driver", "broken", "cannot be read: No such file or directory")
def the_kubeconfig_is_a_dangling_link(patient: Patient) -> None:
    path = patient.top / "kubeconfig"
    path.symlink_to("none")
    configure(patient, "device-plugin", f'kubeconfig = "{path}"')
    plays(patient)


@fault("kubernetes-dra-driver", "warning", "has released the GPUs")
def the_driver_has_let_go(patient: Patient) -> None:
    plays(patient, released=True, problem="released by somebody")


@fault("kubernetes-dra-driver", "broken", "gpushim-dra-driver gives nothing out: no snapshot")
def the_driver_has_no_snapshot(patient: Patient) -> None:
    plays(patient, problem="no snapshot")


@fault("kubernetes-dra-driver", "broken", "no claim is given a GPU that /s does not have")
def the_spec_lacks_a_gpu(patient: Patient) -> None:
    plays(patient, lacks="no claim is given a GPU that /s does not have")


@fault("kubernetes-dra-driver", "broken", "no claim is given a GPU that /s does not have")
def the_spec_may_not_have_it(patient: Patient) -> None:
    configure(patient, "cdi", "write-spec = false")
    configure(patient, "cdi", 'device-names = ["index"]')
    plays(patient, lacks="no claim is given a GPU that /s does not have")


def ill(patient: Patient, cure: str, why: str, uuid: str = "GPU-1", until: str = "") -> None:
    """Have a device be unhealthy, as gpuplugin.dra.status says it."""
    plays(patient, unhealthy=[{"uuid": uuid, "gpu": "GPU-1", "why": why, "cure": cure, "until": until}])


@fault("kubernetes-dra-driver", "warning", "1 of 2 devices for claims are unhealthy, such as MIG-1: XID 48, a memory")
def a_device_is_unhealthy(patient: Patient) -> None:
    ill(patient, "reset", "XID 48, a memory error", "MIG-1")


@fault("kubernetes-dra-driver", "warning", "such as GPU-1: the GPU is lost")
def a_gpu_is_lost(patient: Patient) -> None:
    ill(patient, "reboot", "the GPU is lost from the bus")


@fault("kubernetes-dra-driver", "warning", "such as GPU-1: the GPU cannot be watched")
def a_gpu_is_unwatched(patient: Patient) -> None:
    ill(patient, "nvml", "the GPU cannot be watched: Unknown Error")


@fault("kubernetes-dra-driver", "warning", "such as GPU-1: a memory row")
def a_memory_row_could_not_be_replaced(patient: Patient) -> None:
    ill(patient, "exchange", "a memory row could not be replaced")


@fault("kubernetes-dra-driver", "warning", "such as GPU-1: the driver asks to end")
def the_gpus_work_is_to_end(patient: Patient) -> None:
    ill(patient, "end", "the driver asks to end all work")


@fault("kubernetes-dra-driver", "warning", "1 of 2 devices for claims are unhealthy, such as GPU-1: XID 94")
def what_is_unhealthy_passes(patient: Patient) -> None:
    ill(patient, "wait", "XID 94, a contained error", until="60 s after the last one")


@fault("kubernetes-dra-driver", "warning", "that runs is version 0.0.1")
def the_driver_is_older(patient: Patient) -> None:
    plays(patient, version="0.0.1")


@fault("kubernetes-dra-driver", "warning", "cannot be asked")
def the_driver_has_no_socket_of_its_own(patient: Patient) -> None:
    plays(patient)
    Path(patient.state, plugin_socket.SOCKET).unlink()


@fault("kubernetes-dra-driver", "warning", "does not answer at")
def the_driver_is_stopped(patient: Patient) -> None:
    patient.patch.setattr(check_dra, "SECONDS", 0.2)
    our_driver(patient, held(patient), None)


@fault("kubernetes-dra-driver", "warning", "is not understood")
def something_else_answers_for_it(patient: Patient) -> None:
    our_driver(patient, held(patient), b'{"devices": []}\n')


@fault("kubernetes-claims", "warning", "the claim ns/gpu has GPU-0000")
def a_claims_gpu_is_gone(patient: Patient) -> None:
    claimed(patient, first(patient), GONE)
    plays(patient)


@fault("kubernetes-claims", "warning", "cannot be used: it is not as kubelet writes it")
def what_kubelet_keeps_of_claims_is_damaged(patient: Patient) -> None:
    patient.write(f"{KUBELET}/{CLAIMS}", '{"Data": 3}')


@fault("kubernetes-dra-engine", "broken", "containerd does not serve claims, so their containers start without a GPU")
def the_engine_serves_no_claims(patient: Patient) -> None:
    plays(patient)
    path = patient.top / "containerd.toml"
    path.write_text(path.read_text().replace("enable_cdi = true", "enable_cdi = false"))


@fault("kubernetes-dra-engine", "broken", "without a GPU: this containerd does not do CDI")
def the_engine_is_too_old_for_claims(patient: Patient) -> None:
    plays(patient)
    path = patient.top / "containerd.toml"
    path.write_text(path.read_text().replace("enable_cdi = true\n", ""))
