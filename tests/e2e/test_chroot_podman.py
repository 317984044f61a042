"""Podman 5 of two Debians: `--device nvidia.com/gpu=...`, and our runtime, with cgroup v2, on which Podman 6 insists.

test_podman_cdi.py has Podman 4.3 and the other layouts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import chroots, leftovers
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_exactly, sees_nothing
from e2e.podman import Podman, podman, store
from e2e.views import CRUN, low_level, name_of
from e2e.witness import RUNC
from fakehost import Host

COMMON = ("--rm", "--cap-add=MKNOD", f"--volume={PROBE}:{INSIDE}:ro")
IMAGE = "localhost/debian:local"
PLACES = [("v2", RUNC), ("v2", CRUN)]


@pytest.fixture(scope="module", params=chroots.SUITES)
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def images(suite: str, debian_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image store of this Podman's own with the image `localhost/debian:local`."""
    with chroots.entered(suite) as place:
        return store(tmp_path_factory.mktemp("podman") / "images", debian_image, place.prefix)


@pytest.fixture(scope="module", params=PLACES, ids=name_of)
def engine(
    request: pytest.FixtureRequest,
    suite: str,
    gpu_host: Host,
    cdi_dir: Path,
    images: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Podman]:
    """Root's Podman, which knows our CDI spec."""
    program = low_level(request.param, tmp_path_factory.mktemp("low-level"))
    with (
        leftovers.state() as state,
        chroots.entered(suite, Path(gpu_host.root), view=request.param[0]) as place,
        podman(state, images, program, place.prefix) as engine,
    ):
        chroots.publish(place.prefix, cdi_dir)
        yield engine


@pytest.fixture
def shimmed(engine: Podman, gpu_host: Host, tmp_path: Path) -> Podman:
    """The same Podman with our runtime above the low-level one."""
    return dataclasses.replace(engine, runtime=chroots.shim(tmp_path, gpu_host.root, str(engine.runtime)))


def devices(*names: str) -> list[str]:
    return [*COMMON, *(f"--device=nvidia.com/gpu={name}" for name in names)]


def test_a_cdi_device_gives_its_gpus(engine: Podman, gpu_host: Host) -> None:
    done = engine.run(*devices("all"), IMAGE, *probe(gpu_host, [0, 1, 2]))
    sees_by_cdi(done.stdout, gpu_host, [0, 1, 2])


def test_exec_sees_the_same_gpus(engine: Podman, gpu_host: Host) -> None:
    name = engine.run("--detach", *devices("0", "2"), IMAGE, "sleep", "1000").stdout.strip()
    done = engine.podman("exec", name, *probe(gpu_host, [0, 2]))
    engine.podman("rm", "--force", "--time=0", name)
    sees_by_cdi(done.stdout, gpu_host, [0, 2])


def test_our_runtime_gives_the_gpus_asked_for(shimmed: Podman, gpu_host: Host) -> None:
    done = shimmed.run(*devices(), "--env=NVIDIA_VISIBLE_DEVICES=0,2", IMAGE, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


def test_our_runtime_adds_nothing_to_a_cdi_device(shimmed: Podman, gpu_host: Host) -> None:
    done = shimmed.run(*devices("1"), IMAGE, *probe(gpu_host, [1]))
    sees_by_cdi(done.stdout, gpu_host, [1])


def test_no_gpu_is_seen_without_a_request(engine: Podman, gpu_host: Host) -> None:
    done = engine.run(*devices(), IMAGE, *probe(gpu_host, []))
    sees_nothing(done.stdout)
