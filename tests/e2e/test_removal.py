"""The package is removed while containers run: real engines, and dpkg's own scripts; for CRI-O their functions alone.

Engines call the runtime that they have recorded for exec, kill and delete; what stays under its path hands these on.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, cri, crio, packages, trees
from e2e.installed import PODMAN, Machine
from e2e.leftnames import KEPT, PROGRAMS, REFUSED
from e2e.leftovers import until
from e2e.packages import MAIN
from e2e.podman import store
from fakehost import Host

SUITE = "trixie"
ASKS = "--env=NVIDIA_VISIBLE_DEVICES=0"
HEALTHY = "--health-cmd=true --health-interval=1s --health-retries=1"
RUN = "docker run --detach --network=none --runtime=gpushim"
RUN_SLEEP = "debian:local sleep 1000"
IMAGE = "localhost/debian:local"
SLEEP = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]
SECONDS = 20.0
# What a package does, for a Debian that has none.
REMOVAL = """
DPKG_ROOT=
{functions}
rm -r /usr/bin/gpushim* /usr/lib/gpushim
leave_script <<'END'
{script}
END
"""
# How each of the others runs, calls, ends and starts a container by its name.
OTHERS = {
    "ctr": (
        "ctr run --detach --env {} --runc-binary=/usr/bin/gpushim-runtime docker.io/library/debian:local {} "
        "sleep 1000",
        "ctr tasks exec --exec-id=$(date +%s%N) {} grep -q sleep /proc/1/comm",
        "ctr tasks delete --force {}",
        "ctr tasks start --detach {}",
    ),
    "podman": (
        "podman --runtime=/usr/bin/gpushim-runtime run --detach --network=none --pids-limit=0 --env={} --name={} "
        f"{IMAGE} sleep 1000",
        "podman --runtime=/usr/bin/gpushim-runtime exec {} grep -q sleep /proc/1/comm",
        "podman --runtime=/usr/bin/gpushim-runtime stop --time=0 {}",
        "podman --runtime=/usr/bin/gpushim-runtime start {}",
    ),
}


@pytest.fixture(scope="module")
def engine(debian_tree: Path, debian_image: Path) -> Iterator[Machine]:
    with packages.machine(SUITE, debian_tree) as there:
        install(there)
        there.run("gpushim configure docker --runtime-name=gpushim")
        there.write("/etc/containers/containers.conf", PODMAN)
        there.restart("docker")
        there.run(f"docker load --input={debian_image}; podman load --input={debian_image}")
        yield there


@pytest.fixture
def there(engine: Machine) -> Iterator[Machine]:
    """A machine with gpushim from its package, and a dockerd that has it as a runtime."""
    if engine.run(f"dpkg-query --show {MAIN}", check=False).returncode:
        install(engine)
    yield engine
    engine.run("docker ps --all --quiet | xargs --no-run-if-empty docker rm --force", check=False)
    engine.run(f"dpkg --purge {MAIN}; rm -rf {PROGRAMS} {KEPT}", check=False)


def install(there: Machine) -> None:
    packages.install(there, built.packages("deb")[MAIN])
    packages.settle(there)
    there.run("gpushim refresh")


def goes_on_healthy(there: Machine) -> None:
    def health() -> str:
        form = "{{.State.Health.Status}} {{range .State.Health.Log}}{{.Start}} {{end}}"
        return there.run(f"docker inspect --format '{form}' gpu").stdout

    before = health()
    assert until(lambda: health().startswith("healthy ") and health() != before, SECONDS)


def test_running_containers_go_on(there: Machine) -> None:
    """Exec, healthchecks, restart, stop and start; after a purge too; and with GPUs again after an installation."""
    there.run(f"{RUN} --name=gpu {ASKS} {HEALTHY} {RUN_SLEEP}")
    there.run(f"for name in plain old; do {RUN} --name=$name {RUN_SLEEP}; done; docker stop --time=0 old")
    for words in ("remove", "purge"):
        there.run(f"apt-get {words} --yes {MAIN}")
        assert there.run("docker exec gpu ls /dev/nvidiactl").stdout == "/dev/nvidiactl\n"
        goes_on_healthy(there)
        there.run("docker restart --time=0 plain; docker start old; docker stop --time=0 old")
        assert there.run("docker exec plain echo here").stdout == "here\n"
    assert REFUSED in there.run("docker restart --time=0 gpu", check=False).stderr
    assert there.run(f"dpkg --search {PROGRAMS}", check=False).stdout == ""
    install(there)
    assert there.run(f"ls -d {KEPT}; dpkg --verify {MAIN} | grep /bin/", check=False).stdout == ""
    there.run("docker restart --time=0 gpu plain")
    assert there.run("docker exec gpu ls /dev/nvidiactl").stdout == "/dev/nvidiactl\n"


def test_others_containers_go_on_too(there: Machine, debian_image: Path) -> None:
    """Those of ctr and Podman, which another low-level runtime has created than the first that is there."""
    there.run("""sed -i 's|^# low-level = .*|low-level = ["crun"]|' /etc/gpushim/config.toml; gpushim refresh""")
    there.restart("containerd")
    there.run(f"ctr images import {debian_image}")
    for tool, (run, *_) in OTHERS.items():
        there.run(run.format("NVIDIA_VISIBLE_DEVICES=0", f"{tool}-gpu"))
        there.run(run.format("A=B", f"{tool}-plain"))
    there.run(f"apt-get remove --yes {MAIN}; which runc")
    for tool, (_, call, end, start) in OTHERS.items():
        for name in (f"{tool}-gpu", f"{tool}-plain"):
            there.run(f"{call.format(name)} && {end.format(name)}")
        assert REFUSED in there.run(start.format(f"{tool}-gpu"), check=False).stderr
        there.run(f"{start.format(f'{tool}-plain')} && {call.format(f'{tool}-plain')}")
        there.run(end.format(f"{tool}-plain"))
    there.stop("containerd")


def test_where_podman_has_the_hook_containers_without_gpus_start(there: Machine) -> None:
    there.run(f"gpushim configure podman --hooks; apt-get remove --yes {MAIN}")
    run = f"podman run --rm --network=none --pids-limit=0 {{}} {IMAGE} echo here"
    assert there.run(run.format("")).stdout == "here\n"
    assert REFUSED in there.run(run.format(ASKS), check=False).stderr


def test_cri_o_s_containers_go_on_too(
    gpu_host: Host, podman_images: Path, busybox_tree: Path, tmp_path: Path
) -> None:
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    subprocess.run([trees.TOP / "packaging/install", tmp_path, "main", trees.TOP / "vendor"], check=True)
    functions, script = (
        (trees.TOP / path).read_text() for path in ("packaging/deb/debian/left.sh", "shim/gpushim/removed")
    )
    with crio.entered(gpu_host, [podman_images, store(tmp_path / "images", pause)], "v2") as there:
        there.sh("rm /usr/bin/gpushim*; cp -r $1/usr/. /usr; gpushim refresh", str(tmp_path))
        there.hands_over(there.sh("gpushim configure crio").stderr)
        with there.running(), there.cri() as client:
            pod = client.run_pod("nvidia")
            gpu = client.create(pod, IMAGE, SLEEP, env={"NVIDIA_VISIBLE_DEVICES": "0"})
            client.start(gpu)
            there.sh(REMOVAL.format(functions=functions, script=script))
            assert client.execute(gpu, "ls", "/dev/nvidiactl") == "/dev/nvidiactl\n"
            with pytest.raises(cri.RefusedError, match="removed, and this container may ask for a GPU"):
                client.create(pod, IMAGE, SLEEP, env={"NVIDIA_VISIBLE_DEVICES": "0"})
            client.start(short := client.create(pod, IMAGE, ["/bin/true"]))
            client.output(short)
            client.remove_pod(pod)
