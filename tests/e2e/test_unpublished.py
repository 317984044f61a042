"""A driver that is half upgraded, and engines that inject by the CDI spec themselves: real Podman and Docker 29.

They call nothing of ours before the spec's hook, so all that keeps them from a driver that does not fit is that the
spec is not there. Out of scope: what a refresh decides (unit/gpushim/refresh), kubelet's devices
(test_device_plugin_rescan.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import chroots, engines, leftovers, trees, upstream
from e2e.bundles import Bundle
from e2e.engines import SYSTEM_PATH, Done, dockerd
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_exactly
from e2e.podman import podman
from e2e.trees import TOP
from e2e.views import low_level, view
from e2e.witness import settings
from fakehost import Host

CACHE = str(trees.TOP / ".cache" / "fakehost")
COMMON = ("--rm", f"--volume={PROBE}:{INSIDE}:ro", "--cap-add=MKNOD")
NEW = "550.54.14"
SENTENCE = f"the NVIDIA kernel module is {NEW} but its libraries are 535.183.01: reboot, or reload the module"
OWN_RUN = "mount -t tmpfs none /run"
Run = Callable[..., Done]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return fakehost.build(str(tmp_path / "root"), 1, compile_cache=CACHE)


@pytest.fixture
def env(host: Host, tmp_path: Path) -> dict[str, str]:
    made = settings(tmp_path, host.root)
    assert refreshed(made).returncode == 0
    return made


def refreshed(env: dict[str, str]) -> Done:
    return engines.run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": SYSTEM_PATH, **env}, check=False)


@pytest.fixture
def by_podman(env: dict[str, str], podman_images: Path, tmp_path: Path) -> Iterator[Run]:
    program = low_level(("hybrid", "/usr/sbin/runc"), tmp_path)
    with (
        leftovers.state() as state,
        view("hybrid", OWN_RUN) as prefix,
        podman(state, podman_images, program, prefix) as engine,
    ):
        chroots.publish(prefix, Path(env["GPUSHIM_STATE"], "cdi"))

        def run(*words: str, check: bool = True) -> Done:
            options = [*COMMON, "--device=nvidia.com/gpu=all", "localhost/debian:local"]
            return engine.run(*options, *words, check=check) if words else engine.run(*options, "true", check=check)

        yield run


@pytest.fixture
def by_docker(env: dict[str, str], host: Host, debian_image: Path) -> Iterator[Run]:
    with (
        upstream.entered(upstream.DOCKER, Path(host.root), debian_image.parent, view="v1") as place,
        upstream.network(place.prefix) as prefix,
    ):
        chroots.publish(prefix, Path(env["GPUSHIM_STATE"], "cdi"))
        with dockerd({}, prefix=prefix) as engine:
            engine.docker("load", f"--input={debian_image}")

            def run(*words: str, check: bool = True) -> Done:
                options = [*COMMON, "--network=none", "--device=nvidia.com/gpu=all", "debian:local"]
                return engine.docker("run", *options, *(words or ("true",)), check=check)

            yield run


@pytest.fixture(params=["by_podman", "by_docker"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    return found


def test_nothing_is_given_while_its_halves_differ(run: Run, host: Host, env: dict[str, str]) -> None:
    sees_by_cdi(run(*probe(host, [0])).stdout, host, [0])
    host.half_upgrade(NEW)
    shutil.rmtree(host.lib_path)
    before = run(check=False)  # no refresh has seen it
    assert "/libcuda.so.535.183.01 is gone from the host" in before.stderr
    fakehost.build(host.root, 1, compile_cache=CACHE)
    host.half_upgrade(NEW)
    done = refreshed(env)
    assert done.returncode == 13
    assert SENTENCE in done.stderr
    assert "unresolvable CDI devices nvidia.com/gpu=all" in run(check=False).stderr
    install(host)
    assert refreshed(env).returncode == 0
    sees_by_cdi(run(*probe(host, [0])).stdout, host, [0])


def test_a_container_of_before_the_upgrade_starts_after_it(
    host: Host, env: dict[str, str], debian_root: Path, tmp_path: Path
) -> None:
    """Its engine kept config.json with the old driver's paths, or runs the same bundle again."""
    made = Bundle(tmp_path / "bundle", debian_root, env)
    sees_exactly(made.look(host, [0], "NVIDIA_VISIBLE_DEVICES=all"), host, [0])
    host.half_upgrade(NEW)
    done = made.run(check=False)
    assert done.returncode == 13
    assert SENTENCE in done.stderr
    install(host)
    sees_exactly(made.run().stdout, host, [0])
    assert "535.183.01" not in made.config.read_text()


def install(host: Host) -> None:
    """Finish the upgrade: the new libraries, and the module that fits them."""
    shutil.rmtree(host.lib_path)
    host.driver = host.module_version = NEW
    host.install(CACHE)
