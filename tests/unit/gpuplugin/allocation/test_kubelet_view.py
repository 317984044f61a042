"""Who has what is asked before anything is given out in another way, and doubt keeps things as they are."""

from __future__ import annotations

import asyncio
import errno
import resource
from unittest.mock import Mock

import pytest

from gpuplugin.allocation import kubelet_view
from gpuplugin.kubelet import podresources, sockets
from gpuplugin.kubelet.podresources import Listed
from gpuplugin.record import allocations_file
from gpuplugin.record.kubelet_watch import TICK
from gpuplugin.record.record_form import LOST
from gpuplugin.record.transitions import QUIET
from gpuplugin.settings.resources import Share, replicated
from gpuplugin.settings.sharing import TIME_SLICING
from gpushim.containers.kubelet import Claim
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record.scene import (
    FORMS,
    GPU,
    ONE,
    PROFILE,
    SHARED,
    Instance,
    Scene,
    Wanted,
    device,
    parts,
    scene,
    whole,
)
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

__all__ = ["scene"]
SLICES = {f"{ONE}::0", f"{ONE}::1"}


def test_what_nobody_has_changes_at_once(scene: Scene) -> None:
    assert scene.settle(whole()).look(parts()) == SLICES


def test_the_same_decision_is_not_written_again(scene: Scene) -> None:
    plugin = scene.settle(parts())
    plugin.look(parts())
    before = plugin.record
    assert plugin.look(parts()) == SLICES
    assert plugin.record is before


CHANGES = [(old, new) for old in FORMS for new in FORMS if old != new]


@pytest.mark.parametrize(("old", "new"), CHANGES)
@pytest.mark.parametrize("listed", [True, False])
def test_a_restart_with_other_settings_gives_nothing_twice(scene: Scene, old: str, new: str, listed: bool) -> None:
    (before, name_of, name), (desired, *_) = FORMS[old], FORMS[new]
    plugin = scene.settle(before)
    plugin.allocate(name, name_of)
    if listed:
        scene.pods = {name_of: {name: "a"}}
        scene.now += QUIET
    plugin.end()
    other = scene.start()
    for _ in range(3):  # each look, and each process, comes to the same
        assert other.look(desired) == {name}
        other.end()
        other = scene.start()
    scene.pods = {}
    scene.now += QUIET + 1
    other.look(desired)
    assert other.look(desired) == {row.id for rows in desired.values() for row in rows}


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_damaged_record_keeps_what_kubelet_says_in_its_way(scene: Scene, old: str, new: str) -> None:
    (before, name_of, name), (desired, *_) = FORMS[old], FORMS[new]
    plugin = scene.settle(before)
    plugin.allocate(name, name_of)
    scene.pods = {name_of: {name: "a"}}
    scene.write_all()
    plugin.end()
    with open(plugin.watch.file.path, "w") as file:
        file.write('{"form": 1, "b')
    other = scene.start()
    other.look(desired)
    with pytest.raises(GpushimError):
        other.allocate(f"{ONE}::0" if name == ONE else ONE, next(iter(desired)))


def test_what_was_given_out_just_now_waits_until_its_pod_is_listed_and_ends(scene: Scene) -> None:
    plugin = scene.settle(whole())
    plugin.allocate(ONE)
    assert plugin.look(parts()) == {ONE}
    scene.pods = {GPU: {ONE: "a"}}
    scene.now += QUIET
    assert plugin.look(parts()) == {ONE}
    scene.pods = {}
    assert plugin.look(parts()) == SLICES


def test_a_checkpoint_tells_what_was_given_out_before_the_record(scene: Scene) -> None:
    scene.kubelet_ends()
    scene.checkpoint({GPU: {ONE: "a"}})
    plugin = scene.start()
    assert plugin.look(parts()) == {ONE}
    scene.kubelet_starts(0)
    scene.pods = {GPU: {ONE: "a"}}
    assert plugin.look(parts()) == {ONE}
    scene.now += QUIET
    scene.pods = {}
    assert plugin.look(parts()) == {ONE}  # kubelet has not written since
    scene.writes = True
    assert plugin.look(parts()) == SLICES


def test_without_a_kubelet_and_its_files_nobody_has_anything(scene: Scene) -> None:
    scene.kubelet_ends()
    plugin = scene.start()
    assert plugin.look(whole()) == {ONE}
    assert plugin.look(parts()) == SLICES


def test_after_a_boot_what_the_checkpoint_promises_holds_and_the_rest_is_free(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.snapshot = snapshot([gpu(0), gpu(1)])
    both = {GPU: [device(), device(uuid(1), 1)]}
    plugin = scene.settle(both)
    plugin.allocate(ONE)
    plugin.allocate(uuid(1))
    plugin.end()
    scene.kubelet_ends()
    scene.checkpoint({GPU: {ONE: "a"}})
    monkeypatch.setattr(system, "boot", lambda: "another boot")
    sharing = {GPU: replicated(both[GPU], 2, Share(TIME_SLICING))}
    assert scene.start().look(sharing) == {ONE, f"{uuid(1)}::0", f"{uuid(1)}::1"}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_damaged_record_says_nothing_until_kubelet_has_told_all(scene: Scene, restarts: bool) -> None:
    plugin = scene.settle(whole())
    with open(plugin.watch.file.path, "w") as file:
        file.write('{"form": 1, "b')
    scene.kubelet_starts(0)
    for _ in range(3):
        assert plugin.look(whole()) == set()
        plugin = scene.start() if restarts else plugin
    scene.now += QUIET
    plugin.look(whole())
    scene.now += QUIET
    assert plugin.look(whole()) == {ONE}


def test_of_two_instances_the_first_has_its_way_until_it_ends(scene: Scene) -> None:
    old, new = scene.settle(whole()), scene.start()
    assert new.look(parts(2, SHARED)) == set()  # the old one tells what it gives out
    assert new.look(parts()) == {ONE}  # as a list under the old name does here
    old.end()
    assert new.look(parts(2, SHARED)) == SLICES


def test_an_instance_that_takes_over_goes_by_the_record(scene: Scene) -> None:
    scene.settle(whole()).end()
    new = scene.start()
    new.look(parts())
    new.allocate(f"{ONE}::0")
    late = scene.start()  # an old one that had stopped for a while
    assert late.look(whole()) == SLICES
    new.registry.instances.leave()  # killed
    assert late.look(whole()) == {f"{ONE}::0"}
    with pytest.raises(GpushimError, match="the settings give it out in another way"):
        late.allocate(ONE)


def test_a_stale_list_gives_nothing_out(scene: Scene) -> None:
    old, new = scene.settle(whole()), scene.start()
    old.registry.instances.leave()  # stopped, or frozen: it knows nothing of what follows
    news = old.view.identify("inventory.json")
    assert new.look(parts()) == SLICES
    with pytest.raises(GpushimError, match=f"{ONE} is not given out as {GPU} now, but as {GPU} .time-slicing."):
        old.allocate(ONE)
    assert old.view.identify("inventory.json") != news


def give_instance(scene: Scene) -> Instance:
    """Return a plugin that has given an instance of GPU instance 1 to a pod, and another of 2 to nobody."""
    plugin = scene.settle(scene.make_instances((1, 1), (2, 2)))
    plugin.allocate(uuid(1, "MIG"), PROFILE)
    scene.pods = {PROFILE: {uuid(1, "MIG"): "a"}}
    scene.now += QUIET
    plugin.follow(due=True)
    return plugin


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kubelet", ["answers", "is away", "starts"])
def test_an_instance_that_is_made_anew_waits_for_the_end_of_who_has_the_one_before(
    scene: Scene, restarts: bool, kubelet: str
) -> None:
    plugin = give_instance(scene)
    desired = scene.make_instances((3, 1), (4, 2))
    scene.processes = {"a"}
    if kubelet != "answers":
        scene.checkpoint({PROFILE: {uuid(1, "MIG"): "a"}})
        scene.kubelet_ends() if kubelet == "is away" else scene.kubelet_starts(0)
    if restarts:
        plugin.end()
        plugin = scene.start()
    for _ in range(3):
        assert plugin.look(desired) == {uuid(4, "MIG")}
    scene.processes, scene.writes, scene.pods = set(), True, {}
    scene.write_all()
    assert plugin.look(desired) == {uuid(3, "MIG"), uuid(4, "MIG")}


def test_a_gpu_that_is_divided_no_more_waits_for_who_has_an_instance(scene: Scene) -> None:
    plugin = give_instance(scene)
    desired = scene.make_instances(is_divided=False)
    for _ in range(3):
        assert plugin.look(desired) == set()
    scene.pods = {}
    assert plugin.look(desired) == {ONE}


def test_after_a_boot_nobody_has_the_instances_of_before(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    give_instance(scene).end()
    scene.kubelet_ends()
    scene.checkpoint({PROFILE: {uuid(1, "MIG"): "a"}})
    monkeypatch.setattr(system, "boot", lambda: "another boot")
    scene.kubelet_starts(0)
    assert scene.start().look(scene.make_instances((3, 1))) == {uuid(3, "MIG")}


@pytest.mark.parametrize(("desired", "name", "rest"), [(whole(), ONE, set()), (parts(), f"{ONE}::0", {f"{ONE}::1"})])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_kubelet_forgot_is_not_given_once_more(
    scene: Scene, desired: Wanted, name: str, rest: set[str], restarts: bool
) -> None:
    plugin = scene.settle(desired)
    plugin.allocate(name)
    scene.pods = {GPU: {name: "a"}}
    scene.now += QUIET
    plugin.follow()
    scene.kubelet_starts(0)  # without its checkpoint
    scene.processes = {"a"}
    if restarts:
        plugin.end()
        plugin = scene.start()
    else:  # before anything else, as an endpoint registers
        plugin.meet()
        with pytest.raises(GpushimError, match="pod default/a has it, which kubelet no longer knows"):
            plugin.allocate(name)
    for _ in range(3):
        assert plugin.look(desired) == rest
        assert [allocation["state"] for allocation in plugin.allocations.values()] == [LOST]
        scene.now += QUIET
    scene.processes = set()
    assert plugin.look(desired) == {name, *rest}
    plugin.allocate(name)


@pytest.mark.parametrize("problem", ["the disk is full", "it does not listen yet"])
def test_nothing_is_given_to_a_kubelet_that_the_record_has_not_met(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """To add to the record may succeed where there is no room for a new one."""
    plugin = scene.settle(whole())
    plugin.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.now += TICK + 0.1
    plugin.follow()
    scene.kubelet_starts(0)
    scene.processes = {"a"}
    with monkeypatch.context() as patch:
        if problem == "the disk is full":
            patch.setattr(allocations_file, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        else:
            patch.setattr(sockets, "is_listening", lambda path: False)
        plugin.meet()
    with pytest.raises(GpushimError, match="kubelet has just started, and has not been asked yet"):
        plugin.allocate(ONE)
    plugin.meet()
    with pytest.raises(GpushimError, match="which kubelet no longer knows"):
        plugin.allocate(ONE)


def test_what_is_given_during_a_question_is_asked_for_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.snapshot = snapshot([gpu(0), gpu(1)])
    plugin = scene.settle({GPU: [device(), device(uuid(1), 1)]})
    plugin.allocate(ONE)
    scene.pods = {GPU: {ONE: "a"}}
    scene.now += TICK + 0.1
    answer = podresources.listed

    async def answer_slowly(folder: str) -> Listed | None:
        listed = await answer(folder)
        plugin.allocate(uuid(1))
        return listed

    with monkeypatch.context() as patch:
        patch.setattr(podresources, "listed", answer_slowly)
        assert plugin.follow()
    scene.pods[GPU][uuid(1)] = "b"
    scene.now += TICK + 0.1
    assert not plugin.follow()
    assert {row["pod"] for row in plugin.allocations.values()} == {"pod default/a", "pod default/b"}


def test_a_foreign_claim_counts_as_long_as_kubelet_lists_it(scene: Scene) -> None:
    plugin, stale = scene.settle(whole()), scene.start()
    stale.look(whole())
    scene.bare = ["agent"]
    scene.claims = [Claim("default", "c", "gpu.nvidia.com", "node", "gpu-0", ())]
    plugin.look(parts())
    with pytest.raises(GpushimError, match=r"claim default/c of gpu\.nvidia\.com has"):
        stale.allocate(ONE)
    scene.claims = []
    scene.now += QUIET
    plugin.look(whole())
    assert plugin.look(whole()) == {ONE}
    stale.allocate(ONE)


def test_a_kubelet_without_an_api_server_takes_nothing_from_a_foreign_claim(scene: Scene) -> None:
    plugin = scene.settle(whole())
    scene.bare = ["agent"]
    scene.claims = [Claim("default", "c", "other.example", "node", "gpu-0", (f"nvidia.com/gpu={ONE}",))]
    plugin.look(whole())
    scene.kubelet_starts()
    scene.bare, scene.claims = ["etcd-n"], []  # static pods alone, for as long as the API server is away
    for _ in range(3):
        scene.now += 2 * QUIET
        plugin.look(whole())
    with pytest.raises(GpushimError, match=r"claim default/c of other\.example has"):
        plugin.allocate(ONE)


def test_a_claim_does_not_count_where_other_givers_are_served(scene: Scene) -> None:
    scene.kubelet_starts()
    scene.bare = ["agent"]
    scene.claims = [Claim("default", "c", "other.example", "node", "gpu-0", (f"nvidia.com/gpu={ONE}",))]
    plugin = scene.start()
    assert plugin.look(whole()) == set()
    plugin.heeds = False
    plugin.look(whole())
    scene.now += QUIET + 1
    plugin.look(whole())
    scene.now += QUIET + 1
    assert plugin.look(whole()) == {ONE}
    plugin.allocate(ONE)


def test_a_record_that_cannot_be_written_gives_nothing_out(scene: Scene) -> None:
    (scene.top / "state/device-plugin").rmdir()
    (scene.top / "state/device-plugin").write_text("")
    with pytest.raises(
        GpushimError, match=r"which has who has which GPU, cannot be written: File exists; without it"
    ):
        scene.start().look(whole())


def test_on_a_disk_that_fills_up_nothing_is_offered_until_it_has_room(scene: Scene) -> None:
    plugin = scene.settle(whole())
    scene.writes = False
    limits, news = resource.getrlimit(resource.RLIMIT_FSIZE), plugin.view.identify("")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(GpushimError, match=r"cannot be written: File too large"):
            plugin.allocate(ONE)
        assert plugin.view.identify("") != news
        with pytest.raises(GpushimError, match=r"cannot be written: File too large"):
            plugin.look(whole())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert plugin.look(whole()) == {ONE}
    plugin.allocate(ONE)


def test_who_keeps_the_records_lock_does_not_end_the_loop(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_view, "TICK", 0.01)
    monkeypatch.setattr(allocations_file, "PATIENCE", 0.01)
    plugin, other = scene.settle(whole()), scene.start().watch.file
    plugin.allocate(ONE)
    scene.now += 1

    async def runs() -> bool:
        task = asyncio.create_task(plugin.view.keep())
        await asyncio.wait([task], timeout=0.3)
        return task.cancel()

    with other.locked():
        assert asyncio.run(runs())


@pytest.mark.parametrize("number", ["131071", "9" * 19, "9" * 5000], ids=len)
def test_an_id_of_another_plugin_with_any_number_damages_no_record(scene: Scene, number: str) -> None:
    plugin = scene.settle(parts())
    scene.pods = {GPU: {f"{ONE}::{number}": "a"}}
    scene.now += QUIET
    plugin.look(parts())
    again = scene.start()
    assert again.look(parts()) == {f"{ONE}::0", f"{ONE}::1", f"{ONE}::{number}"}
    assert again.record["unknown"] == ""
    assert not again.watch.file.damaged
