"""What kubelet has given out and does not list: its checkpoint tells when that ends, which it writes at each list."""

from __future__ import annotations

import os
from unittest.mock import Mock

import pytest

from gpuplugin.allocation import kubelet_view
from gpuplugin.record.kubelet_watch import AGAIN, TICK
from gpuplugin.record.record_form import CONFIRMED, LOST, UNCONFIRMED
from gpuplugin.record.transitions import QUIET, owner_of
from gpushim.ground import system
from unit.gpuplugin.record.scene import GPU, ONE, Instance, Scene, parts, scene, whole

__all__ = ["scene"]
NIC = {"rdma/hca": {"nic-0": "a"}}
INIT = "the pod with uid uid-i"


def states(plugin: Instance) -> dict[str, tuple[str, str]]:
    return {name: (row["state"], owner_of(row)) for name, row in plugin.allocations.items()}


def give(scene: Scene) -> Instance:
    """A plugin that has given a GPU away a while ago; kubelet writes its checkpoint when lists are sent once more."""
    plugin = scene.settle(whole())
    plugin.allocate(ONE)
    scene.checkpoint({GPU: {ONE: "i"}})
    plugin.watch.repeat = Mock(side_effect=scene.write_all)
    scene.now += QUIET + 1
    return plugin


@pytest.mark.parametrize("usual", [{}, NIC], ids=["with nothing else", "with another device"])
@pytest.mark.parametrize("after", [[], ["a"]], ids=["its pod is gone", "another of its name"])
def test_what_an_init_container_has_is_its_own_until_kubelet_has_written_it_off(
    scene: Scene, usual: dict[str, dict[str, str]], after: list[str]
) -> None:
    plugin = give(scene)
    scene.pods, scene.bare, scene.unlisted = usual, ["a"], {GPU: {ONE: "i"}}
    for _ in range(3):
        plugin.follow()
        scene.now += kubelet_view.ASK
        assert states(plugin) == {ONE: (UNCONFIRMED, INIT)}
        assert plugin.look(parts()) == {ONE}
    plugin.watch.repeat.assert_called_once_with()  # type: ignore[union-attr]
    scene.unlisted, scene.bare, scene.pods = {}, after, usual if after else {}
    scene.now += AGAIN if after else 0
    plugin.follow()
    assert plugin.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_a_pod_that_has_ended_has_nothing_when_kubelet_was_told_its_list_once_more(scene: Scene) -> None:
    plugin = give(scene)
    scene.pods = {GPU: {ONE: "i"}}
    plugin.follow()
    assert states(plugin) == {ONE: (CONFIRMED, "pod default/i")}
    scene.pods = {}
    plugin.allocate(ONE)  # to another pod, which ends
    scene.now += QUIET + 1
    plugin.follow()
    plugin.watch.repeat.assert_called_once_with()  # type: ignore[union-attr]
    plugin.follow()
    assert states(plugin) == {}


def test_what_another_plugin_delays_is_not_in_the_checkpoint_yet(scene: Scene) -> None:
    """kubelet writes it when a container has all that it asks for, and lists no init container."""
    plugin = scene.settle(whole())
    plugin.follow()
    scene.checkpoint({})
    os.utime(scene.checkpoint_file, (0, 0))
    plugin.allocate(ONE)
    plugin.watch.repeat = repeat = Mock()
    scene.bare = ["a"]
    for _ in range(3):
        scene.now += QUIET
        plugin.follow(due=True)
        assert plugin.look(parts()) == {ONE}
    repeat.assert_called_once_with()
    scene.checkpoint({GPU: {ONE: "i"}})
    plugin.follow(due=True)
    assert states(plugin) == {ONE: (UNCONFIRMED, INIT)}


@pytest.mark.parametrize("stale", [True, False], ids=["its checkpoint has it", "it has written it off"])
def test_a_name_that_comes_again_has_nothing(scene: Scene, stale: bool) -> None:
    """As a StatefulSet's pod that is made anew without a GPU, long before kubelet starts the next time."""
    plugin = give(scene)
    scene.pods = {GPU: {ONE: "i"}}
    plugin.follow()
    scene.now += kubelet_view.ALONE
    scene.pods, scene.processes = {}, set()
    for _ in range(2):
        plugin.follow(due=True)
    scene.checkpoint({GPU: {ONE: "i"}} if stale else {})
    scene.kubelet_starts()
    scene.bare = ["web-0"]
    plugin.meet()
    scene.now += QUIET
    plugin.follow(due=True)  # kubelet writes its checkpoint, in which an ended pod is no more
    scene.write_all()
    assert plugin.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_a_question_before_the_first_decision_hides_nothing_of_the_checkpoint(scene: Scene) -> None:
    scene.settle(whole()).end()
    scene.checkpoint({GPU: {ONE: "i"}})
    scene.bare = ["a"]
    plugin = scene.start()
    plugin.follow(due=True)
    plugin.look(whole())
    assert states(plugin) == {ONE: (UNCONFIRMED, INIT)}


def test_a_kubelet_without_an_api_server_takes_nothing_from_pods_that_it_does_not_list(scene: Scene) -> None:
    """It lists static pods alone, and keeps its checkpoint."""
    plugin = scene.settle(whole())
    plugin.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.now += TICK + 1
    plugin.follow()
    scene.checkpoint({GPU: {ONE: "a"}})
    scene.kubelet_starts()
    scene.bare = ["static-n"]
    for _ in range(3):
        assert plugin.look(parts()) == {ONE}
        scene.now += 600
        plugin.follow()
    assert states(plugin) == {ONE: (UNCONFIRMED, "pod default/a")}
    scene.pods = {GPU: {ONE: "a"}}
    plugin.follow()
    assert states(plugin) == {ONE: (CONFIRMED, "pod default/a")}


@pytest.mark.parametrize("damage", ["damaged", "gone"])
def test_a_checkpoint_that_cannot_be_read_ends_nothing(scene: Scene, damage: str) -> None:
    plugin = give(scene)
    scene.pods, scene.unlisted = {}, {GPU: {ONE: "i"}}
    plugin.look(parts())
    scene.checkpoint_file.write_text("{") if damage == "damaged" else scene.checkpoint_file.unlink()
    scene.now += 600
    assert plugin.look(parts()) == {ONE}
    scene.write_all()
    assert plugin.look(parts()) == {ONE}


@pytest.mark.parametrize("cause", ["a new record", "a boot"])
def test_what_an_init_container_has_is_found_in_the_checkpoint(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Before anything is told to kubelet: a claim could have it otherwise."""
    plugin = give(scene)
    plugin.end()
    scene.checkpoint({GPU: {ONE: "i"}})
    if cause == "a boot":
        monkeypatch.setattr(system, "boot", lambda: "another boot")
    else:
        (scene.top / "state/device-plugin/allocations.json").unlink()
    plugin = scene.start()
    plugin.look(whole())
    assert states(plugin) == {ONE: (UNCONFIRMED, INIT)}


@pytest.mark.parametrize("loss", ["removed", "damaged"])
def test_who_runs_keeps_its_gpu_when_record_and_checkpoint_are_lost_together(scene: Scene, loss: str) -> None:
    """kubelet lists its pod without the GPU then; the plugin, which goes on, has read who had it."""
    plugin = scene.settle(whole())
    plugin.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.now += TICK + 1
    plugin.follow()
    path = scene.top / "state/device-plugin/allocations.json"
    path.unlink() if loss == "removed" else path.write_text("{")
    scene.kubelet_starts()
    scene.processes, scene.bare = {"a"}, ["a"]
    for _ in range(3):
        assert plugin.look(whole()) == set()
        scene.now += 2 * QUIET
        plugin.follow(due=True)
    assert states(plugin) == {ONE: (LOST, "pod default/a")}
    scene.processes, scene.bare = set(), []
    plugin.look(whole())
    scene.now += QUIET + 1
    assert plugin.look(whole()) == {ONE}
