"""`podman --device nvidia.com/gpu=...` with this machine's Podman 4.3, in the cgroup layouts of test_gpus.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import chroots, leftovers
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_nothing
from e2e.podman import Podman, podman
from e2e.views import PLACES, low_level, name_of, view
from fakehost import Host

COMMON = ("--rm", "--cap-add=MKNOD", f"--volume={PROBE}:{INSIDE}:ro")
IMAGE = "localhost/debian:local"
OWN_RUN = "mount -t tmpfs none /run"  # the machine's own has the directory that specs come into


@pytest.fixture(scope="module", params=PLACES, ids=name_of)
def engine(
    request: pytest.FixtureRequest, cdi_dir: Path, podman_images: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Podman]:
    """Root's Podman, which knows our CDI spec and nothing else of ours."""
    program = low_level(request.param, tmp_path_factory.mktemp("low-level"))
    with (
        leftovers.state() as state,
        view(request.param[0], OWN_RUN) as prefix,
        podman(state, podman_images, program, prefix) as engine,
    ):
        chroots.publish(prefix, cdi_dir)
        yield engine


def devices(*names: str) -> list[str]:
    return [*COMMON, *(f"--device=nvidia.com/gpu={name}" for name in names)]


@pytest.mark.parametrize("engine", PLACES[:1], indirect=True, ids=["hybrid"])
@pytest.mark.parametrize(("names", "indices"), [(["1"], [1]), (["all"], [0, 1, 2])])
def test_a_device_gives_its_gpus(engine: Podman, gpu_host: Host, names: list[str], indices: list[int]) -> None:
    done = engine.run(*devices(*names), IMAGE, *probe(gpu_host, indices))
    sees_by_cdi(done.stdout, gpu_host, indices)


def test_a_uuid_is_a_name_too(engine: Podman, gpu_host: Host) -> None:
    done = engine.run(*devices(gpu_host.gpus[1].uuid), IMAGE, *probe(gpu_host, [1]))
    sees_by_cdi(done.stdout, gpu_host, [1])


def test_exec_sees_the_same_gpus(engine: Podman, gpu_host: Host) -> None:
    name = engine.run("--detach", *devices("0", "2"), IMAGE, "sleep", "1000").stdout.strip()
    done = engine.podman("exec", name, *probe(gpu_host, [0, 2]))
    engine.podman("rm", "--force", "--time=0", name)
    sees_by_cdi(done.stdout, gpu_host, [0, 2])


def test_no_gpu_is_seen_without_a_request(engine: Podman, gpu_host: Host) -> None:
    done = engine.run(*devices(), IMAGE, *probe(gpu_host, []))
    sees_nothing(done.stdout)
