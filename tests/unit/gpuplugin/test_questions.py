"""Who has what is asked before anything is given out in another way, and doubt keeps things as they are."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin import podresources, questions, settings
from gpuplugin.allocation import Ways
from gpuplugin.offer import Resource
from gpuplugin.questions import Questions
from gpuplugin.resources import Device, replicated

GPU = "nvidia.com/gpu"
WHOLE = [Device("GPU-0", "GPU-0", "0", 0)]
PARTS = {GPU: replicated(WHOLE, 2)}
THERE = {"GPU-0": (0, "")}


class Scene:
    """A kubelet that says who has what, and a resource that it was told of."""

    def __init__(self, top: Path) -> None:
        self.pods: dict[str, dict[str, str]] | None = {}
        self.asked = 0
        self.resource = Resource(GPU, settings.resolve({}, {}, {}), Ways(["envvar"]))
        self.resource.have(WHOLE, {})
        self.socket = top / "device-plugins/kubelet.sock"
        self.socket.parent.mkdir()
        self.socket.write_text("")
        os.utime(self.socket, (0, 0))
        self.served = {GPU: SimpleNamespace(resource=self.resource)}
        registry: Any = SimpleNamespace(served=self.served)
        self.questions = Questions(registry, lambda: str(top))

    async def answer(self, _: str) -> dict[str, dict[str, str]] | None:
        self.asked += 1
        return self.pods and {name: {**row} for name, row in self.pods.items()}

    def given(self, wanted: dict[str, list[Device]]) -> set[str]:
        found = asyncio.run(self.questions.settled(wanted, THERE))
        return {one.id for row in found.values() for one in row if not one.problem}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(tmp_path)
    monkeypatch.setattr(podresources, "pods", scene.answer)
    return scene


def test_what_nobody_has_changes_at_once(scene: Scene) -> None:
    assert scene.given(PARTS) == {"GPU-0::0", "GPU-0::1"}


def test_what_a_pod_has_waits(scene: Scene) -> None:
    scene.pods = {GPU: {"GPU-0": "pod default/a"}}
    assert scene.given(PARTS) == {"GPU-0"}
    scene.pods = {}
    assert scene.given(PARTS) == {"GPU-0::0", "GPU-0::1"}


def test_kubelet_is_asked_at_the_start_and_when_something_is_reshaped(scene: Scene) -> None:
    for _ in range(3):
        scene.given({GPU: WHOLE})
    assert scene.asked == 1
    scene.given(PARTS)
    assert scene.asked == 2


def test_what_a_former_process_gave_out_waits_too(scene: Scene) -> None:
    scene.served.clear()
    scene.pods = {GPU: {"GPU-0": "pod default/a"}}
    assert scene.given(PARTS) == set()


def test_what_was_given_out_just_now_waits_until_its_pod_is_listed_and_ends(scene: Scene) -> None:
    scene.resource.allocate({"devices_ids": ["GPU-0"]})
    assert scene.given(PARTS) == {"GPU-0"}
    scene.pods = {GPU: {"GPU-0": "pod default/a"}}
    assert scene.given(PARTS) == {"GPU-0"}
    scene.pods = {}
    assert scene.given(PARTS) == {"GPU-0::0", "GPU-0::1"}


def test_what_was_given_out_and_never_listed_changes_after_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.resource.allocate({"devices_ids": ["GPU-0"]})
    monkeypatch.setattr(questions, "QUIET", 0.0)
    assert scene.given(PARTS) == {"GPU-0::0", "GPU-0::1"}


@pytest.mark.parametrize("why", ["silent", "new", "gone"])
def test_a_kubelet_that_does_not_know_changes_nothing(scene: Scene, why: str) -> None:
    if why == "silent":
        scene.pods = None
    elif why == "new":
        os.utime(scene.socket)
    else:
        scene.socket.unlink()
    assert scene.given(PARTS) == {"GPU-0"}
    assert scene.given({GPU: WHOLE}) == {"GPU-0"}
