"""What the end-to-end tests stand on: a host with GPUs, root filesystems, engines, and the shim under test.

The simulated host and the shim's state are private to the session; /run/gpushim and /etc/gpushim are never
touched. Engines are started once for all tests that use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import engines, image, kube, plane, plugins, podman, recorder, told, trees
from e2e.bundles import Bundle
from e2e.hostile import WAYS, Trap
from e2e.hostile_places import Place
from e2e.node import payload as make_payload
from e2e.witness import Witness, settings

RUNTIME = trees.TOP / "bin" / "gpushim-runtime"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show the logs of the engines that a failed test used."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            # An engine that is found to have left something behind has lost its log to the cleaning.
            if isinstance(value, (engines.Docker, engines.Containerd)) and value.log.exists():
                report.sections.append((f"log of {type(value).__name__}", engines.tail(value.log)))
    return report


@pytest.fixture(scope="session")
def debian_tree() -> Path:
    """A Debian root filesystem that nobody writes to."""
    return trees.debian()


@pytest.fixture(scope="session")
def busybox_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root filesystem without any loader or cache; nobody writes to it."""
    return trees.busybox(tmp_path_factory.mktemp("busybox") / "tree")


@pytest.fixture
def debian_root(debian_tree: Path, tmp_path: Path) -> Iterator[Path]:
    """A Debian root filesystem of this test's own."""
    with trees.overlay(debian_tree, tmp_path) as root:
        yield root


@pytest.fixture
def bundle(debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str]) -> Bundle:
    """A bundle with a Debian root filesystem, under the default policy."""
    return Bundle(tmp_path / "bundle", debian_root, gpushim_env)


@pytest.fixture(params=WAYS)
def trap(request: pytest.FixtureRequest, debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str]) -> Trap:
    """A Debian image to lay traps in, in each way that a plan is applied."""
    return Trap(tmp_path, debian_root, gpushim_env, request.param)


@pytest.fixture(scope="session")
def low(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A low-level runtime that records what it gets."""
    return recorder.build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="session")
def gpu_host(tmp_path_factory: pytest.TempPathFactory) -> fakehost.Host:
    """A simulated host with three GPUs whose minor numbers are not their indices."""
    root = tmp_path_factory.mktemp("host") / "root"
    return fakehost.build(str(root), 3, compile_cache=str(trees.TOP / ".cache" / "fakehost"))


@pytest.fixture(scope="session")
def gpushim_env(gpu_host: fakehost.Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables that point the shim at the simulated host and at a state of its own, as a refresh leaves it."""
    env = settings(tmp_path_factory.mktemp("gpushim"), gpu_host.root)
    engines.run([str(trees.TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
    return env


@pytest.fixture(scope="module")
def env(host: fakehost.Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings and the snapshot of a module's own host, its fixture `host`; for a node with a kubelet."""
    return plugins.surveyed(host, tmp_path_factory.mktemp("settings"))


@pytest.fixture(scope="module")
def node(host: fakehost.Host, env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[kube.Node]:
    """A node with a kubelet, and the GPUs of a module's own host."""
    with plugins.gpu_node(host, env, debian_image, busybox_tree) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(host: fakehost.Host, debian_image: Path, busybox_tree: Path) -> Iterator[plane.Cluster]:
    """A cluster whose node has the driver of a module's own host, its fixture `host`; nothing is installed on it."""
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    with plane.cluster(debian_image, pause, image.archive()) as found:
        found.write("/etc/gpushim/config.toml", f'[driver]\nroot = "{host.root}"\n')
        yield found


@pytest.fixture(scope="session")
def cdi_dir(gpushim_env: dict[str, str]) -> Path:
    """The directory with the CDI spec of the simulated host, as a refresh writes it."""
    return Path(gpushim_env["GPUSHIM_STATE"], "cdi")


@pytest.fixture
def place(gpushim_env: dict[str, str]) -> Place:
    """This checkout, on this machine."""
    return Place(gpushim_env)


@pytest.fixture
def specs(gpushim_env: dict[str, str]) -> Iterator[Path]:
    """The first of the directories of CDI specs; the files in it are gone afterwards."""
    directory = Path(gpushim_env["GPUSHIM_CONFIG"]).with_name("cdi")
    directory.mkdir(exist_ok=True)
    yield directory
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.unlink()


@pytest.fixture(scope="session")
def gpushim_runtime() -> Path:
    """The runtime under test."""
    return RUNTIME


@pytest.fixture(scope="session")
def witness(gpu_host: fakehost.Host, tmp_path_factory: pytest.TempPathFactory) -> Witness:
    """The runtime under test between two scripts that keep config.json as it goes in and comes out."""
    return Witness(tmp_path_factory.mktemp("witness"), RUNTIME, gpu_host.root)


@pytest.fixture
def nodes(gpu_host: fakehost.Host, busybox_tree: Path, tmp_path: Path) -> Callable[[Place], told.Node]:
    """A function that makes a node of which a refresh has told the launcher, with the programs of a place."""
    return lambda place: told.node(place, gpu_host, busybox_tree, tmp_path / "node")


@pytest.fixture(scope="session")
def debian_image(debian_tree: Path) -> Path:
    """An archive of the image `debian:local`."""
    return trees.image(debian_tree, "debian:local", ["/bin/sh"])


@pytest.fixture(scope="session")
def podman_images(debian_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image store of Podman's with the image `localhost/debian:local`."""
    return podman.store(tmp_path_factory.mktemp("podman") / "images", debian_image)


@pytest.fixture(scope="session")
def docker(debian_image: Path, gpushim_env: dict[str, str], witness: Witness) -> Iterator[engines.Docker]:
    """A dockerd with the runtimes `nvidia` and `witnessed` and the image `debian:local`."""
    with engines.dockerd({"nvidia": RUNTIME, "witnessed": witness.front}, env=gpushim_env) as engine:
        engine.docker("load", f"--input={debian_image}")
        yield engine


@pytest.fixture(scope="session")
def containerd(
    debian_image: Path, busybox_tree: Path, gpushim_env: dict[str, str], witness: Witness
) -> Iterator[engines.Containerd]:
    """A containerd with the CRI handlers `nvidia` and `witnessed` and the image `debian:local`."""
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    handlers = {"nvidia": RUNTIME, "witnessed": witness.front}
    with engines.containerd(handlers, pause="docker.io/library/pause:local", env=gpushim_env) as engine:
        engine.load(debian_image)
        engine.load(pause)
        yield engine


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image brings to a node."""
    return make_payload(tmp_path_factory.mktemp("payload"))
