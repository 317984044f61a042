"""README's quick starts, typed by a newcomer: from nothing to a GPU in a container, and back to nothing.

Nothing but lines of README is run between two listings of the machine's files: apt resolves the packages, engines are
configured, restarted and left by what stands there. What README presupposes is there before: an engine, an image in
the place of a registry, the packages, and the driver, which lies in another place. That of a cluster is in
test_cluster.py, on the cluster that it has.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, lines, packages, pages
from e2e.installed import PODMAN, Machine
from sample import share

README = pages.TOP / "README.md"
# Who types says yes. Recommended packages are not at hand; the file of settings below is the administrator's.
APT = 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\nAPT::Sandbox::User "root";\n'
DPKG = "force-confold\n"
LOADED = "docker load --input={image}; docker tag debian:local debian:latest"


@contextlib.contextmanager
def nothing_left(there: Machine) -> Iterator[None]:
    """A machine with what a newcomer has, on which the block must leave nothing but what apt says is not needed."""
    there.write("/etc/apt/apt.conf.d/99here", APT)
    there.write("/etc/dpkg/dpkg.cfg.d/here", DPKG)
    there.run("apt-get autoremove --purge")
    for package in built.packages("deb").values():
        shutil.copy(package, there.state)
    there.run(f"cp {there.state}/*.deb /root")
    before = packages.files(there)
    there.write("/etc/gpushim/config.toml", f'[driver]\nroot = "{there.host.root}"\n')
    yield
    there.run("apt-get autoremove --purge")  # what it has brought of the distribution's
    assert packages.removal_traces(there, before) == []


@pytest.mark.parametrize("suite", share([packages.HERE, "trixie"], 2))
def test_docker(suite: str, debian_tree: Path, debian_image: Path) -> None:
    with packages.machine(suite, debian_tree) as there:
        there.restart("docker")
        there.run(LOADED.format(image=debian_image))
        with nothing_left(there):
            lines.work_through(there, pages.commands(README, "sh docker"), starts=2)
            assert there.run("docker run --rm debian ls /dev").stdout
            assert there.run("docker run --rm --gpus=all debian true", check=False).returncode


def test_podman(debian_tree: Path, debian_image: Path) -> None:
    with packages.machine("trixie", debian_tree, view="v2") as there:
        there.write("/etc/containers/containers.conf", PODMAN)
        there.run(f"podman load --input={debian_image}; podman tag localhost/debian:local localhost/debian:latest")
        lines.do(there, "podman run --rm debian true")  # what it keeps of containers is there from now on
        with nothing_left(there):
            lines.work_through(there, pages.commands(README, "sh podman"), starts=1)
            lines.do(there, "podman run --rm debian true")
