"""The newest Docker in both views of cgroups: `--gpus`, `--runtime=nvidia`, `--device nvidia.com/gpu=...`, Swarm."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import chroots, engines, leftovers, programs, upstream
from e2e.engines import Docker, dockerd
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_exactly, sees_nothing
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host

RUNTIME = TOP / "bin" / "gpushim-runtime"
COMMON = ("--rm", "--network=none", f"--volume={PROBE}:{INSIDE}:ro")
IMAGE = "debian:local"
VIEWS = ("v1", "v2")
# `gpushim explain --docker gpu`, for which click is missing there.
EXPLAIN = f"""import sys
sys.path[:0] = ["{TOP}/shim", "{TOP}/hook"]
from gpushim.engines.docker import inspect
print(*inspect.inspect("gpu").notes, sep="\\n")
"""
ELSEWHERE = ("/usr/bin/unshare", "--mount")  # from where a dockerd is no engine of this host's
SWARM = '[requests]\nswarm-variables = ["DOCKER_RESOURCE_NVIDIA-GPU"]\n'
SERVICE_SECONDS = 60.0


@pytest.fixture(scope="module")
def env(gpu_host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables that point the shim at the simulated host, with a setting for Swarm."""
    env = settings(tmp_path_factory.mktemp("gpushim"), gpu_host.root)
    with Path(env["GPUSHIM_CONFIG"]).open("a") as config:
        config.write(SWARM)
    engines.run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
    return env


@pytest.fixture(scope="module", params=VIEWS)
def engine(
    request: pytest.FixtureRequest,
    gpu_host: Host,
    env: dict[str, str],
    debian_image: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Docker]:
    """A dockerd that knows our CDI spec, our runtime, which is the default, and, by its PATH, both hooks."""
    names = tmp_path_factory.mktemp("path")
    for name in ("nvidia-cdi-hook", "nvidia-container-runtime-hook"):
        (names / name).symlink_to(TOP / "bin" / name)
    resources = {"node-generic-resources": [f"NVIDIA-GPU={gpu_host.gpus[1].uuid}"]}
    # The image's directory by name, because it may be a mount of its own.
    with (
        upstream.entered(upstream.DOCKER, Path(gpu_host.root), debian_image.parent, view=request.param) as place,
        upstream.network(place.prefix) as prefix,
    ):
        chroots.publish(prefix, Path(env["GPUSHIM_STATE"], "cdi"))
        ways: dict[str, Any] = {"path_dirs": (names,), "default": "nvidia", "settings": resources}
        with dockerd({"nvidia": RUNTIME}, env=env, prefix=prefix, **ways) as engine:
            engine.docker("load", f"--input={debian_image}")
            yield engine


def run(engine: Docker, gpu_host: Host, indices: list[int], *options: str) -> str:
    return engine.docker("run", *COMMON, *options, IMAGE, *probe(gpu_host, indices)).stdout


def test_it_is_the_docker_of_today(engine: Docker) -> None:
    said = engine.docker("version", "--format={{.Client.Version}} {{.Server.Version}}").stdout.split()
    assert all(int(version.partition(".")[0]) >= programs.OLDEST for version in said), said


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        (["--runtime=runc", "--gpus=all"], [0, 1, 2]),
        (['--gpus="device=0,2"'], [0, 2]),
        (["--gpus=all,capabilities=utility"], [0, 1, 2]),
        (["--device=nvidia.com/gpu=all"], [0, 1, 2]),
        (["--device=nvidia.com/gpu=0", "--env=NVIDIA_VISIBLE_DEVICES=all"], [0]),
    ],
)
def test_by_the_cdi_spec(engine: Docker, gpu_host: Host, options: list[str], indices: list[int]) -> None:
    """With all capabilities, whatever is asked for; our runtime adds nothing to it."""
    sees_by_cdi(run(engine, gpu_host, indices, *options), gpu_host, indices)


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        (["--env=NVIDIA_VISIBLE_DEVICES=0,2"], [0, 2]),
        (["--env=DOCKER_RESOURCE_NVIDIA-GPU=1"], [1]),
        (["--gpus=0", "--env=NVIDIA_VISIBLE_DEVICES=all"], [0, 1, 2]),  # an image's would count as well
    ],
)
def test_by_our_runtime(engine: Docker, gpu_host: Host, options: list[str], indices: list[int]) -> None:
    sees_exactly(run(engine, gpu_host, indices, "--runtime=nvidia", *options), gpu_host, indices)


@pytest.mark.parametrize("options", [["--runtime=runc"], [], ["--gpus=0"]])
def test_no_gpu_is_seen_without_a_request(engine: Docker, gpu_host: Host, options: list[str]) -> None:
    sees_nothing(run(engine, gpu_host, [], *options))


@pytest.mark.parametrize("before", [(), ELSEWHERE])
@pytest.mark.parametrize("options", [["--gpus=device=1"], ["--gpus=device=1", "--runtime=runc"]])
def test_explain_names_the_spec(engine: Docker, options: list[str], before: tuple[str, ...]) -> None:
    """Also where dockerd is not seen, and its PATH is taken for a service's."""
    engine.docker("create", "--name=gpu", *options, IMAGE)
    env = {"PATH": engines.SYSTEM_PATH, "DOCKER_HOST": f"unix://{engine.socket}"}
    link = [*engine.prefix, "/bin/ln", "-sf", f"{TOP}/bin/nvidia-cdi-hook", "/usr/bin/nvidia-cdi-hook"]
    try:
        engines.run(link)
        said = engines.run([*engine.prefix, *before, "/usr/bin/python3", "-c", EXPLAIN], env=env).stdout
    finally:
        engine.docker("rm", "gpu")
    assert "docker itself injects the CDI device nvidia.com/gpu=1, as /run/cdi/nvidia.com-gpu.json says" in said
    assert ("not seen from here" in said) == bool(before)


def test_a_service_gets_the_gpu_that_swarm_reserves(engine: Docker, gpu_host: Host) -> None:
    """As a variable whose name has a hyphen."""
    engine.docker("swarm", "init", "--advertise-addr=127.0.0.1", "--listen-addr=127.0.0.1")
    volume = f"--mount=type=bind,source={PROBE},target={INSIDE},readonly"
    options = ["--detach", "--name=s", "--network=host", "--restart-condition=none", "--no-resolve-image", volume]
    engine.docker("service", "create", *options, "--generic-resource=NVIDIA-GPU=1", IMAGE, *probe(gpu_host, [1]))
    ended = functools.partial(state_of, engine, "s")
    assert leftovers.until(lambda: ended().startswith(("Complete", "Failed", "Rejected")), SERVICE_SECONDS), ended()
    output = engine.docker("service", "logs", "--raw", "s").stdout
    engine.docker("service", "rm", "s")
    engine.docker("swarm", "leave", "--force")
    sees_exactly(output, gpu_host, [1])


def state_of(engine: Docker, service: str) -> str:
    return engine.docker("service", "ps", service, "--no-trunc", "--format={{.CurrentState}} {{.Error}}").stdout
