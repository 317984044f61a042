"""Who has what by claims: kept over restarts and boots, and never given twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpuplugin.book import by_device
from gpuplugin.book.book import Book
from gpuplugin.book.by_device import Given
from gpuplugin.book.checkpoints import Remembered
from gpuplugin.dra.ledger import Holders, Ledger

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.dra.claim import Claim, Result
from gpuplugin.mps import of_claims
from gpushim.ground import system
from gpushim.ground.errors import GpushimError

GPU, OTHER, SLICE, SECOND = "GPU-0", "GPU-1", "MIG-0", "MIG-1"
HOMES = {GPU: GPU, OTHER: OTHER, SLICE: GPU, SECOND: GPU}
WAY = ("", "gpu")
NOTHING = Remembered({}, float("inf"))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    found = Ledger(Book())
    found.open(HOMES)
    found.hear(Holders({}, [], True, NOTHING), HOMES)
    return found


def claim(uid: str, *uuids: str, admin: bool = False, name: str = "") -> Claim:
    return Claim(uid, "d", name or uid, tuple(Result("gpu", uuid.lower(), admin) for uuid in uuids))


def give(ledger: Ledger, one: Claim, holders: Holders | None = None) -> None:
    ledger.give(one, {uuid.lower(): uuid for uuid in HOMES}, HOMES, holders)


def by_plugin(uuid: str, home: str = "", place: str = "") -> None:
    """Have a container of the device plugin's have a GPU, or a MIG instance of one."""
    home = home or uuid
    shared = Book()
    with shared.locked() as found:
        page = shared.now(found)
        division: Any = {"parts": {"gpu": {"count": 1, "numbered": False, "share": None}}, "owner": 1, "place": place}
        entries = page["gpus"][home]["entries"] if home in page["gpus"] else {}
        shared.write({**page, "gpus": {**page["gpus"], home: {"entries": entries, "divisions": {uuid: division}}}})
    shared.give([Given(uuid, "gpu", uuid, WAY)])


def entries() -> dict[str, tuple[str, str]]:
    page = Book().read()
    assert page
    return {one["uuid"]: (one["giver"], one["to"]) for *_, one in by_device.entries(page)}


def test_what_a_claim_has_is_in_the_book(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU))
    assert entries() == {GPU: (by_device.DRIVER, "claim d/a of gpu.nvidia.com")}
    assert Path(ledger.path).stat().st_mode & 0o777 == 0o600
    ledger.forget(["a", "unknown"])
    assert (entries(), ledger.claims()) == ({}, {})


def test_the_same_again_changes_nothing(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU))
    before = Path(ledger.path).read_bytes()
    give(Ledger(Book()), claim("a", GPU))
    assert Path(ledger.path).read_bytes() == before
    ledger.forget(["a"])
    ledger.forget(["a"])
    assert ledger.claims() == {}


TAKEN = {
    "the same": (GPU, GPU, "has it"),
    "a part of it": (GPU, SLICE, "has GPU-0"),
    "all of it": (SLICE, GPU, "has MIG-0"),
}


@pytest.mark.parametrize(("had", "wants", "sentence"), TAKEN.values(), ids=TAKEN)
def test_another_claims(ledger: Ledger, had: str, wants: str, sentence: str) -> None:
    give(ledger, claim("a", had))
    for again in (ledger, Ledger(Book())):  # as after a restart
        with pytest.raises(GpushimError, match=f"^claim d/b cannot have {wants} yet: claim d/a {sentence}"):
            give(again, claim("b", wants))
    ledger.forget(["a"])
    give(ledger, claim("b", wants))


def test_a_claim_of_the_same_name_is_another(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU, name="one"))
    with pytest.raises(GpushimError, match="claim d/one cannot have GPU-0 yet"):
        give(ledger, claim("b", GPU, name="one"))


def test_slices_of_a_gpu_exclude_each_other_not(ledger: Ledger) -> None:
    give(ledger, claim("a", SLICE))
    give(ledger, claim("b", SECOND))
    assert entries().keys() == {SLICE, SECOND}


def test_an_administrator_looks_at_what_others_have(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU))
    give(ledger, claim("b", GPU, OTHER, admin=True))
    give(ledger, claim("c", OTHER))
    ledger.forget(["b"])
    assert entries().keys() == {GPU, OTHER}


def test_what_the_device_plugin_gave(ledger: Ledger) -> None:
    by_plugin(GPU)
    with pytest.raises(
        GpushimError, match=r"GPU-0 cannot be given to claim d/a .*: a container, by device-plugin has it"
    ):
        give(ledger, claim("a", GPU))
    assert ledger.claims() == {}
    give(ledger, claim("b", OTHER))


@pytest.mark.parametrize("name", [GPU, f"{GPU}::1"])
def test_what_another_device_plugin_gave(ledger: Ledger, name: str) -> None:
    """It writes no book, so kubelet is asked again each time."""
    held = {"nvidia.com/gpu": {name: "pod d/old"}}
    ledger.hear(Holders(held, ["pod d/old"], True, NOTHING), HOMES)
    assert (ledger.sure, {*ledger.unnoted}) == (False, {GPU})
    with pytest.raises(GpushimError, match="claim d/a cannot have MIG-0 yet: pod d/old has GPU-0"):
        give(ledger, claim("a", SLICE), Holders(held, ["pod d/old"], True, NOTHING))
    ledger.hear(Holders({}, [], True, NOTHING), HOMES)
    assert (ledger.sure, {*ledger.unnoted}) == (True, set())
    give(ledger, claim("a", GPU))


def test_what_gpushims_plugin_gave_is_noted(ledger: Ledger) -> None:
    by_plugin(GPU)
    ledger.hear(Holders({"gpu": {GPU: "pod d/p"}}, ["pod d/p"], True, NOTHING), HOMES)
    assert (ledger.sure, {*ledger.unnoted}) == (True, set())


def test_a_container_that_kubelet_lists_no_more_has_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    by_plugin(GPU)
    now = system.clock()
    with pytest.raises(GpushimError, match="has it"):
        give(
            ledger, claim("a", GPU), Holders({}, [], True, NOTHING)
        )  # given just now, which kubelet may not list yet
    monkeypatch.setattr(system, "clock", lambda: now + 60)
    give(ledger, claim("a", GPU), Holders({}, [], True, NOTHING))
    assert entries() == {GPU: (by_device.DRIVER, "claim d/a of gpu.nvidia.com")}


@pytest.mark.parametrize(
    ("pods", "whole", "promised", "left"),
    [
        ([], True, {}, set()),
        ([], False, {}, set()),  # as where the API server has no pod for this node
        (None, False, {}, {GPU}),
        ([], True, {f"gpu {GPU}": "u"}, {GPU}),
    ],
)
def test_what_has_ended_is_free_when_kubelet_says_so(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, pods: Any, whole: bool, promised: Any, left: set[str]
) -> None:
    by_plugin(GPU)
    give(ledger, claim("a", OTHER))
    assert ledger.given()
    now = system.clock()
    monkeypatch.setattr(system, "clock", lambda: now + 60)
    ledger.hear(Holders({}, pods, whole, Remembered(promised, system.clock())), HOMES)
    assert entries().keys() == {*left, OTHER}


def test_what_is_in_kubelets_checkpoint_alone_is_nobody_elses_until_all_is_known(ledger: Ledger) -> None:
    """As an init container's where the book was lost: the device plugin will find it there."""
    Path(Book().path).unlink(missing_ok=True)
    again = Ledger(Book())
    again.open(HOMES)
    promised = Remembered({f"gpu {GPU}": "u"}, system.clock())
    again.hear(Holders({}, ["pod d/p"], False, promised), HOMES)
    assert not again.sure
    for whole in (False, True):
        with pytest.raises(GpushimError, match="the pod with uid u has it"):
            give(again, claim("a", GPU), Holders({}, ["pod d/p"], whole, promised))
    again.hear(Holders({}, ["pod d/p"], True, promised), HOMES)
    give(again, claim("a", GPU), Holders({}, ["pod d/p"], True, promised))


def test_what_is_given_while_kubelet_answers_is_not_missing_there(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Holders({}, ["pod d/x"], True, NOTHING, {}, system.clock())
    by_plugin(GPU)
    monkeypatch.setattr(system, "clock", lambda: before.asked + 60)
    with pytest.raises(GpushimError, match="a container, by device-plugin has it"):
        give(ledger, claim("a", GPU), before)


def test_the_device_plugin_gives_out_nothing_that_a_claim_has(ledger: Ledger) -> None:
    by_plugin(OTHER)
    with Book().locked() as found:
        assert found
    give(ledger, claim("a", GPU))
    shared = Book()
    page = shared.read()
    assert page
    page["gpus"][GPU]["divisions"] = page["gpus"][OTHER]["divisions"] | {GPU: page["gpus"][OTHER]["divisions"][OTHER]}
    with pytest.raises(GpushimError, match=r"claim d/a of gpu\.nvidia\.com has GPU-0"):
        by_device.give(page, [Given(GPU, "gpu", GPU, WAY)], by_device.PLUGIN, "", 0.0)


def test_claims_stay_over_a_boot(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    give(ledger, claim("a", GPU))
    monkeypatch.setattr(system, "boot", lambda: "another")
    again = Ledger(Book())
    again.open(HOMES)
    assert entries() == {GPU: (by_device.DRIVER, "claim d/a of gpu.nvidia.com")}


def test_a_device_that_is_gone_is_still_had_and_given_back(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU))
    again = Ledger(Book())
    again.open({OTHER: OTHER})
    assert [*again.claims()] == ["a"]
    again.forget(["a"])
    assert (again.claims(), entries()) == ({}, {})


def test_members_of_other_versions_stay(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU))
    path = Path(ledger.path)
    found = json.loads(path.read_text())
    found["claims"]["a"]["share"], found["later"] = 1, 2
    path.write_text(json.dumps(found))
    give(ledger, claim("b", OTHER))
    after = json.loads(path.read_text())
    assert (after["claims"]["a"]["share"], after["later"], [*after["claims"]]) == (1, 2, ["a", "b"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"claims": 3}', '{"claims": {"a": {"devices": 3}}}'])
def test_a_damaged_file_is_begun_again(ledger: Ledger, text: str) -> None:
    Path(ledger.path).write_text(text)
    give(ledger, claim("b", OTHER))
    assert [*ledger.claims()] == ["b"]


@pytest.mark.parametrize("odd", [{"devices": 3}, [], None, {"namespace": "d", "name": "x", "devices": [{}]}])
def test_a_row_that_cannot_be_read_takes_no_other_with_it(
    ledger: Ledger, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    give(ledger, claim("a", GPU))
    found = json.loads(Path(ledger.path).read_text())
    Path(ledger.path).write_text(json.dumps({**found, "claims": {"odd": odd, **found["claims"]}}))
    assert [[*ledger.claims()] for _ in range(2)] == [["a"], ["a"]]
    assert [record.getMessage() for record in caplog.records if ledger.path in record.getMessage()] == [
        f"{ledger.path} has claims that are not understood, which stay there: "
        "what else they have is known to kubelet alone"
    ]


def test_nothing_is_given_that_cannot_be_written(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpuplugin.book.claimed.replace", full)
    with pytest.raises(GpushimError, match=r"claims\.json, .* cannot be written: No space left on device"):
        give(ledger, claim("a", GPU))
    assert entries() == {}


def test_what_a_claim_shares_is_kept_until_it_shares_nothing(ledger: Ledger) -> None:
    shares = MpsGroup("claim-x", (MpsGpu(GPU, 0, 0),), None, 50, False)
    for _ in range(2):
        ledger.give(claim("a", GPU), {GPU.lower(): GPU}, HOMES, None, [shares])
        assert Ledger(Book()).claims()["a"]["sharing"] == [of_claims.describe(shares)]
    give(ledger, claim("b", OTHER))
    ledger.unshare(["a", "unknown"])
    assert ("sharing" in ledger.claims()["a"], [*ledger.claims()]) == (False, ["a", "b"])
    ledger.give(claim("a", GPU), {GPU.lower(): GPU}, HOMES, None, [shares])
    give(ledger, claim("a", GPU))  # as with another config
    assert not ledger.claims()["a"].get("sharing")
