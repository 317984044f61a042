"""What a claim has is not the device plugin's to give until it is undone, whoever is away, starts or lists it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpuplugin.book import claimed
from gpuplugin.book.book import Book
from gpuplugin.dra.ledger import Holders, Ledger

from gpuplugin.allocation import kubelet_view
from gpuplugin.allocation.kubelet_view import Questions
from gpuplugin.dra.claim import Claim as Mine
from gpuplugin.dra.claim import Result
from gpuplugin.kubelet import cgroups
from gpushim.containers import kubelet
from gpushim.containers.kubelet import Claim
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.allocation.test_kubelet_view import GPU, ONE, PART, Scene, again, scene, settled, whole
from unit.gpuplugin.dra.test_ledger import NOTHING
from unit.gpuplugin.snapshots import uuid

__all__ = ["scene"]
HOMES = {ONE: ONE, PART: ONE}
LISTED = Claim("d", "c", "gpu.nvidia.com", "node", "gpu-0", (f"nvidia.com/gpu={ONE}",))
OWNS, LOOKS = Result("r", "gpu-0", False), Result("look", "gpu-0", True)


def keeps(scene: Scene, *uids: str) -> None:
    """Have kubelet's file have claims, as before their drivers have answered."""
    entries = [
        {"ClaimUID": uid, "ClaimName": "c", "Namespace": "d", "PodUIDs": {}, "DriverState": {}} for uid in uids
    ]
    data = {"Data": json.dumps({"ClaimInfoStateList": entries}), "Checksum": 1}
    (scene.top / kubelet.CLAIMS).write_text(json.dumps(data))


def prepared(*results: Result, pods: tuple[str, ...] = ()) -> Ledger:
    """Prepare a claim of an init container, which kubelet (pod-resources) does not list; then the driver is away."""
    driver = Ledger(Book())
    driver.open(HOMES)
    driver.hear(Holders({}, [], True, NOTHING, {}), HOMES)
    driver.give(Mine("uid", "d", "c", results or (OWNS,), pods), {"gpu-0": ONE}, HOMES, None)
    return driver


def is_refused(scene: Scene) -> None:
    one = scene.started()
    assert one.look(whole()) == set()
    with pytest.raises(GpushimError, match=r"cannot be (used|given out).* claim d/c of gpu\.nvidia\.com"):
        one.allocate(ONE)
    one.end()


SEEN: dict[str, Callable[[Scene], object]] = {
    "kubelet has it": lambda scene: keeps(scene, "other", "uid"),
    "kubelet's file is not seen": lambda scene: None,
    "kubelet's file is damaged": lambda scene: (scene.top / kubelet.CLAIMS).write_text("{"),
}


@pytest.mark.parametrize("sees", SEEN.values(), ids=SEEN)
def test_while_the_driver_is_away(scene: Scene, sees: Callable[[Scene], object]) -> None:
    """Over restarts of the plugin and of kubelet, and over a boot; until it is undone."""
    settled(scene, whole()).end()
    driver = prepared()
    scene.bare = ["a"]
    sees(scene)
    for _ in range(2):
        scene.passes(kubelet_view.QUIET + 20)
        is_refused(scene)
    scene.kubelet_starts(0)
    is_refused(scene)
    scene.passes(kubelet_view.QUIET)
    is_refused(scene)
    driver.forget(["uid"])
    assert scene.started().look(whole()) == {ONE}


@pytest.mark.parametrize("sees", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("runs", [True, False])
def test_after_a_boot(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, sees: Callable[[Scene], object], runs: bool
) -> None:
    settled(scene, whole()).end()
    prepared()
    sees(scene)
    scene.kubelet_ends()
    monkeypatch.setattr(system, "boot", lambda: "another boot")
    if runs:
        scene.kubelet_starts(30)
    one = scene.started()
    assert ONE not in one.look(whole())
    is_refused(scene)


def test_a_plugin_that_has_decided_before(scene: Scene) -> None:
    one = settled(scene, whole())
    assert one.look(whole()) == {ONE}
    prepared()
    scene.passes(kubelet_view.QUIET + 1)
    assert one.look(whole()) == set()


def test_a_claim_that_kubelet_has_had_undone_holds_nothing(scene: Scene) -> None:
    """As where the driver could not write it, and is gone for good; not one that it has given just now."""
    settled(scene, whole()).end()
    prepared()
    keeps(scene, "other")
    is_refused(scene)
    scene.passes(kubelet_view.QUIET + 1)
    one = scene.started()
    assert one.look(whole()) == {ONE}
    one.allocate(ONE)


LOST: dict[str, Callable[[Scene], object]] = {
    "claims.json": lambda scene: Path(claimed.path()).unlink(),
    "half of claims.json": lambda scene: Path(claimed.path()).write_text("{"),
    "kubelet's, which begins with an empty one": keeps,
    "both": lambda scene: [lose(scene) for lose in (keeps, LOST["claims.json"])],
}


@pytest.mark.parametrize("loses", LOST.values(), ids=LOST)
def test_a_file_that_is_lost_frees_nothing_of_which_a_process_is_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, loses: Callable[[Scene], object]
) -> None:
    running = {"u"}
    monkeypatch.setattr(cgroups, "running", lambda uids, *_: frozenset(running.intersection(uids)))
    settled(scene, whole()).end()
    prepared(pods=("u",))
    loses(scene)
    scene.passes(kubelet_view.QUIET + 1)
    is_refused(scene)
    running.clear()
    one = scene.started()
    assert one.look(whole()) == {ONE}
    one.allocate(ONE)


def test_an_empty_file_of_kubelets_does_not_end_a_claim_whose_pods_nobody_knows(scene: Scene) -> None:
    """As of a version before."""
    settled(scene, whole()).end()
    prepared()
    keeps(scene)
    scene.passes(kubelet_view.QUIET + 1)
    is_refused(scene)


@pytest.mark.parametrize("divided", [True, False])
def test_an_instance_that_was_made_anew_waits_though_the_book_is_lost(scene: Scene, divided: bool) -> None:
    """Its capability nodes are those of the instance that the claim has."""
    old = uuid(1, "MIG")
    settled(scene, again(scene, (1, 1), (2, 2))).end()
    driver = Ledger(Book())
    driver.places = {old: "1/0"}
    driver.open({ONE: ONE, old: ONE})
    driver.hear(Holders({}, [], True, NOTHING, {}), {ONE: ONE, old: ONE})
    driver.give(Mine("uid", "d", "c", (OWNS,), ("u",)), {"gpu-0": old}, {ONE: ONE, old: ONE}, None)
    Path(driver.book.path).unlink()
    scene.passes(kubelet_view.QUIET + 1)
    desired = again(scene, (3, 1), (4, 2), divided=divided)
    for _ in range(2):
        assert scene.started().look(desired) == ({uuid(4, "MIG")} if divided else set())
    driver.forget(["uid"])
    scene.passes(kubelet_view.QUIET + 1)
    assert len(scene.started().look(desired)) == (2 if divided else 1)


def test_it_is_no_other_giver(scene: Scene) -> None:
    """Which `other-givers = "serve"` is about."""
    one = settled(scene, whole())
    prepared()
    scene.passes(kubelet_view.QUIET + 1)
    one.questions = Questions(one.registry, lambda: str(scene.top), lambda: False)
    assert one.look(whole()) == set()


@pytest.mark.parametrize("results", [(OWNS, LOOKS), (LOOKS, OWNS)])
def test_a_claim_that_also_looks_at_what_it_has_has_it(scene: Scene, results: Any) -> None:
    one = settled(scene, whole())
    prepared(*results)
    scene.claims = [LISTED]
    scene.passes(kubelet_view.QUIET + 1)
    assert one.look(whole()) == set()


def test_a_claim_that_only_looks_has_nothing(scene: Scene) -> None:
    one = settled(scene, whole())
    prepared(LOOKS)
    keeps(scene, "uid")
    scene.claims = [LISTED]
    scene.passes(kubelet_view.QUIET + 1)
    assert one.look(whole()) == {ONE}
    one.allocate(ONE, GPU)


def test_claims_that_a_newer_version_has_written_hold_all(scene: Scene) -> None:
    one = settled(scene, whole())
    prepared()
    path = Path(claimed.path())
    path.write_text(json.dumps({**json.loads(path.read_text()), "form": claimed.FORM + 1}))
    with pytest.raises(GpushimError, match=r"claims\.json is written by a newer version of gpushim"):
        one.look(whole())
