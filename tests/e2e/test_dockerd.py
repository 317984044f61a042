"""Docker with `--runtime=nvidia`, from `docker run` to the container's process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.engines import Docker
from e2e.expect import INSIDE, PROBE, probe, refuses, sees_exactly, sees_nothing
from e2e.witness import Witness
from fakehost import Host

COMMON = ("--network=none", f"--volume={PROBE}:{INSIDE}:ro")
IMAGE = "debian:local"


def gpus(request: str, runtime: str = "nvidia") -> list[str]:
    return [*COMMON, f"--runtime={runtime}", f"--env=NVIDIA_VISIBLE_DEVICES={request}"]


@pytest.fixture
def sleeper(docker: Docker) -> Iterator[str]:
    """A running container with GPUs 0 and 2."""
    name = docker.docker("run", "--detach", *gpus("0,2"), IMAGE, "sleep", "1000").stdout.strip()
    yield name
    docker.docker("rm", "--force", name)


@pytest.mark.parametrize(("wanted", "indices"), [("0,2", [0, 2]), ("1", [1]), ("all", [0, 1, 2])])
def test_run_gives_the_gpus_asked_for(docker: Docker, gpu_host: Host, wanted: str, indices: list[int]) -> None:
    done = docker.docker("run", "--rm", *gpus(wanted), IMAGE, *probe(gpu_host, indices))
    sees_exactly(done.stdout, gpu_host, indices)


def test_a_uuid_asks_as_an_index_does(docker: Docker, gpu_host: Host) -> None:
    done = docker.docker("run", "--rm", *gpus(gpu_host.gpus[1].uuid), IMAGE, *probe(gpu_host, [1]))
    sees_exactly(done.stdout, gpu_host, [1])


def test_exec_sees_the_same_gpus(docker: Docker, gpu_host: Host, sleeper: str) -> None:
    done = docker.docker("exec", sleeper, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


def test_restart_keeps_the_gpus(docker: Docker, gpu_host: Host, sleeper: str) -> None:
    docker.docker("restart", "--time=0", sleeper)
    done = docker.docker("exec", sleeper, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


def test_update_keeps_the_gpus(docker: Docker, gpu_host: Host, sleeper: str) -> None:
    docker.docker("update", "--cpus=0.5", sleeper)
    done = docker.docker("exec", sleeper, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


def test_an_unknown_gpu_is_refused_on_the_users_terminal(docker: Docker, gpu_host: Host) -> None:
    done = docker.docker("run", "--rm", *gpus("7"), IMAGE, "true", check=False)
    assert done.returncode != 0
    refuses(done.stderr, gpu_host, "7")


@pytest.mark.parametrize("options", [[*COMMON, "--runtime=nvidia"], gpus("void")], ids=["unset", "void"])
def test_no_gpu_is_seen_without_a_request(docker: Docker, gpu_host: Host, options: list[str]) -> None:
    done = docker.docker("run", "--rm", *options, IMAGE, *probe(gpu_host, []))
    sees_nothing(done.stdout)


def test_config_json_without_a_request_is_not_touched(docker: Docker, witness: Witness) -> None:
    created = docker.docker("create", *COMMON, "--runtime=witnessed", IMAGE, "true").stdout.strip()
    docker.docker("start", "--attach", created)
    docker.docker("rm", created)
    before, after = witness.copies(created)
    assert after == before


def test_config_json_with_a_request_is_replaced(docker: Docker, witness: Witness) -> None:
    created = docker.docker("create", *gpus("0", "witnessed"), IMAGE, "true").stdout.strip()
    docker.docker("start", "--attach", created)
    docker.docker("rm", created)
    before, after = witness.copies(created)
    assert json.loads(before.content)["linux"].get("devices") != json.loads(after.content)["linux"]["devices"]
    assert after.modified > before.modified
