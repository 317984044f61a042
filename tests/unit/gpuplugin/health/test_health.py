"""What makes a device unhealthy, which devices, and until when."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplugin.health import causes, health, nvml_lines
from gpuplugin.health.health import GRACE, Health
from gpuplugin.processes.child import STARTING
from gpuplugin.settings import xids
from gpushim.ground import system
from gpushim.paths import lock
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

T = 1_700_000_000.0
WHOLE, PARENT = uuid(0), uuid(1)
# MIG instances of GPU 1: in GPU instances 1 and 2; and a second compute instance in the latter.
FIRST, SECOND = mig(1, 0), mig(1, 1)
THIRD = {**mig(1, 2), "gi": SECOND["gi"], "ci": 1}
MIGS = [FIRST["uuid"], SECOND["uuid"], THIRD["uuid"]]
WELL = {"lost": False, "recovery": 0, "rows": [False, False], "mig": False, "fabric": "", "error": ""}
OLD = {**WELL, "recovery": None, "rows": None, "mig": None, "fabric": None}  # a driver that has none of the functions


def host(inode: int | None = 5, module: str | None = "580", **more: Any) -> Any:
    facts = {"module": module, "gpus": {"0000:10:00.0": inode, "0000:11:00.0": inode}}
    return {**snapshot([gpu(0), gpu(1, mig=True)], [FIRST, SECOND, THIRD], stamp=facts), **more}


HOST = host()


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "device-plugin").mkdir()
    return str(tmp_path / "device-plugin" / "health.json")


@pytest.fixture
def watched(path: str) -> Health:
    found = Health(path, boot="b")
    assert found.problems(HOST, T) == {}
    return found


def kinds(of: Health, now: float = T, at: Any = HOST) -> dict[str, list[str]]:
    return {who: [one.kind for one in reasons] for who, reasons in of.problems(at, now).items()}


def poll(now: dict[str, Any], listed: list[str] | None = None) -> dict[str, Any]:
    return {"poll": {WHOLE: now, PARENT: WELL}, "gpus": [WHOLE, PARENT] if listed is None else listed, "migs": MIGS}


def polled(of: Health, now: float, found: dict[str, Any] = WELL) -> dict[str, list[str]]:
    of.heard(poll(found), now)
    return kinds(of, now)


@pytest.mark.parametrize(
    ("event", "ailing"),
    [
        ({"xid": 94, "gpu": WHOLE, "gi": None, "ci": None}, [WHOLE]),
        ({"xid": 94, "gpu": PARENT, "gi": None, "ci": None}, [PARENT, *MIGS]),
        ({"xid": 94, "gpu": PARENT, "gi": 1, "ci": 0}, [FIRST["uuid"]]),
        ({"xid": 94, "gpu": PARENT, "gi": 2, "ci": 0}, [SECOND["uuid"]]),
        ({"xid": 94, "gpu": PARENT, "gi": 2, "ci": None}, [SECOND["uuid"], THIRD["uuid"]]),
        ({"xid": 94, "gpu": PARENT, "gi": None, "ci": 0}, [PARENT, *MIGS]),
        ({"xid": 95, "gpu": PARENT, "gi": 1, "ci": 0}, [PARENT, *MIGS]),
        ({"xid": 4242, "gpu": PARENT, "gi": 1, "ci": 0}, [PARENT, *MIGS]),
        ({"ecc": True, "gpu": PARENT}, [PARENT, *MIGS]),
        ({"xid": 79, "gpu": None}, [WHOLE, PARENT, *MIGS]),
        ({"xid": 13, "gpu": PARENT, "gi": 1, "ci": 0}, []),
        ({"xid": 79, "gpu": uuid(7)}, []),
    ],
)
def test_an_event_marks_what_it_concerns(watched: Health, event: dict[str, Any], ailing: list[str]) -> None:
    assert watched.heard(event, T) == (bool(ailing) or event["gpu"] == uuid(7))
    assert sorted(watched.problems(HOST, T)) == sorted(ailing)


@pytest.mark.parametrize(
    ("xid", "polls", "ends"),
    [
        (94, [(59, WELL)], False),
        (94, [(60, WELL)], True),
        (94, [(60, OLD)], True),
        (94, [(60, {**WELL, "error": "x"})], False),
        (94, [], False),
        (95, [(9, WELL)], False),  # the driver may not have raised its recovery action yet
        (95, [(10, WELL)], True),
        (95, [(10, {**WELL, "recovery": 1})], False),
        (95, [(3, {**WELL, "recovery": 1}), (60, {**WELL, "recovery": 1}), (63, WELL)], True),
        (95, [(3, {**WELL, "recovery": 1}), (60, {**WELL, "recovery": 5})], True),
        (95, [(10, {**WELL, "error": "x"})], False),
        (95, [(10, {**WELL, "lost": True})], False),
        (95, [(10, OLD), (100000, OLD)], False),
        (119, [(10, WELL), (100000, WELL)], False),  # the driver does not raise its action for it
        (119, [(3, {**WELL, "recovery": 1}), (30, WELL)], True),
    ],
)
def test_an_xid_ends_when_its_cause_is_gone(
    watched: Health, xid: int, polls: list[tuple[float, dict[str, Any]]], ends: bool
) -> None:
    watched.heard({"xid": xid, "gpu": WHOLE}, T)
    for later, found in polls:
        watched.heard(poll(found), T + later)
    assert ("xid" not in kinds(watched, T + 100000).get(WHOLE, [])) == ends


def test_an_xid_that_comes_again_counts_from_then(watched: Health) -> None:
    watched.heard({"xid": 94, "gpu": WHOLE}, T)
    assert not watched.heard({"xid": 94, "gpu": WHOLE}, T + 50)
    assert polled(watched, T + 70) == {WHOLE: ["xid"]}
    assert watched.problems(HOST, T + 70)[WHOLE][0].since == T
    assert polled(watched, T + 110) == {}


@pytest.mark.parametrize("xid", [48, 79, 95, 119, 9999])
@pytest.mark.parametrize("now", [host(inode=6), host(module="585", inode=None)])
def test_a_driver_loaded_anew_ends_what_needs_a_reset(watched: Health, xid: int, now: Any) -> None:
    watched.heard({"xid": xid, "gpu": WHOLE}, T)
    assert kinds(watched, T + 5, host(inode=None)) == {WHOLE: ["xid"]}  # bound to no driver
    assert kinds(watched, T + 9, now) == {}


def test_a_refresh_that_failed_says_nothing_of_the_driver(watched: Health) -> None:
    watched.heard({"xid": 79, "gpu": WHOLE}, T)
    watched.problems(host(inode=6, error={"text": "x"}, gpus=[], mig=[]), T)
    assert kinds(watched) == {WHOLE: ["xid"]}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({"lost": True}, "lost"),
        ({"lost": True, "error": "GPU is lost"}, "lost"),
        ({"rows": [False, True]}, "rows"),
        ({"fabric": "it is being made"}, "fabric"),
        *(({"recovery": action}, "recovery") for action in (1, 2, 3, 4, 6, 7, 99)),
    ],
)
def test_a_poll_marks_at_once_and_heals(watched: Health, found: dict[str, Any], kind: str) -> None:
    assert watched.heard(poll({**WELL, **found}), T)
    assert kinds(watched) == {WHOLE: [kind]}
    assert not watched.heard(poll({**WELL, **found}), T + 3)
    assert kinds(watched) == {WHOLE: [kind]}
    assert polled(watched, T + 6) == {}


@pytest.mark.parametrize("found", [WELL, OLD, {**WELL, "rows": [True, False]}, {**WELL, "recovery": 5}, {}])
def test_what_is_no_reason(watched: Health, found: dict[str, Any]) -> None:
    assert not watched.heard(poll(found), T)
    assert polled(watched, T + 3, found) == {}


@pytest.mark.parametrize("failure", [poll({**WELL, "error": "Unknown Error"}), poll({}, [PARENT])])
def test_a_call_or_a_listing_may_fail_once(watched: Health, failure: dict[str, Any]) -> None:
    assert not kinds(watched)
    assert not watched.heard(poll(WELL), T)
    watched.heard(failure, T)
    assert kinds(watched) == {}
    watched.heard(failure, T + 3)
    assert list(kinds(watched)) == [WHOLE]
    assert polled(watched, T + 6) == {}


def test_a_gpu_that_fails_in_another_way_is_not_healed_by_that(watched: Health) -> None:
    fails = [
        poll({**WELL, "error": "x"}),
        poll({**WELL, "error": "x"}),
        poll({}, [PARENT]),
        poll({**WELL, "lost": True}),
    ]
    for number, failure in enumerate(fails):
        watched.heard(failure, T + number)
        assert list(kinds(watched)) == [WHOLE][:number]


@pytest.mark.parametrize(("after", "marked"), [(STARTING, False), (GRACE, True)])
def test_a_child_that_does_not_run_becomes_a_reason(watched: Health, after: float, marked: bool) -> None:
    watched.mark_unwatched("events", "it ended with code 3", T)
    watched.mark_unwatched("events", "it ended with code 3", T + 4)
    assert bool(watched.problems(HOST, T + after)) == marked
    assert watched.heard({"watching": [WHOLE, PARENT], "unwatched": {}}, T + after)
    assert watched.problems(HOST, T + after) == {}


def test_a_gpu_whose_calls_hang_is_marked_alone_and_at_once(watched: Health) -> None:
    assert watched.mark_unwatched("polls", "a call hangs", T, [WHOLE])
    [reason] = watched.problems(HOST, T)[WHOLE]
    assert reason.text == "the GPU cannot be watched: a call hangs"
    assert PARENT not in watched.problems(HOST, T)
    assert polled(watched, T + 3) == {}


def test_a_gpu_that_cannot_be_registered_is_marked_until_it_can(watched: Health) -> None:
    assert watched.heard({"watching": [PARENT], "unwatched": {WHOLE: "Unknown Error"}}, T)
    assert kinds(watched) == {WHOLE: ["unwatched"]}
    assert watched.heard({"watching": [PARENT], "unwatched": {}}, T)  # its driver does not have the function
    assert kinds(watched) == {}


@pytest.mark.parametrize(
    ("disable", "enable", "line", "marked"),
    [
        ("all", "", poll({**WELL, "lost": True}), False),
        ("all", "", {"ecc": True, "gpu": WHOLE}, False),
        ("all", "79", {"xid": 79, "gpu": WHOLE}, True),
        ("xids", "", {"ecc": True, "gpu": WHOLE}, True),
        ("xids", "", poll({**WELL, "lost": True}), True),
        ("79", "", {"xid": 79, "gpu": WHOLE}, False),
        ("", "13", {"xid": 13, "gpu": WHOLE}, True),
    ],
)
def test_settings_choose_what_counts(path: str, disable: str, enable: str, line: Any, marked: bool) -> None:
    chosen = Health(path, xids.choose(disable, enable, []), boot="b")
    chosen.problems(HOST, T)
    chosen.heard(line, T)
    assert bool(kinds(chosen)) == marked


def test_an_enabled_xid_ends_though_all_checks_are_disabled(path: str) -> None:
    chosen = Health(path, xids.choose("all", "79", []), boot="b")
    chosen.problems(HOST, T)
    chosen.heard({"xid": 79, "gpu": WHOLE}, T)
    assert polled(chosen, T + 20, {**WELL, "recovery": 1}) == {WHOLE: ["xid"]}
    assert polled(chosen, T + 23) == {}


def test_what_one_of_two_instances_has_heard_counts_for_both(watched: Health, path: str) -> None:
    """In a rolling update: the new one has read the file, and its children do not run yet."""
    new = Health(path, boot="b")
    assert kinds(new) == {}
    watched.heard({"xid": 79, "gpu": WHOLE}, T)
    assert kinds(new, T + 2) == {WHOLE: ["xid"]}
    new.heard({"ecc": True, "gpu": PARENT}, T + 3)
    watched.heard({"xid": 95, "gpu": PARENT}, T + 4)
    watched.save(at_once=True)
    found = {WHOLE: ["xid"], **{who: ["ecc", "xid"] for who in (PARENT, *MIGS)}}
    assert kinds(new, T + 5) == kinds(Health(path, boot="b"), T + 5) == found


def test_one_writes_at_a_time_or_what_an_instance_heard_that_ends_could_be_lost(
    watched: Health, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Health(path, boot="b")
    other.problems(HOST, T)
    turn = f"{Path(path).parent}/health.lock"
    monkeypatch.setattr(health, "LOCKED", 8.0)
    with lock.held(turn):  # by one that has read the file, and is to write it
        began = time.monotonic()
        watched.heard({"xid": 79, "gpu": WHOLE}, T)
        assert time.monotonic() - began < 6  # calls of kubelet's wait
        assert not Path(path).exists()
        other._state.gpus[PARENT].causes["ecc"] = causes.Cause("ecc", T, T, ends=xids.ACTION)
        causes.save(path, other._state)
    written, save = [], causes.save

    def saved(*of: Any) -> None:
        written.append(lock.is_held(turn))
        save(*of)

    monkeypatch.setattr(causes, "save", saved)
    watched.save()
    assert written == [True]
    assert kinds(Health(path, boot="b")) == {WHOLE: ["xid"], **{who: ["ecc"] for who in (PARENT, *MIGS)}}


@pytest.mark.parametrize("again", [False, True])
def test_what_has_ended_is_not_taken_back_from_another_instance(watched: Health, path: str, again: bool) -> None:
    """Which has not asked the GPU yet; what came since is another thing."""
    new = Health(path, boot="b")
    assert kinds(new) == {}
    watched.heard({"xid": 94, "gpu": WHOLE}, T)
    assert kinds(new, T + 1) == {WHOLE: ["xid"]}
    assert polled(watched, T + 60) == {}
    if again:
        new.heard({"xid": 94, "gpu": WHOLE}, T + 61)
    new.heard({"ecc": True, "gpu": PARENT}, T + 61)
    new.save(at_once=True)
    assert (WHOLE in kinds(watched, T + 62)) == again
    assert PARENT in kinds(watched, T + 62)


def test_of_what_another_instance_has_written_only_what_is_so_now_counts(watched: Health, path: str) -> None:
    new = Health(path, xids.choose("48", "", []), boot="b")
    assert kinds(new, T, host(inode=6)) == {}  # the driver was bound again
    watched.heard({"xid": 79, "gpu": WHOLE}, T)
    assert kinds(new, T + 1, host(inode=6)) == {}
    watched.problems(host(inode=6), T + 2)
    for line in ({"xid": 48, "gpu": WHOLE}, poll({**WELL, "lost": True}), {"xid": 79, "gpu": PARENT}):
        watched.heard(line, T + 2)
    watched.save(at_once=True)
    assert kinds(new, T + 3, host(inode=6)) == {who: ["xid"] for who in (PARENT, *MIGS)}


def test_a_flood_is_bounded_and_seldom_written(watched: Health, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(causes, "save", lambda *_: written.append(1))
    for number in range(3000):
        watched.heard({"xid": 1000 + number, "gpu": WHOLE}, T)
        watched.heard({"xid": 48, "gpu": f"GPU-{number}"}, T)
    watched.heard({"ecc": True, "gpu": WHOLE}, T)
    watched.mark_unwatched("events", "a call hangs", T, [WHOLE])
    watched.mark_unwatched("polls", "a call hangs", T, [WHOLE])
    assert len(kinds(watched)[WHOLE]) <= causes.CAUSES
    assert len(watched._state.gpus) <= causes.GPUS
    assert len(written) < 40
    watched.heard(poll({**WELL, "lost": True, "recovery": 1, "error": "x"}), T)
    kept = watched._state.gpus[WHOLE].causes
    assert {"lost", "recovery", "ecc", "unwatched"} <= {one.kind for one in kept.values()}
    assert len(kept) <= causes.CAUSES


def test_a_gpu_that_is_gone_for_long_is_forgotten(watched: Health) -> None:
    without = host(gpus=[gpu(1, mig=True)])
    watched.heard({"xid": 79, "gpu": WHOLE}, T)
    kinds(watched, T, without)
    assert kinds(watched, T + 3600) == {WHOLE: ["xid"]}
    kinds(watched, T + 3601, without)
    kinds(watched, T + 3602 + causes.FORGET, without)
    assert kinds(watched, T + 3602 + causes.FORGET) == {}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([WHOLE, "lost", "rows"]), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["xid", "ecc", "gpu", "gi", "ci", "poll", "gpus", "watching", "unwatched"])


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(KEYS, JUNK))
def test_malformed_lines_are_passed_over(line: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = Health(f"{folder}/health.json", boot="b")
        found.problems(HOST, T)
        found.heard(line, T)
        found.problems(HOST, T)


EVENTS = st.one_of(
    st.builds(
        lambda xid, who, gi, ci: {"xid": xid, "gpu": who, "gi": gi, "ci": ci},
        st.sampled_from([13, 48, 79, 94, 95, 119, 8, 9999]),
        st.sampled_from([WHOLE, PARENT]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, 0, 1]),
    ),
    st.just({"ecc": True, "gpu": PARENT}),
)
POLLS = st.builds(
    lambda lost, recovery, rows, error, listed: poll(
        {"lost": lost, "recovery": recovery, "rows": rows, "error": error}, listed
    ),
    st.sampled_from([False, False, True]),
    st.sampled_from([None, 0, 0, 1, 3, 5]),
    st.sampled_from([None, [False, False], [True, True]]),
    st.sampled_from(["", "", "Unknown Error"]),
    st.sampled_from([None, None, [PARENT]]),
)
STORY = st.lists(st.tuples(st.one_of(EVENTS, POLLS), st.sampled_from([0.1, 3.0, 20.0, 61.0])), max_size=12)


@settings(deadline=None, max_examples=40)
@given(STORY, st.sets(st.integers(0, 12)))
def test_a_restart_at_any_point_changes_nothing(
    story: list[tuple[dict[str, Any], float]], restarts: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one, other, now = Health(f"{folder}/1.json", boot="b"), Health(f"{folder}/2.json", boot="b"), T
        for number, (line, later) in enumerate(story):
            one.problems(HOST, now)
            other.problems(HOST, now)
            if number in restarts:
                other.save(at_once=True)
                other = Health(other.path, boot="b")
                other.problems(HOST, now)
            assert one.heard(line, now) == other.heard(line, now)
            assert one.problems(HOST, now) == other.problems(HOST, now)
            now += later


@settings(deadline=None, max_examples=40)
@given(STORY)
def test_a_gpu_without_causes_has_no_reasons(story: list[tuple[dict[str, Any], float]]) -> None:
    """All ends after a reset: the driver asks, and then no more, and the GPU answers."""
    with tempfile.TemporaryDirectory() as folder:
        found, now = Health(f"{folder}/health.json", boot="b"), T
        for line, later in story:
            found.heard(line, now)
            now += later
        for action in (1, 0):
            now += 100
            state = {**WELL, "recovery": action}
            found.heard({"poll": {WHOLE: state, PARENT: state}, "gpus": [WHOLE, PARENT]}, now)
        assert found.problems(HOST, now) == {}


def test_an_event_of_no_known_gpu_ends_on_each_by_itself(watched: Health) -> None:
    watched.heard({"xid": 94, "gpu": None}, T)
    watched.heard({"xid": 94, "gpu": WHOLE}, T + 50)
    watched.heard(poll(WELL), T + 70)
    assert kinds(watched) == {WHOLE: ["xid"]}


def test_an_xid_that_comes_again_needs_another_reset(watched: Health) -> None:
    for later, line in enumerate((poll({**WELL, "recovery": 1}), {"xid": 119, "gpu": WHOLE}, poll(WELL))):
        watched.heard({"xid": 119, "gpu": WHOLE}, T)
        watched.heard(line, T + later)
    assert polled(watched, T + 60) == {WHOLE: ["xid"]}


def test_a_driver_loaded_anew_while_the_plugin_did_not_run_ends_what_needs_a_reset(
    watched: Health, path: str
) -> None:
    watched.save(at_once=True)
    watched.heard({"xid": 79, "gpu": WHOLE}, T)
    watched.heard(poll({**WELL, "recovery": 2, "rows": [False, True]}), T)
    watched.save(at_once=True)
    assert kinds(Health(path, boot="b"), T, host(inode=6)) == {WHOLE: ["rows"]}


def test_another_recovery_action_is_another_reason(watched: Health) -> None:
    watched.heard(poll({**WELL, "recovery": 3}), T)
    assert watched.heard(poll({**WELL, "recovery": 1}), T + 3)
    [reason] = watched.problems(HOST, T)[WHOLE]
    assert reason.text.startswith("the driver asks for a reset of the GPU")


def watching(**asked: dict[str, Any]) -> dict[str, Any]:
    found = {WHOLE: asked.get("whole", WELL), PARENT: asked.get("parent", WELL)}
    return {"watching": [WHOLE, PARENT], "unwatched": {}, "unsupported": [], "asked": found}


@pytest.mark.parametrize(
    ("found", "kind"),
    [({"recovery": 1}, "recovery"), ({"rows": [0, 1]}, "rows"), ({"ecc": 3}, "ecc"), ({"pages": 1}, "ecc")],
)
def test_what_a_gpu_says_after_a_gap_counts(watched: Health, found: dict[str, Any], kind: str) -> None:
    before = {**WELL, "ecc": 2, "pages": 0}
    watched.heard(watching(whole=before), T)
    watched.quiet(T + 1)
    assert watched.heard(watching(whole={**before, **found}), T + 2)
    assert kinds(watched, T + 2) == {WHOLE: [kind]}


def test_memory_errors_of_the_gap_are_those_that_nobody_has_told_before(watched: Health, path: str) -> None:
    watched.heard(watching(whole={**WELL, "ecc": 2}), T)
    watched.heard(poll({**WELL, "ecc": 3}), T + 1)  # with an event, which is on its way
    watched.quiet(T + 2)
    watched.heard(poll({**WELL, "ecc": 3}), T + 3)
    watched.save(at_once=True)
    again = Health(path, boot="b")
    again.problems(HOST, T + 4)
    again.heard(watching(whole={**WELL, "ecc": 3}), T + 4)
    assert kinds(again, T + 4) == {}
    again.quiet(T + 5)
    again.heard(poll({**WELL, "ecc": 4}), T + 6)  # polls alone do not end the gap
    again.heard(watching(whole={**WELL, "ecc": 4}), T + 7)
    assert kinds(again, T + 7) == {WHOLE: ["ecc"]}


def test_a_page_that_was_retired_before_the_driver_was_loaded_is_no_error_of_it(watched: Health) -> None:
    watched.heard(watching(whole={**WELL, "ecc": 2, "pages": 1}), T)
    watched.quiet(T + 1)
    assert kinds(watched, T + 2, host(inode=6)) == {}
    watched.heard(watching(whole={**WELL, "ecc": 0, "pages": 2}), T + 3)
    assert kinds(watched, T + 3, host(inode=6)) == {}


@pytest.mark.parametrize("line", [poll, lambda found: watching(whole=found)])
def test_an_answer_without_a_count_forgets_no_memory_errors(watched: Health, line: Any) -> None:
    watched.heard(watching(whole={**WELL, "ecc": 2}), T)
    watched.heard(line({**WELL, "ecc": None}), T + 1)
    watched.quiet(T + 2)
    watched.heard(watching(whole={**WELL, "ecc": 3}), T + 3)
    assert kinds(watched, T + 3) == {WHOLE: ["ecc"]}


@pytest.mark.parametrize(("ago", "left"), [(50.0, ["xid"]), (70.0, [])])
def test_an_xid_that_was_heard_of_late_ends_as_if_it_had_been_heard(
    watched: Health, ago: float, left: list[str]
) -> None:
    watched.heard({"xid": 94, "gpu": WHOLE, "at": T - ago}, T)
    assert kinds(watched) == {WHOLE: ["xid"]}
    assert polled(watched, T + 1).get(WHOLE, []) == left


@pytest.mark.parametrize("at", [T + 1e6, -5.0, float("nan"), "x", None, True])
def test_a_time_that_makes_no_sense_is_no_time_to_come(watched: Health, at: Any) -> None:
    watched.heard({"xid": 94, "gpu": WHOLE, "at": at}, T)
    watched.heard({"xid": 94, "gpu": PARENT, "at": T}, T)
    assert polled(watched, T + 61) == {}


def test_until_when_a_gpu_was_listened_to_survives_a_kill_and_a_new_driver(path: str) -> None:
    now = system.clock()
    one = Health(path, boot="b")
    one.problems(HOST, now)
    assert one.listened.until(now) == {}
    one.heard(watching(), now)  # which is saved; no word after that
    early = nvml_lines.MOMENT + causes.DRIFT * now
    until = Health(path, boot="b").listened.until(now + 50)
    assert [since.heard for since in until.values()] == pytest.approx([now - early] * 2, abs=5)
    assert {since.bound for since in until.values()} == {0.0}
    one.problems(host(inode=6), now)
    assert {since.bound for since in one.listened.until(now).values()} == {now}
    assert Health(path, boot="another").listened.until(now) == {}


def test_checks_that_change_end_what_counts_no_more(tmp_path: Path) -> None:
    found = snapshot([gpu(0), gpu(1)])
    health = Health(str(tmp_path / "health.json"), boot="b")
    health.problems(found, 0.0)
    for number, xid in enumerate((79, 48)):
        health.heard({"xid": xid, "gpu": found["gpus"][number]["uuid"]}, 1.0)
    assert len(health.problems(found, 2.0)) == 2
    health.choose(xids.Choice(off=frozenset({79})))
    assert {*health.problems(found, 3.0)} == {found["gpus"][1]["uuid"]}
    health.mark_unwatched("polls", "it has ended", 3.0)
    health.choose(xids.Choice(checks=False, xids=False))
    assert health.problems(found, 100.0) == {}
    health.choose(xids.Choice())
    health.heard({"xid": 79, "gpu": found["gpus"][0]["uuid"]}, 101.0)
    assert {*health.problems(found, 102.0)} == {found["gpus"][0]["uuid"]}


def test_a_fabric_that_is_not_ready_is_waited_for(watched: Health) -> None:
    watched.heard(poll({**WELL, "fabric": "it has not begun"}), T)
    (reason,) = watched.problems(host(), T)[WHOLE]
    assert (reason.kind, reason.cure) == ("fabric", "wait")
    assert "CUDA fails (error 802): it has not begun" in reason.text
    for other in ("", None):
        watched.heard(poll({**WELL, "fabric": "it has not begun"}), T + 4)
        watched.heard(poll({**WELL, "fabric": other}), T + 8)
        assert bool(kinds(watched)) is (other is None)
