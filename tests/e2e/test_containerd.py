"""containerd through its own client: `ctr run --runc-binary`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.engines import Containerd
from e2e.expect import INSIDE, PROBE, probe, refuses, sees_exactly, sees_nothing
from e2e.witness import Witness
from fakehost import Host

MOUNT = f"--mount=type=bind,src={PROBE},dst={INSIDE},options=rbind:ro"
IMAGE = "docker.io/library/debian:local"
NUMBERS = itertools.count()


@pytest.fixture
def name() -> str:
    """An id that no other container had."""
    return f"ctr-{next(NUMBERS)}"


@pytest.fixture
def sleeper(containerd: Containerd, gpushim_runtime: Path, name: str) -> Iterator[str]:
    """A running container with GPUs 0 and 2."""
    options = (MOUNT, "--env=NVIDIA_VISIBLE_DEVICES=0,2")
    containerd.run(gpushim_runtime, "--detach", *options, IMAGE, name, "sleep", "1000")
    yield name
    containerd.ctr("tasks", "rm", "--force", name)
    containerd.ctr("containers", "rm", name)


@pytest.mark.parametrize(("wanted", "indices"), [("0,2", [0, 2]), ("1", [1]), ("all", [0, 1, 2])])
def test_run_gives_the_gpus_asked_for(
    containerd: Containerd, gpushim_runtime: Path, gpu_host: Host, name: str, wanted: str, indices: list[int]
) -> None:
    options = ("--rm", MOUNT, f"--env=NVIDIA_VISIBLE_DEVICES={wanted}")
    done = containerd.run(gpushim_runtime, *options, IMAGE, name, *probe(gpu_host, indices))
    sees_exactly(done.stdout, gpu_host, indices)


def test_exec_sees_the_same_gpus(containerd: Containerd, gpu_host: Host, sleeper: str) -> None:
    done = containerd.ctr("tasks", "exec", "--exec-id=probe", sleeper, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


def test_pause_and_resume_keep_the_gpus(containerd: Containerd, gpu_host: Host, sleeper: str) -> None:
    containerd.ctr("tasks", "pause", sleeper)
    containerd.ctr("tasks", "resume", sleeper)
    done = containerd.ctr("tasks", "exec", "--exec-id=probe", sleeper, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


def test_an_unknown_gpu_is_refused_on_the_users_terminal(
    containerd: Containerd, gpushim_runtime: Path, gpu_host: Host, name: str
) -> None:
    options = ("--rm", "--env=NVIDIA_VISIBLE_DEVICES=7")
    done = containerd.run(gpushim_runtime, *options, IMAGE, name, "true", check=False)
    assert done.returncode != 0
    refuses(done.stderr, gpu_host, "7")


def test_no_gpu_is_seen_without_a_request(
    containerd: Containerd, gpushim_runtime: Path, gpu_host: Host, name: str
) -> None:
    done = containerd.run(gpushim_runtime, "--rm", MOUNT, IMAGE, name, *probe(gpu_host, []))
    sees_nothing(done.stdout)


def test_config_json_without_a_request_is_not_touched(containerd: Containerd, witness: Witness, name: str) -> None:
    containerd.run(witness.front, "--rm", IMAGE, name, "true")
    before, after = witness.copies(name)
    assert after == before


def test_config_json_with_a_request_is_replaced(containerd: Containerd, witness: Witness, name: str) -> None:
    containerd.run(witness.front, "--rm", "--env=NVIDIA_VISIBLE_DEVICES=0", IMAGE, name, "true")
    before, after = witness.copies(name)
    assert json.loads(before.content)["linux"].get("devices") != json.loads(after.content)["linux"]["devices"]
    assert after.modified > before.modified
