"""inotify where a host has it, and where it has no more of it."""

from __future__ import annotations

import asyncio
import ctypes
from pathlib import Path

import pytest

from gpuplugin.snapshot.inotify import Watch
from unit.gpuplugin.snapshot.exhausted import Exhausted


def test_a_name_that_comes_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        watch, changed = Watch(), asyncio.Event()
        watch.add(str(tmp_path), str(tmp_path / "not there"))
        asyncio.get_running_loop().add_reader(watch.fd, changed.set)
        (tmp_path / "one").write_text("")
        await asyncio.wait_for(changed.wait(), 5)
        asyncio.get_running_loop().remove_reader(watch.fd)
        assert watch.changed() == {f"{tmp_path}/one"}
        watch.close()

    asyncio.run(run())


def test_a_directory_that_is_made_anew_is_new(tmp_path: Path) -> None:
    watch, folder = Watch(), tmp_path / "folder"
    assert [watch.add(str(folder)), watch.tells(str(folder))] == [False, False]
    for _ in range(2):
        folder.mkdir()
        assert [watch.add(str(folder)), watch.add(str(folder)), watch.tells(str(folder))] == [True, False, True]
        folder.rmdir()
        watch.changed()
        assert not watch.tells(str(folder))
    watch.close()


@pytest.mark.parametrize(("instances", "setting"), [(-1, "max_user_instances"), (1_000_000, "max_user_watches")])
def test_a_host_without_more_is_told_once(
    instances: int, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Exhausted(instances))
    watch = Watch()
    for _ in range(3):
        watch.add(str(tmp_path))
    assert not watch.tells(str(tmp_path))
    (said,) = caplog.messages
    assert f"fs.inotify.{setting}" in said
