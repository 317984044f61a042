"""Docker 29.7 in both views of the cgroups: `--gpus`, `--runtime=nvidia`, `--device nvidia.com/gpu=...`, Swarm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import chroots, engines29
from e2e.engines import Docker, dockerd
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_exactly, sees_nothing
from e2e.trees import TOP
from fakehost import Host

RUNTIME = TOP / "bin" / "gpushim-runtime"
COMMON = ("--rm", "--network=none", f"--volume={PROBE}:{INSIDE}:ro")
IMAGE = "debian:local"
VIEWS = ("v1", "v2")


@pytest.fixture(scope="module", params=VIEWS)
def engine(
    request: pytest.FixtureRequest,
    gpu_host: Host,
    gpushim_env: dict[str, str],
    cdi_dir: Path,
    debian_image: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Docker]:
    """A dockerd that knows our CDI spec, our runtime, and, by its PATH, both hooks."""
    names = tmp_path_factory.mktemp("path")
    for name in ("nvidia-cdi-hook", "nvidia-container-runtime-hook"):
        (names / name).symlink_to(TOP / "bin" / name)
    # The image's directory by name, because it may be a mount of its own.
    with engines29.entered(Path(gpu_host.root), debian_image.parent, view=request.param) as place:
        chroots.publish(place.prefix, cdi_dir)
        with dockerd({"nvidia": RUNTIME}, env=gpushim_env, path_dirs=(names,), prefix=place.prefix) as engine:
            engine.docker("load", f"--input={debian_image}")
            yield engine


def run(engine: Docker, gpu_host: Host, indices: list[int], *options: str) -> str:
    return engine.docker("run", *COMMON, *options, IMAGE, *probe(gpu_host, indices)).stdout


def test_it_is_the_docker_of_today(engine: Docker) -> None:
    assert engine.docker("version", "--format={{.Server.Version}}").stdout.startswith("29.")


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        (["--gpus=all"], [0, 1, 2]),
        (["--gpus=device=1"], [1]),
        (['--gpus="device=0,2"'], [0, 2]),
        (["--gpus=all,capabilities=utility"], [0, 1, 2]),
        (["--device=nvidia.com/gpu=2"], [2]),
        (["--runtime=nvidia", "--device=nvidia.com/gpu=all"], [0, 1, 2]),
        (["--runtime=nvidia", "--gpus=device=0"], [0]),
    ],
)
def test_by_the_cdi_spec(engine: Docker, gpu_host: Host, options: list[str], indices: list[int]) -> None:
    sees_by_cdi(run(engine, gpu_host, indices, *options), gpu_host, indices)


@pytest.mark.parametrize(("wanted", "indices"), [("0,2", [0, 2]), ("all", [0, 1, 2])])
def test_by_our_runtime(engine: Docker, gpu_host: Host, wanted: str, indices: list[int]) -> None:
    output = run(engine, gpu_host, indices, "--runtime=nvidia", f"--env=NVIDIA_VISIBLE_DEVICES={wanted}")
    sees_exactly(output, gpu_host, indices)


@pytest.mark.parametrize("options", [[], ["--runtime=nvidia"], ["--gpus=0"]])
def test_no_gpu_is_seen_without_a_request(engine: Docker, gpu_host: Host, options: list[str]) -> None:
    sees_nothing(run(engine, gpu_host, [], *options))
