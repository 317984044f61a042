"""Hosts and low-level runtimes for tests of runc."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
import scratch
from e2e import trees
from fakehost import Host

# crun does not run under a mixture of cgroup v1 and v2; what hides v2 goes with the namespace.
PURE_V1 = 'mount -t tmpfs none /sys/fs/cgroup/unified && exec "$@"'
PURE_V1_PREFIX = ("/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-c", PURE_V1, "sh")
MAPPED = 100000  # the user of the host that is root in a user namespace


@pytest.fixture(scope="module")
def mig_host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A host whose first GPU is divided into two MIG instances."""
    root = tmp_path_factory.mktemp("mig") / "root"
    cache = str(trees.TOP / ".cache" / "fakehost")
    return fakehost.build(str(root), 2, mig={0: ["3g.20gb", "1g.5gb"]}, compile_cache=cache)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir=scratch.top()) as name:
        Path(name).chmod(0o755)
        yield Path(name)
