"""Snapshots to resources: strategies for MIG, what is left out and why."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin import resources
from gpushim.errors import GpushimError
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
        (snapshot([]), "none", {}),
        (snapshot([gpu(0, uuid="", pci="")], platform="wsl"), "none", {"nvidia.com/gpu": ["all"]}),
        (snapshot([gpu(0, uuid="", pci="")], platform="tegra"), "mixed", {"nvidia.com/gpu": ["0"]}),
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
    ],
)
def test_single_refuses(host: Any, why: str) -> None:
    with pytest.raises(GpushimError, match=f"mig-strategy is single, but {why}; .*choose mig-strategy mixed"):
        found(host, "single")


@pytest.mark.parametrize("name", ["1", uuid(1), "00000000:11:00.0", "0000:11:00.0"])
def test_a_gpu_is_excluded(name: str) -> None:
    assert found(PLAIN, "none", name) == {"nvidia.com/gpu": ["0"]}


@pytest.mark.parametrize(
    ("name", "left"), [("0", ["1:0"]), ("0:1", ["0:0", "1:0"]), (uuid(16, "MIG"), ["0:0", "0:1"])]
)
def test_a_mig_instance_is_excluded(name: str, left: list[str]) -> None:
    assert found(DIVIDED, "mixed", name) == {"nvidia.com/mig-1g.5gb": left}


def test_an_excluded_gpu_does_not_stand_in_the_way_of_single() -> None:
    assert found(MIXED | {"mig": [mig(0, 0)]}, "single", "1") == {"nvidia.com/gpu": ["0:0"]}


@pytest.mark.parametrize("name", ["all", "none", "void", "gpu", "a/b=c", "::1"])
def test_what_names_no_device_cannot_be_excluded(name: str) -> None:
    with pytest.raises(GpushimError):
        found(PLAIN, "none", name)


def test_what_is_left_out_is_said() -> None:
    notes: list[str] = []
    host = snapshot([gpu(0, uuid="")], [mig(0, 0, "1c.3g.20gb")], missing=["GPU 3 is left out: it does not answer"])
    assert resources.find(host, "mixed", ["7"], notes)["nvidia.com/gpu"] == []
    assert [note.partition(":")[0] for note in notes] == [
        'exclude has "7", which this host does not have',
        "GPU 3 is left out",
        "GPU 0 is left out",
        f"MIG instance {uuid(0, 'MIG')} is left out",
    ]


def test_a_sick_gpu_makes_its_instances_sick() -> None:
    host = snapshot([gpu(0, mig=True, problem="XID 79")], [mig(0, 0)])
    (device,) = resources.find(host, "mixed", [], [])["nvidia.com/mig-1g.5gb"]
    assert (device.problem, device.numa, device.nodes[0]) == ("XID 79", 0, "/dev/nvidia0")
