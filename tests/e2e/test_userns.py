"""User namespaces as engines make them: Docker's userns-remap, Podman's auto, keep-id and nomap.

The container's root is an ordinary user of the host's there, who owns the image, but neither driver nor nodes. Those
of pods (hostUsers: false) are in test_chroot_cri.py and test_crio.py, whose engines run already.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import engines, leftovers, lent, podman
from e2e.engines import Docker, dockerd
from e2e.expect import INSIDE, PROBE, sees_in_a_user_namespace
from e2e.lent import Installed
from e2e.podman import Podman
from e2e.trees import TOP
from e2e.views import view
from e2e.witness import RUNC
from fakehost import Host

WANTED, INDICES = "NVIDIA_VISIBLE_DEVICES=0,2", [0, 2]
# Ids that are lent to users; this machine's files are left as they are.
LEND = f"""
mount -t tmpfs none /mnt
for kind in uid gid; do
    printf '{lent.NAME}:{lent.MORE}:{lent.IDS}\\ncontainers:300000:{lent.IDS}\\n' >/mnt/$kind
    mount --bind /mnt/$kind /etc/sub$kind
done
"""
# What an entrypoint does that gives the image away: it fails on what belongs to nobody.
TAKES = "chown 5 /etc/ld.so.cache /etc/ld.so.conf.d/*gpushim* && chown -h 5 /usr/lib/*/libcuda.so.1 && ldconfig"

# So Podman calls itself again in the namespaces that it has made.
ROOTLESS = ["_CONTAINERS_USERNS_CONFIGURED=done"]
ROOTLESS += [f"_CONTAINERS_ROOTLESS_{kind}={lent.USER}" for kind in ("UID", "GID")]


@pytest.fixture(scope="module")
def ids() -> Iterator[tuple[str, ...]]:
    """A view of this machine in which ids are lent."""
    with view("hybrid", LEND) as prefix:
        yield prefix


@pytest.fixture(scope="module")
def docker(ids: tuple[str, ...], debian_image: Path, gpushim_env: dict[str, str]) -> Iterator[Docker]:
    """A dockerd whose containers' root is a user to whom ids are lent."""
    runtimes = {"nvidia": TOP / "bin" / "gpushim-runtime"}
    settings: dict[str, object] = {"userns-remap": lent.NAME}
    with dockerd(runtimes, env=gpushim_env, path_dirs=(TOP / "bin",), prefix=ids, settings=settings) as engine:
        engine.docker("load", f"--input={debian_image}")
        yield engine


@pytest.mark.parametrize("ways", [["--runtime=nvidia", f"--env={WANTED}"], ['--gpus="device=0,2"']])
def test_docker_userns_remap(docker: Docker, gpu_host: Host, ways: list[str]) -> None:
    common = ["--rm", "--network=none", f"--volume={PROBE}:{INSIDE}:ro", *ways, "debian:local", "sh", "-ec"]
    script = f"python3 {INSIDE}; read _ first _ </proc/self/uid_map; test $first = {lent.MORE}; {TAKES}"
    sees_in_a_user_namespace(docker.docker("run", *common, script).stdout, gpu_host, INDICES)


def test_podman_auto(ids: tuple[str, ...], podman_images: Path, gpushim_env: dict[str, str], gpu_host: Host) -> None:
    with leftovers.state() as state, podman.podman(state, podman_images, Path(RUNC), ids) as engine:
        podman.write_hook(state, TOP / "bin" / "gpushim-hook", gpushim_env)
        common = ["--rm", "--userns=auto", f"--env={WANTED}", f"--volume={PROBE}:{INSIDE}:ro"]
        script = f"python3 {INSIDE}; {TAKES}"
        sees_in_a_user_namespace(
            engine.run(*common, "localhost/debian:local", "sh", "-ec", script).stdout, gpu_host, INDICES
        )


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    with lent.installed() as found:
        stub = str(found.folder / "gpushim/shim/gpushim/create/stub.py")
        engines.run(["/usr/bin/python3", "-IB", stub, "refresh"], env={"PATH": engines.SYSTEM_PATH, **found.env})
        yield found


@pytest.fixture(scope="module")
def rootless(ids: tuple[str, ...], installed: Installed, debian_image: Path) -> Iterator[Podman]:
    """An ordinary user's Podman with our hook, in the namespaces that it would make for itself."""
    with (
        lent.become(ids) as prefix,
        leftovers.state() as state,
        podman.podman(
            state, None, Path(RUNC), (*prefix, "/usr/bin/env", "_CONTAINERS_USERNS_CONFIGURED=done", *ROOTLESS)
        ) as engine,
    ):
        subprocess.run(["/bin/chown", "--recursive", f"{lent.USER}:{lent.USER}", state], check=True)
        podman.write_hook(state, installed.folder / "gpushim/bin/gpushim-hook", installed.env)
        with debian_image.open("rb") as archive:
            load = engine.command("load", "--quiet")
            subprocess.run(load, stdin=archive, env=engine.env, check=True, timeout=engines.CALL_SECONDS)
        yield engine


@pytest.mark.parametrize(("way", "user", "first"), [("keep-id", lent.USER, 1), ("nomap", 0, 1)])
def test_podman_rootless(rootless: Podman, installed: Installed, way: str, user: int, first: int) -> None:
    """The user's own id is that of the container's user, or has none there; root is a lent one in both."""
    common = ["--rm", "--network=none", f"--userns={way}", f"--env={WANTED}"]
    common += [f"--volume={installed.folder}/probe.py:{INSIDE}:ro", "localhost/debian:local", "sh", "-ec"]
    ids = f"test $(id -u) = {user}; read _ first _ </proc/self/uid_map; test $first = {first}"
    done = rootless.podman("run", *common, f"python3 {INSIDE}; {ids}; test $(stat -c %u /etc/ld.so.cache) = 0")
    sees_in_a_user_namespace(done.stdout, installed.host, INDICES)
