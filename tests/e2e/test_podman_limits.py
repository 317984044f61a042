"""A real Podman whose containers have a cgroup of a tenant's, in which its monitor, and so a create, runs, too."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import leftovers
from e2e.expect import INSIDE, PROBE, probe, sees_exactly
from e2e.podman import Podman, podman
from e2e.trees import TOP
from e2e.views import low_level, view
from e2e.witness import RUNC, settings
from fakehost import Host

PIDS = Path("/sys/fs/cgroup/pids")
GPU = ("--rm", f"--volume={PROBE}:{INSIDE}:ro", "--cap-add=MKNOD", "--env=NVIDIA_VISIBLE_DEVICES=1")
IMAGE = "localhost/debian:local"


@pytest.fixture
def engine(podman_images: Path, gpu_host: Host, tmp_path: Path) -> Iterator[Podman]:
    """Root's Podman with our runtime, on a host whose GPUs nobody has listed yet."""
    env = settings(tmp_path, gpu_host.root, str(low_level(("v1", RUNC), tmp_path)))
    front = tmp_path / "front"
    words = " ".join(shlex.quote(f"{name}={value}") for name, value in env.items())
    front.write_text(f'#!/bin/sh\nexec env {words} {TOP}/bin/gpushim-runtime "$@"\n')
    front.chmod(0o755)
    with leftovers.state() as state, view("v1") as prefix, podman(state, podman_images, front, prefix) as found:
        yield found


@pytest.fixture
def tenant(engine: Podman) -> Iterator[Path]:
    """The group of its containers."""
    if not PIDS.is_dir():
        pytest.skip("this machine has no hierarchy of cgroups that counts processes; mount one at " + str(PIDS))
    group = PIDS / engine.state.name
    group.mkdir()
    yield group
    engine.stop()
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def test_a_tenant_with_few_processes_is_refused_and_nobody_else(engine: Podman, gpu_host: Host, tenant: Path) -> None:
    (tenant / "pids.max").write_text("2")  # the monitor and the create
    done = engine.run(*GPU, IMAGE, "true", check=False)
    # The monitor cannot always hand on what the create said.
    assert "too few processes" in done.stderr or "no logs from conmon" in done.stderr, done.stderr
    (tenant / "pids.max").write_text("max")
    done = engine.run(*GPU, IMAGE, *probe(gpu_host, [1]))
    sees_exactly(done.stdout, gpu_host, [1])
