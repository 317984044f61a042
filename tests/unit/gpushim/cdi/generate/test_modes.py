from __future__ import annotations

from typing import Any

import pytest

from gpushim.cdi import validate
from gpushim.cdi.generate import write
from gpushim.config.policy import schema
from gpushim.ground.errors import INVENTORY, GpushimError
from unit.gpushim.cdi import hosts

CHANNEL = "/dev/nvidia-caps-imex-channels/channel"


def spec(mode: str, host: Any = None, merged: bool = True) -> dict[str, Any]:
    kind = write.kind(mode, hosts.KIND, "", "")
    return write.mode_spec(mode, host or hosts.mixed(), kind, merged, hosts.HOOK)


def nodes(found: dict[str, Any]) -> dict[str, list[str]]:
    return {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in found["devices"]
    }


@pytest.mark.parametrize(
    ("mode", "vendor", "category", "kind"),
    [
        ("auto", "", "", "nvidia.com/gpu"),
        ("imex", "", "", "nvidia.com/imex-channel"),
        ("gds", "", "", "nvidia.com/gds"),
        ("nvswitch", "", "", "nvidia.com/nvswitch"),
        ("management", "", "", "management.nvidia.com/gpu"),
        ("imex", "example.org", "", "example.org/imex-channel"),
        ("gds", "", "gpu", "nvidia.com/gpu"),
        ("management", "example.org", "all", "example.org/all"),
    ],
)
def test_kind_of_a_mode(mode: str, vendor: str, category: str, kind: str) -> None:
    assert write.kind(mode, schema()["properties"]["cdi"]["properties"]["kind"]["default"], vendor, category) == kind


def test_imex_channels_are_devices() -> None:
    host = hosts.mixed(imex=[0, 3])
    host["nodes"][CHANNEL + "0"] = [511, 0, 0o666, 0, 0]
    both = [CHANNEL + "0", CHANNEL + "3"]
    assert nodes(spec("imex", host)) == {"0": both[:1], "3": both[1:], "all": both}
    assert "all" not in nodes(spec("imex", host, merged=False))


@pytest.mark.parametrize("mode", ["gds", "mofed", "gdrcopy", "nvswitch"])
def test_feature_is_one_device_with_its_files(mode: str) -> None:
    host = hosts.mixed()
    host["features"][mode] = ["/dev/nvidia-fs0"]
    host["files"][mode] = [{"path": "/etc/cufile.json", "kind": "data"}]
    found = spec(mode, host)
    assert (nodes(found), found["kind"]) == ({"all": ["/dev/nvidia-fs0"]}, "nvidia.com/" + mode)
    assert hosts.mounted(found["devices"][0]["containerEdits"]) == {"/etc/cufile.json": "/etc/cufile.json"}
    assert found["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}


def test_management_has_every_node_and_the_driver_without_graphics() -> None:
    host = hosts.mixed(features={"gds": ["/dev/nvidia-fs0"], "mofed": [], "gdrcopy": [], "nvswitch": []})
    host["driver"]["params"] = "/run/gpushim/params"
    host["files"]["graphics"] = [{"path": "/usr/lib/libGLX_nvidia.so.5", "kind": "library", "soname": "x"}]
    found = spec("management", host)
    assert sorted(nodes(found)["all"]) == sorted(set(host["nodes"]) - {"/dev/nvidia-fs0"})
    paths = hosts.mounted(found["containerEdits"]).values()
    assert "/usr/lib/libcuda.so.5" in paths
    assert "/usr/lib/libGLX_nvidia.so.5" not in paths
    assert "--cover" not in found["containerEdits"]["hooks"][0]["args"]  # it may change and make nodes


@pytest.mark.parametrize("mode", ["management", "imex", "gds"])
def test_every_spec_is_valid(mode: str) -> None:
    host = hosts.mixed(features={"gds": ["/dev/nvidia-fs0"], "mofed": [], "gdrcopy": [], "nvswitch": []})
    assert validate.findings(spec(mode, host)) == []


@pytest.mark.parametrize("mode", ["management", "imex", "gds", "mofed", "gdrcopy", "nvswitch"])
def test_host_without_such_devices_is_refused(mode: str) -> None:
    none: dict[str, list[str]] = {"gds": [], "mofed": [], "gdrcopy": [], "nvswitch": []}
    with pytest.raises(GpushimError) as refusal:
        spec(mode, hosts.mixed(nodes={}, imex=[], features=none))
    assert refusal.value.exit_code == INVENTORY
