"""What kubelet has given out and does not list: its checkpoint tells when that ends, which it writes at each list."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from gpuplugin.book import by_device
from gpuplugin.book.by_device import LISTED, UNLISTED

from gpuplugin.allocation import kubelet_view
from gpushim.ground import system
from unit.gpuplugin.allocation.test_kubelet_view import GPU, ONE, Instance, Scene, parts, scene, settled, whole

__all__ = ["scene"]
NIC = {"rdma/hca": {"nic-0": "a"}}
INIT = "the pod with uid u-1"


def entries(one: Instance) -> dict[str, tuple[str, str]]:
    page = one.registry.book.read()
    assert page
    return {name: (entry["source"], entry["to"]) for _, name, entry in by_device.entries(page)}


def given(scene: Scene) -> Instance:
    """A plugin that has given a GPU away a while ago; kubelet writes its checkpoint when lists are sent once more."""
    one = settled(scene, whole())
    one.allocate(ONE)
    scene.checkpoint({GPU: [ONE]})
    one.registry.repeat = Mock(side_effect=scene.writes_all)  # type: ignore[method-assign]
    scene.passes(kubelet_view.QUIET + 1)
    return one


@pytest.mark.parametrize("usual", [{}, NIC], ids=["with nothing else", "with another device"])
@pytest.mark.parametrize("after", [[], ["a"]], ids=["its pod is gone", "another of its name"])
def test_what_an_init_container_has_is_its_own_until_kubelet_has_written_it_off(
    scene: Scene, usual: dict[str, dict[str, str]], after: list[str]
) -> None:
    one = given(scene)
    scene.pods, scene.bare, scene.unlisted = usual, ["a"], {GPU: [ONE]}
    for _ in range(3):
        asyncio.run(one.questions._note())
        one.questions._named = None
        scene.passes(kubelet_view.ASK)
        assert entries(one) == {ONE: (UNLISTED, INIT)}
        assert one.look(parts()) == {ONE}
    one.registry.repeat.assert_called_once_with()  # type: ignore[attr-defined]
    scene.unlisted, scene.bare, scene.pods = {}, after, usual if after else {}
    scene.passes(kubelet_view.ALONE if after else 0)
    asyncio.run(one.questions._note())
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_a_pod_that_has_ended_has_nothing_when_kubelet_was_told_its_list_once_more(scene: Scene) -> None:
    one = given(scene)
    scene.pods = {GPU: {ONE: "a"}}
    asyncio.run(one.questions._note())
    assert entries(one) == {ONE: (LISTED, "pod default/a")}
    one.allocate(ONE)  # to another pod, which ends
    scene.pods = {}
    scene.passes(kubelet_view.QUIET + 1)
    asyncio.run(one.questions._note())
    assert one.questions._due() <= 0
    one.registry.repeat.assert_called_once_with()  # type: ignore[attr-defined]
    one.questions._named = None
    asyncio.run(one.questions._note())
    assert entries(one) == {}


def test_what_another_plugin_delays_is_not_in_the_checkpoint_yet(scene: Scene) -> None:
    """kubelet writes it when a container has all that it asks for, and lists no init container."""
    one = settled(scene, whole())
    asyncio.run(one.questions._note())
    scene.checkpoint({})
    os.utime(Path(scene.folder) / "kubelet_internal_checkpoint", (0, 0))
    one.allocate(ONE)
    one.registry.repeat = Mock()  # type: ignore[method-assign]
    scene.bare = ["a"]
    for _ in range(3):
        scene.passes(kubelet_view.QUIET)
        asyncio.run(one.questions._note(due=True))
        assert one.look(parts()) == {ONE}
    one.registry.repeat.assert_called_once_with()
    scene.checkpoint({GPU: [ONE]})
    asyncio.run(one.questions._note(due=True))
    assert entries(one) == {ONE: (UNLISTED, INIT)}


@pytest.mark.parametrize("stale", [True, False], ids=["its checkpoint has it", "it has written it off"])
def test_a_name_that_comes_again_has_nothing(scene: Scene, stale: bool) -> None:
    """As a StatefulSet's pod that is made anew without a GPU, long before kubelet starts the next time."""
    one = given(scene)
    scene.pods = {GPU: {ONE: "web-0"}}
    asyncio.run(one.questions._note())
    scene.passes(kubelet_view.ALONE)
    scene.pods, scene.bare = {}, ["web-0"]
    for _ in range(2):
        asyncio.run(one.questions._note(due=True))
    scene.checkpoint({GPU: [ONE]} if stale else {})
    scene.kubelet_starts()
    asyncio.run(one.registry.meet())
    scene.passes(kubelet_view.QUIET)
    asyncio.run(one.questions._note(due=True))
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_a_question_before_the_first_decision_hides_nothing_of_the_checkpoint(scene: Scene) -> None:
    settled(scene, whole()).end()
    scene.checkpoint({GPU: [ONE]})
    scene.bare = ["a"]
    one = scene.started()
    asyncio.run(one.questions._note(due=True))
    one.look(whole())
    assert entries(one) == {ONE: (UNLISTED, INIT)}


def test_a_kubelet_without_an_api_server_takes_nothing_from_pods_that_it_does_not_list(scene: Scene) -> None:
    """It lists static pods alone, and keeps its checkpoint."""
    one = settled(scene, whole())
    one.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.passes(kubelet_view.TICK + 1)
    asyncio.run(one.questions._note())
    scene.checkpoint({GPU: [ONE]})
    scene.kubelet_starts()
    scene.bare = ["static-n"]
    for _ in range(3):
        assert one.look(parts()) == {ONE}
        scene.passes(600)
        asyncio.run(one.questions._note())
    assert entries(one) == {ONE: (UNLISTED, "pod default/a")}
    scene.pods = {GPU: {ONE: "a"}}
    one.questions._named = None
    asyncio.run(one.questions._note())
    assert entries(one) == {ONE: (LISTED, "pod default/a")}


@pytest.mark.parametrize("what", ["damaged", "gone"])
def test_a_checkpoint_that_cannot_be_read_ends_nothing(scene: Scene, what: str) -> None:
    one = given(scene)
    scene.pods, scene.unlisted = {}, {GPU: [ONE]}
    one.look(parts())
    path = Path(scene.folder) / "kubelet_internal_checkpoint"
    path.write_text("{") if what == "damaged" else path.unlink()
    scene.passes(600)
    assert one.look(parts()) == {ONE}
    scene.writes_all()
    assert one.look(parts()) == {ONE}


@pytest.mark.parametrize("how", ["a new book", "a boot"])
def test_what_an_init_container_has_is_found_in_the_checkpoint(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Before anything is told to kubelet: a claim could have it otherwise."""
    one = given(scene)
    one.end()
    scene.checkpoint({GPU: [ONE]})
    if how == "a boot":
        monkeypatch.setattr(system, "boot", lambda: "another boot")
    else:
        (scene.top / "state/device-plugin/book.json").unlink()
    one = scene.started()
    one.look(whole())
    assert entries(one) == {ONE: (UNLISTED, INIT)}
