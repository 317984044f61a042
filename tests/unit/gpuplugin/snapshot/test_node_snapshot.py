"""The snapshot that a pod goes by: whose it must be, of which boot, version and driver, how long it counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.snapshot import node_snapshot
from gpushim.ground import system
from gpushim.ground.errors import DRIVER, GpushimError
from gpushim.inventory import ensure, renew
from unit.gpuplugin.snapshot.saved_snapshot import saved
from unit.gpuplugin.snapshots import gpu, snapshot


def test_one_of_another_version_of_gpushim_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setenv(node_snapshot.POD, "10.0.0.1")
    saved(tmp_path, gpushim="99.9")
    assert node_snapshot.read(str(tmp_path))[1] is None
    assert node_snapshot.current()["gpushim"] == "99.9"


CHANGED: dict[str, Callable[[Path], object]] = {
    "another in its place": lambda path: saved(path.parent, looked=0.0, life=1),
    "gone": os.unlink,
    "writable by others": lambda path: path.chmod(0o666),
    "in a place of others": lambda path: path.parent.chmod(0o777),
    "boot": lambda path: None,
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_was_read_counts_as_long_as_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path, before = saved(tmp_path), node_snapshot.LastRead()
    first, why = node_snapshot.read(str(tmp_path), before)
    assert (why, node_snapshot.read(str(tmp_path), before)[0] is first) == (None, True)
    CHANGED[change](path)
    if change == "boot":
        monkeypatch.setattr(system, "boot", lambda: "another")
    assert node_snapshot.read(str(tmp_path), before)[1] is not None


def test_on_the_host_a_command_goes_by_a_true_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, looked=0.0, life=1)
    true = snapshot([gpu(0), gpu(1)])
    monkeypatch.setattr(renew, "snapshot", lambda config, state: true)
    assert node_snapshot.current() == true


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"version": ensure.FORM + 1, "gpushim": "99"}, "is written by gpushim 99, and this is"),
        ({"stamp": {"boot": "another"}}, "is out of date; gpushim refresh --keep"),
        ({"looked": 0.0, "life": 1}, "is out of date; gpushim refresh --keep"),
        ({"stamp": None}, "is not a gpushim snapshot; remove it; gpushim refresh --keep"),
    ],
)
def test_what_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], why: str
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setenv(node_snapshot.POD, "10.0.0.1")
    facts = more.get("stamp", {})
    path = saved(tmp_path, **{**more, "stamp": facts or {}})
    if facts is None:
        path.write_text(json.dumps({**json.loads(path.read_text()), "stamp": None}))
    assert f"{path} {why}" in str(node_snapshot.read(str(tmp_path))[1])
    with pytest.raises(GpushimError, match=r"inventory\.json"):
        node_snapshot.current()


def test_none_at_all(tmp_path: Path) -> None:
    assert f"there is no {tmp_path}/inventory.json; gpushim refresh --keep" in str(
        node_snapshot.read(str(tmp_path))[1]
    )


def modules(before: Any, now: Any) -> tuple[Any, Any]:
    found = [snapshot([], stamp={"module": one}, driver={"version": one or ""}) for one in (before, now)]
    return found[0], found[1]


@pytest.mark.parametrize(("before", "now"), [("580", "580"), ("580", None), (None, None)])
def test_the_same_driver(before: Any, now: Any) -> None:
    one, other = modules(before, now)
    node_snapshot.check_driver(None, one)
    node_snapshot.check_driver(one, other)


@pytest.mark.parametrize(
    ("before", "now", "said"), [("580", "590", "now 590 and was 580"), (None, "5", "was not there")]
)
def test_another_driver_ends_the_process(before: Any, now: Any, said: str) -> None:
    with pytest.raises(node_snapshot.OutdatedError, match=said) as refused:
        node_snapshot.check_driver(*modules(before, now))
    assert refused.value.exit_code == DRIVER


ABSENT: Any = {"nodes": {}}
CAME = [  # the container's nodes, snapshots from the first on, and whether the last ends the process
    ([0, 1], [snapshot([gpu(0), gpu(1)])], False),
    ([0], [snapshot([gpu(0)]), snapshot([gpu(0), gpu(1)])], True),
    ([0], [snapshot([gpu(0), gpu(1, problem="x")], **ABSENT), snapshot([gpu(0), gpu(1)])], True),
    ([0, 1], [snapshot([gpu(0), gpu(1, problem="x")]), snapshot([gpu(0), gpu(1)])], False),
    ([0], [snapshot([gpu(0)]), snapshot([gpu(0), gpu(1, problem="x")])], False),  # another container is no better
    ([0], [snapshot([gpu(0)]), snapshot([gpu(0), gpu(1)], **ABSENT)], False),
    ([0], [snapshot([gpu(0), gpu(1)]), snapshot([gpu(0), gpu(1)])], False),  # not asked for: it would never end
    ([0], [snapshot([gpu(0), gpu(1)]), snapshot([gpu(0), gpu(1), gpu(2)])], True),
    ([], [snapshot([]), snapshot([gpu(0)])], True),
]


@pytest.mark.parametrize("asked", ["all-usable", "0"])
@pytest.mark.parametrize("control", [True, False], ids=["injected", "nobody has injected"])
def test_one_that_asks_for_all_is_to_have_all_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, control: bool
) -> None:
    """A GPU may come between the making of its container and its first look."""
    monkeypatch.setattr(node_snapshot, "DEV", str(tmp_path))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", asked)
    if control:
        (tmp_path / "nvidiactl").touch()
    came = node_snapshot.NewGpus()
    if control and asked == "all-usable":
        with pytest.raises(node_snapshot.OutdatedError):
            came.look(snapshot([gpu(0)]))
    else:
        came.look(snapshot([gpu(0)]))


@pytest.mark.parametrize(("has", "seen", "ends"), CAME)
def test_a_gpu_whose_node_came_after_the_container_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: list[int], seen: list[Any], ends: bool
) -> None:
    monkeypatch.setattr(node_snapshot, "DEV", str(tmp_path))
    for number in has:
        (tmp_path / f"nvidia{number}").touch()
    came = node_snapshot.NewGpus()
    for one in seen[:-1]:
        came.look(one)
    if ends:
        with pytest.raises(node_snapshot.OutdatedError, match="has come since this container was made"):
            came.look(seen[-1])
    else:
        came.look(seen[-1])
