"""XIDs in the kernel's log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuplugin.health import kmsg
from gpuplugin.health.nvml_lines import Since
from gpushim.ground import system

PCI = "00000000:3b:00.0"


def record(text: str, seconds: float = 5.0, priority: int = 4) -> str:
    return f"{priority},1234,{round(seconds * 1e6)},-,caller=T1;{text}\n"


def read(path: Path, *records: str) -> dict[tuple[str, int], float]:
    path.write_text("".join(records))
    return kmsg.Log(str(path)).xids()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=x, Ch 1", {(PCI, 48)}),
        ("NVRM: Xid (PCI:0000:3B:00.0): 79, GPU has fallen off the bus.", {(PCI, 79)}),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=1", {(PCI, 94)}),
        ("NVRM: Xid (PCI:0000:3b:00): 13, name=NVRM: Xid (PCI:0000:3c:00): 79, x", {(PCI, 13)}),
        ("name=x NVRM: Xid (PCI:0000:3b:00): 79, x", set()),
        ("NVRM: Xid (PCI:0000:3b:00): 79999999999, x", set()),
        ("NVRM: Xid (PCI:zzzz:3b:00): 79, x", set()),
        ("NVRM: Xid (PCI:0000:3b:00: 79, x", set()),
    ],
)
def test_a_record_is_an_xid_or_none(tmp_path: Path, text: str, found: set[tuple[str, int]]) -> None:
    assert read(tmp_path / "kmsg", record("another"), record(text), " SUBSYSTEM=pci\n").keys() == found


def test_what_a_program_writes_is_none_of_the_kernels(tmp_path: Path) -> None:
    assert not read(tmp_path / "kmsg", record("NVRM: Xid (PCI:0000:3b:00): 79, x", priority=12))


def test_the_last_time_counts_and_is_that_since_boot(tmp_path: Path) -> None:
    text = "NVRM: Xid (PCI:0000:3b:00): 79, x"
    slept = system.clock() - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert read(tmp_path / "kmsg", record(text, 7.25), record(text, 9.5)) == {(PCI, 79): pytest.approx(9.5 + slept)}


def test_a_driver_that_is_loaded_begins_anew(tmp_path: Path) -> None:
    log = [record(f"NVRM: Xid (PCI:0000:3b:00): {number}, x") for number in (79, 48)]
    assert read(tmp_path / "kmsg", log[0], record("NVRM: loading NVIDIA UNIX x86_64"), log[1]).keys() == {(PCI, 48)}


def test_a_process_that_crashes_loads_no_driver(tmp_path: Path) -> None:
    """The kernel begins with its name, which has at most 15 characters."""
    log = [record("NVRM: Xid (PCI:0000:3b:00): 48, x"), record("NVRM: loading N[77]: segfault at 0 ip 0", priority=6)]
    assert read(tmp_path / "kmsg", *log).keys() == {(PCI, 48)}


@pytest.mark.parametrize(
    ("heard", "loaded", "at", "bound", "counts"),
    [
        (100, None, 110, 120, False),  # the GPU was bound again, after that, by a driver that was there
        (100, None, 130, 120, True),
        (100, 105, 110, 120, True),  # the driver was loaded first, and found later
        (100, 105, 130, 120, True),
        (100, 90, 110, 120, False),  # loaded, listened to, bound again
        (100, 90, 95, 80, False),  # heard
        (100, 90, 110, 80, True),
        (0, None, 5, 0, True),
    ],
)
def test_an_xid_counts_of_the_driver_that_is_bound_and_nobody_heard(
    tmp_path: Path, heard: int, loaded: int | None, at: int, bound: int, counts: bool
) -> None:
    slept = system.clock() - time.clock_gettime(time.CLOCK_MONOTONIC)
    text = record("NVRM: loading NVIDIA UNIX", loaded) if loaded else ""
    (tmp_path / "kmsg").write_text(text + record("NVRM: Xid (PCI:0000:3b:00): 79, x", at + 0.5))
    log = kmsg.Log(str(tmp_path / "kmsg"))
    gpus = [(PCI, "GPU-1", Since(heard and heard + slept, bound and bound + slept))]
    assert [line["gpu"] for line in kmsg.missed(log, gpus)] == ["GPU-1"] * counts


def test_a_look_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(record("x") * 3000)
    log = kmsg.Log(str(path))
    assert not log.xids()
    with path.open("a") as file:
        file.write(record("NVRM: Xid (PCI:0000:3b:00): 79, x"))
    assert [*log.xids()] == [(PCI, 79)]


def test_a_log_that_may_not_be_read_has_nothing(tmp_path: Path) -> None:
    log = kmsg.Log(str(tmp_path / "none"))
    assert not log.xids()
