"""A snapshot that does not count: the check names the one reason that it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim.doctor import check_state
from unit.gpushim.doctor.patient import Patient

pytestmark = pytest.mark.slow


def changed(**members: object) -> Callable[[Patient, Path], object]:
    return lambda patient, path: path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def a_directory(patient: Patient, path: Path) -> None:
    path.unlink()
    path.mkdir()


def linked(patient: Patient, path: Path) -> None:
    os.rename(path, path.with_name("other"))
    path.symlink_to("other")


def of_another_time(patient: Patient, path: Path) -> None:
    patient.configure(Path(patient.config).read_text() + "\n# another\n")


REASONS: dict[str, tuple[Callable[[Patient, Path], object], str]] = {
    "damaged": (lambda _, path: path.write_text('{"version": 4'), "it is damaged, or"),
    "of odd members": (changed(inputs=3), "it is damaged"),
    "a link": (linked, "it is not a regular file"),
    "a directory": (a_directory, "it is not a regular file"),
    "writable": (lambda _, path: path.chmod(0o666), "users other than root own it, or can write to it"),
    "somebody else's": (
        lambda _, path: os.chown(path, 1000, 1000),
        "users other than root own it, or can write to it",
    ),
    "huge": (lambda _, path: os.truncate(path, 17 << 20), "it has more than 16777216 bytes"),
    "of another gpushim": (changed(gpushim="0.0.1"), "another version of gpushim wrote it (0.0.1; this is "),
    "of another configuration": (changed(inputs={"config": "/other.toml"}), "it was made with /other.toml"),
    "of other words": (changed(told=[]), "a file beside it, which launcher or hook read, has changed"),
    "of another time": (of_another_time, "config.toml has changed since"),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_and_its_fix(patient: Patient, name: str) -> None:
    break_it, words = REASONS[name]
    path = Path(patient.state, "inventory.json")
    break_it(patient, path)
    patient.reread()
    (found,) = check_state.snapshot(patient.host)
    assert (found.verdict, found.fix) == ("warning", "gpushim refresh")
    assert words in found.evidence
    if name != "a directory":  # the disk's own trouble
        assert patient.refresh("--force")[0] == 0
        assert [each.verdict for each in check_state.snapshot(patient.host)] == ["ok"]
