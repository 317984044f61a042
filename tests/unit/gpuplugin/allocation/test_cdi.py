"""What refuses to tell devices by CDI; each fix that a sentence names, tried in the state that it is said of."""

from __future__ import annotations

import json
import os
import posix
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.allocation import allocation, cdi
from gpuplugin.allocation.allocation import BY_CDI, CRI, Delivery
from gpuplugin.settings import resources
from gpushim.cdi import specs
from gpushim.cdi.generate import publish
from gpushim.ground.errors import CONFIG, INVENTORY, GpushimError
from gpushim.oci.device_names import is_qualified
from unit.gpushim.cdi import hosts
from unit.gpushim.decision.inventories import UUIDS, gpu

KIND = "nvidia.com/gpu"
OLD_MIG = f"MIG-{UUIDS[2]}/1/0"


class Node:
    """A host with directories of specs, and the plugin's settings."""

    def __init__(self, folder: Path) -> None:
        self.etc, self.run = folder / "etc", folder / "run"
        self.host = hosts.mixed(gpus=[gpu(0, 1, numa=0), gpu(1, 2, numa=0), gpu(2, 0, numa=1, mig=True)], missing=[])
        self.policy = self.host["policy"]["cdi"]
        self.policy.update({"output-directory": str(self.run), "spec-dirs": [str(self.etc), str(self.run)]})

    def refresh(self) -> list[str]:
        self.host["notes"] = []
        publish.on_refresh(self.host)
        return list(self.host["notes"])

    def names(self, strategy: str = "none", **by: Any) -> list[str]:
        found = resources.find(self.host, strategy, [], [])
        devices = [device for each in found.values() for device in each if not device.problem]
        return allocation.cdi_names(devices, Delivery(strategies=[CRI], **by))

    def check(self, **by: Any) -> None:
        cdi.check(self.host, self.names(**by))

    def refused(self, **by: Any) -> GpushimError:
        with pytest.raises(GpushimError) as refusal:
            self.check(**by)
        return refusal.value


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setitem(posix.environ, b"GPUSHIM_STATE", os.fsencode(tmp_path / "state"))
    found = Node(tmp_path)
    assert found.refresh() == []
    return found


@pytest.mark.parametrize("strategy", ["none", "mixed"])
@pytest.mark.parametrize("by_index", [False, True])
def test_every_id_and_feature_that_can_be_advertised_has_a_name(node: Node, strategy: str, by_index: bool) -> None:
    names = node.names(strategy, by_index=by_index, features=["gds"], imex=[3])
    assert len(names) == 5
    cdi.check(node.host, names)
    assert all(specs.find(names, [str(node.run)]))


def test_mig_id_of_an_old_driver_has_a_name(node: Node) -> None:
    node.host["mig"][0].update(uuid=OLD_MIG, legacy=OLD_MIG)
    node.refresh()
    names = node.names("mixed")
    assert f"{KIND}=MIG-{UUIDS[2]}:1:0" in names
    assert all(map(is_qualified, names))
    cdi.check(node.host, names)


def test_sick_gpu_that_is_advertised_as_such_is_no_reason(node: Node) -> None:
    node.host["gpus"][0]["problem"] = "XID 79"
    node.refresh()
    node.check()


def test_one_device_of_wsl_has_a_name(node: Node) -> None:
    node.host.update({**hosts.wsl(), "policy": node.host["policy"]})
    node.refresh()
    assert node.names() == [f"{KIND}=all"]
    node.check()


def test_without_a_spec_the_setting_is_named(node: Node) -> None:
    node.policy["write-spec"] = False
    node.refresh()
    refusal = node.refused()
    assert "write-spec under [cdi] is false" in str(refusal)
    assert "make it true in /etc/gpushim/config.toml and run gpushim refresh" in str(refusal)
    assert refusal.exit_code == CONFIG
    node.policy["write-spec"] = True
    node.refresh()
    node.check()


def foreign(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(hosts.foreign(**{"kind": KIND, **changes})))
    return path


@pytest.mark.parametrize("refreshed", [False, True])
def test_another_spec_in_the_same_directory_is_in_the_way(node: Node, refreshed: bool) -> None:
    theirs = foreign(node.run / "nvidia.yaml")
    notes = node.refresh() if refreshed else []
    assert any("is removed" in note for note in notes) is refreshed
    refusal = node.refused(by_index=True)
    assert f"{theirs} has the CDI device {KIND}=0 too" in str(refusal)
    assert "remove it and run gpushim refresh" in str(refusal)
    assert refusal.exit_code == INVENTORY
    theirs.unlink()
    node.refresh()
    node.check(by_index=True)


def test_only_a_spec_that_engines_prefer_is_in_the_way(node: Node) -> None:
    theirs = foreign(node.etc / "nvidia.yaml")
    node.check(by_index=True)
    node.policy["spec-dirs"].reverse()
    assert f"{theirs} has" in str(node.refused(by_index=True))
    node.check()  # by UUID, which it does not have
    theirs.unlink()
    node.check(by_index=True)


def test_spec_of_other_devices_or_another_kind_is_not_in_the_way(node: Node) -> None:
    foreign(node.run / "a.json", kind="vendor.com/gpu")
    device = {"name": "special", "containerEdits": {"env": ["A=b"]}}
    foreign(node.run / "b.json", devices=[device])
    node.check(by_index=True)


def test_directory_by_two_paths_is_one(node: Node) -> None:
    link = node.run.parent / "link"
    link.symlink_to(node.run)
    node.policy["spec-dirs"] = [str(link)]
    node.check()
    foreign(node.run / "nvidia.yaml")
    assert "nvidia.yaml has" in str(node.refused(by_index=True))


def test_directory_that_engines_are_told_otherwise_counts_too(node: Node) -> None:
    node.policy["spec-dirs"] = [str(node.etc)]
    node.check()


def test_spec_that_is_not_there_is_written_by_refresh(node: Node) -> None:
    path = node.run / "nvidia.com-gpu.json"
    path.unlink()
    refusal = node.refused()
    assert str(refusal).startswith(f"{path} has no device {KIND}={UUIDS[0]}, so that engines cannot give it")
    assert "run gpushim refresh, which writes it or says why it cannot" in str(refusal)
    assert refusal.exit_code == INVENTORY
    node.refresh()
    node.check()


@pytest.mark.parametrize("content", ["{", '{"kind": "nvidia.com/gpu"}'])
def test_one_that_is_broken_is_not_ours_to_replace(node: Node, content: str) -> None:
    path = node.run / "nvidia.com-gpu.json"
    path.write_text(content)
    node.refresh()
    assert path.read_text() == content
    assert "has no device" in str(node.refused())
    path.unlink()
    node.refresh()
    node.check()


def test_spec_of_somebody_else_s_stays_where_refresh_would_write(node: Node) -> None:
    path = node.run / "nvidia.com-gpu.json"
    path.write_text(json.dumps(hosts.foreign()))
    node.refresh()
    assert json.loads(path.read_text()) == hosts.foreign()
    assert "has no device" in str(node.refused())


@pytest.mark.parametrize(("by_index", "has", "lacks"), [(False, "index", "uuid"), (True, "uuid", "index")])
def test_names_by_another_strategy_lack_the_one_asked_for(node: Node, by_index: bool, has: str, lacks: str) -> None:
    node.policy["device-names"] = [has]
    node.refresh()
    refusal = node.refused(by_index=by_index)
    assert f"add {lacks} to device-names under [cdi] in /etc/gpushim/config.toml" in str(refusal)
    assert str(refusal).endswith(f"or let device-id-strategy be {has}")
    assert refusal.exit_code == CONFIG
    node.check(by_index=not by_index)
    node.policy["device-names"].append(lacks)
    node.refresh()
    node.check(by_index=by_index)


def test_other_strategy_is_not_advised_where_it_has_no_name_either(node: Node) -> None:
    node.policy["device-names"] = ["type-index"]
    node.refresh()
    assert str(node.refused()).endswith(cdi.OTHERWISE)
    assert {word for word in cdi.OTHERWISE.split() if word in allocation.STRATEGIES} == {
        *allocation.STRATEGIES
    } - BY_CDI


def test_feature_that_the_host_does_not_have_is_named(node: Node) -> None:
    refusal = node.refused(features=["gds", "mofed"])
    assert "mofed is true in the plugin's settings, but this host has no device node for it" in str(refusal)
    assert str(refusal).endswith("or make mofed false")
    node.check(features=["gds"])
    node.host["features"]["mofed"] = ["/dev/infiniband/uverbs0"]  # its module is loaded
    node.host["nodes"]["/dev/infiniband/uverbs0"] = [231, 0, 0o666, 0, 0]
    assert "run gpushim refresh, which writes it" in str(node.refused(features=["mofed"]))
    node.refresh()
    node.check(features=["gds", "mofed"])
