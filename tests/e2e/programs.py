"""Real programs that tests run, by name: of Kubernetes, Docker 29, CRI-O.

They are taken of the directory that $GPUSHIM_TEST_PROGRAMS names, of what this machine has built (builds.py), or of
PATH, where the Debian below may have a Docker of its own, which is older. Where there is none the test is skipped.
Out of scope: programs of the Debians that tests enter (chroots.py).
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import builds

KUBERNETES = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
DOCKER = ("dockerd", "docker", "docker-proxy")
OLDEST = 29  # of Docker, from PATH


def path(name: str) -> Path:
    """Return a program; skip the test where there is none."""
    found = find(name)
    if found is None:
        pytest.skip(f"there is no {name}; tools/setup.sh test builds it, or {builds.NAMED} names a directory with it")
    return found


def kubernetes() -> list[Path]:
    """Return the programs of a cluster, each as `path`; etcd only of the variable's directory, for Debian has one."""
    etcd = named("etcd")
    return [*map(path, KUBERNETES), *([etcd] if etcd else [])]


def find(name: str) -> Path | None:
    """Return a program, if there is one."""
    directories = [builds.place(module) for module in builds.modules()]
    found = named(name) or next(filter(Path.is_file, (directory / name for directory in directories)), None)
    if found or (name in DOCKER and not _is_new_docker()):
        return found
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def named(name: str) -> Path | None:
    """Return a program of the directory that the variable names, if it has it."""
    found = Path(os.environ.get(builds.NAMED, ""), name).absolute()
    return found if os.environ.get(builds.NAMED) and found.is_file() else None


@functools.cache
def _is_new_docker() -> bool:
    command = shutil.which("dockerd")
    if command is None:
        return False
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"version (\d+)", said)
    return version is not None and int(version[1]) >= OLDEST
