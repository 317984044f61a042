"""What the book says was given out, what is noted of a decision, and what a gift is refused for."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.book import by_device
from gpuplugin.book.by_device import CLAIM, DRIVER, FORGOTTEN, PLUGIN, Given
from gpuplugin.devices.changes import Settled
from gpuplugin.settings import resources
from gpuplugin.settings.resources import Share, replicated
from gpuplugin.settings.sharing import TIME_SLICING
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.pages import GPU, ONE, PART, PROFILE, SLICED, TWO, WHOLE, book, division, entry
from unit.gpuplugin.snapshots import gpu, mig, snapshot

UNITS = resources.units(snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)]))
NOBODY: frozenset[str] = frozenset()
SLICES = {GPU: replicated([UNITS[ONE]], 2, Share(TIME_SLICING))}


@pytest.mark.parametrize(
    ("page", "ids", "found"),
    [
        (book(), [], {GPU: {ONE}}),
        (book({ONE: division(2)}), [], {GPU: {f"{ONE}::0", f"{ONE}::1"}}),
        (book({ONE: division(2)}), [(GPU, f"{ONE}::7")], {GPU: {f"{ONE}::{number}" for number in (0, 1, 7)}}),
        (book({ONE: division(2)}), [(GPU, ONE), ("other", f"{ONE}::7")], {GPU: {f"{ONE}::0", f"{ONE}::1"}}),
        (book({"GPU-gone": division()}), [], {}),
    ],
)
def test_what_was_given_out_last(page: Any, ids: list[tuple[str, str]], found: dict[str, set[str]]) -> None:
    assert {name: {*row} for name, row in by_device.devices(page, UNITS, ids).items()} == found


def given(name: str = ONE, resource: str = GPU, way: tuple[str, str] = WHOLE) -> list[Given]:
    return [Given(name.partition("::")[0], resource, name, way)]


@pytest.mark.parametrize(
    ("divisions", "entries", "gift", "why"),
    [
        ({ONE: division(2)}, {}, given(), f"{ONE} is not given out as {GPU} now, but as {GPU} .time-slicing."),
        ({}, {}, given(TWO), f"{TWO} is not given out as {GPU} now, but as nothing"),
        (
            {ONE: division(2)},
            {f"{GPU} {ONE}": entry(to="pod default/a")},
            given(f"{ONE}::0", way=SLICED),
            f"pod default/a has {ONE} as {GPU}$",
        ),
        ({}, {f"{GPU} {ONE}": entry(source=FORGOTTEN, to="pod default/a")}, given(), "pod default/a has it, which"),
        (
            {},
            {f"{PROFILE} {PART}": entry(PART, ("", PROFILE))},
            given(),
            f"a container, by {PLUGIN} has {PART} as {PROFILE}$",
        ),
        (
            {},
            {f"{CLAIM} {ONE}": entry(way=(CLAIM, ""), giver=DRIVER, to="claim default/c of gpu.nvidia.com")},
            given(),
            f"{ONE} cannot be given out as {GPU}: claim default/c of gpu.nvidia.com has {ONE}$",
        ),
    ],
)
def test_a_gift_that_excludes_another_is_refused_and_not_noted(
    divisions: Any, entries: Any, gift: list[Given], why: str
) -> None:
    page = book(divisions, entries)
    with pytest.raises(GpushimError, match=why):
        by_device.give(page, gift, PLUGIN, "", 7.0)
    assert page == book(divisions, entries)


def test_a_gift_is_noted_beside_those_of_the_same_way() -> None:
    page = book({ONE: division(2)}, {f"{GPU} {ONE}::0": entry(way=SLICED)})
    after, new = by_device.give(page, given(f"{ONE}::1", way=SLICED), PLUGIN, "", 7.0)
    assert page == book({ONE: division(2)}, {f"{GPU} {ONE}::0": entry(way=SLICED)})  # which others have, too
    assert [(name, one["time"]) for _, name, one in by_device.entries(after)] == [
        (f"{ONE}::0", 5.0),
        (f"{ONE}::1", 7.0),
    ]
    assert [*new[ONE]] == [f"{GPU} {ONE}::1"]


@pytest.mark.parametrize(("giver", "refused"), [(PLUGIN, False), (DRIVER, True)])
def test_two_instances_of_one_gpu_instance(giver: str, refused: bool) -> None:
    """They may be parts of it; but a claim has all of one, so that the other was made anew in its place."""
    way, had = ("", PROFILE), "MIG-had"
    divisions = {PART: division(resource=PROFILE, place="1/1"), had: division(resource=PROFILE, place="1/0")}
    mine = entry(had, (CLAIM, ""), giver=giver, to="claim d/c", place="1/0") if refused else entry(had, way)
    page = book(divisions, {f"{CLAIM if refused else PROFILE} {had}": mine})
    if refused:
        with pytest.raises(GpushimError, match="claim d/c has MIG-had"):
            by_device.give(page, given(PART, PROFILE, way), PLUGIN, "", 1.0)
    else:
        assert by_device.give(page, given(PART, PROFILE, way), PLUGIN, "", 1.0)[1]


def test_a_division_that_waits_stays_as_it_was() -> None:
    page = book(entries={f"{GPU} {ONE}": entry()})
    settled = Settled({}, waits=frozenset({ONE}), occupied=frozenset({ONE}))
    found = by_device.noted(page, SLICES, {GPU: {ONE: UNITS[ONE]}}, settled, UNITS, 2)
    assert found == page


def test_one_that_is_free_is_the_new_owners_and_what_was_given_before_is_over() -> None:
    page = book(entries={f"{GPU} {ONE}": entry()})
    found = by_device.noted(page, SLICES, {GPU: {ONE: UNITS[ONE]}}, Settled({}, NOBODY, NOBODY), UNITS, 2)
    assert found["gpus"][ONE]["divisions"][ONE]["parts"][GPU]["count"] == 2
    assert (by_device.owners(found), found["turn"], [*by_device.entries(found)]) == ({ONE: 2}, page["turn"] + 1, [])


def test_ids_that_there_were_more_of_stay_while_somebody_may_have_them() -> None:
    page, more = book({ONE: division(4)}), {GPU: replicated([UNITS[ONE]], 4, Share(TIME_SLICING))}
    served = {GPU: {one.id: one for one in more[GPU]}}
    counts = []
    for occupied in (frozenset({ONE}), NOBODY):
        found = by_device.noted(page, SLICES, served, Settled({}, NOBODY, occupied), UNITS, 1)
        counts.append(found["gpus"][ONE]["divisions"][ONE]["parts"][GPU]["count"])
    assert counts == [4, 2]


def test_an_owner_alone_is_no_turn() -> None:
    desired = {GPU: [UNITS[ONE]]}
    found = by_device.noted(book(), desired, {GPU: {ONE: UNITS[ONE]}}, Settled({}, NOBODY, NOBODY), UNITS, 2)
    assert (by_device.owners(found), found["turn"]) == ({ONE: 2}, 0)
