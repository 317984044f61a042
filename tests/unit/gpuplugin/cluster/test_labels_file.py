"""The file of labels says what is so, is whole at all times, and is written no more often than needed."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.cluster import labels_file
from gpuplugin.cluster.labels import TIMESTAMP
from gpuplugin.cluster.labels_file import LabelsFile
from gpuplugin.settings import settings
from unit.gpuplugin.snapshots import gpu, snapshot


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features.d/gfd"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets both clocks of the module."""

    def put(seconds: float) -> None:
        monkeypatch.setattr("gpuplugin.cluster.labels_file.time.time", lambda: 1000 + seconds)
        monkeypatch.setattr("gpuplugin.cluster.labels_file.time.monotonic", lambda: seconds)

    put(0)
    return put


def found(path: Path, **more: Any) -> settings.Settings:
    return settings.resolve({}, {}, {"labels-file": str(path), "kubelet-dir": "/", **more})


def look(*calls: tuple[Any, settings.Settings], file: LabelsFile | None = None) -> None:
    """Let the daemon look, and wait until it has written."""

    async def run() -> None:
        tasks: list[asyncio.Task[Any]] = []

        def spawn(work: Any) -> asyncio.Task[Any]:
            tasks.append(asyncio.ensure_future(work))
            return tasks[-1]

        used = file or LabelsFile(spawn)
        used._spawn = spawn
        for there, what in calls:
            used.look(there, what)
            await asyncio.gather(*tasks)

    asyncio.run(run())


def test_the_file_is_written(path: Path, clock: Callable[[float], None]) -> None:
    path.parent.mkdir()
    look((snapshot([gpu(0)]), found(path)))
    lines = path.read_text().splitlines()
    assert lines == sorted(lines)
    assert {"nvidia.com/gpu.count=1", f"{TIMESTAMP}=1000"} <= {*lines}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["gfd"]


def test_what_is_still_so_is_not_written_again(path: Path, clock: Callable[[float], None]) -> None:
    path.parent.mkdir()
    look((snapshot([gpu(0)]), found(path)))
    before = path.stat().st_ino, path.stat().st_mtime_ns
    clock(100)
    look((snapshot([gpu(0)], looked=9), found(path)))  # as after a restart
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before
    look((snapshot([gpu(0), gpu(1)]), found(path)))
    assert f"{TIMESTAMP}=1100\n" in path.read_text()


def test_changes_count_at_once(path: Path, clock: Callable[[float], None]) -> None:
    path.parent.mkdir()
    first = found(path)
    look((snapshot([gpu(0)]), first), (snapshot([gpu(0), gpu(1)], looked=1), first))
    assert "nvidia.com/gpu.count=2\n" in path.read_text()
    look((snapshot([gpu(0)]), first), (snapshot([gpu(0)]), found(path, **{"mig-strategy": "mixed"})))
    assert "nvidia.com/mig.strategy=mixed\n" in path.read_text()


def test_a_file_that_somebody_removes_comes_back_with_time(path: Path, clock: Callable[[float], None]) -> None:
    path.parent.mkdir()
    file, what, there = LabelsFile(lambda _: None), found(path), snapshot([gpu(0)])  # type: ignore[arg-type, return-value]
    look((there, what), file=file)
    path.unlink()
    clock(59)
    look((there, what), file=file)
    assert not path.exists()
    clock(60)
    look((there, what), file=file)
    assert path.exists()


def test_without_an_interval_only_changes_count(path: Path, clock: Callable[[float], None]) -> None:
    path.parent.mkdir()
    file, what, there = LabelsFile(lambda _: None), found(path, **{"labels-interval": 0}), snapshot([gpu(0)])  # type: ignore[arg-type, return-value]
    look((there, what), file=file)
    path.unlink()
    clock(10_000)
    look((there, what), file=file)
    assert not path.exists()


@pytest.mark.parametrize(
    ("place", "why"),
    [("/proc/gfd", "no file can be made in its directory"), ("/gone/gfd", "its directory is missing")],
)
def test_where_no_file_can_be_the_trouble_says_what_is_true(
    place: str, why: str, clock: Callable[[float], None]
) -> None:
    file, there = LabelsFile(lambda _: None), snapshot([gpu(0)])  # type: ignore[arg-type, return-value]
    look((there, found(Path(place))), file=file)
    assert file.problem == f"the labels cannot be written to {place}: {why}; retrying"
    look((there, settings.resolve({}, {}, {})), file=file)
    assert file.problem == ""


def test_a_missing_directory_is_said_once_and_tried_again(
    path: Path, clock: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    file, what, there = LabelsFile(lambda _: None), found(path, **{"labels-interval": 0}), snapshot([gpu(0)])  # type: ignore[arg-type, return-value]
    for second in (0, 60, 120):
        clock(second)
        look((there, what), file=file)
    assert caplog.messages == [f"the labels cannot be written to {path}: its directory is missing; retrying"]
    path.parent.mkdir()
    clock(180)
    look((there, what), file=file)
    assert path.exists()


def test_what_cannot_be_said_leaves_the_file(
    path: Path, clock: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_text("nvidia.com/gpu.count=1\n")
    what = found(path, **{"mig-strategy": "mixed"})
    look((snapshot([gpu(0)], source="proc"), what))
    assert path.read_text() == "nvidia.com/gpu.count=1\n"
    assert caplog.messages[0].startswith(
        f"the labels in {path} stay as they were: mig-strategy is mixed, but only NVML"
    )


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_what_else_is_there_hangs_nobody(path: Path, tmp_path: Path, kind: str) -> None:
    path.parent.mkdir()
    (tmp_path / "other").write_text("kept")
    make = {"fifo": os.mkfifo, "link": lambda at: os.symlink(tmp_path / "other", at), "directory": os.mkdir}
    make[kind](path)
    look((snapshot([gpu(0)]), found(path)))
    assert path.is_dir() == (kind == "directory")
    assert path.is_dir() or "gpu.count=1" in path.read_text()
    assert (tmp_path / "other").read_text() == "kept"


@pytest.mark.parametrize("content", ['{"Data": {}}', "", "nvidia.com/gpu.count=9\n"])
def test_a_file_of_something_else_is_not_replaced(path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_text(content)
    look((snapshot([gpu(0)]), found(path)))
    other = content.startswith("{")
    assert (path.read_text() == content, "is not a labels file; remove it" in caplog.text) == (other, other)


@pytest.mark.parametrize("place", ["kubelet", "kubelet/device-plugins", "state/device-plugin", "link"])
def test_nothing_is_written_where_kubelet_or_gpushim_live(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", f"{tmp_path}/state")
    for name in ("kubelet/device-plugins", "state/device-plugin", "kubelet-labels"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("state")
    path = tmp_path / place / "released"
    look((snapshot([gpu(0)]), found(path, **{"kubelet-dir": f"{tmp_path}/kubelet"})))
    assert not path.exists()
    assert "is not for labels; name a directory made for them" in caplog.text
    beside = tmp_path / "kubelet-labels/gpushim"
    look((snapshot([gpu(0)]), found(beside, **{"kubelet-dir": f"{tmp_path}/kubelet"})))
    assert beside.exists()


def test_without_a_timestamp(path: Path, clock: Callable[[float], None]) -> None:
    path.parent.mkdir()
    look((snapshot([gpu(0)]), found(path)))
    look((snapshot([gpu(0)]), found(path, **{"labels-no-timestamp": True})))
    assert TIMESTAMP not in path.read_text()


def test_no_file_is_wanted_by_default(tmp_path: Path) -> None:
    look((snapshot([gpu(0)]), settings.resolve({}, {}, {"kubelet-dir": str(tmp_path)})))
    assert os.listdir(tmp_path) == []


def test_lines() -> None:
    assert labels_file.text({"b": "2", "a": ""}, "7") == f"a=\nb=2\n{TIMESTAMP}=7\n"


def test_how_far_a_mig_layout_is_is_a_label(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    there, given = snapshot([gpu(0)]), found(path)
    states = ["pending", "success", ""]
    monkeypatch.setattr("gpuplugin.health.mig_layout.tell_state", lambda name: states[0])
    written = []
    file = LabelsFile(lambda work: work)
    for _ in range(3):
        look((there, given), file=file)
        written.append(labels_file.read(str(path)).get("nvidia.com/mig.config.state"))
        states.pop(0)
    assert written == ["pending", "success", None]
