"""Labels are those of GPU feature discovery, with its spelling."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.cluster import label_names, labels
from gpuplugin.settings import settings, sharing
from gpuplugin.settings.resources import PREFIX
from gpushim.ground.errors import GpushimError
from gpushim.inventory.nvml import ATTRIBUTES
from unit.gpuplugin.snapshots import gpu, mig, snapshot

VALUE = re.compile("(?!.{64})([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")  # of a label, in Kubernetes
KEY = re.compile("nvidia.com/(?!.{64})[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
CLUSTER = "00112233-4455-6677-8899-aabbccddeeff"
MODEL = "NVIDIA A100-SXM4-40GB"
SHARED = {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 4}]}}
RENAMED = {"timeSlicing": {"renameByDefault": True, **SHARED["timeSlicing"]}}
MPS = {"mps": {"resources": [{"name": "gpu", "replicas": 4}]}}
ONE_RENAMED = {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": 1, "rename": "gpu.part"}]}}
FIRST = {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": 1}]}}
SLICES = {"timeSlicing": {"resources": [{"name": "mig-1g.5gb", "replicas": 3}]}}


def said(there: Any, shared: Any = None, **values: Any) -> dict[str, str]:
    """The labels of a snapshot, without the prefix."""
    found = settings.resolve({}, {}, values)
    found.sharing = sharing.read(shared, "file", [])
    return {name.replace(PREFIX, ""): value for name, value in labels.labels(there, found, "DGX-1").items()}


def divided(*profiles: str, **more: Any) -> Any:
    """A host whose only GPU has such instances."""
    return snapshot([gpu(0, mig=True)], [mig(0, place, profile) for place, profile in enumerate(profiles)], **more)


def test_whole_gpus_that_are_not_shared() -> None:
    assert said(snapshot([gpu(0), gpu(1)])) == {
        "cuda.driver-version.full": "580.65.06",
        "cuda.driver-version.major": "580",
        "cuda.driver-version.minor": "65",
        "cuda.driver-version.revision": "06",
        "cuda.driver.major": "580",
        "cuda.driver.minor": "65",
        "cuda.driver.rev": "06",
        "cuda.runtime-version.full": "13.0",
        "cuda.runtime-version.major": "13",
        "cuda.runtime-version.minor": "0",
        "cuda.runtime.major": "13",
        "cuda.runtime.minor": "0",
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "gpu.count": "2",
        "gpu.family": "ampere",
        "gpu.machine": "DGX-1",
        "gpu.memory": "40960",
        "gpu.mode": "compute",
        "gpu.product": "NVIDIA-A100-SXM4-40GB",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": "true",
        "mps.capable": "false",
        "vgpu.present": "false",
    }


@pytest.mark.parametrize(
    ("shared", "product", "replicas", "strategy", "mps"),
    [
        (SHARED, "NVIDIA-A100-SXM4-40GB-SHARED", "4", "time-slicing", "false"),
        (RENAMED, "NVIDIA-A100-SXM4-40GB", "4", "time-slicing", "false"),
        (MPS, "NVIDIA-A100-SXM4-40GB-SHARED", "4", "mps", "true"),
        # Of three GPUs one is shared: by another name, which nobody asks for with nvidia.com/gpu; or by this one.
        (ONE_RENAMED, "NVIDIA-A100-SXM4-40GB", "1", "none", "false"),
        (FIRST, "NVIDIA-A100-SXM4-40GB-SHARED", "2", "time-slicing", "false"),
    ],
)
def test_shared_gpus(shared: Any, product: str, replicas: str, strategy: str, mps: str) -> None:
    found = said(snapshot([gpu(0), gpu(1), gpu(2)]), shared)
    names = ("gpu.product", "gpu.replicas", "gpu.sharing-strategy", "mps.capable", "gpu.count")
    assert [found[name] for name in names] == [product, replicas, strategy, mps, "3"]


def test_of_several_models_the_one_that_most_are_of() -> None:
    other: Any = {"model": "NVIDIA H100 PCIe", "arch": "9.0", "memory": 81559}
    found = said(snapshot([gpu(0), gpu(1, **other), gpu(2, **other)]))
    assert (found["gpu.product"], found["gpu.count"], found["gpu.family"]) == ("NVIDIA-H100-PCIe", "2", "hopper")
    found = said(snapshot([gpu(0), gpu(1, **other)]))
    assert (found["gpu.product"], found["gpu.memory"]) == ("NVIDIA-A100-SXM4-40GB", "40960")


def test_what_is_left_out_is_not_counted() -> None:
    assert said(snapshot([gpu(0), gpu(1)]), exclude=["1"])["gpu.count"] == "1"
    assert said(snapshot([gpu(0)]), exclude=["0"]) == {}


def test_a_sick_gpu_counts_and_tells_nothing() -> None:
    found = said(snapshot([gpu(0, problem="lost", arch="", memory=0), gpu(1)]))
    assert (found["gpu.count"], found["gpu.memory"], found["gpu.family"]) == ("2", "40960", "ampere")


def test_a_host_that_cannot_serve_gpus_has_no_labels() -> None:
    assert said(snapshot([gpu(0)], error={"sentence": "no driver", "code": 12})) == {}
    assert said(snapshot([])) == {}


def test_what_is_not_known_has_no_label() -> None:
    there = snapshot(
        [gpu(0, arch="", memory=0)], source="proc", driver={"version": "580", "cuda": "", "dev-root": "/"}
    )
    names = {name for name in said(there) if re.match(r"cuda|gpu\.(compute|memory|family|clique)", name)}
    assert names == {"cuda.driver-version.full"}


@pytest.mark.parametrize(
    ("version", "parts"), [("535.161.08", ["535", "161", "08"]), ("550.54", ["550", "54", ""])]
)  # fmt: skip
def test_a_drivers_version(version: str, parts: list[str]) -> None:
    found = said(snapshot([gpu(0)], driver={"version": version, "cuda": "12.2", "dev-root": "/"}))
    assert [found[f"cuda.driver-version.{name}"] for name in ("major", "minor", "revision")] == parts
    assert [found[f"cuda.driver.{name}"] for name in ("major", "minor", "rev")] == parts


@pytest.mark.parametrize(
    ("arch", "family"),
    [
        ("3.5", "kepler"), ("4.0", "undefined"), ("5.2", "maxwell"), ("6.1", "pascal"), ("7.0", "volta"),
        ("7.5", "turing"), ("8.6", "ampere"), ("8.9", "ada-lovelace"), ("9.0", "hopper"), ("10.0", "blackwell"),
        ("11.0", "undefined"), ("12.1", "blackwell"), ("13.0", "rubin"), ("14.0", "undefined"),
    ],
)  # fmt: skip
def test_families(arch: str, family: str) -> None:
    assert labels.family(arch) == family


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        (["0x030200"] * 2, "compute"), (["0x030000"] * 2, "graphics"), (["0x030000", "0x030200"], "unknown"),
        (["0x038000"] * 2, "unknown"), (["", ""], "unknown"),
    ],
)  # fmt: skip
def test_modes(classes: list[str], mode: str) -> None:
    there = snapshot([gpu(index, pci_class=name) for index, name in enumerate(classes)])
    assert said(there)["gpu.mode"] == mode


def test_virtual_gpus_and_cliques() -> None:
    one, other = f"{CLUSTER}.7", f"{CLUSTER}.8"
    found = said(snapshot([gpu(0, vgpu=True, mig_capable=False, fabric=one), gpu(1, mig_capable=False)]))
    assert (found["vgpu.present"], found["mig.capable"], found["gpu.clique"]) == ("true", "false", one)
    assert "gpu.clique" not in said(snapshot([gpu(0, fabric=one), gpu(1, fabric=other)]))


def test_mig_none_says_nothing_of_instances() -> None:
    found = said(divided("1g.5gb"))
    assert not {name for name in found if name.startswith("mig-")} | {"mig.strategy"} & found.keys()
    assert (found["gpu.product"], found["gpu.count"], found["gpu.replicas"]) == ("NVIDIA-A100-SXM4-40GB", "1", "0")


def test_mig_single() -> None:
    found = said(divided("1g.5gb", "1g.5gb"), **{"mig-strategy": "single"})
    of_gpu = {name: value for name, value in found.items() if name.startswith(("gpu", "mig"))}
    assert of_gpu == {
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "gpu.count": "2",
        "gpu.engines.copy": "1",
        "gpu.family": "ampere",
        "gpu.machine": "DGX-1",
        "gpu.memory": "4864",
        "gpu.mode": "compute",
        "gpu.multiprocessors": "14",
        "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.slices.ci": "1",
        "gpu.slices.gi": "1",
        "mig.capable": "true",
        "mig.strategy": "single",
    }


def test_mig_single_without_a_gpu_in_mig_mode_is_none() -> None:
    found = said(snapshot([gpu(0)]), **{"mig-strategy": "single"})
    assert (found["gpu.product"], found["mig.strategy"]) == ("NVIDIA-A100-SXM4-40GB", "single")


@pytest.mark.parametrize(
    "there",
    [
        divided("1g.5gb", "2g.10gb"),
        divided(),
        snapshot([gpu(0, mig=True), gpu(1)], [mig(0, 0)]),
    ],
    ids=["two profiles", "no instance", "a whole GPU besides"],
)
def test_mig_single_that_is_invalid(there: Any) -> None:
    found = said(there, **{"mig-strategy": "single"})
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    assert {found[f"gpu.{name}"] for name in ("count", "replicas", "memory")} == {"0"}


def test_mig_mixed() -> None:
    there = snapshot(
        [gpu(0, mig=True), gpu(1)], [mig(0, 0), mig(0, 1), mig(0, 2, "1g.10gb+me"), mig(0, 3, "1c.2g.10gb")]
    )
    found = said(there, SLICES, **{"mig-strategy": "mixed"})
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert (found["gpu.count"], found["gpu.replicas"]) == ("2", "1")  # of the model, with those in MIG mode
    assert {name: value for name, value in found.items() if name.startswith("mig-1g.5gb")} == {
        "mig-1g.5gb.count": "2",
        "mig-1g.5gb.engines.copy": "1",
        "mig-1g.5gb.memory": "4864",
        "mig-1g.5gb.multiprocessors": "14",
        "mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED",
        "mig-1g.5gb.replicas": "3",
        "mig-1g.5gb.sharing-strategy": "time-slicing",
        "mig-1g.5gb.slices.ci": "1",
        "mig-1g.5gb.slices.gi": "1",
    }
    assert found["mig-1g.10gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.10gbme"
    assert not [name for name in found if "1c" in name]  # which is no resource


def test_all_gpus_of_windows_are_one_device() -> None:
    there = snapshot([gpu(0), gpu(1)], platform="wsl")
    found = said(there, SHARED, exclude=["0"])
    assert (found["gpu.count"], found["gpu.replicas"], found["gpu.product"][-7:]) == ("2", "4", "-SHARED")


def test_sharing_that_does_not_go_together_is_refused() -> None:
    with pytest.raises(GpushimError, match="in MIG mode"):
        said(divided("1g.5gb"), MPS)


@pytest.mark.parametrize(
    ("text", "more", "value"),
    [
        ("NVIDIA GeForce RTX 3090", (), "NVIDIA-GeForce-RTX-3090"),
        ("  DGX  A100\n", (), "DGX-A100"),
        ("Tesla (T4) / Ünit", ("MIG", "1g.10gb+me"), "Tesla-T4-nit-MIG-1g.10gbme"),
        ("-._", (), ""),
        ("€", ("SHARED",), ""),
        ("a" * 80, ("MIG", "INVALID"), "a" * 51 + "-MIG-INVALID"),
        ("a" * 55 + " bcdefghij", ("SHARED",), "a" * 55 + "-SHARED"),
    ],
)
def test_values_are_spelled_as_kubernetes_wants_them(text: str, more: tuple[str, ...], value: str) -> None:
    assert labels.value(text, *more) == value


texts = st.text(max_size=90)


@given(
    model=texts,
    profile=texts,
    version=texts,
    shared=st.sampled_from([None, SHARED, MPS]),
    strategy=st.sampled_from(["none", "single", "mixed"]),
)
def test_every_label_is_valid(model: str, profile: str, version: str, shared: Any, strategy: str) -> None:
    there = snapshot([gpu(0, model=model), gpu(1, model=model, mig=strategy != "none")])
    there["mig"] = [mig(1, 0, profile)] if strategy != "none" else []
    there["driver"]["version"] = version
    for name, value in said(there, shared, **{"mig-strategy": strategy}).items():
        assert KEY.fullmatch(PREFIX + name), name
        assert VALUE.fullmatch(value), (name, value)


@pytest.mark.parametrize(("text", "value"), [("DGX A100\n", "DGX-A100"), ("", "unknown"), (None, "unknown")])
def test_the_machine(tmp_path: Path, text: str | None, value: str) -> None:
    path = tmp_path / "product_name"
    if text is not None:
        path.write_text(text)
    assert labels.machine(str(path)) == value


def test_the_table_has_all_labels_and_no_other() -> None:
    fabric = "00112233-4455-6677-8899-aabbccddeeff.7"
    there = snapshot([gpu(0, mig=True, fabric=fabric), gpu(1)], [mig(0, 0)])
    there["mig"][0]["attributes"] = dict.fromkeys(ATTRIBUTES, 1)
    more = {name.removeprefix(PREFIX) for name in (labels.TIMESTAMP, labels.MIG_STATE)}
    names = {*said(there, **{"mig-strategy": "mixed"}), *more}
    assert names == label_names.TEXTS.keys()
