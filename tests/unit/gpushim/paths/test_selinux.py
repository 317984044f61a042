"""Labels of SELinux: those of files that have one, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpushim.paths import selinux
from unit.gpushim import labels


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.touch()
    return made


def test_without_selinux_no_file_gets_a_label(file: Path) -> None:
    selinux.give(str(file), selinux.READABLE)
    selinux.as_above(str(file), str(file.parent))
    assert not os.listxattr(file)
    assert selinux.type_of(str(file)) == ""


def test_a_file_that_is_gone_has_no_label(tmp_path: Path) -> None:
    selinux.give(f"{tmp_path}/gone", selinux.READABLE)
    assert selinux.type_of(f"{tmp_path}/gone") == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("system_u:object_r:var_run_t:s0", "system_u:object_r:container_ro_file_t:s0"),
        ("unconfined_u:object_r:user_tmp_t:s0:c1,c2", "system_u:object_r:container_ro_file_t:s0"),
        ("system_u:object_r:var_run_t", "system_u:object_r:container_ro_file_t"),  # a policy without levels
    ],
)
def test_all_containers_may_read_what_is_readable(file: Path, before: str, after: str) -> None:
    os.setxattr(file, selinux.ATTRIBUTE, before.encode() + b"\0")
    fd = os.open(file, os.O_WRONLY)
    selinux.give(fd, selinux.READABLE)
    os.close(fd)
    assert labels.of(file) == after


def test_a_label_that_the_policy_does_not_know_leaves_the_file_its_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    labels.label(file, labels.RUN)
    monkeypatch.setattr(os, "setxattr", refused)
    selinux.give(str(file), selinux.READABLE)
    assert selinux.type_of(str(file)) == labels.RUN


def test_a_file_gets_the_label_of_its_directory(file: Path) -> None:
    labels.label(file, selinux.STATE)
    labels.label(file.parent, labels.RUN)
    selinux.as_above(str(file), str(file.parent))
    assert labels.of(file) == labels.of(file.parent)
