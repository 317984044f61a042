"""What becomes of an allocation and a claim, state by state, and what is never given out twice."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.devices.changes import UNTOLD
from gpuplugin.record import grants, transitions
from gpuplugin.record.grants import Request
from gpuplugin.record.kubelet_state import KubeletState
from gpuplugin.record.record_form import CONFIRMED, GRANTED, LOST, STATES, UNCONFIRMED
from gpuplugin.record.transitions import GRACE, QUIET
from gpuplugin.settings.resources import Device
from gpushim.containers.kubelet import Claim, Given
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record.rows import (
    GPU,
    MPS,
    ONE,
    SLICED,
    TWO,
    WHOLE,
    allocation,
    claim,
    claim_device,
    division,
    record,
)
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

KEY, NOW = f"{GPU} {ONE}", 1000.0
PART, REMADE = uuid(1, "MIG"), uuid(2, "MIG")
UNITS = {ONE: Device(ONE, ONE, "0", 0)}


def kubelet(**more: Any) -> KubeletState:
    """Return a kubelet that answers, has nothing, and has just written its checkpoint."""
    state = KubeletState(NOW, {}, runs=True, lists_all=True, checkpoint={}, written=NOW, claim_uids=frozenset())
    return state._replace(**more)


def promises(uid: str = "u-a", key: str = KEY) -> dict[str, Given]:
    resource, _, name = key.partition(" ")
    return {key: Given(uid, "c", resource, [name], [])}


LISTS: dict[str, Any] = {"holders": {GPU: {ONE: "pod d/a"}}}
STARTED: dict[str, Any] = {"checkpoint": None, "is_new": True, "is_young": True}
AWAY: dict[str, Any] = {"holders": None, "runs": False, "lists_all": False}
# What kubelet has, whether a process of the pod is left, and the states after that; "" is released.
CASES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "listed": (LISTS, True, CONFIRMED),
    "listed, without a process yet": (LISTS, False, CONFIRMED),
    "in the checkpoint alone, as an init container's": ({"checkpoint": promises()}, True, UNCONFIRMED),
    "a kubelet that is away, and has it": ({**AWAY, "checkpoint": promises()}, False, "as it was"),
    "a kubelet that is away, and has forgotten it": (AWAY, True, LOST),
    "a kubelet that is away without its checkpoint": ({**AWAY, "checkpoint": None}, True, "as it was"),
    "a kubelet that has started without its checkpoint": (
        {"checkpoint": None, "is_new": True, "is_young": True},
        True,
        LOST,
    ),
    "deleted by force, a process hangs": ({}, True, LOST),
    "ended": ({}, False, ""),
    "ended, while kubelet is away": (AWAY, False, ""),
    "neither file nor answer": ({**AWAY, "checkpoint": None}, False, "as it was"),
    "a static kubelet that answers, without a checkpoint": (
        {"checkpoint": None, "lists_all": False},
        False,
        "as it was",
    ),
    "a checkpoint that nobody has written since": ({"checkpoint": promises(), "is_stale": True}, False, ""),
    "such a checkpoint, a process is left": ({"checkpoint": promises(), "is_stale": True}, True, UNCONFIRMED),
}


@pytest.mark.parametrize(("state", "runs", "after"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("before", STATES)
def test_an_allocation(state: dict[str, Any], runs: bool, after: str, before: str) -> None:
    row = allocation(state=before)
    moved = transitions.move_allocation(KEY, row, kubelet(**state), {"u-a": 60.0} if runs else {})
    if after == "as it was":
        after = UNCONFIRMED if state.get("checkpoint") and before != CONFIRMED else before
    assert (moved["state"] if moved else "") == after


def test_a_pod_that_ends_may_have_a_process_for_a_moment() -> None:
    moved = transitions.move_allocation(KEY, allocation(), kubelet(), {"u-a": GRACE - 1})
    assert moved == allocation()
    assert transitions.move_claim("u", claim(claim_device()), kubelet(), {"u-c": GRACE - 1}) == claim(claim_device())


def test_what_was_granted_just_now_is_not_in_kubelets_files_yet() -> None:
    row = allocation(state=GRANTED, pod="", uid="", since=NOW - QUIET / 2)
    assert transitions.move_allocation(KEY, row, kubelet(), {}) == row
    late = {**row, "since": NOW - QUIET - 1}
    assert transitions.move_allocation(KEY, late, kubelet(written=NOW - 2 * QUIET), {}) == late  # type: ignore[arg-type]
    assert transitions.move_allocation(KEY, late, kubelet(), {}) is None  # type: ignore[arg-type]


def test_a_checkpoint_from_before_the_grant_is_of_the_pod_before() -> None:
    row = allocation(state=GRANTED, pod="", uid="", since=NOW)
    listed = kubelet(**LISTS, checkpoint=promises("u-before"), written=NOW - 1)
    moved = transitions.move_allocation(KEY, row, listed, {})
    assert moved
    assert (moved["pod"], moved["uid"]) == ("pod d/a", "")


def test_a_name_that_comes_again_is_another_pod() -> None:
    row = allocation(pod="pod d/web-0", uid="u-before")
    state = kubelet(holders={GPU: {ONE: "pod d/other"}}, written=0.0)
    moved = transitions.move_allocation(KEY, row, state, {})
    assert moved
    assert (moved["pod"], moved["uid"]) == ("pod d/other", "")


LISTED = Claim("d", "c", "gpu.nvidia.com", "n", ONE.lower(), ())
CLAIMS: dict[str, tuple[dict[str, Any], dict[str, Any], bool, str]] = {
    "in kubelet's file": ({}, {"claim_uids": {"u"}}, False, CONFIRMED),
    "listed": ({}, {"claims": [LISTED]}, False, CONFIRMED),
    "lost once, and in the file still": ({"state": LOST}, {"claim_uids": {"u"}}, False, LOST),
    "in no file, a process is left": ({}, {"claim_uids": {"other"}}, True, LOST),
    "in no file": ({}, {"claim_uids": {"other"}}, False, ""),
    "a file that is empty, and pods that are known": ({}, {"claim_uids": set()}, False, ""),
    "a file that is empty, and no pods": ({"pods": []}, {"claim_uids": set()}, False, CONFIRMED),
    "a file that is not seen": ({}, {"claim_uids": None}, False, CONFIRMED),
    "just granted": ({"since": NOW, "state": GRANTED}, {"claim_uids": {"other"}}, False, GRANTED),
    "it shares something, which ends first": ({"sharing": [{}]}, {"claim_uids": {"other"}}, False, LOST),
}


@pytest.mark.parametrize(("row", "state", "runs", "after"), CLAIMS.values(), ids=CLAIMS)
def test_a_claim(row: dict[str, Any], state: dict[str, Any], runs: bool, after: str) -> None:
    moved = transitions.move_claim("u", claim(claim_device(), **row), kubelet(**state), {"u-c": 60.0} if runs else {})
    assert (moved["state"] if moved else "") == after


def test_a_claim_of_another_driver_ends_with_kubelets_list() -> None:
    key = "claim d/c of other"
    row = claim(claim_device(), driver="other", since=0.0)
    assert transitions.move_claim(key, row, kubelet(claim_uids=None, lists_all=False), {}) == row
    assert transitions.move_claim(key, row, kubelet(claim_uids=None), {}) is None


def test_the_suspects_are_the_pods_that_kubelet_does_not_list() -> None:
    before = record(
        allocations={KEY: allocation(), f"{GPU} x": allocation(uid="u-x")}, claims={"u": claim(claim_device())}
    )
    assert transitions.find_suspects(before, kubelet(**LISTS)) == {"u-x", "u-c"}


def test_what_kubelet_has_and_nobody_wrote_down_is_recorded_with_what_excludes_others() -> None:
    host = snapshot([gpu(0)])
    state = kubelet(
        holders={GPU: {f"{ONE}::1": "pod d/b"}},
        checkpoint=promises("u-b", f"{GPU} {ONE}::1"),
        claims=[LISTED._replace(driver="other", cdi=(f"nvidia.com/gpu={ONE}",), uids=frozenset({"u-c"}))],
        snapshot=host,
    )
    after = transitions.reconcile(record({ONE: division(2, "time-slicing")}), state, {}, UNITS)
    (row,) = after["gpus"][ONE]["allocations"].values()
    assert (row["sharing"], row["pod"], row["uid"]) == (["time-slicing", GPU], "pod d/b", "u-b")
    (foreign,) = after["claims"].values()
    assert (foreign["pods"], foreign["devices"][0]["gpu"]) == (["u-c"], ONE)


def test_another_drivers_claim_of_the_name_of_one_that_hangs_has_its_gpu_too() -> None:
    key = "claim d/c of other"
    before = record(claims={key: claim(claim_device(), driver="other", state=LOST)})
    listed = LISTED._replace(driver="other", device="two", cdi=(f"nvidia.com/gpu={TWO}",))
    state = kubelet(claims=[listed], claim_uids=None, snapshot=snapshot([gpu(0), gpu(1)]))
    units = {**UNITS, TWO: Device(TWO, TWO, "1", 1)}
    after = transitions.reconcile(before, state, {"u-c": 60.0}, units)
    assert {device["uuid"] for device in after["claims"][key]["devices"]} == {ONE, TWO}
    assert after["claims"][key]["pods"] == ["u-c"]
    assert transitions.reconcile(after, state, {}, units) == after
    assert not transitions.reconcile(after, kubelet(), {}, units)["claims"]


def test_what_a_checkpoint_has_that_nobody_has_written_since_is_not_recorded_anew() -> None:
    """As where the DRA driver has taken the place of the device plugin."""
    before = record(allocations={KEY: allocation(uid="")})
    state = kubelet(checkpoint=promises(), is_stale=True)
    assert transitions.find_suspects(before, state) == {"u-a"}
    assert transitions.reconcile(before, state, {"u-a": 60.0}, UNITS)["gpus"][ONE]["allocations"]
    after = transitions.reconcile(before, state, {}, UNITS)
    assert not after["gpus"][ONE]["allocations"]
    assert transitions.reconcile(after, state, {"u-a": 60.0}, UNITS)["gpus"][ONE]["allocations"]
    assert transitions.reconcile(after, state._replace(lists_all=False), {}, UNITS)["gpus"][ONE]["allocations"]


def test_what_is_unknown_is_known_when_kubelet_has_told_all() -> None:
    before = record(unknown="it was damaged")
    assert transitions.reconcile(before, kubelet(is_young=True), {}, UNITS)["unknown"]
    assert transitions.reconcile(before, kubelet(damage="a file is damaged"), {}, UNITS)["unknown"]
    assert not transitions.reconcile(before, kubelet(), {}, UNITS)["unknown"]


def ask(*sharing: str, device: str = ONE, name: str = "") -> Request:
    return Request(device, GPU, name or device, (sharing[0], sharing[1]))


def test_a_grant_is_recorded_before_anybody_knows_whose_it_is() -> None:
    after, rows = grants.grant(record(), [ask(*WHOLE)], NOW, set())
    assert after["gpus"][ONE]["allocations"] == rows[ONE]
    assert rows[ONE][KEY] == allocation(pod="", uid="", state=GRANTED, since=NOW)


MIG_HOLDER = {f"{GPU} {PART}": allocation(PART, placement="1/0")}
TAKEN: dict[str, tuple[Any, Request, str]] = {
    "in another way": (
        record({ONE: division(2, "time-slicing")}, {KEY: allocation()}),
        ask(*SLICED, name=f"{ONE}::0"),
        f"cannot be given out as {GPU} (time-slicing): pod d/a has {ONE} as {GPU}",
    ),
    "in no division": (record({ONE: division(2, "mps", group="group")}), ask(*WHOLE), "but as group (mps)"),
    "an instance of it": (record(allocations=MIG_HOLDER), ask(*WHOLE), f"pod d/a has {PART}"),
    "the instance in whose place it was made": (
        record({REMADE: division(placement="1/0")}, MIG_HOLDER),
        ask(*WHOLE, device=REMADE),
        f"pod d/a has {PART}",
    ),
    "a claim's": (record(claims={"u": claim(claim_device())}), ask(*WHOLE), f"claim d/c of gpu.nvidia.com has {ONE}"),
    "a claim's instance": (
        record(claims={"u": claim(claim_device(PART, ONE, "1/0"))}),
        ask(*WHOLE),
        f"gpu.nvidia.com has {PART}",
    ),
    "a claim's, whose GPU nobody knows": (
        record({REMADE: division(placement="1/0")}, claims={"u": claim(claim_device(PART, ONE, "1/3"))}),
        ask(*WHOLE, device=REMADE),
        f"gpu.nvidia.com has {PART}",
    ),
    "in a way that is not known": (
        record({ONE: division(2, "time-slicing")}, {KEY: allocation(sharing=(UNTOLD, GPU))}),
        ask(*SLICED, name=f"{ONE}::0"),
        f"pod d/a has {ONE} as {GPU} (not known how)",
    ),
    "of a pod that kubelet has forgotten": (
        record(allocations={KEY: allocation(state=LOST)}),
        ask(*WHOLE),
        "pod d/a has it, which kubelet no longer knows",
    ),
}


@pytest.mark.parametrize(("before", "request_", "sentence"), TAKEN.values(), ids=TAKEN)
def test_never_twice(before: Any, request_: Request, sentence: str) -> None:
    with pytest.raises(GpushimError) as caught:
        grants.grant(before, [request_], NOW, {KEY})
    assert sentence in str(caught.value)


def test_parts_of_one_group_go_to_several() -> None:
    before = record({ONE: division(2, "mps", group="group")}, {f"{GPU} {ONE}::0": allocation(sharing=MPS)})
    grants.grant(before, [ask(*MPS, name=f"{ONE}::1")], NOW, set())


def test_kubelet_gives_again_what_a_pod_had_when_its_last_process_has_ended() -> None:
    before = record(allocations={KEY: allocation()})
    with pytest.raises(GpushimError, match="of which a process still runs"):
        grants.grant(before, [ask(*WHOLE)], NOW, {KEY})
    grants.grant(before, [ask(*WHOLE)], NOW, set())


def test_an_administrators_look_excludes_nobody() -> None:
    looks = claim(claim_device(admin=True))
    grants.grant(record(claims={"u": looks}), [ask(*WHOLE)], NOW, set())
    grants.grant_claim(record(allocations={KEY: allocation()}), "u", looks)


HELD: dict[str, tuple[Any, Any, str]] = {
    "a pod's": (record(allocations={KEY: allocation()}), claim_device(), "pod d/a has it"),
    "a pod's instance": (record(allocations=MIG_HOLDER), claim_device(), f"pod d/a has {PART}"),
    "the place of a pod's instance": (
        record(allocations=MIG_HOLDER),
        claim_device(REMADE, ONE, "1/0"),
        f"pod d/a has {PART}",
    ),
    "another claim's": (
        record(claims={"other": claim(claim_device(), name="o")}),
        claim_device(),
        "claim d/o of gpu.nvidia.com has it",
    ),
    "a partition that another claim had made and that is removed": (
        record(claims={"other": claim({**claim_device(PART, ONE), "device": "mig-1"}, name="o")}),
        {**claim_device("MIG-not-made", ONE), "device": "mig-1"},
        f"claim d/o of gpu.nvidia.com has {PART}",
    ),
    "the place of another claim's": (
        record(claims={"other": claim(claim_device(PART, ONE, "1/0"), name="o")}),
        claim_device(REMADE, ONE, "1/0"),
        f"claim d/o of gpu.nvidia.com has {PART}",
    ),
}


@pytest.mark.parametrize(("before", "device", "sentence"), HELD.values(), ids=HELD)
def test_a_claim_gets_nothing_that_somebody_has(before: Any, device: Any, sentence: str) -> None:
    with pytest.raises(GpushimError) as caught:
        grants.grant_claim(before, "u", claim(device))
    assert sentence in str(caught.value)


def test_a_lost_claim_whose_uid_nobody_knows_is_not_one_of_its_name_that_was_made_anew() -> None:
    key = "claim d/c of gpu.nvidia.com"
    before = record(claims={key: claim(claim_device(), state=LOST)})
    with pytest.raises(GpushimError, match="claim d/c of the pod with uid u-c has it"):
        grants.grant_claim(before, "u", claim(claim_device()))
    assert {*grants.grant_claim(before, "u", claim(claim_device(TWO)))["claims"]} == {key, "u"}


@pytest.mark.parametrize(
    ("more", "words"),
    [({}, "of which a process still runs"), ({"sharing": [{}]}, "its sharing or MIG instance is undone")],
    ids=["a process", "what it shared"],
)
def test_why_what_a_lost_claim_has_is_not_free(more: Any, words: str) -> None:
    before = record(claims={"u": claim(claim_device(), state=LOST, **more)})
    assert words in transitions.find_lost_claims(before)[ONE]
    with pytest.raises(GpushimError, match=words):
        grants.grant_claim(before, "v", claim(claim_device()))


def test_a_claim_that_is_prepared_again_has_what_it_gets_now() -> None:
    before = record(claims={"u": claim(claim_device()), "claim d/c of gpu.nvidia.com": claim(claim_device())})
    after = grants.grant_claim(before, "u", claim(claim_device(TWO)))
    assert {uid: row["devices"][0]["uuid"] for uid, row in after["claims"].items()} == {"u": TWO}


def test_kubelet_knows_a_pod_before_the_record() -> None:
    before = record(allocations={KEY: allocation(uid=""), f"{GPU} x": allocation(uid="u-x")})
    state = kubelet(checkpoint=promises("u-new"))
    assert transitions.find_owners(before, [KEY, f"{GPU} x", f"{GPU} y"], state) == {KEY: "u-new", f"{GPU} x": "u-x"}
    assert transitions.find_owners(before, [KEY], kubelet()) == {}
