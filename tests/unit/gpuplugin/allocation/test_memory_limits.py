"""What Allocate tells the hook of a share's memory, and when nothing can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplugin.allocation import memory_limits
from gpuplugin.settings.resources import Device, Share
from gpuplugin.settings.sharing import MPS, TIME_SLICING
from gpushim.decision import memory
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import snapshot, uuid

MIB = 1 << 20


def device(name: str, number: int, memory: int | None, **more: Any) -> Device:
    return Device(name, uuid(number), str(number), number, share=Share(TIME_SLICING, memory=memory), **more)


PARTS = {
    "a": device("a", 0, 1000),
    "b": device("b", 0, 2000),
    "c": device("c", 1, 500),
    "d": device("d", 0, None),
    "e": device("e", 2, 100, placement="1 0"),
    "f": Device("f", uuid(3), "3", 3),
    "g": Device("g", uuid(4), "4", 4, share=Share(MPS, memory=7)),
}


@pytest.mark.parametrize(
    ("names", "limits"),
    [
        ("a", {0: 1000}),
        ("ab", {0: 3000}),
        ("ac", {0: 1000, 1: 500}),
        ("ad", {}),
        ("e", {}),
        ("f", {}),
        ("g", {4: 7}),
    ],
)
def test_a_container_may_have_the_sum_of_its_parts(
    names: str, limits: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path / "state"))
    mounts = memory_limits.mounts([PARTS[name] for name in names])
    paths = [f"{tmp_path}/state/limits/{uuid(gpu)}={size * MIB}" for gpu, size in limits.items()]
    assert [mount["host_path"] for mount in mounts] == paths
    assert all(mount["read_only"] for mount in mounts)
    assert [Path(path).read_text() for path in paths] == [f"{size} MiB\n" for size in limits.values()]


def test_a_limit_that_cannot_be_written_refuses_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    (tmp_path / "limits").touch()
    with pytest.raises(GpushimError, match="a limit of GPU memory, cannot be written"):
        memory_limits.mounts([PARTS["a"]])


@pytest.mark.parametrize(
    ("driver", "v2", "why"),
    [("615.10", True, ""), ("535.183.01", True, "615 or newer"), ("615.10", False, "not cgroup v2")],
)
def test_where_the_driver_keeps_limits(
    driver: str, v2: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(memory, "CONTROLLERS", str(tmp_path / "file") if v2 else str(tmp_path / "none"))
    host = snapshot([])
    host["driver"]["version"] = driver
    reason = memory_limits.missing(host)
    assert why in reason
    assert bool(reason) == bool(why)
