from __future__ import annotations

import contextlib
import copy
import json
import posix
from pathlib import Path
from typing import Any

import pytest

from gpushim.decision.plan import plan
from gpushim.ground.errors import DRIVER, INVENTORY, REQUEST, REQUIREMENT, GpushimError
from gpushim.oci import edits, request
from unit.gpushim.decision.inventories import (
    BARE,
    BUNDLE,
    CAPABILITY_CASES,
    CAPS,
    CONTROL,
    DEVICES,
    ENDS,
    FILE_CASES,
    FILES,
    FOREIGN_ONLY,
    NODE_CASES,
    UUIDS,
    drawing,
    gpu,
    snapshot,
    with_specs,
)

DATA = Path(__file__).parents[3] / "data"


SOCKET = "/run/nvidia-persistenced/socket"


def decide(*env: str, inventory: Any = None, spec: Any = None, **bundle: Any) -> Any:
    """Plan for a container with this environment; returns the edits by kind."""
    inventory = inventory or snapshot()
    capabilities = {"bounding": ["CAP_SYS_ADMIN"]}
    wanted = request.read(spec or {"process": {"env": list(env), "capabilities": capabilities}}, inventory["policy"])
    assert wanted is not None
    found: dict[str, list[Any]] = {kind: [] for kind in ("node", "rule", "mount", "env", "gid", "hook")}
    found.update({kind: [] for kind in ("set-node", "set-mount", "stage-hook", "rdt")})
    for edit in plan(wanted, inventory, BUNDLE | bundle)[0]:
        found[edit.kind].append(edit.value)
    return found


def paths(found: Any) -> list[str]:
    return [node["path"] for node in found["node"]]


@pytest.mark.parametrize(
    ("env", "nodes"),
    NODE_CASES,
)
def test_the_nodes_of_a_request(env: list[str], nodes: list[str]) -> None:
    found = decide(*env)
    assert paths(found) == nodes
    assert len(found["rule"]) == len(nodes)


@pytest.mark.parametrize(
    ("channels", "platform", "named"),
    [
        ("4", "native", "IMEX channel 4, but there is no /dev/nvidia-caps-imex-channels/channel4 on"),
        ("3,4,5", "native", "IMEX channels 4, 5, but there is no /dev/nvidia-caps-imex-channels/channel4 on"),
        ("4", "wsl", "IMEX channel 4, but"),
        (",".join(map(str, range(100, 4100))), "native", "114, 115 and 3984 more, but"),
    ],
    ids=["one", "two of three", "of another platform", "thousands"],
)
def test_an_imex_channel_that_the_host_lacks_is_refused(channels: str, platform: str, named: str) -> None:
    with pytest.raises(GpushimError) as caught:
        decide("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_IMEX_CHANNELS={channels}", inventory=snapshot(platform=platform))
    assert caught.value.exit_code == INVENTORY
    assert named in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("wanted", "capabilities", "nodes"),
    [
        ("0", "graphics", ["/dev/dri/card1"]),
        ("0", "display", ["/dev/dri/card1"]),
        ("1", "graphics", []),
        ("2:0", "graphics", ["/dev/dri/card3"]),
        ("0", "compute,utility,video", []),
    ],
)
def test_drm_nodes_come_with_what_draws(wanted: str, capabilities: str, nodes: list[str]) -> None:
    env = [f"NVIDIA_VISIBLE_DEVICES={wanted}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    found = decide(*env, inventory=drawing())
    assert [path for path in paths(found) if path.startswith("/dev/dri/")] == nodes
    assert found["gid"] == ([44] if nodes else [])  # group video


def test_a_mig_instance_that_cannot_draw_gets_no_drm_node() -> None:
    inventory = drawing()
    inventory["mig"][0]["profile"] = "1g.24gb"
    found = decide("NVIDIA_VISIBLE_DEVICES=2:0", "NVIDIA_DRIVER_CAPABILITIES=graphics", inventory=inventory)
    assert "/dev/dri/card3" not in paths(found)


def test_the_hook_makes_links_to_nodes_by_path_where_the_node_is() -> None:
    (hook,) = decide("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all", inventory=drawing())["hook"]
    assert "../card1::/dev/dri/by-path/pci-0000:00:00.0-card" in hook["args"]
    assert hook["args"].count("--node-link") == 2


@pytest.mark.parametrize(
    ("env", "destinations"),
    FILE_CASES,
)
def test_the_files_of_a_request(env: list[str], destinations: list[str]) -> None:
    found = decide("NVIDIA_VISIBLE_DEVICES=0", *env, inventory=snapshot(files=FILES))
    assert [mount["destination"] for mount in found["mount"]] == destinations


def test_32_bit_libraries_are_named_to_the_hook_as_such() -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics,compat32")
    (hook,) = decide(*env, inventory=snapshot(files=FILES))["hook"]
    assert "--lib32 libGLX_nvidia.so.0=/32/glx" in " ".join(hook["args"])


def test_a_policy_brings_every_gpu_container_into_mps() -> None:
    inventory = snapshot(files=FILES)
    inventory["policy"]["mps"]["enabled"] = True
    found = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=inventory)
    assert ("CUDA_MPS_PIPE_DIRECTORY", "/run/nvidia-mps") in found["env"]
    (pipes,) = [mount for mount in found["mount"] if mount["destination"] == "/run/nvidia-mps"]
    assert "ro" in pipes["options"]
    none = decide("NVIDIA_VISIBLE_DEVICES=none", inventory=inventory)
    assert "/run/nvidia-mps" not in [mount["destination"] for mount in none["mount"]]


def test_why_there_is_no_mps_is_said_once() -> None:
    inventory = snapshot(files={**FILES, "mps": []}, mps="no container takes part in MPS: it is not trusted")
    inventory["policy"]["mps"]["enabled"] = True
    wanted = request.read({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}, inventory["policy"])
    assert wanted is not None
    for _ in range(2):
        plan(wanted, inventory, BUNDLE)
    assert wanted.ignored == [inventory["mps"]]


def test_without_a_rootfs_the_hook_is_told_of_all_gpus() -> None:
    (hook,) = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=snapshot(files=BARE), rootfs="")["hook"]
    assert "--rootfs" not in hook["args"]
    assert "--cover" not in hook["args"]
    assert "--gpu 1=0000:00:00.0 --gpu 2=0000:01:00.0 --gpu 0=0000:02:00.0 --empty /e" in " ".join(hook["args"])


@pytest.mark.parametrize(
    ("capabilities", "bundle", "refused"),
    [("compute", {}, True), ("graphics,compute", {}, True), ("graphics", {}, False), ("all", {}, False),
     ("compute", {"rootfs": ""}, False)],
)  # fmt: skip
def test_who_names_a_capability_is_refused_without_its_library(
    capabilities: str, bundle: dict[str, Any], refused: bool
) -> None:
    inventory = snapshot(files={**BARE, "compute": []})
    env = ("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    with pytest.raises(GpushimError, match=r"has no libcuda\.so\.1") if refused else contextlib.nullcontext():
        decide(*env, inventory=inventory, **bundle)


def test_a_spec_has_the_bindings_by_which_its_minor_numbers_hold() -> None:
    inventory = snapshot(
        files=BARE, stamp={"gpus": {"0000:00:00.0": 4711, "0000:01:00.0": None, "0000:02:00.0": 4713}}
    )
    for rootfs, said in (("", True), ("/r", False)):
        (hook,) = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=inventory, rootfs=rootfs)["hook"]
        words = "--bound 1=4711 --bound 0=4713 --bindings /sys/bus/pci/drivers/nvidia --empty /e"
        assert (words in " ".join(hook["args"])) == said


@pytest.mark.parametrize(
    ("pci", "name"), [("00010000:3b:00.0", "10000:3b:00.0"), ("0000abcd:3b:00.0", "abcd:3b:00.0")]
)
def test_odd_pci_domains_are_named_as_the_kernel_does(pci: str, name: str) -> None:
    inventory = snapshot(files=BARE)
    inventory["gpus"][1]["pci"] = pci
    (hook,) = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=inventory)["hook"]
    assert f"/e::/proc/driver/nvidia/gpus/{name}" in hook["args"]


@pytest.mark.parametrize("platform", ["wsl", "tegra"])
def test_other_platforms_give_all_the_nodes_they_have(platform: str) -> None:
    inventory = snapshot(platform=platform, nodes={"/dev/dxg": [10, 63, 0o666, 0, 0]})
    assert paths(decide("NVIDIA_VISIBLE_DEVICES=all", inventory=inventory)) == ["/dev/dxg"]


def test_a_node_has_the_hosts_numbers_mode_and_owner() -> None:
    inventory = snapshot()
    inventory["nodes"]["/dev/nvidia1"] = [195, 1, 0o660, 7, 44]
    found = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=inventory)
    node = {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1, "fileMode": 0o660, "uid": 7, "gid": 44}
    assert node in found["node"]
    assert ("c", 195, 1, "rw") in found["rule"]
    assert found["gid"] == [44]


@pytest.mark.parametrize(
    ("capabilities", "destinations"),
    CAPABILITY_CASES,
)
def test_files_by_capability(capabilities: str, destinations: list[str]) -> None:
    found = decide("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    assert [mount["destination"] for mount in found["mount"]] == destinations


def test_mounts_are_read_only() -> None:
    for mount in decide("NVIDIA_VISIBLE_DEVICES=0")["mount"]:
        assert mount["options"] == ["ro", "nosuid", "nodev", "rbind", "rprivate"]


@pytest.mark.parametrize("rootfs", ["/b/rootfs", ""])
def test_a_services_socket_is_the_hooks(tmp_path: Path, rootfs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T-LENT: whoever serves the file system that it is on could have a create wait: the create looks at nothing."""
    inventory = snapshot()
    inventory["driver"]["root"] = str(tmp_path)
    for name in ("stat", "lstat", "open"):
        monkeypatch.delattr(posix, name)
    found = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=inventory, rootfs=rootfs)
    assert SOCKET not in [mount["destination"] for mount in found["mount"]]
    assert f"{tmp_path}{SOCKET}::{SOCKET}" in found["hook"][0]["args"]


def test_a_driver_root_is_the_source_but_not_the_destination() -> None:
    inventory = snapshot()
    inventory["driver"]["root"] = "/run/nvidia/driver"
    found = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=inventory)
    by_destination = {mount["destination"]: mount["source"] for mount in found["mount"]}
    assert by_destination["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"


def without_gpus(args: list[str]) -> list[str]:
    """The hook's arguments but those that cover the directories of GPUs."""
    gone = [n for n, word in enumerate(args) if "/gpus/" in word]
    return [word for n, word in enumerate(args) if n not in gone and n + 1 not in gone]


@pytest.mark.parametrize(
    ("wanted", "hidden"),
    [("0", ["01", "02"]), ("all", []), ("none", ["00", "01", "02"]), ("2:0", ["00", "01"])],
)
def test_the_directories_of_other_gpus_are_covered(wanted: str, hidden: list[str]) -> None:
    (hook,) = decide(f"NVIDIA_VISIBLE_DEVICES={wanted}")["hook"]
    covers = [word for word in hook["args"] if "/gpus/" in word]
    assert covers == [f"/e::/proc/driver/nvidia/gpus/0000:{bus}:00.0" for bus in hidden]


@pytest.mark.parametrize(
    ("wanted", "words"), [("all", "asks for GPUs: "), ("none", "asks for the driver without a GPU: ")]
)
def test_what_is_asked_for_without_a_driver(wanted: str, words: str) -> None:
    inventory = snapshot(error={"sentence": "there is no driver", "code": INVENTORY})
    with pytest.raises(GpushimError, match=f"^NVIDIA_VISIBLE_DEVICES {words}there is no driver"):
        decide(f"NVIDIA_VISIBLE_DEVICES={wanted}", inventory=inventory)


def test_the_hook_gets_all_it_needs_in_its_arguments() -> None:
    (hook,) = decide("NVIDIA_VISIBLE_DEVICES=0")["hook"]
    assert hook["path"] == "/usr/bin/gpushim-hook"
    assert hook["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    assert without_gpus(hook["args"]) == [
        *("gpushim-hook", "prestart", "--rootfs", "/b/rootfs", "--log", "/var/log/g.log"),
        *("--lib", "libcuda.so.1=/usr/lib/libcuda.so.5", "--link", "a::/usr/lib/b"),
        *("--lib", "libnvidia-ml.so.1=/usr/lib/libnvidia-ml.so.5"),
        *("--socket", f"{SOCKET}::{SOCKET}"),
        *("--driver", "535.183.01", "--cuda", "12.2"),
    ]


def without_libraries(args: list[str]) -> list[str]:
    pairs = list(zip(args[::2], args[1::2]))
    return [word for pair in pairs if pair[0] not in ("--lib", "--link") for word in pair]


@pytest.mark.parametrize(
    ("env", "driver", "words"),
    [
        (["NVIDIA_DRIVER_CAPABILITIES=utility"], {}, []),
        (["NVIDIA_DRIVER_CAPABILITIES=compute"], {}, ["--driver", "535.183.01", "--cuda", "12.2"]),
        (["NVIDIA_DRIVER_CAPABILITIES=compute"], {"cuda": ""}, ["--driver", "535.183.01"]),
        (["NVIDIA_DRIVER_CAPABILITIES=compute"], {"version": "", "cuda": ""}, []),
        (
            ["NVIDIA_DRIVER_CAPABILITIES=utility"],
            {"params": "/run/gpushim/params"},
            ["--cover", "/run/gpushim/params::/proc/driver/nvidia/params"],
        ),
        (["NVIDIA_DRIVER_CAPABILITIES=graphics"], {}, ["--profile-mask", "0x2"]),
        (["NVIDIA_DRIVER_CAPABILITIES=display", "NVIDIA_VISIBLE_DEVICES=0,1"], {}, ["--profile-mask", "0x6"]),
        (["NVIDIA_DRIVER_CAPABILITIES=display", "NVIDIA_VISIBLE_DEVICES=2:0"], {}, ["--profile-mask", "0x1"]),
        (["NVIDIA_DRIVER_CAPABILITIES=display", "NVIDIA_VISIBLE_DEVICES=none"], {}, []),
    ],
)
def test_the_hook_is_told_of_more_than_libraries(env: list[str], driver: dict[str, str], words: list[str]) -> None:
    inventory = snapshot(files=BARE)
    inventory["driver"].update(driver)
    (hook,) = decide("NVIDIA_VISIBLE_DEVICES=0", *env, inventory=inventory)["hook"]
    assert without_libraries(without_gpus(hook["args"][6:])) == words


@pytest.mark.parametrize(("minor", "words"), [(63, ["--profile-mask", "0x8000000000000000"]), (64, [])])
def test_the_profile_has_64_bits(minor: int, words: list[str]) -> None:
    inventory = snapshot(files=BARE, gpus=[gpu(0, minor)], mig=[])
    inventory["nodes"][f"/dev/nvidia{minor}"] = [195, minor, 0o666, 0, 0]
    env = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics")
    assert decide(*env, inventory=inventory)["hook"][0]["args"][6:] == words


def test_in_a_user_namespace_nodes_of_another_dev_root_are_mounted() -> None:
    inventory = snapshot()
    inventory["driver"]["dev-root"] = "/d"
    found = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=inventory, userns=True)
    assert found["node"] == []
    sources = {mount["destination"]: mount["source"] for mount in found["mount"]}
    assert sources["/dev/nvidia1"] == "/d/dev/nvidia1"
    assert ("c", 195, 1, "rw") in found["rule"]


@pytest.mark.parametrize(
    ("env", "value"),
    [
        (["NVIDIA_VISIBLE_DEVICES=0,1"], "0,1"),
        (["NVIDIA_VISIBLE_DEVICES=all"], "all"),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=1"], "1"),
    ],
)
def test_the_variable_keeps_the_value_asked_for(env: list[str], value: str) -> None:
    assert decide(*env)["env"] == [("NVIDIA_VISIBLE_DEVICES", value)]


def test_the_variable_names_uuids_when_the_request_came_otherwise() -> None:
    spec = {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0,nvidia.com/gpu=2:0"}}
    assert decide(spec=spec)["env"] == [("NVIDIA_VISIBLE_DEVICES", f"{UUIDS[0]},MIG-1")]


def test_a_legacy_image_is_told_what_it_got() -> None:
    assert decide("CUDA_VERSION=8.0")["env"] == [("NVIDIA_VISIBLE_DEVICES", f"{UUIDS[0]},{UUIDS[1]},MIG-1")]


def test_requirements_count_for_each_gpu_chosen() -> None:
    inventory = snapshot(gpus=[gpu(0, 1), gpu(1, 2, arch="7.0")])
    decide("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_ARCH=arch>=8.0", inventory=inventory)
    with pytest.raises(GpushimError) as caught:
        decide("NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_REQUIRE_ARCH=arch>=8.0", inventory=inventory)
    assert caught.value.exit_code == REQUIREMENT


def test_an_unmet_cuda_requirement_says_the_words_users_know() -> None:
    known = (
        "unsatisfied condition: cuda>=12.3, "
        "please update your driver to a newer version, or use an earlier cuda container"
    )
    with pytest.raises(GpushimError) as caught:
        decide("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.3")
    assert known in str(caught.value)
    assert "12.2" in str(caught.value)


@pytest.mark.parametrize(
    ("env", "gone", "words"),
    [
        ([], "/dev/nvidiactl", "/dev/nvidiactl is not on this host"),
        ([], "/dev/nvidia-uvm", "CUDA needs it"),
        ([], "/dev/nvidia1", "it is GPU 0"),
        (["NVIDIA_MIG_CONFIG_DEVICES=all"], CAPS + "1", "NVIDIA_MIG_CONFIG_DEVICES asks for it"),
    ],
)
def test_a_missing_node_is_a_refusal(env: list[str], gone: str, words: str) -> None:
    inventory = snapshot()
    inventory["nodes"].pop(gone, None)
    with pytest.raises(GpushimError, match=words) as caught:
        decide("NVIDIA_VISIBLE_DEVICES=0", *env, inventory=inventory)
    assert caught.value.exit_code == INVENTORY


@pytest.mark.parametrize(("name", "gone"), [("all", "/dev/nvidia1"), ("all", CAPS + "12"), ("2:0", "/dev/nvidia0")])
def test_among_strangers_a_missing_node_tells_no_device(name: str, gone: str) -> None:
    inventory = snapshot()
    del inventory["nodes"][gone]
    inventory["policy"]["requests"]["list-devices-in-refusals"] = False
    with pytest.raises(GpushimError) as caught:
        decide("NVIDIA_VISIBLE_DEVICES=" + name, inventory=inventory)
    assert str(caught.value).startswith("a node of a GPU is not on this host, or is not that device; run gpushim")


LOST = {"problem": "it fell off the bus", "arch": "7.0"}
BESIDE_LOST: list[tuple[list[Any], list[str], list[str]]] = [  # GPUs, nodes, buses whose directories are covered
    ([gpu(0, 1), gpu(1, 2, **LOST)], ["/dev/nvidia1", "/dev/nvidia2"], []),
    ([gpu(0, 1, **LOST), gpu(1, 2, **LOST)], ["/dev/nvidia1", "/dev/nvidia2"], []),
    ([gpu(0, 1), gpu(1, 7, **LOST)], ["/dev/nvidia1"], ["01"]),
    ([gpu(1, 7, **LOST)], [], ["01"]),
    ([], [], []),
]


@pytest.mark.parametrize(("gpus", "nodes", "covered"), BESIDE_LOST)
@pytest.mark.parametrize("how", ["variable", "mount", "annotation"])
def test_all_usable_gives_what_is_there(gpus: list[Any], nodes: list[str], covered: list[str], how: str) -> None:
    """A condition counts for what can be used; files and control nodes are the driver's."""
    place = "/var/run/nvidia-container-devices/all-usable"
    env = ["NVIDIA_REQUIRE_ARCH=arch>=8.0"] if any(not one["problem"] for one in gpus) else []
    spec: Any = {"process": {"env": env, "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}}
    if how == "variable":
        env.append("NVIDIA_VISIBLE_DEVICES=all-usable")
    elif how == "mount":
        spec["mounts"] = [{"source": "/dev/null", "destination": place}]
    else:
        spec["annotations"] = {"cdi.k8s.io/x": "nvidia.com/gpu=all-usable"}
    inventory = snapshot(gpus=gpus, mig=[], missing=["GPU 9 is left out"])
    inventory["policy"]["requests"]["accept-volume-mounts"] = True
    found = decide(spec=spec, inventory=inventory)
    assert paths(found) == [*CONTROL, *nodes, *ENDS]
    (hook,) = found["hook"]
    directories = [f"/e::/proc/driver/nvidia/gpus/0000:{bus}:00.0" for bus in covered]
    assert [word for word in hook["args"] if "/gpus/" in word] == directories
    names = ",".join(one["uuid"] for one in gpus if one["node"] in nodes) or "none"
    assert found["env"] == [("NVIDIA_VISIBLE_DEVICES", "all-usable" if how == "variable" else names)]


def test_without_uvm_a_utility_container_is_served() -> None:
    inventory = snapshot()
    del inventory["nodes"]["/dev/nvidia-uvm"], inventory["nodes"]["/dev/nvidia-uvm-tools"]
    found = decide("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility", inventory=inventory)
    assert paths(found) == ["/dev/nvidiactl", "/dev/nvidia1"]


def test_a_host_that_cannot_serve_refuses_with_its_reason() -> None:
    error = {"sentence": "the NVIDIA kernel module is 1 but its libraries are 2", "code": DRIVER}
    with pytest.raises(GpushimError, match="kernel module is 1") as caught:
        decide("NVIDIA_VISIBLE_DEVICES=none", inventory=snapshot(error=error))
    assert caught.value.exit_code == DRIVER


@pytest.mark.parametrize("item", ["7", "GPU-99999999", "2:5", "MIG-2", "x y", "evil.com/gpu=0", "../x"])
def test_never_fewer_than_asked_for(item: str) -> None:
    with pytest.raises(GpushimError) as caught:
        decide(f"NVIDIA_VISIBLE_DEVICES=0,{item}")
    assert caught.value.exit_code == REQUEST
    assert item in str(caught.value)


@pytest.mark.parametrize("name", ["docker-config.json", "docker-privileged-config.json"])
@pytest.mark.parametrize("asked", ["0", "all", "none", "2:0"])
def test_a_second_run_on_a_real_config_changes_nothing(name: str, asked: str) -> None:
    spec = json.loads((DATA / name).read_text())
    spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=void", f"NVIDIA_VISIBLE_DEVICES={asked}"]
    inventory = snapshot()
    results = []
    for _ in range(2):
        wanted = request.read(spec, inventory["policy"])
        assert wanted is not None
        edits.apply(plan(wanted, inventory, BUNDLE)[0], spec)
        results.append(copy.deepcopy(spec))
    assert results[0] == results[1]
    assert spec["process"]["env"].count(f"NVIDIA_VISIBLE_DEVICES={asked}") == 1


def test_every_mount_comes_from_the_inventory() -> None:
    inventory = snapshot()
    known = {file["path"] for files in inventory["files"].values() for file in files} - {SOCKET}
    found = decide("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", inventory=inventory)
    assert {mount["source"] for mount in found["mount"]} == known


@pytest.mark.parametrize("spec", FOREIGN_ONLY)
@pytest.mark.parametrize("error", [None, {"sentence": "there is no driver", "code": INVENTORY}])
def test_devices_of_others_need_no_driver(tmp_path: Path, spec: Any, error: Any) -> None:
    found = decide(spec=spec, inventory=with_specs(tmp_path, error=error))
    assert found["env"] == [(DEVICES, "void"), ("NET", "a")]
    assert [node["path"] for node in found["set-node"]] == ["/dev/null"]
    assert found["rule"] == [("c", 1, 3, "rwm")]
    assert not found["node"] + found["mount"] + found["hook"]


@pytest.mark.parametrize(
    ("wanted", "gpus", "env"),
    [
        ("0,vendor.com/net=a", ["/dev/nvidia1"], [(DEVICES, "0,vendor.com/net=a"), ("NET", "a")]),
        ("vendor.com/net=a,nvidia.com/gpu=1", ["/dev/nvidia2"], None),
        ("vendor.com/net=a,none", [], [(DEVICES, "vendor.com/net=a,none"), ("NET", "a")]),
        ("all,vendor.com/net=a", ["/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia0"], None),
        ("0,nvidia.com/gpu=special", ["/dev/nvidia1"], [(DEVICES, "void")]),
    ],
)
def test_own_gpus_and_devices_of_others_mix(tmp_path: Path, wanted: str, gpus: list[str], env: Any) -> None:
    found = decide(f"{DEVICES}={wanted}", inventory=with_specs(tmp_path))
    assert [path for path in paths(found) if path[11:].isdigit()] == gpus
    assert [node["path"] for node in found["set-node"]] == ["/dev/null"]
    assert len(found["hook"]) == 1
    assert env is None or found["env"] == env


def test_a_mixed_request_needs_what_its_gpus_need(tmp_path: Path) -> None:
    error = {"sentence": "there is no driver", "code": DRIVER}
    with pytest.raises(GpushimError, match="there is no driver"):
        decide(f"{DEVICES}=0,vendor.com/net=a", inventory=with_specs(tmp_path, error=error))
    with pytest.raises(GpushimError) as caught:
        decide(f"{DEVICES}=0,vendor.com/net=a", "NVIDIA_REQUIRE_CUDA=cuda>=99", inventory=with_specs(tmp_path))
    assert caught.value.exit_code == REQUIREMENT


def test_none_beside_devices_of_others_brings_no_features(tmp_path: Path) -> None:
    found = decide(f"{DEVICES}=none,vendor.com/net=a", "NVIDIA_GDS=enabled", inventory=with_specs(tmp_path))
    assert "/dev/nvidia-fs0" not in paths(found)


def test_an_unknown_name_of_our_own_kind_is_sought_in_the_specs(tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match=r'the device "nvidia\.com/gpu=other"; gpushim cdi list') as caught:
        decide(f"{DEVICES}=nvidia.com/gpu=other", inventory=with_specs(tmp_path))
    assert caught.value.exit_code == REQUEST


@pytest.mark.parametrize("env", [["0,nvidia.com/gpu=special"], ["vendor.com/net=a"], ["all,vendor.com/net=a"]])
def test_a_plan_with_devices_of_others_applies_once(tmp_path: Path, env: list[str]) -> None:
    inventory = with_specs(tmp_path)
    spec: dict[str, Any] = {"process": {"env": [f"{DEVICES}={env[0]}"]}}
    wanted = request.read(spec, inventory["policy"])
    assert wanted is not None
    found = plan(wanted, inventory, BUNDLE)[0]
    assert edits.apply(copy.deepcopy(found), spec)
    assert not edits.apply(found, spec)


CHANNEL = "/dev/nvidia-caps-imex-channels/channel3"


@pytest.mark.parametrize(
    ("names", "more"),
    [
        ("imex-channel-3", [CHANNEL]),
        ("gds", ["/dev/nvidia-fs0"]),
        ("gds,nvidia.com/gpu=imex-channel-3", [CHANNEL, "/dev/nvidia-fs0"]),
        ("0,nvidia.com/gpu=gds", ["/dev/nvidia-fs0"]),
        ("all,nvidia.com/gpu=imex-channel-3", [CHANNEL]),
    ],
)
def test_cdi_names_of_what_is_beside_gpus_need_no_spec(names: str, more: list[str]) -> None:
    asked = f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu={names}"
    assert [path for path in paths(decide(asked)) if path in (CHANNEL, "/dev/nvidia-fs0")] == more


def test_same_channel_and_feature_by_name_and_by_variable_come_once() -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=0,nvidia.com/gpu=gds,nvidia.com/gpu=imex-channel-3"]
    both = [*env, "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=3"]
    assert decide(*both)["node"] == decide(*env)["node"]


def test_a_name_is_the_reason_for_what_it_brings() -> None:
    wanted = request.read({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=gds"]}}, snapshot()["policy"])
    assert wanted is not None
    reasons = [edit.why for edit in plan(wanted, snapshot(), BUNDLE)[0]]
    assert ["CDI device nvidia.com/gpu=gds"] in reasons


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mofed", 'asks for the CDI device "nvidia.com/gpu=mofed", but this host has no device node for it'),
        ("nvswitch", 'asks for the CDI device "nvidia.com/gpu=nvswitch", but this host has no device node for it'),
        ("imex-channel-4", "the container asks for the IMEX channel 4, but there is no"),
    ],
)
def test_what_the_host_does_not_have_beside_gpus_is_refused(name: str, why: str) -> None:
    with pytest.raises(GpushimError, match=why):
        decide(f"NVIDIA_VISIBLE_DEVICES=0,nvidia.com/gpu={name}")


def test_a_channel_that_the_policy_ignores_does_not_come_by_its_cdi_name() -> None:
    host = snapshot()
    host["policy"]["requests"] = {**host["policy"]["requests"], "ignore-imex-channel-requests": True}
    spec = {"process": {}, "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0,nvidia.com/gpu=imex-channel-3"}}
    found = decide(inventory=host, spec=spec)
    assert CHANNEL not in paths(found)
    assert "/dev/nvidia1" in paths(found)


@pytest.mark.parametrize(("capability", "soname"), [("compute", "libcuda.so.1"), ("utility", "libnvidia-ml.so.1")])
def test_a_capability_without_the_library_that_it_needs_is_refused(capability: str, soname: str) -> None:
    inventory = snapshot(files={**BARE, capability: [{"path": "/usr/bin/x", "kind": "binary"}]})
    with pytest.raises(GpushimError, match=f"the capability {capability}, and the driver has no {soname}"):
        decide("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={capability}", inventory=inventory)
    assert decide("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics", inventory=inventory)


def compat_refusal(*env: str, inventory: Any, **bundle: Any) -> str:
    (hook,) = decide("NVIDIA_VISIBLE_DEVICES=0", *env, inventory=inventory, **bundle)["hook"]
    options = dict(zip(hook["args"][2::2], hook["args"][3::2]))
    assert ("--driver" in options) is ("--own-libcuda" not in options)
    return str(options.get("--own-libcuda", ""))


def branded(brand: str, model: str = "", other: str = "Nvidia") -> Any:
    found = snapshot()
    for one, name in zip(found["gpus"], (brand, other, other)):
        one.update(brand=name, model=model if name == brand else "")
    return found


@pytest.mark.parametrize(
    ("brand", "model", "word"),
    [
        *((brand, "", "") for brand in ("Tesla", "Nvidia", "QuadroRTX", "NvidiaRTX", "Unknown", "")),
        *((brand, "", f"GPU 0 is a {brand}, ") for brand in ("GeForce", "GeForceRTX", "Titan", "TitanRTX", "Quadro")),
        ("", "NVIDIA GeForce RTX 3090", "error 804"),
        ("Unknown", "NVIDIA TITAN V", "error 804"),
    ],
)
def test_a_newer_libcuda_only_where_the_gpu_can_have_it(brand: str, model: str, word: str) -> None:
    found = compat_refusal(inventory=branded(brand, model))
    assert bool(found) is bool(word)
    assert word in found


def test_a_newer_libcuda_by_the_gpus_of_the_container_and_in_a_cdi_spec_by_all() -> None:
    inventory = branded("Nvidia", other="GeForce")
    assert compat_refusal(inventory=inventory) == ""
    assert "GPU 1 is a GeForce" in compat_refusal(inventory=inventory, rootfs="")
    assert "GPU 1 is a GeForce" in compat_refusal("NVIDIA_VISIBLE_DEVICES=0,1", inventory=inventory)
    inventory["gpus"][2]["brand"] = "Titan"
    assert "GPU 2 is a Titan" in compat_refusal("NVIDIA_VISIBLE_DEVICES=2:0", inventory=inventory)


def test_a_newer_libcuda_can_be_forbidden() -> None:
    inventory = snapshot()
    assert (
        compat_refusal("NVIDIA_DISABLE_CUDA_COMPAT=true", inventory=inventory) == "NVIDIA_DISABLE_CUDA_COMPAT is true"
    )
    assert compat_refusal("NVIDIA_DISABLE_CUDA_COMPAT=0", inventory=inventory) == ""
    inventory["policy"]["requests"] = {**inventory["policy"]["requests"], "cuda-compat": False}
    assert compat_refusal(inventory=inventory) == "[requests] cuda-compat is false"
