"""Who may have what, out of kubelet, the book, the checkpoints and other instances."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.book import by_device, evidence
from gpuplugin.book.by_device import CLAIM, DRIVER, LISTED, PLUGIN, Given
from gpuplugin.book.checkpoints import A_POD, Promised
from gpuplugin.book.evidence import STARTS, UNSAID, Evidence
from gpuplugin.devices.changes import OTHERS
from gpuplugin.settings import resources
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.pages import GPU, ONE, TWO, WHOLE, book, division, entry
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

UNITS = resources.units(snapshot([gpu(0), gpu(1)]))
POD, KEY = "pod default/a", f"{GPU} {ONE}"
LAST = {GPU: {ONE: UNITS[ONE]}}
PROMISED = Promised({GPU: {ONE: A_POD}}, {GPU: {ONE: UNITS[ONE]}, "old": {TWO: UNITS[TWO]}}, there=True)


def said(pods: Any = None, runs: bool = True, young: bool = False, promised: Promised | None = None) -> Evidence:
    return Evidence(100.0, pods, (), runs, young, promised or Promised())


@pytest.mark.parametrize(
    ("of", "entries", "held"),
    [
        (said({GPU: {ONE: POD}}), {}, {GPU: {ONE: POD}}),
        (said({}), {KEY: entry()}, {GPU: {ONE: STARTS}}),
        (said({GPU: {ONE: POD}}), {KEY: entry(source=LISTED, to="pod default/old")}, {GPU: {ONE: POD}}),
        (said({}, promised=PROMISED), {}, {}),  # kubelet knows better
        (said({}, young=True, promised=PROMISED), {}, {GPU: {ONE: A_POD}}),
        (said(promised=PROMISED), {KEY: entry(source=LISTED)}, {GPU: {ONE: POD}}),
    ],
)
def test_who_has_what(of: Evidence, entries: Any, held: Any) -> None:
    assert evidence.holders(book(entries=entries), of) == held


def test_the_book_says_what_was_given_out_and_the_checkpoint_what_it_does_not_have() -> None:
    found = evidence.served(book({ONE: division(2)}), UNITS, said(promised=PROMISED), {})
    assert {name: {*row} for name, row in found.items()} == {GPU: {f"{ONE}::0", f"{ONE}::1"}, "old": {TWO}}


BOOT: dict[str, Any] = {"kubelet": None}
UNSURE = {"unknown": "the book was damaged"}
DAMAGED = Promised(damaged="the checkpoint is torn", there=True)


@pytest.mark.parametrize(
    ("page", "of", "who"),
    [
        ({}, said({}), None),
        ({}, said(), UNSAID),  # it runs, and does not answer
        ({}, said({}, young=True), UNSAID),
        ({}, said(runs=False, promised=PROMISED), UNSAID),
        ({}, said(runs=False), None),  # neither a kubelet nor its files
        (BOOT, said(), None),  # nothing runs yet in this boot
        (BOOT, said(runs=False, promised=PROMISED), None),
        (BOOT, said(promised=DAMAGED), UNSAID),
        ({**BOOT, **UNSURE}, said(), UNSAID),
        (UNSURE, said({}), None),
    ],
)
def test_when_somebody_may_have_what_nobody_has_named(page: Any, of: Evidence, who: str | None) -> None:
    found = evidence.suspected(book(**page), LAST, of, ())
    assert found == ({GPU: {ONE: who}} if who else {})


INSTANCE, ANOTHER = uuid(0, "MIG"), uuid(1, "MIG")
DIVIDED = resources.units(snapshot([gpu(0, mig=True)], [mig(0, 0), mig(0, 1)]))


@pytest.mark.parametrize("offered", [(ONE,), (INSTANCE, ANOTHER)])
@pytest.mark.parametrize("claimed", [ONE, INSTANCE])
def test_what_would_be_refused_is_not_offered(offered: tuple[str, ...], claimed: str) -> None:
    of = {f"{CLAIM} {claimed}": entry(claimed, (CLAIM, ""), giver=DRIVER, to="claim d/c")}
    page, desired = book(dict.fromkeys(offered, division()), of), {GPU: [DIVIDED[one] for one in offered]}
    settled, _ = evidence.decided(page, desired, DIVIDED, said({}), (), {})
    refused = set()
    for one in offered:
        try:
            by_device.give(page, [Given(one, GPU, one, WHOLE)], PLUGIN, "", 7.0)
        except GpushimError:
            refused.add(one)
    assert refused == {one.id for one in settled.listed[GPU] if one.problem}
    assert refused == {one for one in offered if one == claimed or ONE in (one, claimed)}


def test_what_another_instance_gives_out_it_may_have_given() -> None:
    assert evidence.suspected(book(), LAST, said({}), {ONE}) == {GPU: {ONE: OTHERS}}
    gone = {GPU: {ONE: resources.Device(ONE, ONE, "0", 0, problem=resources.GONE)}}
    assert evidence.suspected(book(), gone, said({}), {ONE}) == {}


@pytest.mark.parametrize(
    ("page", "of", "why"),
    [
        (UNSURE, said(), "the book was damaged"),
        ({}, said(promised=DAMAGED), "the checkpoint is torn"),
        (UNSURE, said({}), ""),
        ({}, said(), ""),
    ],
)
def test_why_nobody_knows_is_said_until_kubelet_has_answered(page: Any, of: Evidence, why: str) -> None:
    found = evidence.unknown(book(**page), of)
    assert why in found
    assert bool(found) == bool(why)
