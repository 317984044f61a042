"""The OCI image: what is in it, that its programs run where a pod has no rights, and that two builds are equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, image, leftovers
from e2e.podman import Podman, podman, store

# What the manifests ask for.
POD = ("--rm", "--cap-drop=all", "--read-only", "--security-opt=no-new-privileges")
ROOT, OTHER = "0:0", "65532:65532"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Podman with the image, and nothing of ours outside it."""
    images = store(tmp_path_factory.mktemp("podman") / "images", image.archive())
    with leftovers.state() as state, podman(state, images, Path("/usr/sbin/runc")) as engine:
        yield engine


@pytest.mark.parametrize("user", [ROOT, OTHER])
@pytest.mark.parametrize("program", ["gpushim-device-plugin", "gpushim"])
def test_a_program_runs_without_any_right(engine: Podman, program: str, user: str) -> None:
    done = engine.run(*POD, f"--user={user}", f"--entrypoint=/usr/bin/{program}", image.NAME, "--version")
    assert done.stdout.split()[-1] == built.version_here()
    assert done.stderr == ""
