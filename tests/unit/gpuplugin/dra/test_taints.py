from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.dra import taints
from gpuplugin.dra.offered import EFFECTS, Offered
from gpuplugin.health.reason import Reason
from gpuplugin.record.record_form import STATES
from unit.gpuplugin.record import rows
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU, SLICE = uuid(0), uuid(16, "MIG")
KEY = "gpu.nvidia.com/"
LOST = Reason("lost", "the GPU is lost", 1.0, "never")
XID = Reason("xid", "XID 79", 1.0, "never", number=79)
UNWATCHED = Reason("unwatched", "nobody has asked it yet", 1.0, "soon")


def found(reasons: dict[str, Any], host: Any, record: Any = None, effect: str = "NoSchedule") -> dict[str, Any]:
    return taints.taints(reasons, host, record, effect)


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_gpu_that_waits_for_its_layout_gets_no_pods_and_none_is_evicted(effect: str) -> None:
    row = found({GPU: [Reason("layout", "it waits", 1.0, "soon")]}, snapshot([gpu(0)]), effect=effect)[GPU]
    assert row == [{"key": KEY + "layout", "effect": "NoSchedule"}]


def test_a_well_node_has_none() -> None:
    assert found({}, snapshot([gpu(0)])) == {}


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_reason_is_a_key_and_an_xid_its_value(effect: str) -> None:
    row = found({GPU: [XID, LOST]}, snapshot([gpu(0)]), effect=effect)[GPU]
    xid = {"key": KEY + "xid", "value": "79", "effect": effect}
    assert row == [xid, {"key": KEY + "lost", "effect": effect}]


def test_a_key_stands_once() -> None:
    other = Reason("xid", "XID 31", 2.0, "never", number=31)
    (row,) = found({GPU: [XID, other]}, snapshot([gpu(0)]))[GPU]
    assert row["value"] == "79"


def test_nobody_is_evicted_because_nobody_looks() -> None:
    (row,) = found({GPU: [UNWATCHED]}, snapshot([gpu(0)]), effect="NoExecute")[GPU]
    assert row["effect"] == "NoSchedule"


def test_what_the_snapshot_says_of_a_gpu_holds_for_its_instances() -> None:
    host = snapshot([gpu(0, problem="its calls fail"), gpu(1)], [mig(0, 0), mig(1, 0)])
    assert found({}, host).keys() == {GPU, uuid(0, "MIG")}


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_cannot_be_listed_is_not_scheduled_whatever_else_is_wrong_with_it(effect: str) -> None:
    row = found({GPU: [XID]}, snapshot([gpu(0, problem="it hangs")]), effect=effect)[GPU]
    assert row[0]["effect"] == effect
    assert row[1:] == [{"key": KEY + "problem", "effect": "NoSchedule"}]


@pytest.mark.parametrize("state", STATES)
def test_what_the_device_plugin_gave_is_not_scheduled_whatever_the_effect(state: str) -> None:
    host = snapshot([gpu(0), gpu(1)], [mig(0, 0)])
    record = rows.record(allocations={f"gpu {GPU}": rows.allocation(state=state)})
    tainted = found({}, host, record, "None")
    (row,) = tainted[GPU]
    assert tainted == {GPU: [row], uuid(0, "MIG"): [row]}
    assert row == {"key": KEY + "device-plugin", "value": "allocated", "effect": "NoSchedule"}


def test_what_claims_have_is_not_tainted() -> None:
    record = rows.record(claims={"u": rows.claim(rows.claim_device(GPU))})
    assert found({}, snapshot([gpu(0)]), record) == {}


def test_health_has_a_sentence_as_long_as_kubelet_reads() -> None:
    offered = [Offered("gpu-0", GPU, {}), Offered("gpu-1", uuid(1), {})]
    sick, well = taints.health(offered, "n", {GPU: "é" * 999})
    assert (sick["health"], well["health"], well["message"]) == (2, 1, "")
    assert sick["device"] == {"pool_name": "n", "device_name": "gpu-0"}
    assert len(sick["message"].encode()) == taints.LENGTH


def test_what_a_claim_that_is_over_has_left_is_not_scheduled_whatever_the_effect() -> None:
    row = taints.taints({}, snapshot([gpu(0), gpu(1)]), None, "None", unfinished={GPU})
    assert row == {GPU: [{"key": KEY + "problem", "effect": "NoSchedule"}]}


def test_nor_by_who_tolerates_its_xid() -> None:
    row = taints.taints({GPU: [XID]}, snapshot([gpu(0)]), None, "None", unfinished={GPU})[GPU]
    assert [(taint["key"], taint["effect"]) for taint in row] == [
        (KEY + "xid", "None"),
        (KEY + "problem", "NoSchedule"),
    ]


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "taint", "kept"),
    [
        (None, TAINT, True),
        (None, {**TAINT, "effect": "None"}, False),
        ({"key": "k", "value": "v"}, TAINT, False),
        ({"key": "k", "operator": "Equal", "value": "w"}, TAINT, True),
        ({"key": "k", "operator": "Exists"}, TAINT, False),
        ({"operator": "Exists"}, TAINT, False),
        ({"operator": "Exists", "effect": "NoExecute"}, TAINT, True),
        ({"key": "other", "operator": "Exists"}, TAINT, True),
        ({}, TAINT, True),
    ],
)
def test_what_is_tolerated(toleration: dict[str, Any] | None, taint: dict[str, str], kept: bool) -> None:
    """As the scheduler judges it."""
    tolerations = () if toleration is None else (toleration,)
    assert bool(taints.untolerated(tolerations, [taint])) is kept
