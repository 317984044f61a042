"""The rpms under Docker 26 with NVIDIA's names, and on Python 3.9, which RHEL 9 and Amazon Linux 2023 have."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, packages, rpm_packages
from e2e.expect import INSIDE, PROBE, probe, sees_exactly, sees_nothing
from e2e.installed import Machine
from e2e.leftnames import KEPT, PROGRAMS, REFUSED
from e2e.rpm_packages import COMPAT, MAIN, RpmMachine

# As NVIDIA's documentation has them: they were there before gpushim, and stay.
DAEMON_JSON = json.dumps({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}})
RUN = f"docker run --rm --network=none --volume={PROBE}:{INSIDE}:ro"
IMAGE = "debian:local"


@pytest.fixture(scope="module")
def rpm(debian_tree: Path) -> Iterator[RpmMachine]:
    with rpm_packages.machine(debian_tree) as machine:
        yield machine


def install(machine: RpmMachine) -> str:
    """Install gpushim and NVIDIA's names, and point it at the driver; returns what rpm says."""
    rpms = built.packages("rpm")
    said = machine.rpm("-i", rpms[MAIN], rpms[COMPAT]).stdout
    packages.settle(machine.there)
    return said


@pytest.fixture(scope="module")
def docker(rpm: RpmMachine, debian_image: Path) -> Machine:
    there = rpm.there
    there.write("/etc/docker/daemon.json", DAEMON_JSON)
    said = install(rpm)
    assert "engines whose settings name nvidia-container-runtime use gpushim from the next container" in said
    there.restart("docker")
    there.run(f"docker load --input={debian_image}")
    return there


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        ("--runtime=nvidia --env=NVIDIA_VISIBLE_DEVICES=0,2", [0, 2]),
        ("--runtime=nvidia --env=NVIDIA_VISIBLE_DEVICES=all", [0, 1, 2]),
        ("--gpus all", [0, 1, 2]),
        ("--gpus device=1", [1]),
    ],
)
def test_settings_that_name_nvidias_runtime_stay_as_they_are(
    docker: Machine, options: str, indices: list[int]
) -> None:
    report = docker.run(f"{RUN} {options} {IMAGE} {' '.join(probe(docker.host, indices))}").stdout
    sees_exactly(report, docker.host, indices)
    assert docker.run("cat /etc/docker/daemon.json").stdout == DAEMON_JSON


def test_without_a_request_a_container_has_no_gpu(docker: Machine) -> None:
    sees_nothing(docker.run(f"{RUN} --runtime=nvidia {IMAGE} {' '.join(probe(docker.host, []))}").stdout)


def test_running_containers_go_on_when_it_is_erased(docker: Machine, rpm: RpmMachine) -> None:
    """By NVIDIA's name, and first while gpushim itself is there; a new installation takes the place of what stays."""
    run = "docker run --detach --network=none --runtime=nvidia --name={} {} debian:local sleep 1000"
    docker.run(f"{run.format('gpu', '--env=NVIDIA_VISIBLE_DEVICES=0')}; {run.format('plain', '')}")
    rpm.rpm(f"-e {COMPAT}")
    docker.run("docker restart --time=0 gpu")
    rpm.rpm(f"-e {MAIN}")
    assert docker.run("docker exec gpu ls /dev/nvidiactl").stdout == "/dev/nvidiactl\n"
    assert REFUSED in docker.run("docker restart --time=0 gpu", check=False).stderr
    docker.run("docker restart --time=0 plain")
    assert docker.run("docker exec plain echo here").stdout == "here\n"
    assert rpm.rpm(f"-qf {PROGRAMS}", check=False).stdout.count("is not owned by any package") == 2
    install(rpm)
    verified = rpm.rpm(f"--verify {MAIN} {COMPAT}", check=False).stdout
    assert docker.run(f"ls -d {KEPT}", check=False).stdout + "".join(re.findall("/usr/bin/.*", verified)) == ""
    docker.run("docker restart --time=0 gpu plain")
    assert docker.run("docker exec gpu ls /dev/nvidiactl").stdout == "/dev/nvidiactl\n"
    docker.run("docker rm --force gpu plain")


def python39() -> str:
    """Find a Python 3.9 where `tools/test pythons` does; "" if there is none."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [Path("/usr/bin/python3.9"), *sorted(root.glob("versions/3.9.*/bin/python3.9"))]
    return next((str(path) for path in reversed(found) if path.exists()), "")


@pytest.mark.skipif(not python39(), reason="there is no Python 3.9 on this machine, so nothing was tested on it")
def test_a_container_gets_its_gpus_on_python_39(debian_tree: Path) -> None:
    """Refresh, a create and the hook, from installed files that this Python has compiled."""
    with rpm_packages.machine(debian_tree, packages.HERE) as machine:
        there = machine.there
        there.run(f"ln -sf {python39()} /usr/bin/python3")
        machine.rpm("-i", built.packages("rpm")[MAIN])
        packages.settle(there)
        compiled = there.run("find /usr/lib/gpushim -name '*.cpython-39.pyc'").stdout
        assert compiled.count("\n") > 150
        bundle = packages.bundle(there)
        sees_exactly(bundle.look(there.host, [0, 2], "NVIDIA_VISIBLE_DEVICES=0,2"), there.host, [0, 2])
        assert there.run("gpushim list --format csv | wc -l").stdout == "4\n"
