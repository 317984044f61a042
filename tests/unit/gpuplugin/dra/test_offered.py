"""What ResourceSlices say of a snapshot's devices, in which order, and that no driver can make a slice be refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.dra import offered
from gpuplugin.dra.offered import GPU, IN_SLICE, MIG, STANDARD, TAINTS, Parts, devices, pcie_root, slices
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

PAGE = (Path(__file__).parents[4] / "docs/dra.md").read_text()
ROOTED = {
    f"/sys/bus/pci/devices/0000:{number + 16:02x}:00.0": f"pci0000:{number // 2 + 9:02x}" for number in range(8)
}
MOST = (
    32  # attributes and capacities of a device (resource.k8s.io/v1, ResourceSliceMaxAttributesAndCapacitiesPerDevice)
)
IDENTIFIER = re.compile("(resource.kubernetes.io/)?[A-Za-z][A-Za-z0-9]{0,31}")
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", re.ASCII)
BOTH = snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)])


def resolve(path: str) -> str:
    root = ROOTED.get(path)
    return f"/sys/devices/{root}/0000:{root[-2:]}:01.0/{path.rpartition('/')[2]}" if root else path


def listed(host: Any, *exclude: str) -> list[offered.Offered]:
    return devices(host, exclude, False, resolve)


def said(one: offered.Offered) -> dict[str, Any]:
    """What a device's attributes and capacities are, without their types."""
    attributes = {name: next(iter(value.values())) for name, value in one.body["attributes"].items()}
    return {**attributes, **{name: value["value"] for name, value in one.body["capacity"].items()}}


def test_a_gpu() -> None:
    (one,) = listed(snapshot([gpu(0, brand="GRID", arch="8.9", fabric="c0ffee.7", addressing="HMM")]))
    name = "gpu-00000000-0000-4000-8000-000000000000"
    assert (one.name, one.uuid, one.body["name"], len(name)) == (name, uuid(0), name, 40)
    assert one.body["attributes"] == {
        "type": {"string": "gpu"},
        "uuid": {"string": uuid(0)},
        "parentUUID": {"string": uuid(0)},
        "productName": {"string": "NVIDIA A100-SXM4-40GB"},
        "brand": {"string": "Grid"},
        "architecture": {"string": "Ada Lovelace"},
        "addressingMode": {"string": "HMM"},
        "profile": {"string": "none"},
        "nvlinkGroup": {"string": uuid(0)},
        "fabricClique": {"string": "c0ffee.7"},
        "cudaComputeCapability": {"version": "8.9.0"},
        "driverVersion": {"version": "580.65.6"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:10:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:09"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "migEnabled": {"bool": False},
        "memoryLimit": {"string": "none"},
    }
    assert one.body["capacity"].pop("memory") == {"value": "40Gi"}
    assert one.body["capacity"].pop("threads") == {"value": "100"}
    assert {value["value"] for value in one.body["capacity"].values()} == {"0"}


def test_a_mig_instance() -> None:
    host = snapshot([gpu(0, mig=True, peers=[[1, 50, 4]]), gpu(1, peers=[[0, 50, 4]])], [mig(0, 3)])
    whole, one = listed(host)
    assert (one.name, one.uuid) == (uuid(3, "MIG").lower(), uuid(3, "MIG"))
    parent = said(listed(snapshot([gpu(0)]))[0])
    own = {"type": "mig", "uuid": uuid(3, "MIG"), "profile": "1g.5gb", "migEnabled": True, "nvlinkGroup": uuid(0)}
    counted = {"memory": "4864Mi", "multiprocessors": "14", "copyEngines": "1"}
    assert said(one) == {**parent, **own, **counted}
    assert said(whole)["nvlinkGroup"] != said(one)["nvlinkGroup"]


def counts() -> dict[str, tuple[int, int]]:
    found = {one.body["attributes"]["type"]["string"]: one.body for one in listed(BOTH)}
    return {kind: (len(body["attributes"]), len(body["capacity"])) for kind, body in found.items()}


def test_each_device_says_the_same_things_and_not_too_many() -> None:
    sick = gpu(2, model="", brand="", arch="", memory=0, numa=-1, pci="", problem="it is lost")
    bare = mig(1, 1)
    bare["attributes"], bare["placement"] = {}, []
    without = {"version": "", "cuda": "", "dev-root": "/"}
    found = listed(BOTH) + listed(snapshot([sick, gpu(1, mig=True)], [bare], driver=without, source="proc"))
    assert len(found) == 4
    for one in found:
        assert said(one).keys() == said(found[0]).keys()
        for part in ("attributes", "capacity"):
            forms = {name: [*value] for name, value in one.body[part].items()}
            assert forms == {name: [*value] for name, value in found[0].body[part].items()}
        assert all(IDENTIFIER.fullmatch(name) for name in said(one))
    assert {kind: sum(both) <= MOST for kind, both in counts().items()} == {GPU: True, MIG: True}


def test_the_page_has_what_is_said() -> None:
    named = set(re.findall(r"^\| `([\w./]+)` \| (?:string|version|int|bool|quantity) \|", PAGE, re.MULTILINE))
    assert named == said(listed(BOTH)[0]).keys()


def test_claims_get_parts_of_memory_and_of_nothing_else() -> None:
    """All of it where they ask for nothing; an instance's engines keep no other claim away."""
    parts = {uuid(0): Parts("container"), uuid(16, "MIG"): Parts("none")}
    whole, part = (one.body for one in devices(BOTH, (), False, resolve, parts))
    for body, memory, limit in ((whole, "40Gi", "container"), (part, "4864Mi", "none")):
        assert body["allowMultipleAllocations"] is True
        assert body["attributes"]["memoryLimit"] == {"string": limit}
        policy = {"default": memory, "validRange": {"min": "16Mi", "max": memory, "step": "1Mi"}}
        assert body["capacity"].pop("memory") == {"value": memory, "requestPolicy": policy}
        nothing = {"default": "0", "validValues": ["0"]}
        assert all(row["requestPolicy"] == nothing for row in body["capacity"].values())
    assert part["capacity"]["multiprocessors"]["value"] == "14"


def test_clients_of_mps_get_threads_which_nobody_reserves() -> None:
    (one,) = devices(snapshot([gpu(0)]), (), False, resolve, {uuid(0): Parts("process", "gpu.mps")})
    policy = {"default": "100", "validRange": {"min": "1", "max": "100", "step": "1"}}
    assert one.body["capacity"]["threads"] == {"value": "4800", "requestPolicy": policy}
    assert one.body["attributes"]["memoryLimit"] == {"string": "process"}
    assert one.group == "gpu.mps"


def test_a_gpu_whose_memory_nobody_knows_stays_whole() -> None:
    (one,) = devices(snapshot([gpu(0, memory=0)]), (), False, resolve, {uuid(0): Parts("container")})
    assert "allowMultipleAllocations" not in one.body


@pytest.mark.parametrize(
    ("host", "exclude", "names"),
    [
        (snapshot([gpu(0), gpu(1, problem="it is lost")]), (), [uuid(0), uuid(1)]),
        (snapshot([gpu(0), gpu(1, uuid="")]), (), [uuid(0)]),
        (snapshot([gpu(0), gpu(1, uuid=uuid(0))]), (), [uuid(0)]),
        (snapshot([gpu(0, mig=True)]), (), []),
        (snapshot([gpu(0, mig=True)], [mig(0, 0), mig(0, 1, "1c.3g.20gb")]), (), [uuid(0, "MIG")]),
        (snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0), mig(1, 1)]), ("0", "1:0"), [uuid(17, "MIG")]),
        (snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)]), (uuid(1),), [uuid(0)]),
        (snapshot([gpu(0)], platform="wsl"), (), []),
        (snapshot([gpu(0)], error={"sentence": "no", "code": 12}), (), []),
        (snapshot([]), (), []),
    ],
)
def test_what_is_offered(host: Any, exclude: tuple[str, ...], names: list[str]) -> None:
    assert [one.uuid for one in listed(host, *exclude)] == names


def test_an_entry_of_exclude_that_names_nothing_is_refused() -> None:
    with pytest.raises(GpushimError, match="which names no device"):
        listed(BOTH, "all")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.54.03", "550.54.3"),
        ("535.104", "535.104.0"),
        ("13", "13.0.0"),
        ("560.35.05-beta+1", "560.35.5"),
        ("1.2.3.4", "1.2.3"),
        ("", "0.0.0"),
        ("?", "0.0.0"),
        ("99999999999999999999.1", "999999999.0.0"),
        ("٣.1", "0.0.0"),
    ],
)
def test_versions_are_semantic_ones(text: str, version: str) -> None:
    host = snapshot([gpu(0, arch=text)], driver={"version": text, "cuda": text})
    found = said(listed(host)[0])
    assert {found[name] for name in ("driverVersion", "cudaDriverVersion", "cudaComputeCapability")} == {version}


@pytest.mark.parametrize(
    ("mib", "quantity"),
    [
        (0, "0"),
        (1, "1Mi"),
        (4864, "4864Mi"),
        (40960, "40Gi"),
        (81559, "81559Mi"),
        (1 << 44, str((1 << 63) - 1)),
        (-1, "0"),
    ],
)
def test_memory_is_written_as_the_api_server_does(mib: int, quantity: str) -> None:
    assert said(listed(snapshot([gpu(0, memory=mib)]))[0])["memory"] == quantity


@given(
    st.text(max_size=200),
    st.lists(st.text(max_size=90), min_size=4, max_size=4),
    st.integers(-(1 << 70), 1 << 70),
)
def test_what_a_driver_says_is_cut_and_cleaned(model: str, texts: list[str], number: int) -> None:
    brand, fabric, own, profile = texts
    parent = gpu(1, mig=True, uuid=own)
    instance = {**mig(1, 0, profile), "uuid": own, "memory": number, "attributes": {"multiprocessors": number}}
    first = gpu(0, uuid=own, model=model, brand=brand, fabric=fabric, arch=own, memory=number, pci=brand)
    host = snapshot([first, parent], [instance], driver={"version": model, "cuda": profile})
    for one in devices(host, (), False, lambda path: path):
        assert re.fullmatch("(gpu|mig)-[a-z0-9]([-a-z0-9]{0,57}[a-z0-9])?", one.name)
        for value in one.body["attributes"].values():
            text = value.get("string")
            assert text is None or (0 < len(text) <= 64 and text.isascii() and text.isprintable())
            assert SEMVER.fullmatch(value.get("version", "0.0.0"))
            assert len(value.get("version", "")) <= 64
        for value in one.body["capacity"].values():
            assert re.fullmatch("[0-9]{1,19}([KMGTPE]i|[kMGTPE])?", value["value"])


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("N" * 65, "N" * 64),
        ("N" * 63 + " X", "N" * 63),
        ("NVIDIA\tA100\n \x00 80é", "NVIDIA A100 80"),
        (" \u2028", "Unknown"),
    ],
)
def test_a_long_or_odd_name_is_cut(model: str, name: str) -> None:
    found = said(listed(snapshot([gpu(0, model=model, fabric=model)]))[0])
    assert (found["productName"], found["fabricClique"]) == (name, name)


@pytest.mark.parametrize("name", ["MIG-GPU-00000000-0000-4000-8000-000000000000/1/0", "GPU-.", "x" * 80])
def test_a_uuid_that_is_no_name_is_hashed(name: str) -> None:
    (one,) = listed(snapshot([gpu(0, uuid=name)]))
    assert re.fullmatch("gpu-[0-9a-f]{32}", one.name)
    assert one.uuid == name
    assert [one] == listed(snapshot([gpu(0, uuid=name)]))


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0", "pci0000:17"),
        ("/sys/devices/platform/soc/pcie/pci0009:00/0009:00:00.0/0009:01:00.0", "pci0009:00"),
        ("/sys/devices/pci10000:e0/10000:e0:01.0", "pci10000:e0"),
        ("/sys/bus/pci/devices/0000:18:00.0", ""),
    ],
)
def test_the_root_is_where_the_link_leads(path: str, root: str) -> None:
    asked: list[str] = []
    assert pcie_root("0000:18:00.0", "/x", lambda link: asked.append(link) or path) == root  # type: ignore[func-returns-value]
    assert asked == ["/x/bus/pci/devices/0000:18:00.0"]


def test_a_gpu_whose_root_is_unknown_shares_it_with_none() -> None:
    found = [said(one)[STANDARD + "pcieRoot"] for one in devices(snapshot([gpu(0), gpu(1)]), (), False, str)]
    assert found == [uuid(0), uuid(1)]


@pytest.mark.parametrize("pci", ["", "0000:00", "../..:00:00.0", "00000000:10:00.0\x00"])
def test_no_odd_address_becomes_a_path(pci: str) -> None:
    asked: list[str] = []
    (one,) = devices(snapshot([gpu(0, pci=pci)]), (), False, lambda path: asked.append(path) or path)  # type: ignore[func-returns-value]
    assert (said(one)[STANDARD + "pciBusID"], asked) == ("Unknown", [])


def test_the_driver_roots_own_sysfs_comes_first() -> None:
    host = snapshot([gpu(0)], inputs={"root": "/r", "sys": "/r/sys"})
    paths = {"/r/sys": "pci0000:aa", "/sys": "pci0000:bb"}

    def first(link: str) -> str:
        return paths.get(link.partition("/bus/")[0], link)

    found = []
    for gone in ("", "/r/sys"):
        paths.pop(gone, None)
        found.append(said(devices(host, (), False, first)[0])[STANDARD + "pcieRoot"])
    assert found == ["pci0000:aa", "pci0000:bb"]


def taint(effect: str, number: int = 0) -> dict[str, Any]:
    return {"key": f"gpu.nvidia.com/k{number}", "value": "79", "effect": effect}


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (64, [64]), (65, [64, 1]), (130, [64, 64, 2])])
def test_no_slice_is_too_long(count: int, sizes: list[int]) -> None:
    found = listed(snapshot([gpu(n, numa=-1) for n in range(count)]))
    parts = slices(found, {})
    assert [len(part) for part in parts] == sizes
    assert [one for part in parts for one in part] == [one.body for one in found]
    assert max(sizes) <= IN_SLICE


def test_taints_go_to_their_device_and_the_strongest_stay() -> None:
    found = listed(BOTH)
    many = [taint(effect, n) for n, effect in enumerate(["None"] * 10 + ["NoSchedule"] * 10 + ["NoExecute"] * 2)]
    ((first, second),) = slices(found, {found[0].name: many, found[1].name: [taint("None")], "gpu-gone": many})
    assert [one["effect"] for one in first["taints"]] == ["NoExecute"] * 2 + ["NoSchedule"] * 10 + ["None"] * 4
    assert (len(first["taints"]), second["taints"]) == (TAINTS, [taint("None")])
    ((first, second),) = slices(found, {found[0].name: []})
    assert "taints" not in {**first, **second}  # nothing of the devices has been changed
