"""Where Docker 29 and CRI-O come from, and what a test says where they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import builds
from e2e import programs, upstream


def test_without_them_a_test_is_skipped_and_says_which_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "find", lambda _: None)
    with pytest.raises(pytest.skip.Exception, match="there is no crio: GPUSHIM_TEST_PROGRAMS=DIRECTORY names"):
        upstream.layer(upstream.CRIO, tmp_path)


def test_they_lie_where_debian_has_them_and_another_program_is_another_layer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(builds.NAMED, str(tmp_path))
    for name in ("crio", "pinns"):
        (tmp_path / name).write_text("first")
    first = upstream.layer(upstream.CRIO, tmp_path / "cache")
    assert upstream.layer(upstream.CRIO, tmp_path / "cache") == first
    assert {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()} == set(upstream.CRIO)
    (tmp_path / "crio").write_text("another")
    second = upstream.layer(upstream.CRIO, tmp_path / "cache")
    assert (second / "usr/bin/crio").read_text() == "another"
