"""Bad requests (groups 18 to 23 of docs/testing.md): variables, mounts and annotations that name devices.

Every value is answered in full or refused. What each form of a name means is in tests/unit (request, selection,
require).
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
    "empty": ("", 0, []),
    "void": ("void", 0, []),
    "none": ("none", 0, []),
    "all": ("all", 0, [0, 1, 2]),
    "ALL": ("ALL", 10, []),
    "all and more": ("all,1", 0, [0, 1, 2]),
    "none and more": ("none,1", 0, []),
    "void and more": ("1,void", 0, []),
    "a comma at the end": ("1,", 0, [1]),
    "commas": (",,", 0, []),
    "twice": ("1,1", 0, [1]),
    "negative": ("-1", 10, []),
    "two zeros": ("00", 10, []),
    "hexadecimal": ("0x1", 10, []),
    "exponent": ("1e0", 10, []),
    "space": (" 1", 0, [1]),
    "spaces": (" 1 , 2 ", 0, [1, 2]),
    "range": ("1-2", 0, [1, 2]),
    "range downwards": ("2-1", 10, []),
    "range without end": ("0-99999999999999999999", 10, []),
    "too many": (MANY, 10, []),
    "1 MB": ("x" * (1 << 20), 10, []),
    "1 MB of commas": ("," * (1 << 20), 10, []),
    "Arabic digit": ("\u0661", 10, []),
    "full width digit": ("\uff11", 10, []),
    "superscript": ("\u00b9", 10, []),
    "UUID in lower case": ("uuid", 0, [1]),
    "UUID cut": ("GPU-", 10, []),
    "UUID of nobody": ("GPU-00000000-0000-0000-0000-000000000000", 10, []),
    "UUID beginning": ("GPU-0000000", 10, []),
    "PCI": ("pci", 0, [1]),
    "PCI of nobody": ("ffff:ff:1f.7", 10, []),
    "PCI cut": ("0000:3b:", 10, []),
    "MIG": ("0:0", 0, [0]),
    "MIG of nobody": ("0:99", 10, []),
    "MIG of a GPU without": ("1:0", 10, []),
    "MIG in the old form, of nobody": ("MIG-GPU-00000000-0000-0000-0000-000000000000/99/0", 10, []),
    "MIG UUID of nobody": ("MIG-00000000-0000-0000-0000-000000000000", 10, []),
    "path": ("/dev/nvidia1", 10, []),
    "climbing path": ("../1", 10, []),
    "option": ("--ldconfig=/x", 10, []),
    "command": ("$(x)", 10, []),
    "semicolon": (";", 10, []),
    "newline": ("1\n2", 10, []),
    "newline at the end": ("1\n", 0, [1]),
    "escape sequence": ("\x1b[31mred\x07", 10, []),
    "quotation marks": ('"\\"', 10, []),
    "CDI": ("nvidia.com/gpu=1", 0, [1]),
    "CDI all": ("nvidia.com/gpu=all", 0, [0, 1, 2]),
    "CDI of nobody": ("nvidia.com/gpu=99", 10, []),
    "CDI management": ("management.nvidia.com/gpu=all", 10, []),
    "CDI of others": ("evil.com/x=y", 10, []),
    "CDI automatic": ("runtime.nvidia.com/gpu=1", 0, [1]),
    "CDI without a name": ("nvidia.com/gpu=", 10, []),
    "CDI climbing": ("../../etc/x=y", 10, []),
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
    "capabilities all": (["NVIDIA_DRIVER_CAPABILITIES=all"], 0),
    "capabilities empty": (["NVIDIA_DRIVER_CAPABILITIES="], 0),
    "capabilities commas": (["NVIDIA_DRIVER_CAPABILITIES=,,"], 0),
    "capabilities unknown": (["NVIDIA_DRIVER_CAPABILITIES=compute,rootkit"], 10),
    "capabilities twice": (["NVIDIA_DRIVER_CAPABILITIES=compute,compute"], 0),
    "capabilities upper case": (["NVIDIA_DRIVER_CAPABILITIES=Compute"], 10),
    "capabilities with spaces": (["NVIDIA_DRIVER_CAPABILITIES= compute , utility "], 0),
    "capabilities split by spaces": (["NVIDIA_DRIVER_CAPABILITIES=compute utility"], 10),
    "capabilities 1 MB": (["NVIDIA_DRIVER_CAPABILITIES=" + "compute," * (1 << 17)], 10),
    "capabilities a CDI device": (["NVIDIA_DRIVER_CAPABILITIES=nvidia.com/gpu=all"], 10),
    "capabilities an escape sequence": (["NVIDIA_DRIVER_CAPABILITIES=\x1b[2J\n"], 10),
    # Group 20.
    "requirement": (["NVIDIA_REQUIRE_CUDA=cuda>=12.2"], 0),
    "requirement unmet": (["NVIDIA_REQUIRE_CUDA=cuda>=9999999999999999999.0"], 11),
    "requirement without a value": (["NVIDIA_REQUIRE_CUDA=cuda>="], 10),
    "requirement without an operator": (["NVIDIA_REQUIRE_CUDA=cuda"], 10),
    "requirement of odd operators": (["NVIDIA_REQUIRE_CUDA=cuda=>12"], 10),
    "requirement of digits": (["NVIDIA_REQUIRE_CUDA=cuda>=" + "9" * 60_000], 11),
    "requirement of dots": (["NVIDIA_REQUIRE_CUDA=cuda>=" + "1." * 30_000], 0),
    "requirement of many clauses": (["NVIDIA_REQUIRE_CUDA=" + "cuda>=99 " * 7_000], 11),
    "requirement of 100 000 clauses": (["NVIDIA_REQUIRE_CUDA=" + "cuda>=1 " * 100_000], 10),
    "requirements by the thousand": ([f"NVIDIA_REQUIRE_{number}=cuda>=1" for number in range(5000)], 10),
    "requirement not ASCII": (["NVIDIA_REQUIRE_CUDA=cuda>=\u0661\u0662"], 10),
    "requirement of brands": (["NVIDIA_REQUIRE_CUDA=brand=nobody,driver>=1 brand=another"], 11),
    "requirement of an unknown kind": (["NVIDIA_REQUIRE_CUDA=gpu>=1"], 10),
    "requirement blank": (["NVIDIA_REQUIRE_CUDA= \t\n"], 0),
    "requirement malformed, disabled": (["NVIDIA_REQUIRE_CUDA=cuda>=", "NVIDIA_DISABLE_REQUIRE=true"], 0),
    "requirement unmet, disabled by 1": (["NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=1"], 0),
    "requirement unmet, disabled by TRUE": (["NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=TRUE"], 0),
    "requirement unmet, not disabled by yes": (["NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=yes"], 11),
    "old image of no version": (["CUDA_VERSION=x"], 0),
    "old image of a version not known": (["CUDA_VERSION=99.0"], 11),
    # Group 21.
    "IMEX channel": (["NVIDIA_IMEX_CHANNELS=1"], 0),
    "IMEX channel twice": (["NVIDIA_IMEX_CHANNELS=0,0"], 0),
    "IMEX channel that is absent": (["NVIDIA_IMEX_CHANNELS=77"], 12),
    "IMEX channel -1": (["NVIDIA_IMEX_CHANNELS=-1"], 10),
    "IMEX channel 2^31": ([f"NVIDIA_IMEX_CHANNELS={2**31}"], 10),
    "IMEX channel, a path": (["NVIDIA_IMEX_CHANNELS=../../sda"], 10),
    "MIG configuration": (["NVIDIA_MIG_CONFIG_DEVICES=all"], 10),
    "MIG monitor": (["NVIDIA_MIG_MONITOR_DEVICES=0"], 10),
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
    "empty": ([""], 0),
    "odd names": (["a b\x1b", "..."], 10),
    "unknown": (["99"], 10),
    "device below others": (["1/2"], 10),
    "CDI": (["cdi/nvidia.com/gpu/1"], 0),
    "CDI without a device": (["cdi/nvidia.com"], 10),
    "IMEX channel": (["1", "imex/0"], 0),
    "IMEX channel -1": (["1", "imex/-1"], 10),
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
    assert bool(mounts.nodes) == (case in ("one", "CDI", "IMEX channel"))


@pytest.mark.parametrize("source", ["/dev/zero", "dev/null", "/dev/null\x00", "", None])
def test_mounts_of_other_sources_name_nothing(mounts: Scene, source: object) -> None:
    mounts.ask(mounts=[{"destination": LIST + "1", "source": source, "type": "bind"}])
    mounts.untouched()


ANNOTATIONS: dict[str, tuple[dict[str, object], int]] = {
    "one": ({"cdi.k8s.io/x": "nvidia.com/gpu=1"}, 0),
    "twice": ({"cdi.k8s.io/x": "nvidia.com/gpu=1,nvidia.com/gpu=1", "cdi.k8s.io/y": "nvidia.com/gpu=1"}, 0),
    "no key": ({"cdi.k8s.io/": "nvidia.com/gpu=1"}, 0),
    "empty": ({"cdi.k8s.io/x": ""}, 0),
    "commas": ({"cdi.k8s.io/x": ",,"}, 0),
    "no device": ({"cdi.k8s.io/x": "1"}, 10),
    "no class": ({"cdi.k8s.io/x": "nvidia.com=1"}, 10),
    "unknown": ({"cdi.k8s.io/x": "evil.com/x=y"}, 10),
    "number": ({"cdi.k8s.io/x": 1}, 14),
    "list": ({"cdi.k8s.io/x": ["nvidia.com/gpu=1"]}, 14),
    "1 MB": ({"cdi.k8s.io/x": "nvidia.com/gpu=1," * (1 << 16)}, 10),
    "key of 1 MB": ({"cdi.k8s.io/" + "x" * (1 << 20): "1"}, 10),
    "key with an escape sequence": ({"cdi.k8s.io/\x1b[2J\n": "1"}, 10),
}


@pytest.mark.parametrize("case", ANNOTATIONS)
def test_annotations(scene: Scene, case: str) -> None:
    annotations, code = ANNOTATIONS[case]
    scene.ask(annotations=annotations)
    scene.answers(code)
    assert bool(scene.nodes) == (case in ("one", "twice", "no key"))


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
