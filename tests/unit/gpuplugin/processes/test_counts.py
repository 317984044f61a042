"""What is counted of the plugin's doings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gpuplugin.processes import counts
from gpushim.ground.logs import logger


@pytest.fixture(autouse=True)
def again() -> Iterator[None]:
    yield
    for handler in [one for one in logger.handlers if isinstance(one, counts.Messages)]:
        logger.removeHandler(handler)


@pytest.mark.parametrize(("seconds", "place"), [(0.0, 0), (0.0001, 0), (0.00011, 1), (1.0, 9), (1.1, 10)])
def test_a_time_is_in_the_first_bucket_that_has_it(seconds: float, place: int) -> None:
    counts.took(counts.ALLOCATIONS, seconds, "gpu")
    total, *buckets = counts.timed[counts.ALLOCATIONS, "gpu"]
    assert total == seconds
    assert [number for number, many in enumerate(buckets) if many] == [place]
    assert len(buckets) == len(counts.BOUNDS[counts.ALLOCATIONS]) + 1


def test_what_fails_is_timed_and_counted() -> None:
    for name in ("a", "a", "b"):
        with pytest.raises(ValueError, match="wrong"), counts.timing("refreshes", "refresh errors", name):
            raise ValueError("wrong")
    assert counts.counted == {("refresh errors", "a"): 2, ("refresh errors", "b"): 1}
    assert [sum(row[1:]) for row in counts.timed.values()] == [2, 1]


def test_words_are_bounded() -> None:
    for number in range(2 * counts.WORDS):
        counts.add(counts.REGISTRATIONS, str(number))
        counts.took(counts.ALLOCATIONS, 0.0, str(number))
    assert len(counts.counted) == len(counts.timed) == counts.WORDS
    counts.add(counts.REGISTRATIONS, "0")
    assert counts.counted[counts.REGISTRATIONS, "0"] == 2


def test_warnings_and_errors_are_counted_once() -> None:
    counts.messages()
    counts.messages()
    for level in (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, "x")
    assert counts.counted == {(counts.MESSAGES, "warning"): 1, (counts.MESSAGES, "error"): 2}
