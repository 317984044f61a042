"""Compute modes and time slices, in whatever way they are set: which GPUs have them, and which get theirs back."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.mps import compute_mode, mps, supervisor
from gpushim.ground.errors import GpushimError
from gpushim.paths import lock
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

HOST = snapshot([gpu(0), gpu(1)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a group."""
    (tmp_path / "group").mkdir()
    return tmp_path / "group" / "modes"


def take(path: Path, here: dict[str, int], values: dict[str, int], lost: str = "") -> list[Mapping[str, Any]]:
    """Take values where the driver has some, and return what it is asked."""
    asked: list[Mapping[str, Any]] = []

    def ask(_: Any, seconds: float, given: Mapping[str, Any]) -> dict[str, int]:
        asked.append(dict(given))
        if lost in given:
            raise GpushimError("it is lost", 12)
        was = {one: here[one] for one in given}
        here.update({one: value for one, value in given.items() if value is not None})
        return was

    compute_mode.set_modes(HOST, values, str(path), 1.0, ask)
    return asked


def test_what_is_no_longer_taken_is_put_back_and_what_is_still_taken_stays(path: Path) -> None:
    here = {uuid(0): 0, uuid(1): 1}
    take(path, here, dict.fromkeys(here, 3))
    take(path, here, {uuid(1): 3})
    assert here == {uuid(0): 0, uuid(1): 3}
    assert json.loads(path.read_text()) == {uuid(1): 1}


def test_where_nothing_is_taken_any_more_nothing_is_asked_and_kept_but_what_was(path: Path) -> None:
    here = {uuid(0): 0}
    assert take(path, here, {}) == []
    take(path, here, {uuid(0): 3})
    assert take(path, here, {}) == [{uuid(0): 0}]
    assert not path.exists()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("lives", [True, False])
def test_the_last_of_two_puts_back_what_was_before_either(tmp_path: Path, first: int, lives: bool) -> None:
    """One that was killed does not count: the GPU is what it was when the other ends."""
    paths, here = [tmp_path / name / "modes" for name in ("a", "b")], {uuid(0): 0}
    with contextlib.ExitStack() as stack:
        for path in paths:
            path.parent.mkdir()
            path.parent.chmod(0o755)
            if lives or path == paths[first]:
                stack.enter_context(lock.held(f"{path.parent}/lock"))
            take(path, here, {uuid(0): 3})
        take(paths[first], here, {})
        assert here == {uuid(0): 3 if lives else 0}
        take(paths[1 - first], here, {})
        assert here == {uuid(0): 0}


def test_who_begins_as_another_ends_knows_what_it_was_before_that(tmp_path: Path) -> None:
    """The other puts it back, and has no file any more, between this one's listing and its look at files."""
    ends, begins = (tmp_path / name / "modes" for name in ("a", "b"))
    here = {uuid(0): 0}
    for path in (ends, begins):
        path.parent.mkdir()
    take(ends, here, {uuid(0): 3})

    def ask(_: Any, seconds: float, given: Mapping[str, Any]) -> dict[str, int]:
        was = {one: here[one] for one in given}
        if ends.exists():
            take(ends, here, {})
        return was

    compute_mode.set_modes(HOST, {uuid(0): 3}, str(begins), 1.0, ask)
    assert json.loads(begins.read_text()) == {uuid(0): 0}


class KilledError(BaseException):
    """A process is no more."""


def locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: dict[str, int], dies: int = 0) -> list[Path]:
    """Return the files of two groups with a GPU; the second ends as the first looks, which dies in that look."""
    paths, real, looks = [tmp_path / name / "modes" for name in ("a", "b")], compute_mode._read_others, []
    monkeypatch.setattr(lock, "is_held", lambda _: True)
    for path in paths:
        path.parent.mkdir()
        take(path, here, {uuid(0): 3})

    def others(path: str, *words: Any, **more: Any) -> dict[str, int]:
        found = real(path, *words, **more)
        if path == str(paths[0]):
            looks.append(found)
            if len(looks) == 1:
                take(paths[1], here, {})  # sees the file of the first, and leaves it to that
            if len(looks) == 2 and dies != 1:
                assert locked(tmp_path / compute_mode.NOTING)
            if len(looks) == dies:
                raise KilledError
        return found

    monkeypatch.setattr(compute_mode, "_read_others", others)
    return paths


@pytest.mark.parametrize("lost", ["", uuid(0)])
def test_of_two_that_end_together_one_puts_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Where that fails, it stays written."""
    paths = two(tmp_path, monkeypatch, here := {uuid(0): 0})
    with pytest.raises(GpushimError, match="it is lost") if lost else contextlib.nullcontext():
        take(paths[0], here, {}, lost)
    assert here == {uuid(0): 3 if lost else 0}
    assert [path.exists() for path in paths] == [bool(lost), False]
    take(paths[0], here, {})
    assert (here, paths[0].exists()) == ({uuid(0): 0}, False)


@pytest.mark.parametrize("dies", [1, 2])
def test_of_two_that_end_together_one_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: int) -> None:
    paths = two(tmp_path, monkeypatch, here := {uuid(0): 0}, dies)
    with pytest.raises(KilledError):
        take(paths[0], here, {})
    take(paths[0], here, {})
    assert (here, paths[0].exists()) == ({uuid(0): 0}, False)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_gpu_that_is_lost_keeps_no_other_from_its_mode(path: Path, lost: int) -> None:
    here = {uuid(0): 1, uuid(1): 1}
    take(path, here, dict.fromkeys(here, 3))
    with pytest.raises(GpushimError, match="it is lost"):
        take(path, here, {}, lost=uuid(lost))
    assert here == {uuid(lost): 3, uuid(1 - lost): 1}
    assert json.loads(path.read_text()) == {uuid(lost): 1}
    take(path, here, {})
    assert (here[uuid(lost)], path.exists()) == (1, False)


def test_what_is_put_back_is_not_owed_any_more(path: Path) -> None:
    """Before the group has another GPU, for which it may wait."""
    take(path, dict.fromkeys((uuid(0), uuid(1)), 1), dict.fromkeys((uuid(0), uuid(1)), 3))
    compute_mode.restore(HOST, str(path), 1.0, lambda *_: {}, [uuid(1), uuid(2)])
    assert json.loads(path.read_text()) == {uuid(1): 1}


def test_where_nothing_can_be_written_modes_are_put_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {uuid(0): 1, uuid(1): 1}
    take(path, here, dict.fromkeys(here, 3))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compute_mode, "replace", full)
    with pytest.raises(GpushimError, match="it is lost"):
        take(path, here, {}, lost=uuid(0))
    assert here == {uuid(0): 3, uuid(1): 1}


@pytest.mark.parametrize("whole", [compute_mode.TOTAL, compute_mode.ENDING])
@pytest.mark.parametrize("hung", [1, 7, 15])
def test_gpus_that_hang_leave_the_others_time(
    path: Path, monkeypatch: pytest.MonkeyPatch, hung: int, whole: float
) -> None:
    """And at an end the unit, which systemd kills after 90 s."""
    host, clock = snapshot([gpu(number) for number in range(16)]), SimpleNamespace(now=0.0)
    healthy: set[str] = set()
    monkeypatch.setattr("gpuplugin.mps.compute_mode.time.monotonic", lambda: clock.now)
    path.write_text(json.dumps({uuid(number): 0 for number in range(16)}))

    def ask(_: Any, seconds: float, given: Mapping[str, Any]) -> dict[str, int]:
        if any(uuid(number) in given for number in range(hung)):
            clock.now += seconds
            raise GpushimError("it hangs", 12)
        assert seconds >= 1  # what a child takes
        healthy.update(given)
        return {}

    with pytest.raises(GpushimError, match="it hangs"):
        compute_mode.restore(host, str(path), 100.0, ask, total=whole)
    assert healthy == {uuid(number) for number in range(hung, 16)}
    assert clock.now <= whole


def test_modes_that_are_not_put_back_keep_no_time_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    place, asked = mps.Folders("/state", "group"), []

    def fails(_: object, path: str, *__: object, **___: object) -> None:
        asked.append(path)
        raise GpushimError("it is lost", 12)

    monkeypatch.setattr(compute_mode, "restore", fails)
    with pytest.raises(GpushimError, match="it is lost"):
        supervisor._restore(HOST, place, 1.0)
    assert asked == [place.modes, place.slices]


def test_a_driver_that_is_slow_has_its_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without persistence mode: nothing would be put back by any start."""
    host, clock = snapshot([gpu(number) for number in range(16)]), SimpleNamespace(now=0.0)
    monkeypatch.setattr("gpuplugin.mps.compute_mode.time.monotonic", lambda: clock.now)
    path.write_text(json.dumps({uuid(number): 0 for number in range(16)}))

    def ask(_: Any, seconds: float, given: Mapping[str, Any]) -> dict[str, int]:
        clock.now += min(seconds, 4 * len(given))
        if seconds < 4 * len(given):
            raise GpushimError("it is slow", 12)
        return {}

    compute_mode.restore(host, str(path), 100.0, ask)
    assert not path.exists()


def test_what_is_put_back_one_by_one_is_no_failure(path: Path) -> None:
    asked: list[Mapping[str, Any]] = []
    path.write_text(json.dumps({uuid(0): 1, uuid(1): 1}))

    def ask(_: Any, seconds: float, given: Mapping[str, Any]) -> dict[str, int]:
        asked.append(given)
        if len(given) > 1:
            raise GpushimError("NVML hangs for a moment", 12)
        return {}

    compute_mode.restore(HOST, str(path), 1.0, ask)
    assert (len(asked), path.exists()) == (3, False)
