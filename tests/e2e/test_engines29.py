"""Where the engines of today come from, and what a test says where they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import engines29


def test_without_them_a_test_is_skipped_and_says_what_it_wants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUSHIM_ENGINES", str(tmp_path / "none.tar.xz"))
    with pytest.raises(pytest.skip.Exception, match=r"there is no /.*none\.tar\.xz.*dockerd 29\.7 and crio 1\.36"):
        engines29.layer(tmp_path)


def test_they_are_unpacked_once() -> None:
    first, second = engines29.layer(), engines29.layer()
    assert first == second
    assert {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()} == set(engines29.PLACES)
