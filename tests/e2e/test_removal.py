"""The package is removed while containers run: real dockerd, and dpkg's own scripts.

Engines call the runtime that they have recorded for exec, kill and delete; what stays under its path hands these on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, packages
from e2e.installed import Machine
from e2e.leftovers import until
from e2e.packages import MAIN

SUITE = "trixie"
STUB = "/usr/bin/gpushim-runtime"
PLACES = "/usr/lib/gpushim-removed /etc/systemd/system/gpushim-removed.service"
ASKS = "--env=NVIDIA_VISIBLE_DEVICES=0"
HEALTHY = "--health-cmd=true --health-interval=1s --health-retries=1"
RUN = "docker run --detach --network=none --runtime=gpushim"
SLEEP = "debian:local sleep 1000"
SECONDS = 20.0


@pytest.fixture(scope="module")
def engine(debian_tree: Path, debian_image: Path) -> Iterator[Machine]:
    with packages.machine(SUITE, debian_tree) as there:
        install(there)
        there.run("gpushim configure docker --runtime-name=gpushim")
        there.restart("docker")
        there.run(f"docker load --input={debian_image}")
        yield there


@pytest.fixture
def there(engine: Machine) -> Iterator[Machine]:
    """A machine with gpushim from its package, and a dockerd that has it as a runtime."""
    if engine.run(f"dpkg-query --show {MAIN}", check=False).returncode:
        install(engine)
    yield engine
    engine.run("docker ps --all --quiet | xargs --no-run-if-empty docker rm --force", check=False)
    engine.run(f"dpkg --purge {MAIN}; rm -rf {STUB} {PLACES}", check=False)


def install(there: Machine) -> None:
    packages.install(there, built.packages("deb")[MAIN])
    packages.settle(there)
    there.run("gpushim refresh")


def health(there: Machine) -> list[str]:
    form = "{{.State.Health.Status}} {{len .State.Health.Log}}"
    return there.run(f"docker inspect --format '{form}' gpu").stdout.split()


def test_running_containers_go_on_until_they_end(there: Machine) -> None:
    """Exec, healthchecks, restart, stop and start, with a second container that keeps the stub; then it goes."""
    there.run(f"{RUN} --name=gpu {ASKS} {HEALTHY} {SLEEP}")
    there.run(f"for name in plain other old; do {RUN} --name=$name {SLEEP}; done; docker stop --time=0 old")
    done = there.run(f"apt-get remove --yes {MAIN}")
    assert f"{STUB} stays for containers that run" in done.stdout
    assert there.run("docker exec gpu ls /dev/nvidiactl").stdout == "/dev/nvidiactl\n"
    before = int(health(there)[1])
    assert until(lambda: health(there)[0] == "healthy" and int(health(there)[1]) >= min(before + 2, 5), SECONDS)
    refused = there.run("docker restart --time=0 gpu", check=False)
    assert "gpushim was removed, and this container may ask for a GPU" in refused.stderr
    there.run("docker restart --time=0 plain")
    assert there.run("docker exec plain echo here").stdout == "here\n"
    there.run(f"docker run --rm --network=none --runtime=gpushim {ASKS.replace('=0', '=void')} debian:local true")
    assert there.run(f"test -x {STUB}; apt-get purge --yes {MAIN}").stdout.count(f"{STUB} stays for containers") == 1
    there.run(f"docker stop --time=0 other; test -x {STUB}; docker stop --time=0 plain")
    assert there.run(f"ls -d {STUB} {PLACES}", check=False).stdout == ""
    gone = there.run("docker start plain", check=False)
    assert gone.returncode
    assert "gpushim-runtime" in gone.stderr


def test_installed_again_it_takes_the_stub_s_place(there: Machine) -> None:
    there.run(f"{RUN} --name=gpu {ASKS} {SLEEP}; apt-get remove --yes {MAIN}")
    assert there.run(f"readlink {STUB}").stdout == "/usr/lib/gpushim-removed/runtime\n"
    install(there)
    assert there.run(f"ls -d {PLACES}", check=False).stdout == ""
    there.run("docker restart --time=0 gpu")
    assert there.run("docker exec gpu ls /dev/nvidiactl").stdout == "/dev/nvidiactl\n"


def test_the_next_boot_takes_it_away(there: Machine) -> None:
    """By its unit, or by the first container where there is no systemd; a boot is told by its id."""
    there.run(f"{RUN} --name=gpu {ASKS} {SLEEP}; apt-get remove --yes {MAIN}; cp -a /usr/lib/gpushim-removed /kept")
    unit = there.run("sed -n 's/^ExecStart=//p' /etc/systemd/system/gpushim-removed.service").stdout.strip()
    there.run(f"{unit}; test -x {STUB}")  # not in the boot of those containers
    there.run(f"echo another >/usr/lib/gpushim-removed/boot; {unit}")
    assert there.run(f"ls -d {STUB} {PLACES}", check=False).stdout == ""
    there.run(f"cp -a /kept /usr/lib/gpushim-removed; ln -s /usr/lib/gpushim-removed/runtime {STUB}")
    there.run("echo another >/usr/lib/gpushim-removed/boot")
    done = there.run(f"{STUB} create --bundle /nowhere x", check=False)
    assert (done.returncode, "until the last boot" in done.stderr) == (127, True)
    assert there.run(f"ls -d {STUB} {PLACES}", check=False).stdout == ""
    there.run(f"cp -a /kept /usr/lib/gpushim-removed; ln -s /usr/lib/gpushim-removed/runtime {STUB}")  # for its end
