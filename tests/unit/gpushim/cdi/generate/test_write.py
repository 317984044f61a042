from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushim.cdi import form, validate
from gpushim.cdi.generate import write
from gpushim.decision.plan import plan
from gpushim.ground.errors import DRIVER, INVENTORY, REQUEST, GpushimError
from gpushim.oci import request
from unit.gpushim.cdi import hosts
from unit.gpushim.decision.inventories import BUNDLE, CAPS, UUIDS, gpu

GOLDEN = Path(__file__).parents[4] / "data/cdi"
BOTH = ["index", "uuid"]
BESIDE = ["gds", "imex-channel-3"]  # what the usual host gives beside GPUs


def spec(host: Any, names: list[str] | None = None, **options: Any) -> dict[str, Any]:
    return write.gpu_spec(host, options.pop("kind", hosts.KIND), names or BOTH, [], hosts.HOOK, **options)


def names(found: dict[str, Any]) -> list[str]:
    return [device["name"] for device in found["devices"]]


def nodes(found: dict[str, Any], name: str) -> list[str]:
    (edits,) = [device["containerEdits"] for device in found["devices"] if device["name"] == name]
    return [node["path"] for node in edits["deviceNodes"]]


@pytest.mark.parametrize("host", ["mixed", "apart", "wsl"])
def test_spec_of_a_known_host_is_the_golden_one(host: str) -> None:
    found = spec(getattr(hosts, host)())
    assert found == json.loads((GOLDEN / f"{host}.json").read_text())


@pytest.mark.parametrize("host", ["mixed", "apart", "wsl", "proc", "eight_by_seven"])
def test_every_spec_is_valid_and_usable_by_ourselves(host: str) -> None:
    found = spec(getattr(hosts, host)(), ["index", "type-index", "uuid"])
    assert validate.findings(found) == []
    form.check(found)


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        (["index"], ["0", "1", "2", "2:0"]),
        (["type-index"], ["gpu0", "gpu1", "gpu2", "mig2:0"]),
        (["uuid"], [*UUIDS, "MIG-1", "MIG-x:1:0"]),
        (["index", "uuid"], ["0", UUIDS[0], "1", UUIDS[1], "2", UUIDS[2], "2:0", "MIG-1", "MIG-x:1:0"]),
    ],
)
def test_devices_are_named_as_the_policy_says(strategies: list[str], expected: list[str]) -> None:
    assert names(spec(hosts.mixed(), strategies)) == [*expected, "all", *BESIDE]


def test_mig_instance_of_an_old_driver_has_its_one_uuid_without_slashes() -> None:
    old = f"MIG-{UUIDS[2]}/1/0"
    host = hosts.mixed()
    host["mig"][0].update(uuid=old, legacy=old)
    assert names(spec(host, ["uuid"])) == [*UUIDS, f"MIG-{UUIDS[2]}:1:0", "all", *BESIDE]


def test_what_is_beside_gpus_has_its_own_nodes_and_files() -> None:
    host = hosts.mixed()
    host["features"]["mofed"] = ["/dev/infiniband/uverbs0"]
    host["nodes"]["/dev/infiniband/uverbs0"] = [231, 0, 0o666, 0, 0]
    host["files"]["gds"] = [{"path": "/etc/cufile.json", "kind": "data"}]
    found = spec(host, ["index"])
    assert nodes(found, "mofed") == ["/dev/infiniband/uverbs0"]
    assert nodes(found, "imex-channel-3") == ["/dev/nvidia-caps-imex-channels/channel3"]
    assert nodes(found, "gds") == ["/dev/nvidia-fs0"]
    (gds,) = (device["containerEdits"] for device in found["devices"] if device["name"] == "gds")
    assert "/etc/cufile.json" in hosts.mounted(gds)
    assert not {*nodes(found, "gds"), *nodes(found, "mofed")} & {*nodes(found, "all")}


def test_device_has_its_own_nodes_and_the_spec_those_of_all() -> None:
    found = spec(hosts.mixed())
    assert nodes(found, "0") == nodes(found, UUIDS[0]) == ["/dev/nvidia1"]
    assert nodes(found, "2:0") == ["/dev/nvidia0", CAPS + "12", CAPS + "13"]
    assert nodes(found, "all") == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", CAPS + "12", CAPS + "13"]
    common = [node["path"] for node in found["containerEdits"]["deviceNodes"]]
    assert common == ["/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]


def test_only_gpu_of_a_host_keeps_its_node_to_itself() -> None:
    found = spec(hosts.mixed(gpus=[gpu(0, 1)], mig=[]))
    assert nodes(found, "0") == nodes(found, "all") == ["/dev/nvidia1"]


def test_one_hook_whose_work_needs_only_its_arguments() -> None:
    found = spec(hosts.mixed())
    (hook,) = found["containerEdits"]["hooks"]
    assert (hook["hookName"], hook["path"], hook["args"][:2]) == (
        "prestart",
        hosts.HOOK,
        ["gpushim-hook", "prestart"],
    )
    assert "--rootfs" not in hook["args"]
    assert hook["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    assert not any("hooks" in device["containerEdits"] for device in found["devices"])


def test_container_is_marked_as_injected() -> None:
    assert spec(hosts.mixed())["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_group_that_nodes_need_raises_the_version() -> None:
    found = spec(hosts.apart())
    assert found["cdiVersion"] == "0.7.0"
    assert found["containerEdits"]["additionalGids"] == [44]
    assert found["devices"][0]["containerEdits"]["additionalGids"] == [27]


@pytest.mark.parametrize(
    ("kind", "strategies", "version"),
    [
        ("nvidia.com/gpu", ["index"], "0.5.0"),
        ("nvidia.com/gpu", ["uuid"], "0.3.0"),
        ("nvidia.com/gpu.shared", ["uuid"], "0.6.0"),
    ],
)
def test_version_is_the_lowest_that_expresses_it(kind: str, strategies: list[str], version: str) -> None:
    found = spec(hosts.mixed(), strategies, kind=kind)
    assert (found["cdiVersion"], found["kind"]) == (version, kind)


def test_mps_by_policy_goes_into_the_spec() -> None:
    host = hosts.mixed()
    host["policy"]["mps"] = {"enabled": True, "pipe-directory": "/run/nvidia-mps"}
    host["files"]["mps"] = [{"path": "/run/nvidia-mps", "kind": "directory"}]
    common = spec(host)["containerEdits"]
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps" in common["env"]
    assert "/run/nvidia-mps" in hosts.mounted(common)


def test_broken_gpu_is_left_out_with_a_note() -> None:
    notes: list[str] = []
    host = hosts.mixed(gpus=[gpu(0, 1), gpu(1, 2, problem="it fell off the bus")], mig=[])
    found = write.gpu_spec(host, hosts.KIND, ["index"], notes)
    assert names(found) == ["0", *BESIDE]
    assert notes == [
        "GPU 1 is left out of the CDI spec: it fell off the bus",
        "the device all is left out of the CDI spec: not all GPUs can be used",
    ]


def test_gpu_in_mig_mode_is_its_node_alone_and_not_in_all() -> None:
    notes: list[str] = []
    found = write.gpu_spec(hosts.mixed(mig=[]), hosts.KIND, ["index"], notes)
    assert names(found) == ["0", "1", "2", "all", *BESIDE]
    assert (nodes(found, "2"), nodes(found, "all")) == (["/dev/nvidia0"], ["/dev/nvidia1", "/dev/nvidia2"])
    assert notes == ["GPU 2 is left out of the CDI device all: it is in MIG mode and not divided"]


def test_only_gpu_of_a_host_in_mig_mode_leaves_no_device_all() -> None:
    assert names(spec(hosts.mixed(gpus=[gpu(0, 1, mig=True)], mig=[]), ["index"])) == ["0", *BESIDE]


def test_mig_instance_without_its_node_is_left_out_with_a_note() -> None:
    notes: list[str] = []
    host = hosts.mixed()
    del host["nodes"][CAPS + "12"]
    assert names(write.gpu_spec(host, hosts.KIND, ["index"], notes)) == ["0", "1", "2", *BESIDE]
    assert notes[0].startswith(f"MIG instance 2:0 is left out of the CDI spec: {CAPS}12 is not on this host")


def test_gpu_without_uuid_has_no_name_that_needs_one() -> None:
    assert names(spec(hosts.proc())) == ["0", "1", "all", *BESIDE]
    with pytest.raises(GpushimError, match="there is no GPU or MIG instance to describe"):
        spec(hosts.proc(), ["uuid"])


def test_gpu_without_a_name_is_not_in_all_either() -> None:
    notes: list[str] = []
    host = hosts.mixed(gpus=[gpu(0, 1), gpu(1, 2, uuid="")], mig=[])
    assert nodes(write.gpu_spec(host, hosts.KIND, ["uuid"], notes), "all") == ["/dev/nvidia1"]
    assert notes == ["GPU 1 is left out of the CDI spec: it has no UUID"]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["1"], ["1", "all"]),
        ([UUIDS[0].lower().replace("gpu", "GPU"), "0"], ["0", "all"]),
        (["2:0", "0"], ["0", "2:0", "all"]),
        (["2"], ["2", "all"]),
    ],
)
def test_only_some_devices(only: list[str], expected: list[str]) -> None:
    assert names(spec(hosts.mixed(), ["index"], selected=only)) == expected


def test_without_a_device_all() -> None:
    assert names(spec(hosts.mixed(), ["index"], merged=False)) == ["0", "1", "2", "2:0", *BESIDE]


def test_order_of_the_host_lists_does_not_matter() -> None:
    turned = hosts.mixed()
    turned["gpus"].reverse()
    turned["nodes"] = dict(reversed(turned["nodes"].items()))
    one, other = spec(hosts.mixed()), spec(turned)
    for found in (one, other):
        found["containerEdits"]["hooks"][0]["args"].sort()  # which GPU comes first there is of no matter
    assert json.dumps(one) == json.dumps(other)


@pytest.mark.parametrize(
    ("host", "code", "says"),
    [
        (hosts.mixed(error={"sentence": "half upgraded", "code": DRIVER}), DRIVER, "half upgraded"),
        (hosts.mixed(gpus=[], mig=[]), INVENTORY, "no GPU"),
        (hosts.mixed(nodes={}), INVENTORY, "/dev/nvidiactl is not on this host"),
    ],
)
def test_host_without_a_usable_gpu_is_refused(host: dict[str, Any], code: int, says: str) -> None:
    with pytest.raises(GpushimError, match=says) as refusal:
        spec(host)
    assert refusal.value.exit_code == code


def test_unknown_device_is_refused_with_what_there_is() -> None:
    with pytest.raises(GpushimError, match='--device-id asks for GPU "9", but this host has 3') as refusal:
        spec(hosts.mixed(), selected=["9"])
    assert refusal.value.exit_code == REQUEST


@pytest.mark.parametrize("host", ["mixed", "apart", "wsl"])
def test_runtime_gives_by_each_name_what_the_spec_says(host: str) -> None:
    inventory = getattr(hosts, host)()
    for mig in inventory["mig"]:
        mig.update(uuid=f"MIG-{UUIDS[1][4:]}", legacy=f"MIG-{UUIDS[2]}/1/0")
    found = spec(inventory, ["index", "type-index", "uuid"])
    common = [node["path"] for node in found["containerEdits"].get("deviceNodes", ())]
    for name in names(found):
        process = {"env": ["NVIDIA_DRIVER_CAPABILITIES=all"]}
        asked = {"process": process, "annotations": {"cdi.k8s.io/x": f"{hosts.KIND}={name}"}}
        expected = request.read(asked, inventory["policy"])
        assert expected is not None
        edits, _, _ = plan(expected, inventory, BUNDLE)
        assert {*common, *nodes(found, name)} == {edit.value["path"] for edit in edits if edit.kind == "node"}, name
