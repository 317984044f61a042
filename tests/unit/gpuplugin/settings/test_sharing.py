"""Sharing, as NVIDIA's file says it, and beyond."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.settings import sharing
from gpuplugin.settings.resources import Device, Share
from gpuplugin.settings.sharing import Group, Mps, Slice
from gpushim.ground.errors import CONFIG, GpushimError

GPU = {"name": "nvidia.com/gpu", "replicas": 4}
WHOLE = "nvidia.com/gpu"


def sliced(*rows: Any, **more: Any) -> dict[str, Any]:
    return {"timeSlicing": {"resources": list(rows), **more}}


def by_mps(*rows: Any, **more: Any) -> dict[str, Any]:
    return {"mps": {"resources": list(rows), **more}}


def groups(section: Any) -> tuple[Group, ...]:
    return sharing.read(section, "f", [])


def entry(**more: Any) -> dict[str, Any]:
    return {**GPU, **more}


def test_replicas() -> None:
    notes: list[str] = []
    found = sharing.read(sliced(GPU, {"name": "mig-1g.5gb", "replicas": 2}, renameByDefault=True), "f", notes)
    mig = "nvidia.com/mig-1g.5gb"
    assert found == (Group(WHOLE, None, WHOLE + ".shared", 4), Group(mig, None, mig + ".shared", 2))
    assert notes == []


@pytest.mark.parametrize("section", [None, {}, {"timeSlicing": None}, {"mps": {"resources": None}}])
def test_nothing_is_shared(section: Any) -> None:
    assert sharing.read(section, "f", []) == ()


def test_a_group() -> None:
    row = entry(devices=[0, "GPU-0a1b2c3d", "*A100*"], rename="gpu.dev", distinct=True, policy="packed")
    (found,) = groups(sliced(row, renameByDefault=True, failRequestsGreaterThanOne=True))
    devices = ("0", "GPU-0a1b2c3d", "*A100*")
    assert found == Group(WHOLE, devices, "nvidia.com/gpu.dev", 4, distinct=True, policy="packed", single=True)


@pytest.mark.parametrize(("devices", "read"), [("all", None), (None, None), (2, 2), (["0-3"], ("0-3",))])
def test_devices(devices: Any, read: Any) -> None:
    assert groups(sliced(entry(devices=devices)))[0].devices == read


def test_so_many_devices_can_be_named() -> None:
    assert len(groups(sliced(*[entry(devices=["0"] * 256)] * 4))) == 4


@pytest.mark.parametrize(
    ("said", "single"), [({}, True), ({"failRequestsGreaterThanOne": False}, False)], ids=["default", "false"]
)
def test_mps_refuses_two_of_a_container_unless_it_is_told_not_to(said: Any, single: bool) -> None:
    (found,) = groups(by_mps(entry(memory="8Gi", threads=25, multiUser=True), **said))
    assert (found.single, found.mps) == (single, Mps(8192, 25, multi_user=True))


def test_an_entry_says_otherwise_than_its_section() -> None:
    key = "failRequestsGreaterThanOne"
    rows = [
        entry(devices=[n], rename=f"n{n}", **({} if said is None else {key: said}))
        for n, said in enumerate([None, False])
    ]
    assert [one.single for one in groups(sliced(*rows, **{key: True}))] == [True, False]
    assert [one.single for one in groups(by_mps(*rows))] == [True, False]


def test_slices() -> None:
    rows = [{"name": "gpu.20gb", "memory": "20Gi", "threads": 50}, {"name": "b", "memory": "512Mi", "count": 3}]
    (found,) = groups(by_mps({"name": "gpu", "slices": rows}))
    first, second = Slice("nvidia.com/gpu.20gb", 20480, 50, 1), Slice("nvidia.com/b", 512, None, 3)
    assert found.mps == Mps(None, None, False, (first, second))
    assert (found.replicas, found.names) == (4, ["nvidia.com/gpu.20gb", "nvidia.com/b"])


@pytest.mark.parametrize("more", [{"rename": "one"}, {"distinct": True}])
def test_one_replica_where_it_means_something(more: Any) -> None:
    assert groups(sliced(entry(replicas=1, **more)))[0].replicas == 1
    assert groups(by_mps(entry(replicas=1)))[0].replicas == 1


SLICE = {"name": "a", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ([], "f: sharing is not a YAML or JSON mapping"),
        ({"timeSlicing": []}, "f: sharing.timeSlicing is not a YAML or JSON mapping"),
        ({"timeSlicing": {"resources": {}}}, "resources is .*; write a list of at most 256"),
        (sliced(*[entry()] * 257), "resources is .*; write a list of at most 256"),
        (sliced(entry(devices=["0"] * 257)), "devices is .*; write how many, all, or a list of at most 256"),
        (sliced(*[entry(devices=["0"] * 256)] * 5), "f: devices below sharing has 1280 entries; write 1024 at most"),
        (sliced(entry(devices=["*" * 129])), "devices is .*; write how many"),
        (sliced("gpu"), "f: an entry of sharing.timeSlicing.resources is not a YAML or JSON mapping"),
        (sliced({"replicas": 2}), "has no name"),
        (sliced({"name": "gpu"}), "f: sharing.timeSlicing, gpu has no replicas; set how often"),
        (sliced(entry(replicas=0)), "nvidia.com/gpu: replicas is 0; write a number between 1 and 1000"),
        (sliced(entry(replicas="4")), 'replicas is "4"; write a number between 1 and 1000, without quotes'),
        (sliced({"name": "gpu", "replica": 4}), "given out .replica is ignored; is replicas meant.."),
        (sliced({"name": "gpu", "slices": [SLICE]}), "given out .slices is valid below sharing.mps alone."),
        (sliced(entry(replicas=True)), "replicas is True; write a number"),
        (sliced(entry(replicas=10**9)), "replicas is 1000000000; write"),
        (sliced(entry(rename="GPU")), 'rename is "GPU"; write small letters'),
        (sliced(entry(rename="example.com/gpu")), 'rename is "example.com/gpu"; write'),
        (sliced(entry(rename="g" * 35)), 'rename is "g{35}"; write'),
        (sliced(entry(distinct="yes")), 'distinct is "yes"; write true or false, without quotes'),
        (sliced(entry(policy="near")), 'policy is "near"; write packed or distributed$'),
        (sliced(entry(devices=[])), "devices is .*; write how many, all, or a list"),
        (sliced(entry(devices=0)), "devices is 0; write how many"),
        (sliced(entry(devices=["all"])), "devices is .*; write how many"),
        (sliced(entry(devices=["nvidia.com/gpu=0"])), "devices is .*; write how many"),
        (sliced(entry(devices=["GPU-0::1"])), "devices is .*; write how many"),
        (
            sliced(entry(devices=[60])),
            "devices is .60.; write .* MIG indices in quotes",
        ),
        (sliced(entry(devices=[-1])), "devices is .-1.; write how many"),
        (sliced(entry(devices=[True])), "devices is .True.; write how many"),
        (sliced(entry(devices=[["0"]])), "devices is .*; write how many"),
        (by_mps({"name": "mig-1g.5gb", "replicas": 2}), "MPS shares whole GPUs, no MIG instances"),
        (by_mps(entry(memory=8)), "memory is 8; write a whole number with Mi or Gi"),
        (by_mps(entry(memory="8G")), 'memory is "8G"; write a whole number with Mi or Gi'),
        (by_mps(entry(threads=101)), "threads is 101; write percent, a number between 1 and 100"),
        (by_mps({"name": "gpu", "slices": {}}), "slices is {}; write a list"),
        (by_mps({"name": "gpu", "slices": [{"memory": "1Gi"}]}), "a slice has no name; write small letters"),
        (by_mps({"name": "gpu", "slices": [{"name": "a"}]}), "slice nvidia.com/a has no limit; set memory"),
        (by_mps({"name": "gpu", "slices": [SLICE, SLICE]}), "two slices have one name; add up"),
        (by_mps({"name": "gpu", "slices": [SLICE], "replicas": 3}), "gpu has slices and replicas; each slice"),
        (by_mps({"name": "gpu", "slices": [SLICE], "rename": "x"}), "gpu has slices and rename; each slice"),
        (sliced(GPU, {"name": "gpu", "replicas": 2}), "nvidia.com/gpu in two entries, of which one takes all"),
        (sliced(GPU, entry(devices=[0])), "nvidia.com/gpu in two entries, of which one takes all"),
        ({**sliced(entry(devices=[0], rename="x")), **by_mps(GPU)}, "in two entries, of which one takes all"),
        (sliced(entry(devices=[0], distinct=True), entry(devices=[1])), "become nvidia.com/gpu, and differ in"),
        (sliced(GPU, renameByDefault="yes"), 'f: sharing.timeSlicing: renameByDefault is "yes"; write true or false'),
        (sliced(GPU, failRequestsGreaterThanOne=1), "failRequestsGreaterThanOne is 1; write true or false"),
    ],
)
def test_what_is_wrong(section: Any, why: str) -> None:
    with pytest.raises(GpushimError, match=why) as described:
        sharing.read(section, "f", [])
    assert described.value.exit_code == CONFIG


def test_devices_of_one_name_are_told_by_how_often_they_are_given_out() -> None:
    rows = [("0", 2), ("1", 3), ("2", 2)]
    share = Share(sharing.TIME_SLICING)
    devices = [Device("", "", index, 0, share=share) for index, number in rows for _ in range(number)]
    assert sharing.describe(devices) == ["0, 2 by time-slicing, 2 of each", "1 by time-slicing, 3 of each"]


def test_what_means_nothing_is_said() -> None:
    notes: list[str] = []
    row = {**GPU, "threads": 25, "replica": 2}
    sharing.read({**sliced(row, renameByDefalt=True), "mqs": {}}, "f", notes)
    assert notes == [
        "f: sharing.mqs is ignored; is mps meant?",
        "f: sharing.timeSlicing.renameByDefalt is ignored; is renameByDefault meant?",
        "f: sharing.timeSlicing, nvidia.com/gpu: threads is valid below sharing.mps alone",
        "f: sharing.timeSlicing, nvidia.com/gpu: replica is ignored; is replicas meant?",
    ]


def test_where_a_file_of_nvidias_plugin_changes_names_is_said() -> None:
    notes: list[str] = []
    sharing.read(sliced(entry(rename="x", devices=["0"])), "f", notes)
    begin = "f: sharing.timeSlicing, nvidia.com/gpu: "
    assert notes == [
        begin + "its devices are nvidia.com/x here, and pods ask for that; NVIDIA's plugin drops rename, and calls "
        "them nvidia.com/gpu or nvidia.com/gpu.shared",
        begin + "what devices does not name stays whole, and nvidia.com/gpu; NVIDIA's plugin drops devices, and "
        "shares all",
    ]


def test_mps_wins_where_both_take_all() -> None:
    notes: list[str] = []
    found = sharing.read({**sliced(GPU), **by_mps(entry(replicas=2))}, "f", notes)
    assert [(one.replicas, one.mps is None) for one in found] == [(2, False)]
    assert notes[0] == "f: sharing.mps takes all of nvidia.com/gpu, and sharing.timeSlicing none of it"


def test_memory_of_time_slicing_is_for_the_kernel_alone() -> None:
    notes: list[str] = []
    (found,) = sharing.read(sliced(entry(memory="2Gi")), "f", notes)
    assert (found.memory, found.mps) == (2048, None)
    assert notes == [f"f: sharing.timeSlicing, {WHOLE}: memory is limited only where the kernel enforces it"]
    with pytest.raises(GpushimError, match="which is for whole GPUs"):
        groups(sliced({"name": "mig-1g.5gb", "replicas": 2, "memory": "1Gi"}))
