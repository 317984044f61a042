"""The file by which another container of the pod learns that gpushim is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplugin.node.installed_file import InstalledFile
from gpushim.ground.errors import GpushimError


def test_it_is_made_in_the_directory_that_was_there_before(tmp_path: Path) -> None:
    """For the node that is entered meanwhile has another of that name; and once more changes nothing."""
    (tmp_path / "pod").mkdir()
    installed_file = InstalledFile(str(tmp_path / "pod/yes"))
    (tmp_path / "pod").rename(tmp_path / "aside")
    (tmp_path / "pod").mkdir()
    for _ in range(2):
        installed_file.create()
    assert os.listdir(tmp_path / "pod") == []
    assert os.listdir(tmp_path / "aside") == ["yes"]


def test_without_a_file_nobody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    InstalledFile("").create()
    assert os.listdir(tmp_path) == []


def test_a_volume_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match="none cannot be opened: No such file or directory; mount a volume there"):
        InstalledFile(str(tmp_path / "none/yes"))


def test_no_link_is_followed_and_the_node_serves_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "yes").symlink_to(tmp_path / "other")
    InstalledFile(str(tmp_path / "yes")).create()
    assert not (tmp_path / "other").exists()
    assert "the node gets no label: " in capfd.readouterr().err
