"""What a node offers, and what its administrator is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplugin import cdi, mps, settings, sharing, v1beta1
from gpuplugin.allocation import Ways
from gpuplugin.division import MpsGroup
from gpuplugin.offer import GONE, Resource, offered
from gpuplugin.resources import Device
from gpuplugin.sharing import Group
from gpushim.errors import INVENTORY, GpushimError
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
    assert note.startswith("gds is told by a variable, which brings nothing")
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
    resource = Resource("nvidia.com/gpu", settings.resolve({}, {}, {}, ""), Ways())
    well = [Device(f"GPU-{gpu}::{number}", f"GPU-{gpu}", str(gpu), gpu) for gpu in range(2) for number in range(3)]
    lost = [replace(one, problem="it is lost") if one.gpu else one for one in well]
    with caplog.at_level("INFO", "gpushim"):
        for devices in (well, lost, lost, well, well[:3], well):
            resource.have(devices, {})
    again = "GPU-1 of nvidia.com/gpu can be given out again"
    said = [f"GPU-1 of nvidia.com/gpu is not given out: {why}" for why in ("it is lost", GONE)]
    assert caplog.messages == [said[0], again, said[1], again]


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

    monkeypatch.setattr(mps, "ready", ready)
    said = by_mps(*({"devices": [n], "replicas": 2, "rename": name} for n, name in enumerate("ab")))
    found, _ = offered(snapshot([gpu(0), gpu(1), gpu(2)]), said, [])
    problems = {name.partition("/")[2]: [one.problem for one in devices] for name, devices in found.items()}
    assert problems == {"a": ["start it"] * 2, "b": [""] * 2, "gpu": [""]}
    assert asked == [("/var/state", "a", [0]), ("/var/state", "b", [1])]


def test_what_is_wrong_with_a_gpu_counts_before_its_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "ready", lambda state_dir, group: "start it")
    found, _ = offered(snapshot([gpu(0, problem="lost")]), by_mps({"replicas": 2}), [])
    assert {one.problem for one in found["nvidia.com/gpu"]} == {"lost"}


@pytest.mark.parametrize(("policy", "gpus"), [("packed", 1), ("distributed", 2), ("", 2)])
@pytest.mark.parametrize("distinct", [False, True])
def test_kubelet_is_advised_as_the_group_says(policy: str, gpus: int, distinct: bool) -> None:
    said = settings.resolve({}, {}, {}, "")
    said.sharing = (Group("nvidia.com/gpu", None, "nvidia.com/gpu", 4, distinct, policy),)
    found, ways = offered(snapshot([gpu(0), gpu(1), gpu(2)]), said, [])
    resource = Resource("nvidia.com/gpu", said, ways)
    resource.have(found["nvidia.com/gpu"], {})
    request = {"available_deviceIDs": [*resource.devices], "must_include_deviceIDs": [], "allocation_size": 2}
    chosen = resource.prefer(request)["deviceIDs"]
    assert len({resource.devices[name].uuid for name in chosen}) == (2 if distinct else gpus)
    assert "::" not in str(resource.allocate({"devices_ids": chosen}))
