"""`docker run --gpus`, for which dockerd calls nothing of ours but the hook that it finds on its PATH.

Every test runs in the cgroup layouts that machines have: runc in the hybrid one, crun (which refuses that) with v1
alone, and both with v2 alone, where no machine without CAP_SYS_RESOURCE can start crun as it is: see views.low_level.

`docker update` runs with runc and v1 alone: crun 1.8 and Docker 20.10 do not agree on it (`memory.limit_in_bytes:
Device or resource busy`), and the view v2 has no controller that it could change. test_systemd_reload.py shows v2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import engines
from e2e.engines import Docker
from e2e.expect import INSIDE, PROBE, probe, refused_in_log, refuses, sees_exactly, sees_nothing
from e2e.trees import TOP
from e2e.views import PLACES, PLACES_OF_CRUN, PLACES_OF_RUNC, low_level, name_of, view
from fakehost import Host

COMMON = ("--network=none", f"--volume={PROBE}:{INSIDE}:ro")
IMAGE = "debian:local"


@pytest.fixture(scope="module", params=PLACES, ids=name_of)
def docker(
    request: pytest.FixtureRequest,
    debian_image: Path,
    gpushim_env: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Docker]:
    """A dockerd that knows no runtime of ours."""
    program = low_level(request.param, tmp_path_factory.mktemp("low-level"))
    hook = tmp_path_factory.mktemp("path")
    (hook / "nvidia-container-runtime-hook").symlink_to(TOP / "bin" / "nvidia-container-runtime-hook")
    with (
        view(request.param[0]) as prefix,
        engines.dockerd(
            {"plain": program}, default="plain", env=gpushim_env, path_dirs=(hook,), prefix=prefix
        ) as engine,
    ):
        engine.docker("load", f"--input={debian_image}")
        yield engine


@pytest.fixture
def sleeper(docker: Docker) -> Iterator[str]:
    """A running container with GPUs 0 and 2."""
    name = docker.docker("run", "--detach", *COMMON, '--gpus="device=0,2"', IMAGE, "sleep", "1000").stdout.strip()
    yield name
    docker.docker("rm", "--force", name)


@pytest.mark.parametrize("docker", PLACES[:1], indirect=True, ids=name_of)
@pytest.mark.parametrize(("wanted", "indices"), [("all", [0, 1, 2]), ('"device=1"', [1]), ("2", [0, 1])])
def test_run_gives_the_gpus_asked_for(docker: Docker, gpu_host: Host, wanted: str, indices: list[int]) -> None:
    done = docker.docker("run", "--rm", *COMMON, f"--gpus={wanted}", IMAGE, *probe(gpu_host, indices))
    sees_exactly(done.stdout, gpu_host, indices)


@pytest.mark.parametrize("docker", PLACES[:1], indirect=True, ids=name_of)
def test_a_list_of_gpus_needs_its_own_quotes(docker: Docker) -> None:
    """Docker reads the comma as the end of the first option, and the next number as a count."""
    done = docker.docker("run", "--rm", *COMMON, "--gpus=device=0,2", IMAGE, "true", check=False)
    assert done.returncode != 0
    assert "cannot set both Count and DeviceIDs on device request" in done.stderr


@pytest.mark.parametrize("docker", PLACES[:1], indirect=True, ids=name_of)
def test_a_read_only_root(docker: Docker, gpu_host: Host) -> None:
    done = docker.docker("run", "--rm", "--read-only", *COMMON, "--gpus=all", IMAGE, *probe(gpu_host, [0, 1, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 1, 2])


def test_exec_sees_the_same_gpus(docker: Docker, gpu_host: Host, sleeper: str) -> None:
    done = docker.docker("exec", sleeper, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


def test_restart_keeps_the_gpus(docker: Docker, gpu_host: Host, sleeper: str) -> None:
    docker.docker("restart", "--time=0", sleeper)
    done = docker.docker("exec", sleeper, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


@pytest.mark.parametrize("docker", PLACES[:1], indirect=True, ids=name_of)
def test_update_keeps_the_gpus(docker: Docker, gpu_host: Host, sleeper: str) -> None:
    docker.docker("update", "--cpus=0.5", sleeper)
    done = docker.docker("exec", sleeper, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


@pytest.mark.parametrize("docker", PLACES_OF_RUNC, indirect=True, ids=name_of)
def test_an_unknown_gpu_is_refused_on_the_users_terminal(docker: Docker, gpu_host: Host) -> None:
    done = docker.docker("run", "--rm", *COMMON, "--gpus=device=7", IMAGE, "true", check=False)
    assert done.returncode != 0
    refuses(done.stderr, gpu_host, "7")


@pytest.mark.parametrize("docker", PLACES_OF_CRUN, indirect=True, ids=name_of)
def test_an_unknown_gpu_is_refused_in_the_log(docker: Docker, gpu_host: Host, gpushim_env: dict[str, str]) -> None:
    """crun tells Docker the hook's exit code, and its sentence to nobody."""
    done = docker.docker("run", "--rm", *COMMON, "--gpus=device=7", IMAGE, "true", check=False)
    assert done.returncode != 0
    assert "nvidia-container-runtime-hook` (exit code: 10)" in done.stderr
    refuses(refused_in_log(gpushim_env), gpu_host, "7")


@pytest.mark.parametrize("options", [[], ["--env=NVIDIA_VISIBLE_DEVICES=all"]], ids=["unset", "a variable"])
def test_no_gpu_is_seen_without_the_option(docker: Docker, gpu_host: Host, options: list[str]) -> None:
    done = docker.docker("run", "--rm", *COMMON, *options, IMAGE, *probe(gpu_host, []))
    sees_nothing(done.stdout)
