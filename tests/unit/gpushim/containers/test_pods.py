"""`gpushim explain --pod`: which containers are a pod's, and what is said of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpushim.containers import pods, runtime_state
from gpushim.ground.errors import GpushimError
from unit.gpushim.containers import checkpoints
from unit.gpushim.containers.machines import Machine
from unit.gpushim.containers.pod_machine import ENTRY, box
from unit.gpushim.containers.pod_machine import machine as machine
from unit.gpushim.decision import inventories

DEVICES = "NVIDIA_VISIBLE_DEVICES"


def report(machine: Machine, text: str = "ns/p") -> tuple[list[dict[str, Any]], list[str]]:
    asked = pods.pod_name(text)
    assert asked is not None
    return pods.report(asked, inventories.snapshot(), str(machine.folder), [str(machine.states)], str(machine.proc))


def test_what_it_has_who_told_and_what_kubelet_gave(machine: Machine) -> None:
    checkpoints.write(machine.folder, [ENTRY, {**ENTRY, "PodUID": "other"}, {**ENTRY, "ContainerName": "d"}])
    box(machine, "a", f"{DEVICES}=0")
    (found,), notes = report(machine)
    assert (found["devices"], found["how"], notes) == (["0"], "spec", [])
    assert found["told"] == [f"{DEVICES}=0"]
    assert [row["devices"] for row in found["kubelet"]] == [["GPU-1"]]
    assert "CDI device nvidia.com/gpu=0" in found["kubelet"][0]["answer"]


def test_a_claim_gave_it(machine: Machine) -> None:
    """Of the pod's claims the one that this container has, and not the one of its neighbour."""
    claim = checkpoints.CLAIM
    gives = claim["DriverState"]["gpu.nvidia.com"]["Devices"][0]  # type: ignore[index]
    other = {"DriverState": {"gpu.nvidia.com": {"Devices": [{**gives, "CDIDeviceIDs": ["nvidia.com/gpu=1"]}]}}}
    checkpoints.write(machine.folder)
    checkpoints.promise(machine.folder, [claim, {**claim, **other}, {**claim, "PodUIDs": {"v": {}}}])
    box(machine, "a")
    (found,), notes = report(machine)
    mine = {"namespace": "ns", "name": "gpu", "driver": "gpu.nvidia.com", "device": "gpu-0"}
    assert (found["claims"], notes) == ([mine], [])
    assert found["told"] == ["claim ns/gpu of the DRA driver gpu.nvidia.com, which kubelet has prepared"]
    row: dict[str, Any] = {"uid": "u", "devices": ["0"]}
    assert pods.claimed([row], inventories.snapshot(), str(machine.folder)) == []
    assert row["claims"] == [mine]


def test_which_claims_pods_have_is_not_known(machine: Machine) -> None:
    (machine.folder / "dra_manager_state").write_text("{}")
    box(machine, "a")
    (found,), notes = report(machine)
    assert found["claims"] is None
    assert any("dra_manager_state is damaged" in note for note in notes)


def test_nothing_in_config_json_tells(machine: Machine) -> None:
    checkpoints.write(machine.folder)
    box(machine, "a")
    (found,), _ = report(machine)
    assert (found["told"], found["kubelet"]) == (
        ["nothing that gpushim-runtime reads: the engine gave them, by CDI or as devices"],
        [],
    )


def test_all_its_containers_or_one_and_no_sandbox(machine: Machine) -> None:
    for name, container in (("1", "b"), ("2", "a"), ("3", "")):
        box(machine, name, container=container)
    box(machine, "4", pod="other")
    assert [each["container"] for each in report(machine)[0]] == ["a", "b"]
    assert [each["container"] for each in report(machine, "ns/p/b")[0]] == ["b"]


def test_one_of_its_containers_has_ended(machine: Machine) -> None:
    box(machine, "1", container="a")
    box(machine, "2", container="b", pid=99)
    found, notes = report(machine)
    assert [each["container"] for each in found] == ["a"]
    assert any("container b of pod ns/p has ended; kubectl -n ns logs p -c b --previous" in note for note in notes)


def test_a_container_that_was_started_again_has_not_ended(machine: Machine) -> None:
    box(machine, "1", pid=99)
    box(machine, "2")
    found, notes = report(machine)
    assert len(found) == 1
    assert not any("ended" in note for note in notes)


def test_two_pods_of_the_name(machine: Machine) -> None:
    """A static pod that was replaced, whose old containers still end."""
    box(machine, "1", uid="u")
    box(machine, "2", uid="v")
    found, notes = report(machine)
    assert len(found) == 2
    assert any("2 pods have this name here, one after the other: u, v" in note for note in notes)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ns/p/x", "pod ns/p has no running container x on this node; it has c"),
        ("ns/x", "kubectl -n ns get pod x -o wide says where it is"),
        ("other/p", "pod other/p has no running container on this node"),
        ("ns/gone", "container c of pod ns/gone has ended"),
    ],
)
def test_it_does_not_run_here(machine: Machine, asked: str, said: str) -> None:
    box(machine, "1")
    box(machine, "2", pod="gone", pid=99)
    with pytest.raises(GpushimError) as caught:
        report(machine, asked)
    assert said in str(caught.value)


def test_a_users_container_is_no_pods(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can call theirs kube-system/etcd."""
    box(machine, "1")
    monkeypatch.setattr(
        "gpushim.containers.holders._state_folders", lambda *_: [(str(machine.states), "runc", "/run/user/1000")]
    )
    asked = pods.pod_name("ns/p")
    assert asked is not None
    with pytest.raises(GpushimError):
        pods.report(asked, inventories.snapshot(), str(machine.folder), None, str(machine.proc))


@pytest.mark.parametrize("text", [None, "{", "3"])
def test_a_checkpoint_that_is_gone_or_damaged_is_said(machine: Machine, text: str | None) -> None:
    if text:
        checkpoints.write(machine.folder, text=text)
    box(machine, "1")
    (found,), (note,) = report(machine)
    assert found["kubelet"] is None
    assert f"kubelet's checkpoint in {machine.folder}/device-plugins is {'damaged' if text else 'not there'}" in note


@pytest.mark.parametrize(
    "text", ["", "p", "/p", "ns/", "ns/p/", "a/b/c/d", "ns/p\n", "Ns/p", "ns/-p", "ns/" + "p" * 300]
)
def test_what_names_no_pod(text: str) -> None:
    assert pods.pod_name(text) is None


def test_states_are_json_of_strangers(machine: Machine) -> None:
    """Of any type, in any member, as everything of a bundle."""
    box(machine, "1")
    path = machine.folder / "bundles/1/config.json"
    for text in ("[]", '{"annotations": 3}', '{"annotations": {"io.kubernetes.cri.sandbox-name": ["p"]}}'):
        path.write_text(text)
        with pytest.raises(GpushimError):
            report(machine)
    assert runtime_state.FILES[0] in json.dumps([each.name for each in machine.states.glob("*/*")])
