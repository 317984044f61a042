"""`podman --hooks-dir` with an OCI hook of ours and no runtime of ours, in the cgroup layouts of test_gpus.py."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import leftovers
from e2e.expect import INSIDE, PROBE, probe, refused_in_log, refuses, sees_exactly, sees_nothing
from e2e.podman import Podman, podman, write_hook
from e2e.trees import TOP
from e2e.views import PLACES, PLACES_OF_CRUN, PLACES_OF_RUNC, low_level, name_of, view
from e2e.witness import Witness
from fakehost import Host

HOOK = TOP / "bin" / "gpushim-hook"
COMMON = ("--rm", "--cap-add=MKNOD", f"--volume={PROBE}:{INSIDE}:ro")
IMAGE = "localhost/debian:local"


@pytest.fixture(scope="module", params=PLACES, ids=name_of)
def engine(
    request: pytest.FixtureRequest,
    podman_images: Path,
    gpushim_env: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Podman]:
    """Root's Podman with our hook."""
    program = low_level(request.param, tmp_path_factory.mktemp("low-level"))
    with (
        leftovers.state() as state,
        view(request.param[0]) as prefix,
        podman(state, podman_images, program, prefix) as engine,
    ):
        write_hook(state, HOOK, gpushim_env)
        yield engine


def asks(wanted: str) -> list[str]:
    return [*COMMON, f"--env=NVIDIA_VISIBLE_DEVICES={wanted}"]


@pytest.mark.parametrize("engine", PLACES[:1], indirect=True, ids=["hybrid"])
@pytest.mark.parametrize(("wanted", "indices"), [("1", [1]), ("all", [0, 1, 2])])
def test_run_gives_the_gpus_asked_for(engine: Podman, gpu_host: Host, wanted: str, indices: list[int]) -> None:
    done = engine.run(*asks(wanted), IMAGE, *probe(gpu_host, indices))
    sees_exactly(done.stdout, gpu_host, indices)


def test_exec_sees_the_same_gpus(engine: Podman, gpu_host: Host) -> None:
    name = engine.run("--detach", *asks("0,2"), IMAGE, "sleep", "1000").stdout.strip()
    done = engine.podman("exec", name, *probe(gpu_host, [0, 2]))
    engine.podman("rm", "--force", "--time=0", name)
    sees_exactly(done.stdout, gpu_host, [0, 2])


def test_a_user_namespace(engine: Podman, gpu_host: Host) -> None:
    done = engine.run(*asks("1"), "--uidmap=0:100000:65536", IMAGE, "python3", INSIDE)
    report = {**json.loads(done.stdout), "made": {"195:0": "EPERM", "195:1": "EPERM"}}
    sees_exactly(json.dumps(report), gpu_host, [1])


@pytest.mark.parametrize("engine", PLACES_OF_RUNC, indirect=True, ids=name_of)
def test_an_unknown_gpu_is_refused_on_the_users_terminal(engine: Podman, gpu_host: Host) -> None:
    done = engine.run(*asks("7"), IMAGE, "true", check=False)
    assert done.returncode != 0
    refuses(done.stderr, gpu_host, "7")


@pytest.mark.parametrize("engine", PLACES_OF_CRUN, indirect=True, ids=name_of)
def test_an_unknown_gpu_is_refused_in_the_log(engine: Podman, gpu_host: Host, gpushim_env: dict[str, str]) -> None:
    """crun tells Podman the hook's exit code, and its sentence to nobody."""
    done = engine.run(*asks("7"), IMAGE, "true", check=False)
    assert done.returncode != 0
    assert "gpushim-hook` (exit code: 10)" in done.stderr
    refuses(refused_in_log(gpushim_env), gpu_host, "7")


def test_no_gpu_is_seen_without_a_request(engine: Podman, gpu_host: Host) -> None:
    done = engine.run(*COMMON, IMAGE, *probe(gpu_host, []))
    sees_nothing(done.stdout)


@pytest.mark.parametrize("engine", PLACES[:1], indirect=True, ids=["hybrid"])
def test_the_runtime_and_the_hook_together(engine: Podman, gpu_host: Host, witness: Witness) -> None:
    """The hook finds that gpushim-runtime has been there, and leaves all to the hook which that has added."""
    both = dataclasses.replace(engine, runtime=witness.front)
    done = both.run(*asks("0,2"), IMAGE, *probe(gpu_host, [0, 2]))
    sees_exactly(done.stdout, gpu_host, [0, 2])


@pytest.mark.parametrize("engine", PLACES[:1], indirect=True, ids=["hybrid"])
def test_a_stopped_container_starts_with_its_gpus(engine: Podman, gpu_host: Host, witness: Witness) -> None:
    """In the directory of its last create, with what that has kept there."""
    ours = dataclasses.replace(engine, runtime=witness.front)
    name = ours.run("--detach", *asks("0,2")[1:], IMAGE, "sleep", "1000").stdout.strip()
    for _ in range(2):
        ours.podman("stop", "--time=0", name)
        ours.podman("start", name)
        sees_exactly(ours.podman("exec", name, *probe(gpu_host, [0, 2])).stdout, gpu_host, [0, 2])
    ours.podman("rm", "--force", "--time=0", name)
