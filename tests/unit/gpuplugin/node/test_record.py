"""The record: what is read of it, and what is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuplugin.node import record
from gpushim.ground.errors import GpushimError


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        '{"files": []}',
        '{"files": {"/usr/bin/x": 1}}',
        '{"folders": 5}',
        '{"folders": [3]}',
        '{"engine": "crio"}',
        '{"former": ["crio"]}',
        '{"former": [[]]}',
        '{"former": [[1]]}',
        '{"form": 2}',
        "[" * 100_000,
        "\xff",
    ],
)
def test_what_cannot_be_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(record, "PATH", str(tmp_path / "node.json"))
    (tmp_path / "node.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(GpushimError, match="cannot be understood"):
        record.load()


def test_other_versions_read_it_and_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `helm rollback` goes back to one that knows less."""
    path = tmp_path / "node.json"
    monkeypatch.setattr(record, "PATH", str(path))
    record.Record({"/usr/bin/x": "a"}, engine=["crio"]).save()
    known = json.loads(path.read_text())
    assert {*known} == {"files", "folders", "engine", "form"}
    path.write_text(json.dumps({**known, "more": 1}))
    assert record.load() == record.Record({"/usr/bin/x": "a"}, engine=["crio"])


def test_what_is_saved_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "lib/node.json"
    monkeypatch.setattr(record, "PATH", str(known))
    assert record.load() == record.Record()
    wanted = record.Record({"/usr/bin/x": "a"}, ["/etc/x"], ["crio"], [["crio", "--cdi"]])
    wanted.save()
    assert record.load() == record.Record(wanted.files, ["/etc/x", str(known.parent)], ["crio"], wanted.former)
    before = known.stat().st_ino
    wanted.save()
    assert known.stat().st_ino == before
