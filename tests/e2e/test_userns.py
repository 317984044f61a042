"""User namespaces as each engine makes them: Podman's auto, keep-id and nomap, Docker's userns-remap, pods' hostUsers.

In each the container's root is an ordinary user of the host's, who owns the image but neither the driver nor its nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import leftovers
from e2e.engines import Docker, dockerd
from e2e.expect import INSIDE, PROBE, probe, sees_exactly
from e2e.podman import Podman, podman, write_hook
from e2e.trees import TOP
from e2e.views import view
from e2e.witness import RUNC
from fakehost import Host

RUNTIME = TOP / "bin" / "gpushim-runtime"
FIRST = 100000  # the user of the host that is root in a container
# The machine's own say nobody may lend ids.
LENT = f'for name in uid gid; do printf "daemon:{FIRST}:65536\\ncontainers:{FIRST}:65536\\n" >$1/sub$name; mount --bind $1/sub$name /etc/sub$name; done'


def looked(report: str, host: Host, indices: list[int]) -> None:
    """Assert that a container has these GPUs, where nobody may make nodes."""
    _, _, *others = probe(host, indices)
    sees_exactly(json.dumps({**json.loads(report), "made": dict.fromkeys(others, "EPERM")}), host, indices)


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    place = tmp_path_factory.mktemp("ids")
    with view("hybrid", LENT.replace("$1", str(place))) as prefix:
        yield prefix

@pytest.fixture(scope="module")
def docker(lent, debian_image: Path, gpushim_env: dict[str, str]) -> Iterator[Docker]:
    ways = {"prefix": lent, "settings": {"userns-remap": "daemon"}}
    with dockerd({"nvidia": RUNTIME}, env=gpushim_env, path_dirs=(TOP / "bin",), **ways) as engine:
        engine.docker("load", f"--input={debian_image}")
        yield engine

COMMON = ("--rm", "--network=none", f"--volume={PROBE}:{INSIDE}:ro")

@pytest.mark.parametrize("ask", [["--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=0,2"], ['--gpus="device=0,2"']])
def test_docker(docker: Docker, gpu_host: Host, ask) -> None:
    name = docker.docker("run", "--detach", *COMMON[1:], *ask, "debian:local", "sleep", "1000").stdout.strip()
    print(docker.docker("exec", name, "sh", "-c", "chown -R 1 /etc /usr/lib; rm -f /etc/ld.so.cache; ls -ld /usr/lib/x86_64-linux-gnu/libcuda*", check=False))
    print(docker.docker("commit", name, "kept", check=False))
    print(docker.docker("cp", name + ":/etc", "/tmp/userns-etc", check=False))
    print(docker.docker("cp", name + ":/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/tmp/userns-cuda", check=False))
    print(docker.docker("export", name, "-o", "/tmp/userns-export", check=False))
    docker.docker("rm", "--force", name)
    done = docker.docker("run", *COMMON, *ask, "debian:local", "python3", INSIDE)
    looked(done.stdout, gpu_host, [0, 2])


@pytest.fixture(scope="module")
def roots(lent, podman_images, gpushim_env) -> Iterator[Podman]:
    with leftovers.state() as state, podman(state, podman_images, Path(RUNC), lent) as engine:
        write_hook(state, TOP / "bin/gpushim-hook", gpushim_env)
        yield engine

@pytest.mark.parametrize("way", ["auto", "keep-id", "nomap", "auto:size=2000"])
def test_podman(roots, gpu_host: Host, way) -> None:
    ask = [f"--userns={way}", "--env=NVIDIA_VISIBLE_DEVICES=0,2", "--rm", f"--volume={PROBE}:{INSIDE}:ro", "localhost/debian:local"]
    print(roots.run(*ask, "sh", "-c", "cat /proc/self/uid_map; ls -la / /etc /dev /usr/lib/x86_64-linux-gnu/libcuda*; ldconfig && echo ldconfig; id", check=False))
    done = roots.run(*ask, "python3", INSIDE)
    looked(done.stdout, gpu_host, [0, 2])
