"""What a node offers, and what its administrator is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplugin.allocation import cdi, offer
from gpuplugin.allocation.allocation import Delivery
from gpuplugin.allocation.offer import Resource, offered
from gpuplugin.devices.mps_group import MpsGroup
from gpuplugin.kubelet import v1beta1
from gpuplugin.mps import mps
from gpuplugin.settings import settings, sharing
from gpuplugin.settings.resources import GONE, Device
from gpuplugin.settings.sharing import Group
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import procfs
from unit.gpuplugin.snapshots import gpu, mig, snapshot


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CDI spec have all names."""
    monkeypatch.setattr(cdi, "check", lambda host, names: None)


def told(found: Any, **values: Any) -> list[str]:
    """The notes about a snapshot; values are those of [device-plugin]."""
    notes: list[str] = []
    section = {name.replace("_", "-"): value for name, value in values.items()}
    offered(found, settings.resolve({}, {}, section, ""), notes)
    return notes


@pytest.mark.parametrize(("well", "numa"), [(True, -1), (False, -1), (True, 0), (False, 3)])
def test_a_device_is_listed_as_the_message_that_it_is(well: bool, numa: int) -> None:
    data = v1beta1.write_device("GPU-1::300", well, numa)
    (device,) = v1beta1.reader("ListAndWatchResponse")(data)["devices"]
    (node,) = device["topology"]["nodes"] if numa >= 0 else [{"ID": -1}]
    assert (device["ID"], device["health"], node["ID"]) == ("GPU-1::300", "Healthy" if well else "Unhealthy", numa)


@pytest.mark.parametrize(("disable", "refused"), [("", True), ("xids", True), ("all", False)])
def test_gpus_that_nvml_was_not_asked_about_are_offered_only_unchecked(disable: str, refused: bool) -> None:
    why = f"NVML cannot be used (Driver Not Loaded): {procfs.UNASKED}"
    host, section = snapshot([gpu(0)], source="proc", notes=[why]), {"disable-healthchecks": disable}
    if refused:
        with pytest.raises(GpushimError, match="the GPUs' health is not known: NVML cannot be used") as refusal:
            offered(host, settings.resolve({}, {}, section, ""), [])
        assert refusal.value.exit_code == INVENTORY
    host["platform"] = "wsl"
    offered(host, settings.resolve({}, {}, section, ""), [])


def forbidding(*keys: str) -> Any:
    found = snapshot([gpu(0)])
    found["policy"]["requests"].update(dict.fromkeys(keys, False))
    return found


ENV, MOUNTS = "accept-env-when-unprivileged", "accept-volume-mounts"


@pytest.mark.parametrize(
    ("forbidden", "told_by", "words"),
    [
        ([], ["envvar"], ""),
        ([MOUNTS], ["envvar"], ""),
        ([ENV], ["envvar"], "envvar, which brings nothing to unprivileged containers while accept-env-when-unpr"),
        ([ENV], ["envvar", "volume-mounts"], ""),
        ([ENV], ["cdi-cri"], ""),
        ([MOUNTS], ["volume-mounts"], "gpushim-runtime refuses such containers while accept-volume-mounts"),
        ([MOUNTS], ["cdi-cri", "volume-mounts"], "gpushim-runtime refuses such containers"),
    ],
)
def test_a_way_that_the_policy_forbids_is_told(forbidden: list[str], told_by: list[str], words: str) -> None:
    notes = told(forbidding(*forbidden), device_list_strategy=told_by)
    assert [words in note for note in notes] == [True] * bool(words)


def test_a_feature_that_the_policy_forbids_is_told() -> None:
    ways: dict[str, Any] = {"gds": True, "device_list_strategy": ["volume-mounts"]}
    (note,) = told(forbidding(ENV), **ways)
    assert note.startswith("gds is passed in a variable, which brings nothing")
    assert told(forbidding(ENV), **{**ways, "device_list_strategy": ["cdi-cri"]}) == []
    assert told(forbidding(), **ways) == []


def test_one_variable_for_two_resources_is_told() -> None:
    found = snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)])
    (note,) = told(found, mig_strategy="mixed")
    assert "gets the devices of one" in note
    assert told(found, mig_strategy="mixed", device_list_strategy=["volume-mounts"]) == []


def test_an_imex_channel_that_is_not_there_is_told_or_refused() -> None:
    found = snapshot([gpu(0)])
    assert told(found, imex_channels=[3]) == [
        "no container gets IMEX channel 3, which this host does not have; nvidia-modprobe makes it"
    ]
    with pytest.raises(GpushimError, match="imex-required is true, and this host has no IMEX channel 3") as refused:
        told(found, imex_channels=[3], imex_required=True)
    assert refused.value.exit_code == INVENTORY
    found["nodes"]["/dev/nvidia-caps-imex-channels/channel3"] = [1, 3, 0o666, 0, 0]
    assert told(found, imex_channels=[3], imex_required=True) == []
    assert offered(found, settings.resolve({}, {}, {"imex-channels": [3]}, ""), [])[1].imex == [3]


def test_more_than_kubelet_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = settings.resolve({}, {}, {}, "")
    shared.sharing = (Group("nvidia.com/gpu", None, "nvidia.com/gpu", 10),)
    (found,), _ = offered(snapshot([gpu(0)]), shared, [])
    monkeypatch.setattr(v1beta1, "LIST_LIMIT", 610)  # bytes; it fits as long as they are well
    with pytest.raises(GpushimError, match=f"{found} has 10 devices and 620 bytes, and kubelet reads 610"):
        offered(snapshot([gpu(0)]), shared, [])


def test_each_gpu_that_is_lost_and_found_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    resource = Resource("nvidia.com/gpu", settings.resolve({}, {}, {}, ""), Delivery())
    well = [Device(f"GPU-{gpu}::{number}", f"GPU-{gpu}", str(gpu), gpu) for gpu in range(2) for number in range(3)]
    lost = [replace(one, problem="it is lost") if one.gpu else one for one in well]
    with caplog.at_level("INFO", "gpushim"):
        for devices in (well, lost, lost, well, well[:3], well):
            resource.have(devices, {})
    again = "GPU-1 of nvidia.com/gpu can be given out again"
    said = [f"GPU-1 of nvidia.com/gpu is not given out: {why}" for why in ("it is lost", GONE)]
    assert caplog.messages == [said[0], again, said[1], again]


def test_what_some_devices_of_a_gpu_wait_for_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Beside the one that a pod has, though more of them come."""
    resource, held = (
        Resource("nvidia.com/gpu", settings.resolve({}, {}, {}, ""), Delivery()),
        Device("GPU-1", "GPU-1", "", 1),
    )
    parts = [replace(held, id=f"GPU-1::{number}") for number in range(3)]
    waits = [replace(one, problem="it waits") for one in parts]
    with caplog.at_level("INFO", "gpushim"):
        for devices in ([held], [*waits[:2], held], [*waits, held], [waits[0], held], parts):
            resource.have(devices, {})
            resource.drop(resource.gone)
    says = "GPU-1 of nvidia.com/gpu"
    assert caplog.messages == [f"{says} is not given out: it waits", f"{says} can be given out again"]


def by_mps(*rows: Any) -> settings.Settings:
    said = settings.resolve({}, {}, {}, "")
    said.sharing = sharing.read({"mps": {"resources": [{"name": "gpu", **row} for row in rows]}}, "f", [])
    return said


def test_devices_of_a_daemon_that_does_not_run_are_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", "/var/state")
    asked = []

    def ready(state_dir: str, group: MpsGroup) -> str:
        asked.append((state_dir, group.name, [one.index for one in group.gpus]))
        return "start it" if group.name == "a" else ""

    monkeypatch.setattr(mps, "unready_reason", ready)
    said = by_mps(*({"devices": [n], "replicas": 2, "rename": name} for n, name in enumerate("ab")))
    found, _ = offered(snapshot([gpu(0), gpu(1), gpu(2)]), said, [])
    problems = {name.partition("/")[2]: [one.problem for one in devices] for name, devices in found.items()}
    assert problems == {"a": ["start it"] * 2, "b": [""] * 2, "gpu": [""]}
    assert asked == [("/var/state", "a", [0]), ("/var/state", "b", [1])]


def test_what_is_wrong_with_a_gpu_counts_before_its_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "unready_reason", lambda state_dir, group: "start it")
    found, _ = offered(snapshot([gpu(0, problem="lost")]), by_mps({"replicas": 2}), [])
    assert {one.problem for one in found["nvidia.com/gpu"]} == {"lost"}


@pytest.mark.parametrize(("policy", "gpus"), [("packed", 1), ("distributed", 2), ("", 2)])
@pytest.mark.parametrize("distinct", [False, True])
def test_kubelet_is_advised_as_the_group_says(policy: str, gpus: int, distinct: bool) -> None:
    said = settings.resolve({}, {}, {}, "")
    said.sharing = (Group("nvidia.com/gpu", None, "nvidia.com/gpu", 4, distinct, policy),)
    found, delivery = offered(snapshot([gpu(0), gpu(1), gpu(2)]), said, [])
    resource = Resource("nvidia.com/gpu", said, delivery)
    resource.have(found["nvidia.com/gpu"], {})
    request = {"available_deviceIDs": [*resource.devices], "must_include_deviceIDs": [], "allocation_size": 2}
    chosen = resource.prefer(request)["deviceIDs"]
    assert len({resource.devices[name].uuid for name in chosen}) == (2 if distinct else gpus)
    assert "::" not in str(resource.allocate({"devices_ids": chosen}))


def test_a_gpu_that_falls_sick_costs_what_its_own_devices_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet's calls wait for it: a list of 8000 made again takes 0.3 s."""
    many = Resource("nvidia.com/gpu", settings.resolve({}, {}, {}, ""), Delivery())
    devices = [Device(f"GPU-{one}::{two}", f"GPU-{one}", str(one), one, 0) for one in range(16) for two in range(500)]
    many.have(devices, {})
    made: list[str] = []

    def write_device(device: str, well: bool, numa: int) -> bytes:
        made.append(device)
        return v1beta1.write_device(device, well, numa)

    monkeypatch.setattr(offer, "write_device", write_device)
    many.mark_unhealthy({"GPU-3": "x"})
    assert {*made} == {one.id for one in devices if one.gpu == 3}
    assert {one.id for one in devices} - many.well == {one.id for one in devices if one.gpu == 3}
    made.clear()
    data = v1beta1.write_list(many.name, many.listed.values())
    assert not made
    told = v1beta1.reader("ListAndWatchResponse")(data)["devices"]
    sick = {one["ID"] for one in told if one["health"] == v1beta1.UNHEALTHY}
    assert [one["ID"] for one in told] == [one.id for one in devices]
    assert sick == {one.id for one in devices if one.gpu == 3}
    many.mark_unhealthy({"GPU-3": "x", "GPU-5": "y"})
    assert {*made} == {one.id for one in devices if one.gpu == 5}
    many.mark_unhealthy({})
    assert many.well == {one.id for one in devices}


def test_what_is_listed_follows_what_there_is() -> None:
    some = Resource("nvidia.com/gpu", settings.resolve({}, {}, {}, ""), Delivery())
    one, two = (Device(f"GPU-{number}", f"GPU-{number}", str(number), number) for number in (1, 2))
    some.mark_unhealthy({"GPU-2": "x"})
    some.have([two, one], {})
    assert [*some.listed] == [*some.devices] == ["GPU-2", "GPU-1"]
    assert some.listed["GPU-2"] == v1beta1.write_device("GPU-2", False, -1)
    some.have([one], {})
    assert [*some.listed] == ["GPU-1", "GPU-2"]
    some.drop({"GPU-2"})
    some.mark_unhealthy({"GPU-2": "y"})
    assert [*some.listed] == [*some.devices] == ["GPU-1"]
    some.fail("no")
    assert some.listed["GPU-1"] == v1beta1.write_device("GPU-1", False, -1)


def test_what_is_wrong_with_a_device_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Before the snapshot says it and after."""
    some, one = (
        Resource("nvidia.com/gpu", settings.resolve({}, {}, {}, ""), Delivery()),
        Device("GPU-1", "GPU-1", "1", 1),
    )
    some.have([one], {})
    some.mark_unhealthy({"GPU-1": "it hangs; XID 48"})
    some.have([replace(one, problem="it hangs")], {})
    assert some.devices["GPU-1"].problem == "it hangs; XID 48"
    some.mark_unhealthy({"GPU-1": "XID 48"})
    assert some.devices["GPU-1"].problem == "it hangs; XID 48"
    assert len(caplog.messages) == 1
