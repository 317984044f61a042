"""Docker 26 and 28 in their own Debians: `--device nvidia.com/gpu=...`, `--runtime=nvidia`, `--gpus`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import chroots
from e2e.engines import Docker, dockerd
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_exactly, sees_nothing
from e2e.trees import TOP
from e2e.views import CRUN
from e2e.witness import Witness
from fakehost import Host

RUNTIME = TOP / "bin" / "gpushim-runtime"
COMMON = ("--rm", "--network=none", f"--volume={PROBE}:{INSIDE}:ro")
IMAGE = "debian:local"
SHIMS = ("nvidia", "nvidia-crun")


@pytest.fixture(scope="module", params=chroots.SUITES)
def engine(
    request: pytest.FixtureRequest,
    gpu_host: Host,
    gpushim_env: dict[str, str],
    cdi_dir: Path,
    debian_image: Path,
    witness: Witness,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Docker]:
    """A dockerd that knows our CDI spec, our runtime, and, by its PATH, our hook."""
    over_crun = chroots.shim(tmp_path_factory.mktemp("over-crun"), gpu_host.root, CRUN)
    hook = tmp_path_factory.mktemp("path")
    (hook / "nvidia-container-runtime-hook").symlink_to(TOP / "bin" / "nvidia-container-runtime-hook")
    runtimes = {"nvidia": RUNTIME, "nvidia-crun": over_crun, "crun": Path(CRUN), "witnessed": witness.front}
    # Of the machine's layouts this is the one in which Docker, runc and crun all work.
    with chroots.entered(request.param, Path(gpu_host.root), view="v1") as place:
        chroots.publish(place.prefix, cdi_dir)
        with dockerd(runtimes, env=gpushim_env, path_dirs=(hook,), prefix=place.prefix, cdi=True) as engine:
            engine.docker("load", f"--input={debian_image}")
            yield engine


def devices(*names: str, runtime: str = "runc") -> list[str]:
    return [*COMMON, f"--runtime={runtime}", *(f"--device=nvidia.com/gpu={name}" for name in names)]


@pytest.mark.parametrize(
    ("names", "indices", "runtime"), [(["0", "2"], [0, 2], "runc"), (["all"], [0, 1, 2], "crun")]
)
def test_a_cdi_device_gives_its_gpus(
    engine: Docker, gpu_host: Host, names: list[str], indices: list[int], runtime: str
) -> None:
    done = engine.docker("run", *devices(*names, runtime=runtime), IMAGE, *probe(gpu_host, indices))
    sees_by_cdi(done.stdout, gpu_host, indices)


def test_it_is_the_same_as_through_our_runtime(engine: Docker, gpu_host: Host) -> None:
    """Nodes, libraries, what programs say, and every mount, with all capabilities."""
    shim = [*devices(runtime="nvidia"), "--env=NVIDIA_VISIBLE_DEVICES=0,2", "--env=NVIDIA_DRIVER_CAPABILITIES=all"]
    seen = []
    for options in (devices("0", "2"), shim):
        report = json.loads(engine.docker("run", *options, IMAGE, *probe(gpu_host, [0, 2])).stdout)
        mounts = engine.docker("run", *options, IMAGE, "cat", "/proc/self/mountinfo").stdout.splitlines()
        seen.append(({**report, "env": {}}, sorted(line.split()[4] for line in mounts)))
    by_cdi, by_shim = seen
    assert by_cdi == by_shim


def test_exec_sees_the_same_gpus(engine: Docker, gpu_host: Host) -> None:
    name = engine.docker("run", "--detach", *devices("0", "2"), IMAGE, "sleep", "1000").stdout.strip()
    done = engine.docker("exec", name, *probe(gpu_host, [0, 2]))
    engine.docker("stop", "--time=0", name)
    sees_by_cdi(done.stdout, gpu_host, [0, 2])


@pytest.mark.parametrize("runtime", SHIMS)
def test_our_runtime_adds_nothing_to_a_cdi_device(engine: Docker, gpu_host: Host, runtime: str) -> None:
    done = engine.docker("run", *devices("1", runtime=runtime), IMAGE, *probe(gpu_host, [1]))
    sees_by_cdi(done.stdout, gpu_host, [1])


def test_config_json_with_a_cdi_device_is_not_touched(engine: Docker, witness: Witness) -> None:
    _, *options = devices("1", runtime="witnessed")
    created = engine.docker("create", *options, IMAGE, "true").stdout.strip()
    engine.docker("start", "--attach", created)
    engine.docker("rm", created)
    before, after = witness.copies(created)
    assert "NVIDIA_VISIBLE_DEVICES=void" in json.loads(before.content)["process"]["env"]
    assert after == before


@pytest.mark.parametrize(
    ("wanted", "indices", "runtime"), [("0,2", [0, 2], "nvidia"), ("all", [0, 1, 2], "nvidia-crun")]
)
def test_our_runtime_gives_the_gpus_asked_for(
    engine: Docker, gpu_host: Host, wanted: str, indices: list[int], runtime: str
) -> None:
    options = [*COMMON, f"--runtime={runtime}", f"--env=NVIDIA_VISIBLE_DEVICES={wanted}"]
    done = engine.docker("run", *options, IMAGE, *probe(gpu_host, indices))
    sees_exactly(done.stdout, gpu_host, indices)


@pytest.mark.parametrize(("wanted", "indices", "runtime"), [("device=1", [1], "runc"), ("all", [0, 1, 2], "crun")])
def test_gpus_by_the_hook_alone(
    engine: Docker, gpu_host: Host, wanted: str, indices: list[int], runtime: str
) -> None:
    """Since Docker 29.2 this is so only where no `nvidia-cdi-hook` is on its PATH."""
    options = [*COMMON, f"--runtime={runtime}", f"--gpus={wanted}"]
    done = engine.docker("run", *options, IMAGE, *probe(gpu_host, indices))
    sees_exactly(done.stdout, gpu_host, indices)


@pytest.mark.parametrize("runtime", ["runc", "nvidia"])
def test_no_gpu_is_seen_without_a_request(engine: Docker, gpu_host: Host, runtime: str) -> None:
    done = engine.docker("run", *devices(runtime=runtime), IMAGE, *probe(gpu_host, []))
    sees_nothing(done.stdout)
