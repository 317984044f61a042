"""A host and a cluster in which pods get GPUs by claims."""

from __future__ import annotations

import pytest

from e2e import helm
from e2e.allocated import built
from e2e.deployed import BIG, GPU, IMAGE, SMALL
from e2e.dradeployed import install
from e2e.plane import Cluster
from fakehost import Host

ALL = {GPU: 2, BIG: 1, SMALL: 1}
VALUES: helm.Values = {
    "image": IMAGE,
    "settings": {"mig-strategy": "mixed"},
    "dra": {"enabled": True},
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Four GPUs, the first of which is divided."""
    return built(tmp_path_factory.mktemp("dra"), 4, mig={0: ["3g.20gb", "1g.5gb"]})


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with the chart, and the DRA driver in it."""
    install(cluster, VALUES)
    return cluster
