"""A healthy host has no complaints, and the checks change nothing on it."""

from __future__ import annotations

import os

from gpushim.doctor import checks
from unit.gpushim.doctor.patient import Patient


def test_no_complaints(patient: Patient) -> None:
    assert patient.complaints() == {}


def test_every_check_says_something(patient: Patient) -> None:
    said = {found.check for found in patient.examined()}
    # These have nothing to look at on a host without k3s and CRI-O.
    assert said == set(checks.table(())) - {"kubernetes-template", "crio-runtime", "crio-hooks", "crio-cdi"}


def test_nothing_changes(patient: Patient) -> None:
    def everything() -> dict[str, tuple[int, int]]:
        paths = (os.path.join(folder, name) for folder, _, names in os.walk(patient.folder) for name in names)
        return {path: (os.lstat(path).st_ino, os.lstat(path).st_mtime_ns) for path in paths}

    before = everything()
    patient.examined()
    assert everything() == before
