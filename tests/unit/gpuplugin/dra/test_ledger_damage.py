"""Who has what by claims where a file is damaged, lost or old: nothing is given twice, or kept for ever."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpuplugin.book import by_device, claimed
from gpuplugin.book.book import Book
from gpuplugin.book.checkpoints import Remembered
from gpuplugin.dra.ledger import Holders, Ledger

from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.dra.test_ledger import (
    GPU,
    HOMES,
    NOTHING,
    OTHER,
    SECOND,
    SLICE,
    by_plugin,
    claim,
    entries,
    give,
    ledger,
)

__all__ = ["ledger"]
POD = Holders({"gpu": {GPU: "pod d/p"}}, ["pod d/p"], True, NOTHING)
NOBODY = Holders({}, [], True, NOTHING)


def damaged() -> None:
    Path(Book().path).write_text("{")


def lost() -> None:
    Path(Book().path).unlink()


def booted(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Boot, and begin again."""
    monkeypatch.setattr(system, "boot", lambda: "another")
    found = Ledger(Book())
    found.open(HOMES)
    return found


@pytest.mark.parametrize("spoil", [damaged, lost])
def test_a_book_that_says_nothing_does_not_say_that_a_gpu_is_free(ledger: Ledger, spoil: Callable[[], None]) -> None:
    by_plugin(GPU)
    spoil()
    with pytest.raises(GpushimError, match="what containers had before is not known"):
        give(ledger, claim("a", GPU))
    with pytest.raises(GpushimError, match=r"^claim d/a cannot have GPU-0 yet: pod d/p has it$"):
        give(ledger, claim("a", GPU), POD)
    give(ledger, claim("b", OTHER), POD)
    assert [*ledger.claims()] == ["b"]


def test_a_pod_that_comes_back_after_a_boot_has_what_it_had(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kubelet's checkpoint, without a question to the device plugin."""
    by_plugin(GPU)
    again = booted(monkeypatch)
    with pytest.raises(GpushimError, match="what containers had before is not known"):
        give(again, claim("a", GPU))
    with pytest.raises(GpushimError, match="pod d/p has it"):
        give(again, claim("a", GPU), POD._replace(pods=None))  # of a kubelet that has just begun
    give(again, claim("a", GPU), NOBODY)
    give(again, claim("b", OTHER))


def test_a_claim_that_was_given_other_devices_has_these_alone(ledger: Ledger) -> None:
    """As when it was taken from its node, and kubelet could not say so."""
    give(ledger, claim("a", GPU))
    give(ledger, claim("a", OTHER))
    assert entries().keys() == {OTHER}
    give(ledger, claim("b", GPU))


def test_claims_that_are_not_understood_stay_and_harm_no_other(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU))
    path = Path(ledger.path)
    found = json.loads(path.read_text())
    found["claims"].update({"odd": {"devices": 3}, "odder": {"namespace": "d", "name": "n", "devices": ["x"]}})
    path.write_text(json.dumps(found))
    assert [*ledger.claims()] == ["a"]
    give(ledger, claim("b", OTHER))
    assert json.loads(path.read_text())["claims"].keys() == {"a", "b", "odd", "odder"}


def test_a_claim_that_no_file_tells_of_has_its_gpu_until_kubelet_lists_it_no_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(ledger, claim("a", GPU))
    Path(ledger.path).write_text("{")
    now = system.clock()
    monkeypatch.setattr(system, "clock", lambda: now + 60)
    mine = {GPU: "claim d/a of gpu.nvidia.com"}
    ledger.hear(Holders({}, ["pod d/a"], True, NOTHING, mine), HOMES)
    assert entries().keys() == {GPU}
    with pytest.raises(GpushimError, match=r"claim d/a of gpu\.nvidia\.com has it"):
        give(ledger, claim("b", GPU))
    ledger.hear(Holders({}, None, False, NOTHING), HOMES)
    assert entries().keys() == {GPU}
    ledger.hear(NOBODY, HOMES)
    assert entries() == {}
    give(ledger, claim("b", GPU))


def test_a_claim_of_a_driver_before_this_one(ledger: Ledger) -> None:
    """Whose name for the GPU is another, so that the scheduler takes it for free."""
    theirs = Holders({}, ["pod d/p"], True, NOTHING, {GPU: "claim d/old of gpu.nvidia.com"})
    with pytest.raises(GpushimError, match=r"claim d/old of gpu\.nvidia\.com has it"):
        give(ledger, claim("a", GPU), theirs)
    ledger.hear(theirs, HOMES)
    with pytest.raises(GpushimError, match=r"claim d/old of gpu\.nvidia\.com has it"):
        give(ledger, claim("a", GPU))


def test_of_two_gpus_one_that_somebody_has_hides_not_the_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between the two files, and a start of the device plugin's container."""
    give(ledger, claim("a", GPU, OTHER))
    shared = Book()
    with shared.locked() as page:
        assert page
        shared.write(by_device.unclaimed(page, [GPU, OTHER], "claim d/a of gpu.nvidia.com"))
    by_plugin(GPU)
    Ledger(Book()).open(HOMES)
    assert {uuid: giver for uuid, (giver, _) in entries().items()} == {GPU: by_device.PLUGIN, OTHER: by_device.DRIVER}


def test_what_an_administrator_looks_at_is_had_by_nobody(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU))
    give(ledger, claim("admin", GPU, SECOND, admin=True))
    mine = {("a", "gpu-0"): GPU, ("admin", "gpu-0"): "", ("admin", "mig-1"): ""}
    assert claimed.known() == ({("d", *key): uuid for key, uuid in mine.items()}, mine)


@pytest.mark.parametrize("admin", [[False, True], [True, False]])
def test_who_also_looks_at_what_it_has_has_it(ledger: Ledger, admin: list[bool]) -> None:
    one = claim("a", GPU, GPU)
    give(ledger, one._replace(results=tuple(row._replace(admin=looks) for row, looks in zip(one.results, admin))))
    assert claimed.known() == ({("d", "a", "gpu-0"): GPU}, {("a", "gpu-0"): GPU})


def spoiled(ledger: Ledger, row: Any) -> dict[str, Any]:
    """Change the claim a, as damage does; return what is in the file."""
    path = Path(ledger.path)
    found: dict[str, Any] = json.loads(path.read_text())
    found["claims"]["a"] = row
    path.write_text(json.dumps(found))
    return found


DEVICE, LATER = {"request": "q", "device": "gpu-0", "uuid": GPU}, {"request": "q", "device": "mig-later"}
ROW: dict[str, Any] = {"namespace": "d", "name": "a", "devices": [DEVICE]}
PARTLY: dict[str, Any] = {
    "a device without a UUID": {**ROW, "devices": [DEVICE, LATER]},
    "a UUID in another place": {**ROW, "devices": [{**LATER, "partition": {"gpu": GPU, "start": 4}}]},
    "a device without a name": {**ROW, "devices": [{"uuid": GPU}, 3]},
    "no list": {**ROW, "devices": {"gpu-0": [GPU]}},
    "no devices": {"namespace": "d", "name": "a", "gpus": [{"uuid": GPU}]},
    "devices that are nothing": {**ROW, "devices": None, "gpus": [GPU]},
    "no object": [DEVICE],
    "a text": GPU,
    "no name": {**ROW, "name": 3},
    "no namespace": {**ROW, "namespace": None},
}


@pytest.mark.parametrize("row", PARTLY.values(), ids=PARTLY)
def test_a_claim_that_is_not_understood_in_full_has_what_is_understood(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, row: Any
) -> None:
    """It stays as it is, until it is undone."""
    give(ledger, claim("a", GPU))
    before = spoiled(ledger, row)
    now = system.clock()
    monkeypatch.setattr(system, "clock", lambda: now + 60)
    again = booted(monkeypatch)
    again.hear(NOBODY, HOMES)
    with pytest.raises(GpushimError, match=r"claim d/b cannot have GPU-0 yet: claim .* has it"):
        give(again, claim("b", GPU))
    give(again, claim("c", OTHER))
    again.unshare(["a"])
    assert json.loads(Path(again.path).read_text())["claims"]["a"] == before["claims"]["a"]
    again.forget(["a"])
    assert json.loads(Path(again.path).read_text())["claims"].keys() == {"c"}
    give(again, claim("b", GPU))


def test_a_file_of_a_newer_version_is_refused_and_stays_as_it_is(ledger: Ledger) -> None:
    give(ledger, claim("a", GPU))
    path = Path(ledger.path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "form": claimed.FORM + 1}))
    before = path.read_bytes()
    newer = r"^.*claims\.json is written by a newer version of gpushim, in a form that this one does not know"
    with pytest.raises(GpushimError, match=newer):
        give(ledger, claim("b", OTHER))
    with pytest.raises(GpushimError, match=newer):
        ledger.forget(["a"])
    with pytest.raises(GpushimError, match=newer):
        ledger.open(HOMES)
    assert path.read_bytes() == before


def test_a_failure_to_write_the_book_is_told_and_undone(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gpuplugin.book.book.replace", full)
        with pytest.raises(GpushimError, match="cannot be written: No space left on device"):
            give(ledger, claim("a", SLICE))
    ledger.forget(["a"])
    give(ledger, claim("b", SLICE))


def test_a_claim_that_kubelet_does_not_list_stays_and_costs_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an init container: the device plugin goes by the driver's file, too."""
    give(ledger, claim("a", GPU))
    now, before = system.clock(), Path(Book().path).stat()
    for later in (60, 120):
        monkeypatch.setattr(system, "clock", lambda later=later: now + later)
        ledger.hear(NOBODY, HOMES)
    assert os.path.samestat(before, Path(Book().path).stat())
    assert entries().keys() == {GPU}


def test_pods_of_another_device_plugin_do_not_make_the_checkpoint_count(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has what ended long ago, where nobody has kubelet write it."""
    held = {"nvidia.com/gpu": {OTHER: "pod d/runs"}}
    found = Holders(held, ["pod d/runs"], True, Remembered({f"nvidia.com/gpu {GPU}": "old"}, 0.0), stale=True)
    ledger.hear(found, HOMES)
    assert not ledger.sure
    give(ledger, claim("new", GPU), found)


@pytest.mark.parametrize("by", ["claim", "plugin"])
def test_an_instance_that_was_made_anew_waits_for_who_has_the_one_before(ledger: Ledger, by: str) -> None:
    """Its device nodes are the same."""
    ledger.places = {SLICE: "1/0"}
    if by == "claim":
        give(ledger, claim("a", SLICE))
    else:
        by_plugin(SLICE, GPU, "1/0")
    homes, ledger.places = {GPU: GPU, "MIG-new": GPU, SECOND: GPU}, {"MIG-new": "1/0", SECOND: "2/0"}
    ledger.open(homes)
    with pytest.raises(GpushimError, match=r"MIG-new cannot be given to claim d/b .* has MIG-0"):
        ledger.give(claim("b", "MIG-new"), {"mig-new": "MIG-new"}, homes, None)
    ledger.give(claim("b", SECOND), {SECOND.lower(): SECOND}, homes, NOBODY if by == "claim" else None)


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("spoil", [damaged, lost])
def test_an_instance_that_was_made_anew_waits_though_the_book_is_lost(
    ledger: Ledger, spoil: Callable[[], None], restarts: bool
) -> None:
    """Where the one before was is in the claims' own file, too."""
    ledger.places = {SLICE: "1/0"}
    give(ledger, claim("a", SLICE))
    spoil()
    homes, places = {GPU: GPU, "MIG-new": GPU, SECOND: GPU}, {"MIG-new": "1/0", SECOND: "2/0"}
    again = Ledger(Book()) if restarts else ledger
    again.places = places
    if restarts:
        again.open(homes)
    for uid, uuid in (("b", "MIG-new"), ("whole", GPU)):
        with pytest.raises(GpushimError, match=rf"{uuid} cannot be given to claim d/{uid} .* has MIG-0"):
            again.give(claim(uid, uuid), {uuid.lower(): uuid}, homes, NOBODY)
    again.give(claim("c", SECOND), {SECOND.lower(): SECOND}, homes, NOBODY)
    again.forget(["a"])
    again.give(claim("b", "MIG-new"), {"mig-new": "MIG-new"}, homes, NOBODY)


def test_the_claims_are_on_the_disk(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """They outlive a boot, which a loss of power is; the book says nothing after one."""
    synced: list[str] = []
    real = os.fsync

    def sync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    give(ledger, claim("a", GPU))
    assert [one for one in synced if "claims.json" in one]


def test_what_kubelet_lists_is_written_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    give(ledger, claim("a", GPU))
    theirs = Holders({}, ["pod d/a"], True, NOTHING, {GPU: "claim d/a of gpu.nvidia.com"})
    ledger.hear(theirs, HOMES)
    before = Path(Book().path).stat()
    now = system.clock()
    monkeypatch.setattr(system, "clock", lambda: now + 60)
    ledger.hear(theirs, HOMES)
    assert Path(Book().path).stat() == before
