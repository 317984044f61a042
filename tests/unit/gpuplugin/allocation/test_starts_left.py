"""What a pod runs with that kubelet lists no more is offered to nobody, and holds up no other container."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuplugin.allocation import starts
from gpuplugin.kubelet import podresources
from gpuplugin.kubelet.podresources import Listed
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.allocation.test_starts import GPU, MIG, ONE, PART, SLICES, TWO, Scene, replaced, scene
from unit.gpuplugin.snapshots import gpu, mig, snapshot

__all__ = ["scene"]
NODE: Any = snapshot(
    [{**gpu(0), "uuid": ONE}, {**gpu(1), "uuid": TWO}],
    [{**mig(0, number), "uuid": uuid} for number, uuid in enumerate((PART, "MIG-2"))],
)
HELD = {
    "a GPU, and its instances": ((GPU, ONE), {ONE: "it", PART: ONE, "MIG-2": ONE}),
    "an instance, and its GPU": ((MIG, PART), {ONE: PART, PART: "it"}),
    "a share, beside which others may run": ((SLICES, f"{ONE}::0"), {}),
}


@pytest.mark.parametrize(("had", "found"), HELD.values(), ids=HELD)
def test_what_a_pod_runs_with_that_is_not_listed_is_not_given_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, had: tuple[str, str], found: dict[str, str]
) -> None:
    monkeypatch.setattr(starts, "STAYS", 0.0)
    who = "pod default/old, which kubelet does not list any more, runs with"
    replaced(scene, had, (GPU, TWO))
    assert scene.plugin.held(NODE) == {}  # what kubelet has now was not looked at yet
    asyncio.run(scene.plugin.look())
    assert scene.plugin.held(NODE) == {
        uuid: f"{who} {what} until its processes have ended" for uuid, what in found.items()
    }
    scene.cgroups.running.discard("old")
    assert scene.plugin.held(NODE) == {}


def test_a_pod_that_is_about_to_end_is_not_one_that_stays(scene: Scene) -> None:
    replaced(scene, (GPU, ONE), (GPU, TWO))
    asyncio.run(scene.plugin.look())
    assert scene.plugin.held(NODE) == {}


def test_what_kubelets_checkpoint_has_still_is_asked_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written when something is given, and pods that come then are listed later."""
    monkeypatch.setattr(starts, "STAYS", 0.0)
    names = {"pod default/one"}

    async def listed(folder: str) -> Listed:
        return Listed([], [], {*names})

    monkeypatch.setattr(podresources, "listed", listed)
    scene.give("one")
    scene.start("one")
    asyncio.run(scene.plugin.hear())
    assert scene.plugin.held(NODE) == {}
    names.clear()
    asyncio.run(scene.plugin.hear())
    assert ONE in scene.plugin.held(NODE)
    scene.give("new", GPU, TWO)
    scene.start("new")
    assert scene.plugin.held(NODE) == {}


@pytest.mark.parametrize("content", [None, "["])
def test_without_kubelets_checkpoint_nobody_is_taken_for_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(starts, "STAYS", 0.0)
    scene.give("one")
    scene.start("one")
    path = scene.folder / "device-plugins" / "kubelet_internal_checkpoint"
    path.unlink()
    if content:
        path.write_text(content)
    asyncio.run(scene.plugin.look())
    assert scene.plugin.held(NODE) == {}


def test_so_many_wait_and_who_need_not_starts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "WAITING", 2)
    replaced(scene, (GPU, ONE), (GPU, ONE))
    scene.give("beside", GPU, TWO)

    async def run() -> None:
        waiting = [asyncio.create_task(scene.plugin.start(GPU, [ONE])) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(GpushimError, match=f"pod default/new cannot use {ONE} yet"):
            await asyncio.wait_for(scene.plugin.start(GPU, [ONE]), 0.1)
        await asyncio.wait_for(scene.plugin.start(GPU, [TWO]), 0.1)
        scene.cgroups.running.discard("old")
        await asyncio.gather(*waiting)
        assert not +scene.plugin._waiting

    asyncio.run(run())


def test_a_static_pod_that_comes_again_has_only_what_it_was_given_now(scene: Scene) -> None:
    """Its uid is the same."""
    scene.give("static")
    scene.start("static")
    scene.give("static", GPU, TWO)
    scene.start("static")
    scene.give("new")
    assert scene.start("new") < 0.2
    del scene.given["static"]
    scene.write()
    assert scene.start("new") < 0.2
