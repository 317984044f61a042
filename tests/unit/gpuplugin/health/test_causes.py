"""The file that keeps reasons: what is read of it, and what is not."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.health import causes
from gpuplugin.health.causes import Cause, GpuRecord, State

CAUSE = Cause("xid", 5.0, 6.5, 79, ends="action")
UNWATCHED = Cause("unwatched", 1.0, 1.0, why="x")
STATE = State("b", {"GPU-1": GpuRecord({"xid 79 None None": CAUSE}, ["580", 7], None)}, {"polls": UNWATCHED})


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "device-plugin").mkdir()
    found = str(tmp_path / "device-plugin" / "health.json")
    causes.save(found, STATE)
    return found


def test_what_was_saved_is_read(path: str) -> None:
    assert causes.load(path, "b") == STATE
    assert os.stat(path).st_mode & 0o7777 == 0o600
    assert os.listdir(os.path.dirname(path)) == ["health.json"]


def test_another_start_of_the_host_begins_anew(path: str, caplog: pytest.LogCaptureFixture) -> None:
    assert causes.load(path, "c") == State("c")
    assert not caplog.records


def test_no_file_is_nothing_to_speak_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert causes.load(f"{tmp_path}/none", "b") == State("b")
    assert not caplog.records


def changed(change: Any) -> str:
    found = json.loads(json.dumps(dataclasses.asdict(STATE)))
    found["version"] = causes.VERSION
    change(found, found["gpus"]["GPU-1"]["causes"]["xid 79 None None"])
    return json.dumps(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        "[" * 100000,
        '{"version": 1}',
        changed(lambda state, cause: state.update(version=99)),
        changed(lambda state, cause: state.update(gpus=[])),
        changed(lambda state, cause: state["gpus"]["GPU-1"].update(heard=None)),
        changed(lambda state, cause: state["gpus"]["GPU-1"].update(ecc="x")),
        changed(lambda state, cause: state.update(unwatched=3)),
        changed(lambda state, cause: state.update(gpus={"": {"causes": {}, "binding": [], "gone": None}})),
        changed(lambda state, cause: state["gpus"]["GPU-1"].update(binding=[1, 2, 3])),
        changed(lambda state, cause: state["gpus"]["GPU-1"].update(gone="x")),
        changed(lambda state, cause: state["gpus"]["GPU-1"].update(causes=dict.fromkeys(map(str, range(99)), cause))),
        changed(
            lambda state, cause: state["gpus"].update(dict.fromkeys(map(str, range(999)), state["gpus"]["GPU-1"]))
        ),
        changed(lambda state, cause: cause.update(since=float("nan"))),
        changed(lambda state, cause: cause.update(last=10**30)),
        changed(lambda state, cause: cause.update(number="79")),
        changed(lambda state, cause: cause.update(number=True)),
        changed(lambda state, cause: cause.update(why="x" * 1000)),
        changed(lambda state, cause: cause.update(ends="never")),
        changed(lambda state, cause: cause.update(kind="none")),
        changed(lambda state, cause: cause.update(more=1)),
        changed(lambda state, cause: cause.pop("gi")),
    ],
    ids=lambda text: text[:30],
)
def test_a_corrupt_file_is_said_and_passed_over(path: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    Path(path).write_text(text)
    assert causes.load(path, "b") == State("b")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "it is not what gpushim-device-plugin writes" in caplog.text


def theirs(path: str) -> None:
    os.chown(path, 4242, 4242)


def anybodys(path: str) -> None:
    os.chmod(path, 0o666)


def link(path: str) -> None:
    os.rename(path, path + ".real")
    os.symlink(path + ".real", path)


def strangers_link(path: str) -> None:
    link(path)
    os.lchown(path, 4242, 4242)


def fifo(path: str) -> None:
    os.unlink(path)
    os.mkfifo(path)


def folder(path: str) -> None:
    os.unlink(path)
    os.mkdir(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("spoil", [theirs, anybodys, link, fifo, folder])
def test_a_foreign_file_is_said_and_passed_over(path: str, spoil: Any, caplog: pytest.LogCaptureFixture) -> None:
    spoil(path)
    assert causes.load(path, "b") == State("b")
    assert "cannot be used, so reasons from before this start are lost" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("spoil", [theirs, anybodys, strangers_link])
def test_nothing_is_written_where_others_could_write(path: str, spoil: Any) -> None:
    spoil(os.path.dirname(path))
    with pytest.raises(PermissionError, match="must be a directory that only root can write to"):
        causes.save(path, STATE)


def test_the_largest_state_can_be_read_again(path: str) -> None:
    longest = Cause("recovery", 1.7e9 + 0.123456, 1.7e9 + 0.123456, 2**32 - 1, 2**32 - 1, 2**32 - 1, why="x" * 80)
    known = GpuRecord(
        {f"xid {number} 4294967295 4294967295": longest for number in range(causes.CAUSES)}, ["580", 2**60], 1.7
    )
    largest = State("b", {f"GPU-{number:040}": known for number in range(causes.GPUS)})
    causes.save(path, largest)
    assert causes.load(path, "b") == largest
