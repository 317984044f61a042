"""Snapshots to resources: strategies for MIG, what is left out and why."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.settings import resources
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

PLAIN = snapshot([gpu(0), gpu(1)])
DIVIDED = snapshot([gpu(0, mig=True), gpu(1, mig=True)], [mig(0, 0), mig(0, 1), mig(1, 0)])
MIXED = snapshot([gpu(0, mig=True), gpu(1)], [mig(0, 0), mig(0, 1, "3g.20gb"), mig(0, 2, "1g.5gb+me")])


def found(host: Any, strategy: str = "none", *excluded: str) -> dict[str, list[str]]:
    listed = resources.find(host, strategy, excluded, [])
    return {name: [device.index for device in devices] for name, devices in listed.items()}


@pytest.mark.parametrize(
    ("host", "strategy", "wanted"),
    [
        (PLAIN, "none", {"nvidia.com/gpu": ["0", "1"]}),
        (PLAIN, "single", {"nvidia.com/gpu": ["0", "1"]}),
        (PLAIN, "mixed", {"nvidia.com/gpu": ["0", "1"]}),
        (DIVIDED, "none", {"nvidia.com/gpu": ["0", "1"]}),
        (DIVIDED, "single", {"nvidia.com/gpu": ["0:0", "0:1", "1:0"]}),
        (DIVIDED, "mixed", {"nvidia.com/mig-1g.5gb": ["0:0", "0:1", "1:0"]}),
        (
            MIXED,
            "mixed",
            {
                "nvidia.com/gpu": ["1"],
                "nvidia.com/mig-1g.5gb": ["0:0"],
                "nvidia.com/mig-3g.20gb": ["0:1"],
                "nvidia.com/mig-1g.5gb.me": ["0:2"],
            },
        ),
        (MIXED, "none", {"nvidia.com/gpu": ["0", "1"]}),
        (snapshot([gpu(0, mig=True), gpu(1)]), "mixed", {"nvidia.com/gpu": ["1"]}),
        (snapshot([gpu(0, mig=True)]), "none", {"nvidia.com/gpu": ["0"]}),
        (snapshot([gpu(0, mig=True)]), "mixed", {}),
        (snapshot([gpu(1), gpu(0)]), "none", {"nvidia.com/gpu": ["0", "1"]}),
        (snapshot([gpu(0)], source="proc"), "none", {"nvidia.com/gpu": ["0"]}),
        (snapshot([gpu(0, uuid="")]), "none", {}),
        (snapshot([]), "none", {}),
        (snapshot([]), "single", {}),
    ],
)
def test_resources(host: Any, strategy: str, wanted: dict[str, list[str]]) -> None:
    assert found(host, strategy) == wanted


@pytest.mark.parametrize(
    ("host", "why"),
    [
        (MIXED, "GPU 1 is not in MIG mode while others are"),
        (snapshot([gpu(0, mig=True), gpu(1, mig=True)], [mig(0, 0)]), "GPU 1 has no MIG instance"),
        (snapshot([gpu(0, mig=True)], [mig(0, 0), mig(0, 1, "2g.10gb")]), "there are 1g.5gb and 2g.10gb"),
        (snapshot([gpu(0, mig=True)], [mig(0, 0), mig(0, 1, "1g.5gb+me")]), r"there are 1g.5gb and 1g.5gb\+me"),
        (snapshot([gpu(0, mig=True), gpu(1, mig=True, problem="lost")]), "GPU 0 has no MIG instance"),
    ],
)
def test_single_refuses(host: Any, why: str) -> None:
    with pytest.raises(GpushimError, match=f"mig-strategy is single, but {why}; .*choose mig-strategy mixed"):
        found(host, "single")


def test_single_needs_alike_instances_not_whole_ones() -> None:
    parts = snapshot([gpu(0, mig=True)], [mig(0, 0, "1c.2g.10gb"), mig(0, 1, "1c.2g.10gb")])
    assert found(parts, "single") == {"nvidia.com/gpu": ["0:0", "0:1"]}


@pytest.mark.parametrize("sick", [gpu(1, problem="GPU 1 is lost"), gpu(1, mig=True, problem="GPU 1 is lost")])
def test_a_lost_gpu_does_not_stand_in_the_way_of_single(sick: Any) -> None:
    notes: list[str] = []
    host = snapshot([gpu(0, mig=True), sick], [mig(0, 0)])
    assert [one.index for one in resources.find(host, "single", [], notes)["nvidia.com/gpu"]] == ["0:0"]
    assert notes == ["GPU 1 is left out: its MIG instances are not known: GPU 1 is lost"]


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_without_nvml_instances_are_not_guessed(strategy: str) -> None:
    with pytest.raises(
        GpushimError,
        match=f"mig-strategy is {strategy}, but only NVML lists MIG instances, .*; gpushim doctor says why",
    ):
        found(snapshot([gpu(0)], source="proc"), strategy)


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.5gb", "mig-1g.5gb"),
        ("7g.141gb", "mig-7g.141gb"),
        ("1g.10gb+me", "mig-1g.10gb.me"),
        ("1g.12gb+gfx", "mig-1g.12gb.gfx"),
        ("2g.24gb+me.all", "mig-2g.24gb.me.all"),
        ("1g.24gb-me", "mig-1g.24gb-me"),
        ("1c.3g.20gb", ""),
        ("2c.7g.80gb+me", ""),
        ("", ""),
        ("NVIDIA A30", ""),
        ("1g.5gb+", ""),
        ("1g.5gb/x", ""),
        ("1g." + "5" * 30, ""),
    ],
)
def test_names_of_mig_resources(profile: str, name: str) -> None:
    notes: list[str] = []
    listed = resources.find(snapshot([gpu(0, mig=True)], [mig(0, 0, profile)]), "mixed", [], notes)
    assert [*listed] == (["nvidia.com/" + name] if name else [])
    assert [f"MIG instance {uuid(0, 'MIG')} is left out:" in note for note in notes] == ([] if name else [True])


def test_ids_of_old_drivers() -> None:
    old = {**mig(0, 0), "uuid": mig(0, 0)["legacy"]}
    (one,) = resources.find(snapshot([gpu(0, mig=True)], [old]), "single", [], [])["nvidia.com/gpu"]
    assert (one.id, one.index) == (f"MIG-{uuid(0)}/1/0", "0:0")


@pytest.mark.parametrize(
    ("platform", "name", "index"), [("wsl", "all", "all"), ("tegra", "tegra", "0")], ids=["wsl", "tegra"]
)
def test_all_gpus_in_one_device(platform: str, name: str, index: str) -> None:
    notes: list[str] = []
    host = snapshot([gpu(0), gpu(1, problem="it is lost")], platform=platform, nodes={"/dev/dxg": []}, source="proc")
    (one,) = resources.find(host, "mixed", ["1"], notes)["nvidia.com/gpu"]
    assert one == resources.Device(name, "all", index, 0, -1, ("/dev/dxg",), "it is lost")
    assert notes == ["exclude does nothing here: containers get all of this host's GPUs or none"]
    assert [two.id for two in resources.replicated([one], 2)] == [f"{name}::0", f"{name}::1"]


@pytest.mark.parametrize(
    "name",
    [
        "1",
        "1-1",
        uuid(1),
        uuid(1).upper(),
        uuid(1)[:12],
        "00000000:11:00.0",
        "0000:11:00.0",
        "11:00.0",
    ],
)
def test_a_gpu_is_excluded(name: str) -> None:
    assert found(PLAIN, "none", name) == {"nvidia.com/gpu": ["0"]}


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("0", ["1:0"]),
        ("10:00.0", ["1:0"]),
        ("0:1", ["0:0", "1:0"]),
        (uuid(16, "MIG"), ["0:0", "0:1"]),
        (f"MIG-{uuid(0)}/2/0", ["0:0", "1:0"]),
    ],
)
def test_a_mig_instance_is_excluded(name: str, left: list[str]) -> None:
    assert found(DIVIDED, "mixed", name) == {"nvidia.com/mig-1g.5gb": left}


def test_an_excluded_gpu_does_not_stand_in_the_way_of_single() -> None:
    assert found(MIXED | {"mig": [mig(0, 0)]}, "single", "1") == {"nvidia.com/gpu": ["0:0"]}


@pytest.mark.parametrize(
    "name", ["all", "all-usable", "none", "void", "gpu", "a/b=c", "nvidia.com/gpu=0", "::1", "9-0", "0-999", ""]
)
def test_what_names_no_device_cannot_be_excluded(name: str) -> None:
    with pytest.raises(GpushimError, match=f'^exclude has "{name}", which names no device; write an index'):
        found(PLAIN, "none", name)


def test_what_is_left_out_is_said() -> None:
    notes: list[str] = []
    gpus = [gpu(0, uuid=""), gpu(1, mig=True), gpu(2, mig=True)]
    host = snapshot(gpus, [mig(1, 0, "1c.3g.20gb")], missing=["GPU 3 is left out: it does not answer"])
    assert resources.find(host, "mixed", ["7"], notes) == {}
    assert [note.partition(":")[0] for note in notes] == [
        'exclude or on-demand has "7", which this host does not have',
        "GPU 3 is left out",
        "GPU 0 is left out",
        "GPU 2 is in MIG mode and has no instance, so nothing of it is given out",
        f"MIG instance {uuid(16, 'MIG')} is left out",
    ]


def test_a_gpu_in_mig_mode_that_is_given_out_as_a_whole_is_said() -> None:
    notes: list[str] = []
    resources.find(DIVIDED, "none", ["1"], notes)
    (note,) = notes
    assert note.startswith("GPU 0 is in MIG mode and given out as a whole, in which CUDA finds no device; choose")


@pytest.mark.parametrize("node", [-1, 0, 1])
def test_instances_are_on_their_gpus_numa_node(node: int) -> None:
    host = snapshot([gpu(0, mig=True, numa=node), gpu(1, numa=node)], [mig(0, 0)])
    assert {one.numa for listed in resources.find(host, "mixed", [], []).values() for one in listed} == {node}


def test_a_sick_gpu_makes_its_instances_sick() -> None:
    host = snapshot([gpu(0, mig=True, problem="XID 79"), gpu(1, problem="XID 48")], [mig(0, 0)])
    listed = resources.find(host, "mixed", [], [])
    (part,), (whole,) = listed["nvidia.com/mig-1g.5gb"], listed["nvidia.com/gpu"]
    assert (part.problem, part.numa, part.nodes[0]) == ("XID 79", 0, "/dev/nvidia0")
    assert whole.problem == "XID 48"


def test_an_index_of_a_gpu_that_is_missing_excludes_no_other() -> None:
    notes: list[str] = []
    found = resources.find(
        snapshot([gpu(1), gpu(2)], absent=[{"index": 0, "uuid": uuid(0), "pci": "x"}]), "none", ["0"], notes
    )
    assert [(one.id, one.index) for one in found["nvidia.com/gpu"]] == [(uuid(1), "1"), (uuid(2), "2")]
    assert notes == ['exclude or on-demand has "0", which this host does not have']
