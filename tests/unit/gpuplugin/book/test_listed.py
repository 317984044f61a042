"""What becomes of the book's entries when kubelet lists, starts and forgets."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.book import by_device, listed
from gpuplugin.book.by_device import ALLOCATED, CLAIM, DRIVER, ENDING, FORGOTTEN, FORMER, LISTED, UNLISTED
from gpuplugin.book.checkpoints import Remembered
from gpuplugin.devices import changes
from gpuplugin.settings import resources
from unit.gpuplugin.pages import GPU, ONE, PART, PROFILE, SLICED, TWO, book, division, entry
from unit.gpuplugin.snapshots import gpu, mig, snapshot

POD, KEY = "pod default/a", f"{GPU} {ONE}"
INIT, PROMISED = "the pod with uid u", Remembered({KEY: "u"}, 8.0)
NOTHING = Remembered({}, 8.0)
HAS = {GPU: {ONE: POD}}
UNITS = resources.units(snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)]))
CLAIMED = entry(way=(CLAIM, ""), source=LISTED, giver=DRIVER)


@pytest.mark.parametrize(
    ("before", "held", "pods", "after"),
    [
        (entry(), HAS, (), (LISTED, POD)),
        (entry(), {}, (), None),  # given out before the last while, and no pod has it
        (entry(), {}, None, (ALLOCATED, "")),  # kubelet may not know all pods yet
        (entry(time=9.0), {}, (), (ALLOCATED, "")),  # just now
        (entry(source=LISTED, to=POD), {}, (), None),
        (entry(source=FORMER, to=POD), {}, (POD,), (FORGOTTEN, POD)),
        (entry(source=FORGOTTEN, to=POD), {}, (POD,), (FORGOTTEN, POD)),
        (entry(source=FORGOTTEN, to=POD), HAS, (POD,), (LISTED, POD)),
        (entry(source=FORGOTTEN, to=POD), {}, None, (FORGOTTEN, POD)),
    ],
)
def test_an_entry_ends_when_its_pod_does(before: Any, held: Any, pods: Any, after: Any) -> None:
    found = listed.listed(book(entries={KEY: before}), held, pods, 7.0, NOTHING, whole=False)
    assert [(one["source"], one["to"]) for *_, one in by_device.entries(found)] == ([after] if after else [])


@pytest.mark.parametrize(
    ("before", "pods", "whole", "promised", "after"),
    [
        (entry(), ("pod x",), True, PROMISED, (UNLISTED, INIT)),  # an init container's, whatever else is listed
        (entry(source=UNLISTED, to=INIT), (), True, PROMISED, (UNLISTED, INIT)),
        (entry(source=UNLISTED, to=INIT), (), True, NOTHING, None),
        (entry(source=UNLISTED, to=INIT), (), True, None, (UNLISTED, INIT)),  # which cannot be read now
        (entry(source=FORGOTTEN, to=INIT), (), True, PROMISED, (UNLISTED, INIT)),
        (entry(source=LISTED, to=POD), ("pod x",), False, PROMISED, (UNLISTED, POD)),  # kubelet may lack its pod
        (entry(source=FORMER, to=POD), ("pod x",), False, PROMISED, (UNLISTED, POD)),
        (entry(source=LISTED, to=POD), ("pod x",), True, PROMISED, (UNLISTED, POD)),  # which is being added
        (entry(source=LISTED, to=POD), (POD,), True, PROMISED, (UNLISTED, POD)),
        (entry(source=LISTED, to=POD), (POD,), True, NOTHING, None),  # another of its name
        (entry(source=LISTED, to=f"{POD}-n"), ("pod x",), False, PROMISED, (UNLISTED, f"{POD}-n")),
        (entry(source=UNLISTED, to=POD), ("pod x",), True, None, (UNLISTED, POD)),
        (entry(source=UNLISTED, to=POD), ("pod x",), False, NOTHING, None),
        (entry(source=FORGOTTEN, to=POD), ("pod x",), False, NOTHING, (FORGOTTEN, POD)),
        (entry(source=FORGOTTEN, to=POD), ("pod x",), True, NOTHING, None),
        (entry(source=FORGOTTEN, to=POD), ("pod x",), False, None, (FORGOTTEN, POD)),
        (entry(source=FORGOTTEN), ("pod x",), True, None, (FORGOTTEN, "")),
        (entry(source=FORGOTTEN, to=f"{POD}-n"), ("pod x",), False, NOTHING, None),  # a static pod is listed always
        ({**entry(source=FORGOTTEN, to=POD), "uid": "0a1b"}, (), False, NOTHING, None),  # this is one, too
        ({**entry(source=FORGOTTEN, to=f"{POD}-n"), "uid": "0a-1b"}, (), False, NOTHING, (FORGOTTEN, f"{POD}-n")),
        (
            entry(source=FORGOTTEN, to=INIT),
            ("pod x",),
            True,
            NOTHING,
            (FORGOTTEN, INIT),
        ),  # nobody says when that ends
        (
            entry(source=FORGOTTEN),
            ("pod x",),
            False,
            NOTHING,
            None,
        ),  # kubelet went before it had started the container
    ],
)
def test_what_kubelet_does_not_list_stays_while_its_checkpoint_has_it(
    before: Any, pods: Any, whole: bool, promised: Any, after: Any
) -> None:
    found = listed.listed(book(entries={KEY: before}), {}, pods, 7.0, promised, whole, "N")
    assert [(one["source"], one["to"]) for *_, one in by_device.entries(found)] == ([after] if after else [])
    assert listed.unlisted(found) == ({KEY} if after and after[0] == UNLISTED else set())


@pytest.mark.parametrize(("pods", "whole", "left"), [((POD,), True, 0), (("pod x",), True, 0), ((POD,), False, 1)])
def test_where_nobody_has_the_checkpoint_written_a_list_of_all_counts(pods: Any, whole: bool, left: int) -> None:
    page = book(entries={KEY: entry(source=LISTED, to=POD)})
    found = listed.listed(page, {}, pods, 7.0, PROMISED, whole, stale=True)
    assert len([*by_device.entries(found)]) == left


@pytest.mark.parametrize(("written", "left"), [(2.0, [FORMER]), (4.0, [UNLISTED])])
def test_a_kubelet_that_has_written_what_it_read_lists_what_its_pods_have(written: float, left: list[str]) -> None:
    """Another of the name has nothing; before that it may be the same pod, of whom a damaged file told us alone."""
    page = listed.met(book(entries={KEY: entry(source=LISTED, to=POD, time=1.0)}), ["socket", 3.0], PROMISED)
    found = listed.listed(page, {}, (POD,), 7.0, Remembered({KEY: "u"}, written), whole=True)
    assert [one["source"] for *_, one in by_device.entries(found)] == left
    found = listed.listed(found, {}, (POD,), 7.0, NOTHING, whole=True)
    assert [one["source"] for *_, one in by_device.entries(found)] == ([FORGOTTEN] if FORMER in left else [])


def test_what_kubelet_gave_after_it_wrote_its_checkpoint_is_not_missing_there() -> None:
    """It does that when a container has all that it asks for, which another plugin may delay for long."""
    page = book(entries={KEY: entry(time=3.0)})
    assert [*by_device.entries(listed.listed(page, {}, (), 60.0, Remembered({}, 2.0), whole=True))]
    assert not [*by_device.entries(listed.listed(page, {}, (), 60.0, Remembered({}, 4.0), whole=True))]


DELETED = {
    "listed before": ({**entry(source=LISTED, to=POD), "uid": "u"}, NOTHING),
    "its uid is in the checkpoint alone": (entry(source=LISTED, to=POD), PROMISED),
    "an init container": (entry(source=UNLISTED, to=INIT), NOTHING),
    "ending": ({**entry(source=ENDING, to=POD), "uid": "u"}, NOTHING),
    "forgotten": ({**entry(source=FORGOTTEN, to=POD), "uid": "u"}, NOTHING),
    "its checkpoint cannot be read": ({**entry(source=ENDING, to=POD), "uid": "u"}, None),
}


@pytest.mark.parametrize(("before", "promised"), DELETED.values(), ids=DELETED)
def test_nothing_ends_while_a_process_of_its_pod_is_left(before: Any, promised: Any) -> None:
    """As after a deletion by force: that kubelet lists the pod no more says nothing of its processes."""
    page = book(entries={KEY: before})
    assert listed.unlisted_uids(page, {}, promised) == {"u"}
    for running, left in (({"u"}, [ENDING]), ({"v"}, [])):
        found = listed.listed(page, {}, ("pod x",), 7.0, promised, whole=True, stale=True, running=running)
        assert [one["source"] for *_, one in by_device.entries(found)] == left
    assert not listed.unlisted_uids(page, HAS, promised)


def test_a_kubelet_that_starts_ends_nothing_of_which_a_process_is_left() -> None:
    page = book(entries={KEY: {**entry(source=LISTED, to=POD), "uid": "u"}})
    for running, left in (({"u"}, [ENDING]), ((), [])):
        found = listed.met(page, ["socket", 3.0], Remembered({}, 8.0, [GPU]), running)
        assert [one["source"] for *_, one in by_device.entries(found)] == left


@pytest.mark.parametrize("running", [True, False])
def test_what_kubelet_forgot_stays_while_a_process_is_left_though_another_pod_has_the_name(running: bool) -> None:
    rows = {KEY: {**entry(source=FORGOTTEN, to=POD), "uid": "u"}, f"{GPU} {TWO}": {**entry(TWO), "uid": "v"}}
    found = listed.listed(
        book(entries=rows), {GPU: {TWO: POD}}, (POD,), 7.0, Remembered({f"{GPU} {TWO}": "v"}, 8.0), whole=True,
        running={"u"} if running else (),
    )  # fmt: skip
    assert len([*by_device.entries(found)]) == 1 + running


@pytest.mark.parametrize("by", ["listed", "claims"])
def test_a_claim_ends_when_no_process_of_its_pods_is_left(by: str) -> None:
    """Whoever has lost which file: the book knows its pods."""
    page = book(entries={f"{CLAIM} {ONE}": {**CLAIMED, "pods": ["u", "w"]}})
    assert listed.unlisted_uids(page, {}) == {"u", "w"}
    for running in ({"w"}, ()):
        found = (
            listed.listed(page, {CLAIM: {}}, (), 7.0, None, whole=True, running=running)
            if by == "listed"
            else listed.claims(page, {}, {ONE: ONE}, 7.0, running)
        )
        assert len([*by_device.entries(found)]) == len(running)


@pytest.mark.parametrize(("uid", "ends"), [("u", False), ("v", True)])
def test_what_kubelet_forgot_ends_when_another_pod_has_the_name(uid: str, ends: bool) -> None:
    """As of a StatefulSet: who is deleted comes back at once."""
    page = book(entries={KEY: entry(), f"{GPU} {TWO}": entry(TWO, time=9.0)})
    page = listed.listed(page, HAS, (POD,), 7.0, PROMISED, whole=True)
    page = listed.met(page, ["socket", 3.0], None)
    held, promised = {GPU: {TWO: POD}}, Remembered({f"{GPU} {TWO}": uid}, 10.0)
    page = listed.listed(page, held, (POD,), 20.0, promised, whole=True)
    left = {f"{resource} {name}": one["source"] for resource, name, one in by_device.entries(page)}
    assert left == {f"{GPU} {TWO}": LISTED, **({} if ends else {KEY: FORGOTTEN})}


def test_a_pods_uid_is_of_a_checkpoint_that_has_what_it_got() -> None:
    page = book(entries={KEY: entry(time=3.0)})
    for written, uid in ((2.0, None), (4.0, "u")):
        page = listed.listed(page, HAS, (POD,), 7.0, Remembered({KEY: "u"}, written), whole=True)
        assert [one.get("uid") for *_, one in by_device.entries(page)] == [uid]
        assert listed.unlisted(page) == (set() if uid else {KEY})  # so that kubelet writes it
    page = listed.listed(page, {GPU: {ONE: "pod default/b"}}, (), 7.0, None, whole=True)
    assert ["uid" in one for *_, one in by_device.entries(page)] == [False]


@pytest.mark.parametrize(("held", "stays"), [({}, True), ({CLAIM: {}}, False), ({CLAIM: {ONE: "claim x"}}, True)])
def test_a_claim_ends_when_kubelet_was_asked_for_claims_and_lists_it_no_more(held: Any, stays: bool) -> None:
    found = listed.listed(book(entries={f"{CLAIM} {ONE}": CLAIMED}), held, (), 7.0, None, whole=True)
    assert bool([*by_device.entries(found)]) == stays


@pytest.mark.parametrize(
    ("before", "remembered", "source"),
    [
        (entry(source=LISTED), PROMISED, FORMER),
        (entry(source=LISTED), NOTHING, FORGOTTEN),
        (entry(to=POD), PROMISED, FORMER),
        (entry(), PROMISED, ALLOCATED),  # kubelet went before anybody looked
        (entry(), NOTHING, FORGOTTEN),
        (CLAIMED, NOTHING, LISTED),
    ],
)
def test_a_kubelet_that_starts_knows_what_its_checkpoint_has(before: Any, remembered: Any, source: str) -> None:
    page = book(entries={KEY: before})
    found = listed.met(page, ["socket", 3.0], remembered)
    assert [one["source"] for *_, one in by_device.entries(found)] == [source]
    assert (found["kubelet"], found["gpus"][ONE]["divisions"]) == (["socket", 3.0], page["gpus"][ONE]["divisions"])


@pytest.mark.parametrize(
    ("uids", "resources", "source"),
    [({f"{GPU} {TWO}": "v"}, [], ALLOCATED), ({}, ["rdma/hca"], FORGOTTEN), ({}, [GPU], None)],
    ids=["it has some", "it has another plugin's", "it has the resource"],
)
def test_a_checkpoint_that_was_not_lost_has_all(uids: Any, resources: Any, source: str | None) -> None:
    rows = {KEY: entry(source=UNLISTED, to=INIT), f"{GPU} {TWO}": entry(TWO), "x y": entry(source=FORGOTTEN, to=POD)}
    found = listed.met(book(entries=rows), ["socket", 3.0], Remembered(uids, 8.0, resources))
    left = {f"{resource} {name}": one["source"] for resource, name, one in by_device.entries(found)}
    more = {KEY: FORGOTTEN} if source == FORGOTTEN else {}
    assert left == {**more, **({f"{GPU} {TWO}": source} if source else {}), "x y": FORGOTTEN}


@pytest.mark.parametrize(
    ("held", "entries"),
    [
        ({PROFILE: {PART: POD}}, [(PROFILE, PART, ("", PROFILE), "device-plugin")]),
        (HAS, [(GPU, ONE, ("", GPU), "device-plugin")]),
        ({CLAIM: {ONE: "claim default/c"}}, [(CLAIM, ONE, (CLAIM, ""), DRIVER)]),
        ({GPU: {f"{ONE}::0": POD}}, []),  # in a way that is in no record
        ({"vendor.com/nic": {"nic-0": POD}}, []),
        ({GPU: {TWO: POD}}, []),  # a GPU of which the book has nothing
    ],
)
def test_what_nobody_has_noted_is_adopted_as_it_was_given(held: Any, entries: list[Any]) -> None:
    page = book()
    page["gpus"][TWO] = {"divisions": {PART: division(resource=PROFILE, place="1/0")}, "entries": {}}
    found = listed.adopted(page, held, UNITS, {})
    adopted = [
        (resource, name, (*one["division"],), one["giver"]) for resource, name, one in by_device.entries(found)
    ]
    assert (adopted, {one["time"] for *_, one in by_device.entries(found)} - {0.0}) == (entries, set())
    assert not [*by_device.entries(page)]


def test_what_kubelet_has_given_and_does_not_list_is_adopted() -> None:
    found = listed.adopted(book(), {}, UNITS, PROMISED.uids)
    assert [(one["source"], one["to"]) for *_, one in by_device.entries(found)] == [(UNLISTED, INIT)]


def test_what_was_noted_already_stays_as_it_is() -> None:
    page = book(entries={KEY: entry()})
    assert listed.adopted(page, HAS, UNITS, PROMISED.uids) == page


def test_an_instance_that_is_gone_is_known_while_somebody_has_it() -> None:
    page = book({PART: division(resource=PROFILE, place="1/0")}, {f"{PROFILE} {PART}": entry(PART, ("", PROFILE))})
    there = resources.units(snapshot([gpu(0, mig=True)]))
    assert listed.known(page, there)[PART].problem == resources.GONE
    assert listed.known(page, there)[PART].place == "1/0"
    page["gpus"][ONE]["entries"].clear()
    assert listed.known(page, there) == there


@pytest.mark.parametrize(
    ("one", "doubtful", "lost"),
    [
        (entry(), False, {}),
        (entry(source=LISTED), False, {}),
        (entry(source=FORMER, to=POD), True, {}),
        (entry(source=FORGOTTEN, to=POD), True, {GPU: {ONE: changes.forgotten(POD)}}),
        (entry(source=FORGOTTEN, to=INIT), True, {GPU: {ONE: changes.forgotten(INIT)}}),
        (entry(source=ENDING, to=POD), True, {GPU: {ONE: changes.ending(POD)}}),
        (CLAIMED, True, {}),
    ],
)
def test_what_kubelet_alone_can_say_the_end_of(one: Any, doubtful: bool, lost: Any) -> None:
    page = book({ONE: division(2)}, {f"{GPU} {ONE}::0": entry(way=SLICED), KEY: one})
    assert (listed.doubtful(page), listed.lost(page)) == (doubtful, lost)
