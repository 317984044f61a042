"""The file: root's alone, one writer at a time, and nothing that is damaged says that a GPU is free."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import resource
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpuplugin.allocation.registry import Registry
from gpuplugin.kubelet import cgroups
from gpuplugin.record import allocations_file
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.grants import Request
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpuplugin.record.record_form import fresh
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.paths import replace as files
from unit.gpuplugin.record.rows import GPU, ONE, TWO, WHOLE, allocation, claim, claim_device, division, record

KEY = f"{GPU} {ONE}"


def grant() -> None:
    """Give the GPU to a container, as another process of the plugin does."""
    Registry(lambda work: work, KubeletWatch(str)).grant([Request(ONE, GPU, ONE, WHOLE)])


def met() -> dict[str, Any]:
    """This boot, and the kubelet that is there, which is none."""
    return {"boot": system.boot(), "kubelet": [KubeletWatch(str).identify(), 0.0]}


def write(record: Any) -> None:
    file = AllocationsFile()
    with file.locked():
        file.write(record)


def read() -> Any:
    found = AllocationsFile().read()
    assert found
    return found


def allocations() -> Any:
    return read()["gpus"][ONE]["allocations"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr(allocations_file, "PATIENCE", 0.1)
    file = AllocationsFile()
    file.prepare()
    write(record(**met()))
    return Path(file.path)


def test_what_is_granted_is_there_for_the_next_process(path: Path) -> None:
    grant()
    assert [*allocations()] == [KEY]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("running", [True, False])
def test_what_kubelet_takes_for_free_is_not_granted_while_a_process_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    """Nobody has asked kubelet yet since it has forgotten the pod, as after a deletion by force."""
    monkeypatch.setattr(cgroups, "running", lambda uids: uids if running else frozenset())
    write(record(allocations={KEY: allocation()}, **met()))
    with pytest.raises(GpushimError, match=r"pod d/a has it") if running else contextlib.nullcontext():
        grant()


@pytest.mark.parametrize("size", [0, 1, 40, -3])
def test_a_torn_one_says_nothing(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    assert AllocationsFile().damaged
    with pytest.raises(GpushimError, match=r"is missing, damaged or"):
        grant()


def test_a_grant_that_is_torn_was_told_to_nobody_and_is_left_out(path: Path) -> None:
    without = len(path.read_bytes())
    grant()
    data = path.read_bytes()
    for size in range(without, len(data)):
        path.write_bytes(data[:size])
        assert not allocations()
        grant()  # behind it nothing would be read
        assert [*allocations()] == [KEY]


LINES = [b'{"GPU-1":{}}\n', b'{"%s":{"gpu x":{}}}\n' % ONE.encode(), b"[]\n", b"\n"]


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_grant_makes_all_of_it_say_nothing(path: Path, line: bytes) -> None:
    grant()
    with path.open("ab") as file:
        file.write(line)
    assert AllocationsFile().damaged


def test_what_a_loss_of_power_has_torn_is_of_an_earlier_boot(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with path.open("ab") as file:
        file.write(b'[1, "GPU-1')
    monkeypatch.setattr(system, "boot", lambda: "another")
    found = AllocationsFile().read()
    assert found is not None
    assert found["gpus"]


def test_a_moment_without_descriptors_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, file = path.read_bytes(), AllocationsFile()
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", Mock(side_effect=OSError(errno.ENFILE, "Too many open files in system")))
        with pytest.raises(GpushimError, match="cannot be read now: Too many open files"):
            file.read()
    assert file.read()
    assert not file.damaged
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(path.name)] == [path.name]
    assert path.read_bytes() == before


@pytest.mark.parametrize("more", [0, 900])
def test_the_file_does_not_grow_with_each_grant(path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(allocations_file, "ADDED_LIMIT", more)
    registry = Registry(lambda work: work, KubeletWatch(str))
    for _ in range(30):
        registry.grant([Request(ONE, GPU, ONE, WHOLE)])
        assert len(path.read_bytes().splitlines()) <= 1 + more // 100
        assert AllocationsFile().read() == registry.watch.file.read()


@pytest.mark.parametrize("claims", [{}, {"u": claim(claim_device(TWO))}])
def test_the_disk_is_waited_for_where_there_are_claims(
    path: Path, monkeypatch: pytest.MonkeyPatch, claims: Any
) -> None:
    """They outlive a loss of power, which is a boot: kubelet does not ask for them again."""
    replace = Mock(wraps=files.replace)
    monkeypatch.setattr(allocations_file, "replace", replace)
    write(record(claims=claims))
    assert replace.call_args.kwargs["durable"] is bool(claims)
    write(record())
    assert replace.call_args.kwargs["durable"] is bool(claims)  # the last claim's end, too


def test_without_room_nothing_is_given_and_the_file_stays(path: Path) -> None:
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(GpushimError, match=r"cannot be written"):
            grant()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before


def test_a_newer_form_is_left_alone(path: Path) -> None:
    path.write_text(json.dumps({"form": 2}))
    with pytest.raises(GpushimError, match=r"by a newer version"):
        AllocationsFile().read()


def test_who_keeps_the_lock_is_not_waited_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocations_file, "PATIENCE", 0.05)
    other = AllocationsFile()
    with (
        other.locked(),
        pytest.raises(GpushimError, match=r"allocations.lock is held by process .* for more than"),
    ):
        grant()
    grant()


DIVISION, ALLOCATION = f"gpus {ONE} divisions {ONE}", f"gpus {ONE} allocations {KEY.replace(' ', '|')}"
EDITED: list[tuple[str, Any]] = [
    ("kubelet", []),
    ("kubelet", "x"),
    ("kubelet", ["x", math.nan]),
    ("generation", 1.5),
    (f"gpus {ONE}", []),
    (f"{DIVISION} owner", 1.5),
    (f"{DIVISION} owner", -1),
    (f"{DIVISION} owner", 1 << 70),
    (f"{DIVISION} parts {GPU}", {"count": 1, "share": None}),
    (f"{DIVISION} parts {GPU} count", 1.5),
    (f"{DIVISION} parts {GPU} count", 1 << 40),
    (f"{DIVISION} parts {GPU} share", {"kind": []}),
    (f"{DIVISION} parts {GPU} share", {"kind": "mps", "memory": "8Gi"}),
    (f"{DIVISION} parts {GPU} share", {"kind": "mps", "of": 1}),
    (f"{ALLOCATION} sharing", ["mps"]),
    (f"{ALLOCATION} sharing", ""),
    (f"{ALLOCATION} state", "given"),
    (f"{ALLOCATION} since", math.inf),
    ("claims u", {}),
    ("claims u pods", [1]),
    ("claims u devices", [{}]),
]


@pytest.mark.parametrize(("place", "value"), EDITED)
def test_one_that_somebody_edited_says_nothing(path: Path, place: str, value: Any) -> None:
    whole = record(allocations={KEY: allocation()}, claims={"u": claim(claim_device(TWO))}, boot=system.boot())
    write(whole)
    assert read() == whole
    table: Any = whole
    *above, last = place.split()
    for key in above:
        table = table[key.replace("|", " ")]
    table[last] = value
    path.write_text(json.dumps(whole) + "\n")
    assert AllocationsFile().damaged


@pytest.mark.parametrize("data", [b"", b'{"form": 1', b"x\n", b"\xff"])
def test_what_is_damaged_is_put_aside_and_said_once(
    path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(data)
    file, aside = AllocationsFile(), path.with_name("allocations.json.damaged")
    for _ in range(2):
        with file.locked():
            file.write(fresh("b", "it is damaged"))
        assert aside.read_bytes() == data
    assert AllocationsFile().read() == fresh("b", "it is damaged")
    [said] = caplog.messages
    assert said.startswith(
        f"{path} is damaged: its {len(data)} bytes are no record, or half of one. It is put aside ({aside})"
    )
    assert "given out when kubelet has run for a while" in said


def test_what_cannot_be_put_aside_is_replaced_all_the_same(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"x")
    path.with_name("allocations.json.damaged").mkdir()
    file = AllocationsFile()
    with file.locked():
        file.write(fresh("b", ""))
    assert AllocationsFile().read()
    assert "is put aside (nowhere, for Is a directory)" in caplog.text


def of_boot(**more: Any) -> Any:
    return record(**{"boot": system.boot(), **more})


NONE = "no record, or half of one"
STATES: list[tuple[Any, str]] = [
    (None, "not there: nothing was given out yet."),
    ("{", f"damaged: its 1 bytes are {NONE}; gpushim-device-plugin puts it aside, and goes by "),
    (of_boot(), "of this boot; devices given out: none."),
    (of_boot(unknown="x"), "of this boot; devices given out: none; not all is known, for x."),
    (of_boot(allocations={KEY: allocation()}), "of this boot; devices given out: 1, of 1 GPUs."),
    (of_boot(claims={"u": claim()}), "of this boot; devices given out: none; claims that have devices: 1."),
    (record(boot="b"), "of an earlier boot: it has how 1 GPUs were given out, and no pod has one."),
]


@pytest.mark.parametrize(("content", "said"), STATES)
def test_its_summary(path: Path, content: Any, said: str) -> None:
    path.unlink()
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content) + "\n")
    subject = f"The record of who has what, {path}, is "
    assert allocations_file.summarize(AllocationsFile()).startswith(subject + said)


def test_the_summary_of_a_newer_version(path: Path) -> None:
    path.write_text('{"form": 9}\n')
    assert "is written by a newer version of gpushim" in allocations_file.summarize(AllocationsFile())


def test_the_summary_names_a_lock_that_is_kept(path: Path) -> None:
    with AllocationsFile().locked():
        said = allocations_file.summarize(AllocationsFile())
    lock = f"{allocations_file.folder()}/{allocations_file.LOCK}"
    assert said.endswith(f"held by a process that hangs; fuser {lock} names it.")
    assert "Its lock" not in allocations_file.summarize(AllocationsFile())


def test_claims_outlive_a_boot_and_what_pods_had_does_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(of_boot(allocations={KEY: allocation()}, claims={"u": claim(claim_device(TWO))}))
    monkeypatch.setattr(system, "boot", lambda: "another")
    file = AllocationsFile()
    after = file.current(file.read())
    assert (after["boot"], [*after["claims"]], after["gpus"][ONE]["allocations"]) == ("another", ["u"], {})
    assert after["gpus"][ONE]["divisions"] == {ONE: division()}
