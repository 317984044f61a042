"""MIG layouts of real models: what is listed, how it is named, and a change of layout."""

from __future__ import annotations

from typing import Any

import pytest

from fakehost import H100, RTX_PRO_6000, Host, ci_cap, gi_cap
from gpushim.decision import plan
from gpushim.inventory import ensure, renew
from gpushim.oci import device_names, request, selection
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow

LAYOUTS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "A100": ({}, ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb+me"]),
    "A100 full": ({}, ["1g.5gb"] * 7),
    "H100": (H100, ["3g.40gb", "1g.20gb", "1g.10gb", "1g.10gb+me"]),
    "H100 with compute instances": (H100, [(1, 0, "1c.4g.40gb"), (1, 1, "3c.4g.40gb"), (2, 0, "3g.40gb")]),
    "graphics": (RTX_PRO_6000, ["2g.48gb+gfx", "1g.24gb", "1g.24gb+me.all"]),
}


def build(machine: Machine, layout: str) -> tuple[Host, list[str]]:
    """A host with a whole GPU, one with this layout, and one in MIG mode without instances."""
    model, devices = LAYOUTS[layout]
    host = machine.build([{}, {**model, "mig": devices}, {"mig": []}], drm=True)
    return host, [device if isinstance(device, str) else device[2] for device in devices]


def select(snapshot: Any, name: str) -> tuple[list[Any], list[Any]]:
    return selection.select(device_names.parse([name], ["nvidia.com/gpu"]) or [], snapshot)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_instances_have_their_profile_and_their_two_nodes(machine: Machine, layout: str) -> None:
    host, profiles = build(machine, layout)
    snapshot = machine.refreshed()
    minor = host.gpus[1].minor
    assert [mig["profile"] for mig in snapshot["mig"]] == profiles
    for mig in snapshot["mig"]:
        caps = gi_cap(minor, mig["gi"]), ci_cap(minor, mig["gi"], mig["ci"])
        assert mig["nodes"] == [f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps]
        assert set(mig["nodes"]) <= set(snapshot["nodes"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_name_of_an_instance_means_it(machine: Machine, layout: str) -> None:
    build(machine, layout)
    snapshot = machine.refreshed()
    for index, mig in enumerate(snapshot["mig"]):
        for name in (f"1:{index}", mig["uuid"], mig["uuid"].lower().replace("mig-", "MIG-"), mig["legacy"]):
            assert select(snapshot, name) == ([], [mig])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_is_whole_gpus_and_all_instances(machine: Machine, layout: str) -> None:
    build(machine, layout)
    snapshot = machine.refreshed()
    assert select(snapshot, "all") == ([snapshot["gpus"][0]], snapshot["mig"])


@pytest.mark.parametrize(("layout", "draws"), [("A100", False), ("graphics", True)])
def test_only_profiles_with_graphics_bring_drm_nodes(machine: Machine, layout: str, draws: bool) -> None:
    build(machine, layout)
    snapshot = machine.refreshed()
    config = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=1:0", "NVIDIA_DRIVER_CAPABILITIES=graphics"]}}
    asked = request.read(config, snapshot["policy"])
    assert asked is not None
    paths = plan.node_paths(asked, *select(snapshot, "1:0"), snapshot)
    assert [path for path in paths if "dri" in path] == (snapshot["gpus"][1]["drm"] if draws else [])
    assert len(snapshot["gpus"][1]["drm"]) == 2


def test_another_layout_is_noticed_and_its_nodes_are_made(machine: Machine) -> None:
    host = machine.build(1, mig={0: ["3g.20gb", "1g.5gb"]})
    old = machine.refreshed()
    host.nodes = False  # from here on nobody makes nodes but the refresh
    host.set_mig(0, ["2g.10gb", "1g.5gb", "1g.5gb"])
    assert ensure.read(machine.config, machine.state) is None
    new = renew.snapshot(machine.config, machine.state)
    assert [mig["profile"] for mig in new["mig"]] == ["2g.10gb", "1g.5gb", "1g.5gb"]
    assert {path for mig in new["mig"] for path in mig["nodes"]} <= set(new["nodes"])
    assert old["mig"][0]["uuid"] not in {mig["uuid"] for mig in new["mig"]}
    assert ensure.read(machine.config, machine.state) == new


def test_mig_switched_off_is_noticed(machine: Machine) -> None:
    host = machine.build(1, mig=True)
    machine.refreshed()
    host.gpus[0].mig, host.gpus[0].mig_mode = [], (0, 0)
    host.update()
    assert ensure.read(machine.config, machine.state) is None
    assert select(machine.refreshed(), "all") == (machine.saved()["gpus"], [])
