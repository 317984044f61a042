"""What is laid down again; other versions go when nothing uses them; what others have changed stays."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplugin.node import node_files
from gpuplugin.node import payload as payloads
from gpuplugin.node import record as records
from gpuplugin.node.record import Record, digest


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Two versions, each with two files, one of them compiled."""
    monkeypatch.setattr(payloads, "LIB", f"{tmp_path}/")
    monkeypatch.setattr(node_files, "CREATE_TIME", 0.0)
    monkeypatch.setattr(node_files, "LONGEST_WAIT", 0.5)
    record = Record()
    for version in ("1", "2"):
        (cache := tmp_path / version / "__pycache__").mkdir(parents=True)
        (cache / "stub.pyc").touch()
        for name in ("stub.py", "whole"):
            path = tmp_path / version / name
            path.write_text(version)
            record.files[str(path)] = digest(version.encode())
        record.folders.append(str(tmp_path / version))
    return record


CHANGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "another's content": lambda path: path.write_text("theirs"),
    "mode": lambda path: path.chmod(0o777),
    "owner": lambda path: os.chown(path, 65534, -1),
    "a link to the same": lambda path: path.symlink_to(path.rename(f"{path}~")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_is_laid_down_again_unless_it_is_roots_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    """A program whose owner is another could be changed after it was looked at."""
    monkeypatch.setattr(records, "PATH", f"{tmp_path}/node.json")
    monkeypatch.setattr(node_files, "compile_version", lambda *_: None)
    path = tmp_path / "etc/hook"
    payload = payloads.Payload("1", {str(path): payloads.File(0o755, b"#!/bin/sh\n")})
    assert node_files.write_files(payload, Record(), "") == [str(path)]
    assert node_files.write_files(payload, Record(), "") == []
    change(path)
    assert node_files.write_files(payload, Record(), "") == [str(path)]
    status = path.lstat()
    assert (status.st_mode, status.st_uid, path.read_bytes()) == (0o100755, 0, b"#!/bin/sh\n")


def test_one_that_nothing_uses_goes(known: Record, tmp_path: Path) -> None:
    assert node_files.remove_old_versions(known, "2") == []
    assert [path.name for path in tmp_path.iterdir()] == ["2"]
    assert [*known.files] == [f"{tmp_path}/2/stub.py", f"{tmp_path}/2/whole"]


def test_one_that_a_create_uses_stays_until_another_time(known: Record, tmp_path: Path) -> None:
    words = ["/bin/sh", "-c", "read line", f"{tmp_path}/1/stub.py"]
    with subprocess.Popen(words, stdin=subprocess.PIPE):
        assert node_files.remove_old_versions(known, "2") == ["1"]
        assert (tmp_path / "1/stub.py").exists()
    assert node_files.remove_old_versions(known, "2") == []
    assert not (tmp_path / "1").exists()


def test_a_stranger_who_names_one_keeps_none(known: Record, tmp_path: Path) -> None:
    words = ["/bin/sh", "-c", "read line", f"{tmp_path}/1/stub.py"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, user=65534):
        assert node_files.remove_old_versions(known, "2") == []
    assert not (tmp_path / "1").exists()


def test_what_somebody_has_changed_stays(known: Record, tmp_path: Path) -> None:
    (tmp_path / "1/stub.py").write_text("mine")
    assert node_files.remove_files(known, [f"{tmp_path}/1/stub.py", f"{tmp_path}/1/whole"]) == [
        f"{tmp_path}/1/stub.py"
    ]
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["stub.py"]


def test_nothing_is_removed_by_way_of_links(known: Record, tmp_path: Path) -> None:
    (other := tmp_path / "other/__pycache__").mkdir(parents=True)
    (other / "x.pyc").touch()
    (tmp_path / "1/link").symlink_to(tmp_path / "other")
    (tmp_path / "1/more").mkdir()
    (tmp_path / "1/more/__pycache__").symlink_to(other)
    assert node_files.remove_old_versions(known, "2") == []
    assert (other / "x.pyc").exists()
    assert not (tmp_path / "1/__pycache__").exists()
