"""Bad requests: variables, mounts and annotations that name devices.

Every value is answered in full or refused: here what is large, what a terminal or a log would show, and one value of
each kind. What each form of a name means is in tests/unit (request, selection, require).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import fakehost
from e2e import recorder
from e2e.bad_input import Scene
from e2e.trees import TOP
from fakehost import Host

MANY = ",".join(str(number) for number in range(100_000))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A host with a GPU in MIG mode, two without, and IMEX channels."""
    root = tmp_path_factory.mktemp("host") / "root"
    return fakehost.build(str(root), 3, mig=True, imex=2, compile_cache=str(TOP / ".cache" / "fakehost"))


@pytest.fixture(scope="module")
def scene(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A scene whose state is up to date."""
    scene = Scene(tmp_path_factory.mktemp("scene"), host, recorder.build(tmp_path_factory.mktemp("recorder")))
    scene.ask("NVIDIA_VISIBLE_DEVICES=1")
    scene.answers(0)
    return scene


# The code, and for 0 the GPUs by their index on the host.
DEVICES: dict[str, tuple[str, int, list[int]]] = {
    "void": ("void", 0, []),
    "none": ("none", 0, []),
    "all and more": ("all,1", 0, [0, 1, 2]),
    "negative": ("-1", 10, []),
    "too many": (MANY, 10, []),
    "1 MB": ("x" * (1 << 20), 10, []),
    "1 MB of commas": ("," * (1 << 20), 10, []),
    "Arabic digit": ("\u0661", 10, []),
    "UUID in lower case": ("uuid", 0, [1]),
    "PCI": ("pci", 0, [1]),
    "MIG of nobody": ("0:99", 10, []),
    "command": ("$(x)", 10, []),
    "newline at the end": ("1\n", 0, [1]),
    "escape sequence": ("\x1b[31mred\x07", 10, []),
    "CDI of others": ("evil.com/x=y", 10, []),
}  # fmt: skip


@pytest.mark.parametrize("case", DEVICES)
def test_devices(scene: Scene, host: Host, case: str) -> None:
    text, code, indices = DEVICES[case]
    text = {"uuid": host.gpus[1].uuid.lower(), "pci": host.gpus[1].pci}.get(text, text)
    scene.ask(f"NVIDIA_VISIBLE_DEVICES={text}")
    before = scene.config.read_bytes()
    scene.answers(code)
    assert scene.nodes == sorted(f"/dev/nvidia{host.gpus[index].minor}" for index in indices)
    # "none" brings the driver alone.
    assert (scene.config.read_bytes() == before) == (not indices and "none" not in text)


GIVEN: dict[str, tuple[list[str], int]] = {
    # Group 19.
    "capabilities 1 MB": (["NVIDIA_DRIVER_CAPABILITIES=" + "compute," * (1 << 17)], 10),
    "capabilities an escape sequence": (["NVIDIA_DRIVER_CAPABILITIES=\x1b[2J\n"], 10),
    # Group 20.
    "requirement unmet": (["NVIDIA_REQUIRE_CUDA=cuda>=9999999999999999999.0"], 11),
    "requirement of 100 000 clauses": (["NVIDIA_REQUIRE_CUDA=" + "cuda>=1 " * 100_000], 10),
    "requirements by the thousand": ([f"NVIDIA_REQUIRE_{number}=cuda>=1" for number in range(5000)], 10),
    "requirement malformed, disabled": (["NVIDIA_REQUIRE_CUDA=cuda>=", "NVIDIA_DISABLE_REQUIRE=true"], 0),
    "old image of a version not known": (["CUDA_VERSION=99.0"], 11),
    # Group 21.
    "IMEX channel": (["NVIDIA_IMEX_CHANNELS=1"], 0),
    "IMEX channel that is absent": (["NVIDIA_IMEX_CHANNELS=77"], 12),
    "IMEX channel, a path": (["NVIDIA_IMEX_CHANNELS=../../sda"], 10),
}  # fmt: skip


@pytest.mark.parametrize("case", GIVEN)
def test_what_goes_with_a_gpu(scene: Scene, case: str) -> None:
    env, code = GIVEN[case]
    scene.ask("NVIDIA_VISIBLE_DEVICES=1", *env)
    scene.answers(code)
    assert bool(scene.nodes) == (not code)


def test_without_a_gpu_nothing_is_refused(scene: Scene) -> None:
    scene.ask(*[variable for env, _ in GIVEN.values() for variable in env if "CUDA_VERSION" not in variable])
    scene.untouched()


# Group 21, by mounts; and group 22.
LIST = "/var/run/nvidia-container-devices/"
MOUNTS: dict[str, tuple[list[str], int]] = {
    "one": (["1"], 0),
    "climbing": (["../../../etc/1"], 10),
    "odd names": (["a b\x1b", "..."], 10),
    "IMEX channel": (["1", "imex/0"], 0),
    "by the thousand": ([str(number) for number in range(5000)], 10),
}


@pytest.fixture(scope="module")
def mounts(scene: Scene) -> Iterator[Scene]:
    """The scene with a policy that takes mounts as requests, until the other tests come."""
    toml = scene.toml.read_text()
    scene.tell("[requests]", "accept-volume-mounts = true")
    yield scene
    scene.toml.write_text(toml)


@pytest.mark.parametrize("case", MOUNTS)
def test_mounts(mounts: Scene, case: str) -> None:
    names, code = MOUNTS[case]
    given = [{"destination": LIST + name, "source": "/dev/null", "type": "bind"} for name in names]
    mounts.ask(mounts=[*mounts.plain["mounts"], *given])
    mounts.answers(code)
    assert bool(mounts.nodes) == (case in ("one", "IMEX channel"))


@pytest.mark.parametrize("source", ["/dev/zero", None])
def test_mounts_of_other_sources_name_nothing(mounts: Scene, source: object) -> None:
    mounts.ask(mounts=[{"destination": LIST + "1", "source": source, "type": "bind"}])
    mounts.untouched()


ANNOTATIONS: dict[str, tuple[dict[str, object], int]] = {
    "one": ({"cdi.k8s.io/x": "nvidia.com/gpu=1"}, 0),
    "number": ({"cdi.k8s.io/x": 1}, 14),
    "1 MB": ({"cdi.k8s.io/x": "nvidia.com/gpu=1," * (1 << 16)}, 10),
    "key with an escape sequence": ({"cdi.k8s.io/\x1b[2J\n": "1"}, 10),
}


@pytest.mark.parametrize("case", ANNOTATIONS)
def test_annotations(scene: Scene, case: str) -> None:
    annotations, code = ANNOTATIONS[case]
    scene.ask(annotations=annotations)
    scene.answers(code)
    assert bool(scene.nodes) == (case == "one")


# Group 23.
@pytest.mark.parametrize("devices", ["all", "1", "99"])
def test_a_privileged_container_has_every_node_already(scene: Scene, host: Host, devices: str) -> None:
    spec = json.loads((TOP / "tests/data/docker-privileged-config.json").read_text())
    spec["linux"]["devices"] = [
        {"path": f"/dev/nvidia{gpu.minor}", "type": "c", "major": 195, "minor": gpu.minor} for gpu in host.gpus
    ]
    spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={devices}")
    scene.config.write_text(json.dumps(spec))
    scene.answers(10 if devices == "99" else 0)
    assert scene.nodes == sorted(f"/dev/nvidia{gpu.minor}" for gpu in host.gpus)
    assert scene.spec["linux"]["resources"]["devices"] == spec["linux"]["resources"]["devices"]
