"""Nodes with claims that are well, or none of gpushim's business."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from unit.gpushim.doctor import dra_states, nodes
from unit.gpushim.doctor.patient import Patient


@pytest.fixture
def node(unlisted: Patient) -> Iterator[Patient]:
    """A node whose kubelet listens."""
    with contextlib.ExitStack() as held, unlisted.listening():
        unlisted.kept_open = held
        yield unlisted


def test_claims_alone_are_no_reason_to_miss_the_device_plugin(node: Patient) -> None:
    (node.top / nodes.PLUGINS / "nvidia-gpu.sock").unlink()
    assert [one.verdict for one in node.said("kubernetes-device-plugin")] == ["warning"]
    dra_states.plays(node)
    (found,) = node.said("kubernetes-device-plugin")
    assert (found.verdict, "claims alone" in found.evidence) == ("skipped", True)


def test_both_fronts_are_said(node: Patient) -> None:
    dra_states.plays(node)
    nodes.plays(node, fronts=["device-plugin", "dra"], dra=dra_states.ANSWER)
    (found,) = node.said("kubernetes-dra-driver")
    assert (
        found.evidence
        == "kubelet has gpushim-dra-driver, beside gpushim-device-plugin, and 2 devices are offered to claims"
    )


def test_who_waits_for_kubelet_is_not_broken(unlisted: Patient) -> None:
    with contextlib.ExitStack() as held:
        unlisted.kept_open = held
        (unlisted.top / nodes.PLUGINS / "kubelet.sock").unlink()
        dra_states.plays(unlisted, registered=False)
        (found,) = unlisted.said("kubernetes-dra-driver")
    assert (found.verdict, "waits for kubelet" in found.evidence) == ("skipped", True)


def test_nvidias_claims_are_not_missed(node: Patient) -> None:
    """Its driver has the same name, and its claims tell no UUIDs."""
    dra_states.claimed(node)
    folder = node.top / dra_states.PLUGINS
    folder.mkdir(parents=True)
    with nodes.bound(folder / "dra.sock"):
        (found,) = node.said("kubernetes-dra-driver")
        assert (found.verdict, "that is not gpushim's listens at" in found.evidence) == ("skipped", True)


def test_an_instance_that_does_not_publish_is_well(node: Patient) -> None:
    """As the older of two during an update."""
    dra_states.plays(node, publishes=False, published={})
    assert [one.verdict for one in node.said("kubernetes-dra-driver")] == ["ok"]
