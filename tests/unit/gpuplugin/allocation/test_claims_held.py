"""What a claim has is not the device plugin's to give until it is undone, whoever is away, starts or lists it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.grants import grant_claim
from gpuplugin.record.record_form import GRANTED
from gpuplugin.record.transitions import QUIET
from gpushim.containers import kubelet
from gpushim.containers.kubelet import Claim
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record import rows
from unit.gpuplugin.record.scene import GPU, ONE, Scene, scene, whole
from unit.gpuplugin.snapshots import uuid

__all__ = ["scene"]
LISTED = Claim("d", "c", "gpu.nvidia.com", "node", "gpu-0", (f"nvidia.com/gpu={ONE}",))
OWNS: Any = {**rows.claim_device(ONE), "device": "gpu-0"}
LOOKS: Any = {**OWNS, "request": "look", "admin": True}


def prepare(*devices: Any, pods: tuple[str, ...] = ()) -> AllocationsFile:
    """Prepare a claim of an init container, which kubelet (pod-resources) does not list; then the driver is away."""
    file = AllocationsFile()
    claim = rows.claim(*(devices or (OWNS,)), pods=[*pods], state=GRANTED, since=system.clock())
    with file.locked() as before:
        file.write(grant_claim(file.current(before), "uid", claim))
    return file


def undo(file: AllocationsFile) -> None:
    with file.locked() as before:
        file.write({**file.current(before), "claims": {}})


def is_refused(scene: Scene) -> None:
    plugin = scene.start()
    assert plugin.look(whole()) == set()
    with pytest.raises(GpushimError, match=r"cannot be (used|given out).* claim d/c of gpu\.nvidia\.com"):
        plugin.allocate(ONE)
    plugin.end()


SEEN: dict[str, Callable[[Scene], object]] = {
    "kubelet has it": lambda scene: scene.write_claims("other", "uid"),
    "kubelet's file is not seen": lambda scene: None,
    "kubelet's file is damaged": lambda scene: (scene.top / kubelet.CLAIMS).write_text("{"),
}


@pytest.mark.parametrize("sees", SEEN.values(), ids=SEEN)
def test_while_the_driver_is_away(scene: Scene, sees: Callable[[Scene], object]) -> None:
    """Over restarts of the plugin and of kubelet, and over a boot; until it is undone."""
    scene.settle(whole()).end()
    file = prepare()
    scene.bare = ["a"]
    sees(scene)
    for _ in range(2):
        scene.now += QUIET + 20
        is_refused(scene)
    scene.kubelet_starts(0)
    is_refused(scene)
    scene.now += QUIET
    is_refused(scene)
    undo(file)
    (scene.top / kubelet.CLAIMS).unlink(missing_ok=True)
    assert scene.start().look(whole()) == {ONE}


@pytest.mark.parametrize("sees", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("runs", [True, False])
def test_after_a_boot(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, sees: Callable[[Scene], object], runs: bool
) -> None:
    scene.settle(whole()).end()
    prepare()
    sees(scene)
    scene.kubelet_ends()
    monkeypatch.setattr(system, "boot", lambda: "another boot")
    if runs:
        scene.kubelet_starts(30)
    plugin = scene.start()
    assert ONE not in plugin.look(whole())
    is_refused(scene)


def test_a_claim_that_kubelet_has_had_undone_holds_nothing(scene: Scene) -> None:
    """As where the driver could not write it, and is gone for good; not one that it has given just now."""
    scene.settle(whole()).end()
    prepare()
    scene.write_claims("other")
    is_refused(scene)
    scene.now += QUIET + 1
    plugin = scene.start()
    assert plugin.look(whole()) == {ONE}
    plugin.allocate(ONE)


def test_an_empty_file_of_kubelets_frees_nothing_of_which_a_process_is_left(scene: Scene) -> None:
    """kubelet begins with an empty one where its own is lost."""
    scene.settle(whole()).end()
    prepare(pods=("uid-a",))
    scene.write_claims()
    scene.processes = {"a"}
    scene.now += QUIET + 1
    is_refused(scene)
    scene.processes = set()
    plugin = scene.start()
    assert plugin.look(whole()) == {ONE}
    plugin.allocate(ONE)


@pytest.mark.parametrize("content", [None, "{"], ids=["lost", "half of it"])
def test_a_record_that_is_lost_has_what_kubelet_has(scene: Scene, content: str | None) -> None:
    scene.settle(whole()).end()
    path = Path(prepare().path)
    scene.claims = [LISTED]
    path.unlink() if content is None else path.write_text(content)
    scene.now += QUIET + 1
    is_refused(scene)
    scene.claims, scene.bare = [], ["agent"]
    plugin = scene.start()
    plugin.look(whole())
    scene.now += QUIET + 1
    plugin.look(whole())
    assert plugin.look(whole()) == {ONE}
    plugin.allocate(ONE)


@pytest.mark.parametrize("divided", [True, False])
def test_an_instance_that_was_made_anew_waits(scene: Scene, divided: bool) -> None:
    """Its capability nodes are those of the instance that the claim has."""
    old = uuid(1, "MIG")
    scene.settle(scene.make_instances((1, 1), (2, 2))).end()
    file = prepare({**OWNS, **rows.claim_device(old, ONE, "1/0")}, pods=("u",))
    scene.now += QUIET + 1
    desired = scene.make_instances((3, 1), (4, 2), is_divided=divided)
    for _ in range(2):
        assert scene.start().look(desired) == ({uuid(4, "MIG")} if divided else set())
    undo(file)
    scene.now += QUIET + 1
    assert len(scene.start().look(desired)) == (2 if divided else 1)


def test_it_is_no_other_giver(scene: Scene) -> None:
    """Which `other-givers = "serve"` is about."""
    plugin = scene.settle(whole())
    prepare()
    scene.now += QUIET + 1
    plugin.heeds = False
    assert plugin.look(whole()) == set()


@pytest.mark.parametrize("devices", [(OWNS, LOOKS), (LOOKS, OWNS)])
def test_a_claim_that_also_looks_at_what_it_has_has_it(scene: Scene, devices: Any) -> None:
    plugin = scene.settle(whole())
    prepare(*devices)
    scene.claims = [LISTED]
    scene.now += QUIET + 1
    assert plugin.look(whole()) == set()


def test_a_claim_that_only_looks_has_nothing(scene: Scene) -> None:
    plugin = scene.settle(whole())
    prepare(LOOKS)
    scene.write_claims("uid")
    scene.claims = [LISTED]
    scene.now += QUIET + 1
    assert plugin.look(whole()) == {ONE}
    plugin.allocate(ONE, GPU)
