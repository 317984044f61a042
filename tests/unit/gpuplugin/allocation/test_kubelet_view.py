"""Who has what is asked before anything is given out in another way, and doubt keeps things as they are.

A Scene is a node; each of its `started` is a process of the plugin, which shares nothing with the others but files.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from gpuplugin.allocation import kubelet_view
from gpuplugin.allocation.allocation import Ways
from gpuplugin.allocation.kubelet_view import Questions
from gpuplugin.allocation.offer import Resource
from gpuplugin.allocation.registry import Registry
from gpuplugin.book import book, by_device, evidence
from gpuplugin.book.by_device import ALLOCATED, LISTED
from gpuplugin.devices import changes
from gpuplugin.kubelet import podresources, sockets
from gpuplugin.kubelet.podresources import Listed
from gpuplugin.settings import resources, settings
from gpuplugin.settings.resources import WHOLE, Device, Share, replicated
from gpuplugin.settings.sharing import MPS, TIME_SLICING
from gpushim.containers import kubelet
from gpushim.containers.kubelet import Claim
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU, SHARED, PROFILE = WHOLE, f"{WHOLE}.shared", "nvidia.com/mig-1g.5gb"
ONE, PART = uuid(0), uuid(0, "MIG")
Wanted = dict[str, list[Device]]


def device(name: str = ONE, index: int = 0) -> Device:
    return Device(name, name, str(index), index)


def whole(resource: str = GPU) -> Wanted:
    return {resource: [device()]}


def parts(number: int = 2, resource: str = GPU, kind: str = TIME_SLICING) -> Wanted:
    return {resource: replicated([device()], number, Share(kind, group="gpu" if kind == MPS else ""))}


def divided() -> Wanted:
    return {PROFILE: [device(PART)]}


class Instance:
    """A process of the plugin."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.registry = Registry(lambda work: work)
        self.questions = Questions(self.registry, lambda: str(scene.top))
        self.resources: dict[str, Resource] = {}

    def look(self, desired: Wanted) -> set[str]:
        """Return what kubelet would be told to be well."""
        found = asyncio.run(self.questions.settled(desired, self.scene.snapshot))
        for name in {*found, *self.resources}:
            new = Resource(name, settings.resolve({}, {}, {}), Ways(["envvar"]), self.registry.give)
            self.resources.setdefault(name, new).have(found.get(name, []), {})
        return self.well()

    def well(self) -> set[str]:
        return {key for one in self.resources.values() for key in one.well}

    def allocate(self, name: str, resource: str = GPU) -> None:
        self.resources[resource].allocate({"devices_ids": [name]})

    def end(self) -> None:
        asyncio.run(self.registry.stop())


class Scene:
    """A node, with a kubelet that says who has what."""

    def __init__(self, top: Path) -> None:
        self.top, self.asked, self.now = top, 0, 1000.0
        self.pods: dict[str, dict[str, str]] | None = {}
        self.claims: list[Claim] = []
        self.bare: list[str] = []  # pods that are listed without devices
        self.unlisted: dict[str, list[str]] = {}  # what init containers have
        self.writes = True  # kubelet its checkpoint when it is asked; else it is as the test says
        self.snapshot = snapshot([gpu(0)], [mig(0, 0)])
        self.folder = top / "device-plugins"
        self.folder.mkdir()
        self._server: socket.socket | None = None

    async def answer(self, _: str) -> Listed | None:
        self.asked += 1
        if self.pods is None:
            return None
        if self.writes:
            self.writes_all()
        rows = [(resource, name, who) for resource, row in self.pods.items() for name, who in row.items()]
        keys = ("resource", "devices", "namespace", "pod")
        names = {f"pod default/{who}" for who in [*self.bare, *(who for *_, who in rows)]}
        return Listed([dict(zip(keys, (one, [name], "default", who))) for one, name, who in rows], self.claims, names)

    def kubelet_starts(self, age: float = kubelet_view.QUIET) -> None:
        self.kubelet_ends()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.folder / "kubelet.sock"))
        self._server.listen()
        self.pods = {}
        if self.writes:  # it has lost its checkpoint, unless a test says otherwise
            (self.folder / kubelet.CHECKPOINT).unlink(missing_ok=True)
        if age:
            self.passes(age)

    def kubelet_ends(self) -> None:
        if self._server:
            self._server.close()
        (self.folder / "kubelet.sock").unlink(missing_ok=True)
        self._server, self.pods = None, None

    def dies(self) -> None:
        """Have kubelet be killed, which leaves its socket, and another answer that has not made its own."""
        assert self._server
        self._server.close()
        self._server, self.pods = None, {}

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def checkpoint(self, given: dict[str, list[str]], registered: dict[str, list[str]] | None = None) -> None:
        self.writes = False
        self._write(given, registered)

    def writes_all(self) -> None:
        """Have the checkpoint be what kubelet has given."""
        self._write({**{resource: [*row] for resource, row in (self.pods or {}).items()}, **self.unlisted})

    def _write(self, given: dict[str, list[str]], registered: dict[str, list[str]] | None = None) -> None:
        (self.top / kubelet.PLUGINS / kubelet.CHECKPOINT).write_text(checkpoint(given, registered))

    def started(self) -> Instance:
        return Instance(self)


def checkpoint(given: dict[str, list[str]], registered: dict[str, list[str]] | None = None) -> str:
    """Return kubelet's file when it has given these ids of resources to a container c of the pod with uid u-1."""
    entries = [
        {"PodUID": "u-1", "ContainerName": "c", "ResourceName": name, "DeviceIDs": {"-1": ids}, "AllocResp": ""}
        for name, ids in given.items()
    ]
    return json.dumps(
        {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered or given}, "Checksum": 1}
    )


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with built(monkeypatch) as scene:
        yield scene


@contextlib.contextmanager
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    top = Path(tempfile.mkdtemp(prefix="kd", dir="/tmp"))  # short, for sockets
    scene = Scene(top)
    monkeypatch.setenv("GPUSHIM_STATE", str(top / "state"))
    monkeypatch.setenv("NODE_NAME", "n")
    (top / "state/device-plugin").mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(podresources, "listed", scene.answer)
    monkeypatch.setattr(system, "clock", lambda: scene.now)
    monkeypatch.setattr(system, "boot", lambda: "this boot")
    yield scene
    scene.kubelet_ends()
    shutil.rmtree(top)


def settled(scene: Scene, desired: Wanted) -> Instance:
    """A plugin that has given this out for a while, to a kubelet that has run for a while."""
    scene.kubelet_starts(0)
    one = scene.started()
    one.look(desired)
    scene.passes(kubelet_view.QUIET)
    return one


def test_what_nobody_has_changes_at_once(scene: Scene) -> None:
    one = settled(scene, whole())
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_kubelet_is_asked_when_something_is_new_or_reshaped(scene: Scene) -> None:
    one = settled(scene, whole())
    for _ in range(3):
        one.look(whole())
    one.end()
    scene.started().look(whole())
    assert scene.asked == 1
    one.look(parts())
    assert scene.asked == 2


@pytest.mark.parametrize(
    ("waits", "gone", "named", "seconds"),
    [
        (False, set(), (), kubelet_view.ALONE),
        (True, set(), (), kubelet_view.ASK),
        (False, {ONE}, (), kubelet_view.ASK),
        (False, set(), None, kubelet_view.ALONE),
    ],
)
def test_kubelet_is_asked_rarely_where_nothing_waits(
    scene: Scene, waits: bool, gone: set[str], named: object, seconds: float
) -> None:
    one: Any = settled(scene, whole())
    one.registry.watched, one.registry.served[GPU] = True, SimpleNamespace(resource=SimpleNamespace(gone=gone))
    one.questions._open, one.questions._named = waits, named
    one.questions._asked, one.questions._pause = time.monotonic(), kubelet_view.ALONE
    assert one.questions._longest() == seconds
    assert bool(one.questions._rest()) == (named is not None)  # else somebody is to be named at each tick
    one.registry.served.clear()


def test_a_decision_that_stands_is_not_made_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    one = settled(scene, parts())
    one.look(parts())
    monkeypatch.setattr(evidence, "decided", None)
    monkeypatch.setattr(changes, "changing", None)
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}
    one.allocate(f"{ONE}::0")
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}  # it does not matter who has what


def standing(scene: Scene) -> Instance:
    """A plugin that would not decide again."""
    one = settled(scene, whole())
    one.look(whole())
    one.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    return one


def test_a_decision_stands_no_more_by_other_settings(scene: Scene) -> None:
    one = standing(scene)
    assert one.look(parts()) == {ONE}
    scene.pods = {}
    scene.passes(kubelet_view.QUIET)
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_a_decision_stands_no_more_when_another_instance_divides(scene: Scene) -> None:
    one, other = standing(scene), scene.started()
    scene.pods = {}
    scene.passes(kubelet_view.QUIET)
    other.look(whole())
    assert other.look(parts()) == one.look(whole()) == {f"{ONE}::0", f"{ONE}::1"}


def test_a_decision_stands_no_more_when_kubelet_has_forgotten(scene: Scene) -> None:
    one = standing(scene)
    scene.passes(kubelet_view.TICK + 1)
    asyncio.run(one.questions._note())
    scene.kubelet_starts(0)
    scene.bare = ["a"]
    assert one.look(whole()) == set()


def test_a_decision_stands_no_more_when_the_book_cannot_be_written(scene: Scene) -> None:
    one = standing(scene)
    one.registry.book.stuck = True
    one.look(whole())
    assert not one.registry.book.stuck  # it was written


FORMS = {
    "whole": (whole(), GPU, ONE),
    "shared": (parts(), GPU, f"{ONE}::1"),
    "renamed": (parts(2, SHARED), SHARED, f"{ONE}::1"),
    "alone": (parts(1, SHARED), SHARED, ONE),
    "mps": (parts(2, GPU, MPS), GPU, f"{ONE}::1"),
    "mig": (divided(), PROFILE, PART),
}
CHANGES = [(old, new) for old in FORMS for new in FORMS if old != new]


@pytest.mark.parametrize(("old", "new"), CHANGES)
@pytest.mark.parametrize("listed", [True, False])
def test_a_restart_with_other_settings_gives_nothing_twice(scene: Scene, old: str, new: str, listed: bool) -> None:
    (before, resource, name), (desired, *_) = FORMS[old], FORMS[new]
    one = settled(scene, before)
    one.allocate(name, resource)
    if listed:
        scene.pods = {resource: {name: "a"}}
        scene.passes(kubelet_view.QUIET)
    one.end()
    other = scene.started()
    for _ in range(3):  # each look, and each process, comes to the same
        assert other.look(desired) == {name}
        other.end()
        other = scene.started()
    scene.pods = {}
    scene.passes(kubelet_view.QUIET)
    assert other.look(desired) == {one.id for row in desired.values() for one in row}


@pytest.mark.parametrize(("old", "new"), CHANGES)
@pytest.mark.parametrize("why", ["away", "silent", "starts"])
def test_unknown_keeps_the_division_that_was_last(scene: Scene, old: str, new: str, why: str) -> None:
    (before, resource, name), (desired, *_) = FORMS[old], FORMS[new]
    one = settled(scene, before)
    all_of_it = {one.id for row in before.values() for one in row}
    one.end()
    if why == "away":
        scene.checkpoint({resource: [name]})
        scene.kubelet_ends()
    elif why == "silent":
        scene.pods = None
    else:
        scene.kubelet_starts(0)
    other = scene.started()
    assert other.look(desired) == all_of_it
    if why == "away":
        scene.kubelet_starts(0)
        asyncio.run(other.registry.meet())
    other.allocate(name, resource)  # a kubelet that comes back finds what it had
    with pytest.raises(GpushimError, match=r"cannot be used|has no device"):
        other.allocate(f"{ONE}::0" if name == ONE else ONE, next(iter(desired)))


def test_what_was_given_out_just_now_waits_until_its_pod_is_listed_and_ends(scene: Scene) -> None:
    one = settled(scene, whole())
    one.allocate(ONE)
    assert one.look(parts()) == {ONE}
    scene.pods = {GPU: {ONE: "a"}}
    scene.passes(kubelet_view.QUIET)
    assert one.look(parts()) == {ONE}
    scene.pods = {}
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_what_was_given_out_and_never_listed_changes_after_a_while(scene: Scene) -> None:
    one = settled(scene, whole())
    one.allocate(ONE)
    scene.passes(kubelet_view.QUIET)
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_what_a_plugin_before_the_book_gave_out_waits(scene: Scene) -> None:
    scene.kubelet_starts(0)
    scene.pods, scene.writes = {GPU: {ONE: "a"}}, False
    assert scene.started().look(parts()) == set()


def test_a_checkpoint_tells_what_a_plugin_before_the_book_gave_out(scene: Scene) -> None:
    scene.kubelet_ends()
    scene.checkpoint({GPU: [ONE]})
    one = scene.started()
    assert one.look(parts()) == {ONE}
    scene.kubelet_starts(0)
    scene.pods = {GPU: {ONE: "a"}}
    assert one.look(parts()) == {ONE}
    scene.passes(kubelet_view.QUIET)
    scene.pods = {}
    assert one.look(parts()) == {ONE}  # kubelet has not written since
    scene.writes = True
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_without_a_kubelet_and_its_files_nobody_has_anything(scene: Scene) -> None:
    scene.kubelet_ends()
    one = scene.started()
    assert one.look(whole()) == {ONE}
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_after_a_boot_what_the_checkpoint_promises_holds_and_the_rest_is_free(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.snapshot = snapshot([gpu(0), gpu(1)])
    both = {GPU: [device(), device(uuid(1), 1)]}
    one = settled(scene, both)
    one.allocate(ONE)
    one.allocate(uuid(1))
    one.end()
    scene.kubelet_ends()
    scene.checkpoint({GPU: [ONE]})
    monkeypatch.setattr(system, "boot", lambda: "another boot")
    sharing = {GPU: replicated(both[GPU], 2, Share(TIME_SLICING))}
    assert scene.started().look(sharing) == {ONE, f"{uuid(1)}::0", f"{uuid(1)}::1"}


@pytest.mark.parametrize("what", ["book", "checkpoint"])
def test_what_is_damaged_says_nothing(scene: Scene, what: str) -> None:
    scene.kubelet_ends()
    scene.writes = False
    (scene.top / kubelet.PLUGINS / kubelet.CHECKPOINT if what == "checkpoint" else book_of(scene)).write_text(
        '{"form": 1, "b'
    )
    one = scene.started()
    for _ in range(3):
        assert one.look(whole()) == set()
        one.end()
        one = scene.started()
    scene.kubelet_starts(0)
    assert one.look(whole()) == set()
    scene.passes(kubelet_view.QUIET)
    assert one.look(whole()) == {ONE}


def book_of(scene: Scene) -> Path:
    return scene.top / "state/device-plugin/book.json"


def test_of_two_instances_the_first_has_its_way_until_it_ends(scene: Scene) -> None:
    old = settled(scene, whole())
    new = scene.started()
    assert new.look(parts(2, SHARED)) == set()  # the old one tells what it gives out
    assert new.look(parts()) == {ONE}  # as a list under the old name does here
    old.end()
    assert new.look(parts(2, SHARED)) == {f"{ONE}::0", f"{ONE}::1"}


def test_an_instance_that_takes_over_goes_by_the_book(scene: Scene) -> None:
    old = settled(scene, whole())
    old.end()
    new = scene.started()
    new.look(parts())
    new.allocate(f"{ONE}::0")
    late = scene.started()  # an old one that had stopped for a while
    assert late.look(whole()) == {f"{ONE}::0", f"{ONE}::1"}
    new.registry.instances.leave()  # killed
    assert late.look(whole()) == {f"{ONE}::0"}
    with pytest.raises(GpushimError, match="is to be given out in another way"):
        late.allocate(ONE)


def test_who_is_left_of_two_keeps_what_pods_have_under_the_others_name(scene: Scene) -> None:
    """As an update that renames, and fails."""
    settled(scene, whole()).end()
    new = scene.started()
    assert new.look(parts(2, SHARED)) == {f"{ONE}::0", f"{ONE}::1"}
    new.allocate(f"{ONE}::0", SHARED)
    scene.pods = {SHARED: {f"{ONE}::0": "a"}}
    old = scene.started()
    assert old.look(whole()) == set()  # the newer one tells of it
    new.registry.instances.leave()  # killed
    for _ in range(2):
        assert old.look(whole()) == {f"{ONE}::0"}
        assert old.resources[SHARED].well == {f"{ONE}::0"}
        with pytest.raises(GpushimError, match="waits for the end of"):
            old.allocate(ONE)
    scene.pods = {}
    scene.passes(kubelet_view.QUIET)
    assert old.look(whole()) == {ONE}


def test_a_stale_list_gives_nothing_out(scene: Scene) -> None:
    old, new = settled(scene, whole()), scene.started()
    old.registry.instances.leave()  # stopped, or frozen: it knows nothing of what follows
    news = old.questions.news("inventory.json")
    assert new.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}
    with pytest.raises(GpushimError, match=f"{ONE} is not given out as {GPU} now, but as {GPU} .time-slicing."):
        old.allocate(ONE)
    assert old.questions.news("inventory.json") != news


def again(scene: Scene, *migs: tuple[int, int], divided: bool = True) -> Wanted:
    """Have the instances of the GPU be made again, of these GPU instances; list them."""
    made = [{**mig(0, gi - 1), "uuid": uuid(number, "MIG")} for number, gi in migs]
    scene.snapshot = snapshot([gpu(0, mig=divided)], made)
    units = resources.units(scene.snapshot)
    return {PROFILE: [one for one in units.values() if one.place]} if divided else whole()


def of_mig(scene: Scene) -> Instance:
    """A plugin that has given an instance of GPU instance 1 to a pod, and another of 2 to nobody."""
    one = settled(scene, again(scene, (1, 1), (2, 2)))
    one.allocate(uuid(1, "MIG"), PROFILE)
    scene.pods = {PROFILE: {uuid(1, "MIG"): "a"}}
    scene.passes(kubelet_view.QUIET)
    return one


@pytest.mark.parametrize("restarts", [False, True])
def test_an_instance_that_is_made_anew_waits_for_the_end_of_who_has_the_one_before(
    scene: Scene, restarts: bool
) -> None:
    one = of_mig(scene)
    desired = again(scene, (3, 1), (4, 2))
    if restarts:
        one.end()
        one = scene.started()
    for _ in range(3):
        assert one.look(desired) == {uuid(4, "MIG")}
    scene.pods = {}
    assert one.look(desired) == {uuid(3, "MIG"), uuid(4, "MIG")}


@pytest.mark.parametrize("why", ["away", "starts"])
def test_an_instance_that_is_made_anew_waits_until_kubelet_is_asked(scene: Scene, why: str) -> None:
    one = of_mig(scene)
    scene.kubelet_ends() if why == "away" else scene.kubelet_starts(0)
    desired = again(scene, (3, 1))
    assert one.look(desired) == set()
    scene.kubelet_starts(0)
    scene.passes(kubelet_view.QUIET)
    one.look(desired)
    scene.passes(kubelet_view.QUIET)
    assert one.look(desired) == {uuid(3, "MIG")}


def test_a_gpu_that_is_divided_no_more_waits_for_who_has_an_instance(scene: Scene) -> None:
    one = of_mig(scene)
    desired = again(scene, divided=False)
    for _ in range(3):
        assert one.look(desired) == set()
    scene.pods = {}
    assert one.look(desired) == {ONE}


def test_after_a_boot_nobody_has_the_instances_of_before(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    of_mig(scene).end()
    scene.kubelet_ends()
    scene.checkpoint({PROFILE: [uuid(1, "MIG")]})
    monkeypatch.setattr(system, "boot", lambda: "another boot")
    scene.kubelet_starts(0)
    assert scene.started().look(again(scene, (3, 1))) == {uuid(3, "MIG")}


FORGETS = [(whole(), ONE, set()), (parts(), f"{ONE}::0", {f"{ONE}::1"})]


@pytest.mark.parametrize(("desired", "name", "rest"), FORGETS)
@pytest.mark.parametrize("restarts", [False, True])
def test_what_kubelet_forgot_is_not_given_once_more(
    scene: Scene, desired: Wanted, name: str, rest: set[str], restarts: bool
) -> None:
    one = settled(scene, desired)
    one.allocate(name)
    scene.pods = {GPU: {name: "a"}}
    scene.passes(kubelet_view.QUIET)
    asyncio.run(one.questions._note())
    scene.kubelet_starts(0)  # without its checkpoint
    scene.bare = ["a", "b", "static-n"]
    if restarts:
        one.end()
        one = scene.started()
    else:  # before anything else, as an endpoint registers
        asyncio.run(one.registry.meet())
        with pytest.raises(GpushimError, match="pod default/a has it, which kubelet forgot in its restart; delete"):
            one.allocate(name)
    for _ in range(3):
        assert one.look(desired) == rest
        scene.passes(kubelet_view.QUIET)
    scene.bare = ["static-n"]  # it was started again without an API server
    assert one.look(desired) == rest
    scene.bare = ["b", "static-n"]
    assert one.look(desired) == rest
    scene.passes(kubelet_view.QUIET)
    assert one.look(desired) == {name, *rest}
    one.allocate(name)


def test_a_kubelet_that_answers_before_its_socket_is_there_has_not_said_all(scene: Scene) -> None:
    one = settled(scene, whole())
    one.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.passes(kubelet_view.QUIET)
    scene.dies()
    assert one.look(parts()) == {ONE}
    asyncio.run(one.questions._note())
    scene.kubelet_starts(0)
    assert one.look(parts()) == {ONE}


def test_what_kubelet_remembers_it_may_give_to_another(scene: Scene) -> None:
    one = settled(scene, whole())
    one.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.passes(kubelet_view.TICK + 0.1)
    asyncio.run(one.questions._note())
    scene.checkpoint({GPU: [ONE]})
    os.utime(scene.folder / kubelet.CHECKPOINT, (0, 0))  # it is of the kubelet before
    scene.kubelet_starts(0)
    assert one.look(whole()) == {ONE}
    with pytest.raises(GpushimError, match="pod default/a had it before kubelet's start"):
        one.allocate(ONE)
    scene.pods = {}
    scene.passes(kubelet_view.QUIET + 1)
    assert one.look(whole()) == {ONE}
    one.allocate(ONE)


def test_a_pod_that_a_young_kubelet_does_not_list_yet_has_what_it_had(scene: Scene) -> None:
    one = settled(scene, whole())
    one.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.passes(kubelet_view.QUIET + 1)
    asyncio.run(one.questions._note())
    scene.checkpoint({GPU: [ONE]})
    scene.kubelet_starts(0)
    asyncio.run(one.questions._note())
    page = one.registry.book.read()
    assert page
    assert [entry["to"] for *_, entry in by_device.entries(page)] == ["pod default/a"]


@pytest.mark.parametrize("source", [LISTED, ALLOCATED])
def test_what_kubelet_forgets_though_its_checkpoint_has_it_is_given_to_nobody_else(scene: Scene, source: str) -> None:
    """As where its checksum is wrong, which kubelet alone looks at."""
    one = settled(scene, whole())
    one.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    if source == LISTED:
        scene.passes(kubelet_view.TICK + 0.1)
    asyncio.run(one.questions._note())
    scene.checkpoint({GPU: [ONE]})
    os.utime(scene.folder / kubelet.CHECKPOINT, (0, 0))  # it is of the kubelet before
    scene.kubelet_starts(0)
    scene.pods, scene.bare = {}, ["a"]
    for _ in range(3):
        one.look(whole())
        with pytest.raises(GpushimError):
            one.allocate(ONE)
        scene.passes(kubelet_view.QUIET / 2 if source == LISTED else 1)


@pytest.mark.parametrize("why", ["the disk is full", "it does not listen yet"])
def test_nothing_is_given_to_a_kubelet_that_the_book_has_not_met(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """To add to the book may succeed where there is no room for a new one."""
    one = settled(scene, whole())
    one.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.passes(kubelet_view.TICK + 0.1)
    asyncio.run(one.questions._note())
    scene.kubelet_starts(0)
    with monkeypatch.context() as patch:
        if why == "the disk is full":
            patch.setattr(book, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        else:
            patch.setattr(sockets, "is_listening", lambda path: False)
        asyncio.run(one.registry.meet())
    with pytest.raises(GpushimError, match="does not have the kubelet yet that has just started"):
        one.allocate(ONE)
    asyncio.run(one.registry.meet())
    with pytest.raises(GpushimError, match="which kubelet forgot in its restart"):
        one.allocate(ONE)


def test_what_is_given_during_a_question_is_asked_for_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.snapshot = snapshot([gpu(0), gpu(1)])
    desired = {GPU: [device(), device(uuid(1), 1)]}
    one = settled(scene, desired)
    one.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.passes(kubelet_view.TICK + 0.1)
    answer = podresources.listed

    async def slow(folder: str) -> Listed | None:
        found = await answer(folder)
        one.allocate(uuid(1))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(podresources, "listed", slow)
        asyncio.run(one.questions._note())
    scene.pods[GPU][uuid(1)] = "b"
    scene.passes(kubelet_view.TICK + 0.1)
    asyncio.run(one.questions._note())
    page = one.registry.book.read()
    assert page
    assert {entry["to"] for *_, entry in by_device.entries(page)} == {"pod default/a", "pod default/b"}


def test_what_was_there_before_the_book_is_noted(scene: Scene) -> None:
    scene.kubelet_starts()
    scene.pods = {GPU: {ONE: "a"}}
    one = scene.started()
    assert one.look(whole()) == {ONE}
    scene.kubelet_starts(0)  # without its checkpoint
    scene.bare = ["a", "b", "static-n"]
    assert one.look(whole()) == set()


def test_a_claim_stands_in_the_book_as_long_as_kubelet_lists_it(scene: Scene) -> None:
    one, stale = settled(scene, whole()), scene.started()
    stale.look(whole())
    scene.claims = [Claim("default", "c", "gpu.nvidia.com", "node", "gpu-0", ())]
    one.look(parts())
    with pytest.raises(GpushimError, match=r"claim default/c of gpu\.nvidia\.com has"):
        stale.allocate(ONE)
    scene.claims = []
    one.look(whole())
    stale.allocate(ONE)


def test_a_claim_does_not_count_where_other_givers_are_served(scene: Scene) -> None:
    scene.kubelet_starts()
    scene.claims = [Claim("default", "c", "gpu.nvidia.com", "node", "gpu-0", ())]
    one = scene.started()
    assert one.look(whole()) == set()
    one.questions = Questions(one.registry, lambda: str(scene.top), lambda: False)
    scene.passes(kubelet_view.QUIET)
    assert one.look(whole()) == {ONE}
    one.allocate(ONE)


def test_what_a_claim_has_waits_too(scene: Scene) -> None:
    one = settled(scene, whole())
    scene.claims = [Claim("default", "c", "gpu.nvidia.com", "node", "gpu-0", ())]
    assert one.look(parts()) == set()
    scene.claims = []
    assert one.look(parts()) == {f"{ONE}::0", f"{ONE}::1"}


def test_a_book_that_cannot_be_written_gives_nothing_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (scene.top / "state/device-plugin").rmdir()
    (scene.top / "state/device-plugin").write_text("")
    with pytest.raises(
        GpushimError, match=r"which has who has which GPU, cannot be written: File exists; without it"
    ):
        scene.started().look(whole())


def test_on_a_disk_that_fills_up_nothing_is_offered_until_it_has_room(scene: Scene) -> None:
    one = settled(scene, whole())
    limits, seen = resource.getrlimit(resource.RLIMIT_FSIZE), one.questions.news("")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(GpushimError, match=r"cannot be written: File too large"):
            one.allocate(ONE)
        assert one.questions.news("") != seen
        with pytest.raises(GpushimError, match=r"cannot be written: File too large"):
            one.look(whole())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert one.look(whole()) == {ONE}
    one.allocate(ONE)


def test_who_keeps_the_books_lock_does_not_end_what_names_the_pods(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_view, "TICK", 0.01)
    monkeypatch.setattr(book, "PATIENCE", 0.01)
    one, other = settled(scene, whole()), scene.started().registry.book
    one.allocate(ONE)
    scene.passes(1)

    async def runs() -> bool:
        task = asyncio.create_task(one.questions.keep())
        await asyncio.wait([task], timeout=0.3)
        return task.cancel()

    with other.locked():
        assert asyncio.run(runs())
