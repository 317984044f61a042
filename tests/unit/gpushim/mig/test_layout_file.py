"""nvidia-mig-parted's file, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.mig import layout_file
from gpushim.mig.layout_file import Entry

# As in the files that NVIDIA's operator brings.
FILE = """version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false

  all-balanced:
    # H100-80GB, H800-80GB
    - device-filter: ["0x233110DE", "0x232210DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "2g.20gb": 1
        "3g.40gb": 1

  custom:
    - devices: [0, 1]
      mig-enabled: false
    - devices: [2]
      device-filter: "0x233110DE"
      mig-enabled: true
      mig-devices: {"1g.10gb+me": 1, "1c.2g.20gb": 2, "1g.12gb+me.all": 1, "7g.80gb": 0}
    - devices: [3]
      mig-enabled: true
      mig-devices: {}
"""
ENTRY = "---\n{version: v1, mig-configs: {day: [%s]}}"


def read(tmp_path: Path, text: str, name: str | None = None) -> list[Entry]:
    (tmp_path / "mig.yaml").write_text(text)
    return layout_file.read(str(tmp_path / "mig.yaml"), name)


def test_nvidias_file(tmp_path: Path) -> None:
    assert read(tmp_path, FILE, "all-disabled") == [Entry(None, (), False, {})]
    ids = ("0x233110de", "0x232210de")
    assert read(tmp_path, FILE, "all-balanced") == [
        Entry(None, ids, True, {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})
    ]
    assert read(tmp_path, FILE, "custom") == [
        Entry((0, 1), (), False, {}),
        Entry((2,), ids[:1], True, {"1g.10gb+me": 1, "1c.2g.20gb": 2, "1g.12gb+me.all": 1}),
        Entry((3,), (), True, {}),
    ]


def test_a_file_with_one_layout_needs_no_name(tmp_path: Path) -> None:
    assert read(tmp_path, ENTRY % "{devices: all, mig-enabled: false}") == [Entry(None, (), False, {})]
    problems = ((None, "name one with --config"), ("", "name one with --config"), ("night", "none of them is night"))
    for name, problem in problems:
        with pytest.raises(GpushimError, match=f"has the layouts all-disabled, all-balanced, custom; {problem}"):
            read(tmp_path, FILE, name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it must be a mapping with version and mig-configs"),
        ("[]", "it must be a mapping"),
        ("version: v2", "version must be v1"),
        ("mig-configs: {}", "version must be v1"),
        ("version: v1", "mig-configs must have a layout"),
        ("---\n{version: v1, mig-configs: {day: []}}", "mig-configs.day must be a list with at least one entry"),
        ("---\n{version: v1, mig-configs: {}, more: 1}", "it has more, which is none of version, mig-configs"),
        (ENTRY % "1", "mig-configs.day\\[0\\] must be a mapping with device-filter and devices"),
        (
            ENTRY % "{devices: all, mig-enabled: false}, {devices: all}",
            "day\\[1\\] must have devices",
        ),
        (ENTRY % "{mig-enabled: false}", "must have devices"),
        (ENTRY % "{devices: all, mig-enabled: 1}", "mig-enabled as true or false"),
        (ENTRY % "{devices: all, mig-enabled: true}", "must have mig-devices"),
        (ENTRY % "{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}", "and mig-enabled is false"),
        (
            ENTRY % "{devices: all, mig-enabled: false, mig-device: {}}",
            "has mig-device, which is none of .*, mig-devices",
        ),
        (ENTRY % "{devices: some, mig-enabled: false}", "day\\[0\\].devices must be all, or a list"),
        (ENTRY % "{devices: [true], mig-enabled: false}", "devices must be all, or a list"),
        (ENTRY % "{devices: [-1], mig-enabled: false}", "devices must be all, or a list"),
        (ENTRY % "{devices: all, device-filter: [A100], mig-enabled: false}", "device-filter must have PCI ids"),
        (ENTRY % "{devices: all, mig-enabled: true, mig-devices: [1g.5gb]}", "mig-devices must be a mapping"),
        (ENTRY % "{devices: all, mig-enabled: true, mig-devices: {small: 1}}", "mig-devices has small, which is no"),
        (ENTRY % "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 65}}", "a number from 0 to 64"),
        (ENTRY % "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: true}}", "a number from 0 to 64"),
        ("version: v1\nversion: v1", "twice"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(GpushimError, match=f"mig.yaml.*{problem}"):
        read(tmp_path, text)


def test_a_layout_that_is_not_chosen_must_be_right_too(tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match=r"mig-configs\.custom\[2\] has mig-device"):
        read(tmp_path, FILE.replace("mig-devices: {}", "mig-device: {}"), "all-disabled")


def gpus(*capable: bool) -> list[Any]:
    return [{"index": index, "mig_capable": able, "problem": None} for index, able in enumerate(capable)]


ALL, OFF = Entry(None, (), True, {"1g.10gb": 7}), Entry((1,), (), False, {})


def test_the_last_entry_that_matches_counts() -> None:
    assert layout_file.choose([ALL, OFF], gpus(True, True), {}) == {0: ALL, 1: OFF}


def test_a_filter_is_about_the_model() -> None:
    entry = ALL._replace(filters=("0x233110de",))
    assert layout_file.choose([entry], gpus(True, True), {0: "0x233110de", 1: "0x20b010de"}) == {0: entry}


def test_all_leaves_out_gpus_without_mig() -> None:
    assert layout_file.choose([ALL, OFF], gpus(True, False), {}) == {0: ALL}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (ALL._replace(devices=(1,)), "MIG mode for GPU 1: this GPU has none"),
        (OFF._replace(devices=(7,)), "names GPU 7"),
    ],
)
def test_a_layout_for_other_gpus(entry: Entry, problem: str) -> None:
    with pytest.raises(GpushimError, match=problem):
        layout_file.choose([entry], gpus(True, False), {})


def test_a_sick_gpu_is_left_out_unless_it_is_named() -> None:
    sick = [{**gpus(True)[0], "problem": "GPU 0 hangs"}, gpus(True, True)[1]]
    assert layout_file.choose([ALL], sick, {}) == {1: ALL}
    with pytest.raises(GpushimError, match="GPU 0 hangs"):
        layout_file.choose([OFF._replace(devices=(0,))], sick, {})
