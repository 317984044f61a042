"""Which programs may be executed, and that all who execute an engine's take no others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushim.doctor import Host, check_cdi, check_kubernetes, check_podman, report
from gpushim.engines import crio
from gpushim.engines import podman as podman_settings
from gpushim.engines.containerd import process
from gpushim.engines.docker import inspect
from gpushim.engines.processes import programs, units
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings.setup import Options
from gpushim.engines.settings.setup import Plan as Planned
from gpushim.ground.errors import GpushimError

NAMES = ("podman", "docker", "dockerd", "systemctl", "kubectl", "k3s", "containerd", "ctr", "crictl", "crio")
WISH, PLAN = Options("nvidia", "/usr/bin/gpushim-runtime"), Planned("/x", [], [])
CALLERS: dict[str, Callable[[Host], Any]] = {
    "doctor, podman": lambda host: list(check_podman.program(host)),
    "doctor, versions of engines": check_cdi._engines,
    "doctor, report": report._versions,
    "doctor, RuntimeClass": lambda host: list(check_kubernetes.runtime_class(host)),
    "configure podman": lambda _: podman_settings.verify(WISH, PLAN),
    "configure crio": lambda _: crio.verify(WISH, PLAN),
    "configure containerd": lambda _: process.dump(process.Daemon("/x")),
    "configure --restart": lambda _: units.restart(["restart", "docker"]),
    "explain": lambda _: inspect.inspect("web"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first directory, in the table and on PATH, with a program of every name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/marker\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(programs, "DIRECTORIES", (str(folder),))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_only_what_nobody_else_could_have_put_there(folder: Path, tmp_path: Path, mode: int, name: str) -> None:
    for path in ("var/lib/kubelet", "etc/kubernetes"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "etc/kubernetes/admin.conf").touch()
    top = str(tmp_path) if "RuntimeClass" in name else ""
    if top:
        (tmp_path / str(folder)[1:]).parent.mkdir(parents=True)
        folder.rename(tmp_path / str(folder)[1:])
        folder = tmp_path / str(folder)[1:]
    folder.chmod(mode)
    with contextlib.suppress(GpushimError):
        CALLERS[name](Host(config="", state="", top=top, engines=[Engine("crio", 7)]))
    assert (tmp_path / "marker").exists() == (mode == 0o755)


@pytest.mark.parametrize("name", CALLERS)
def test_root_takes_nothing_from_path(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "DIRECTORIES", ("/nonexistent",))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with contextlib.suppress(GpushimError):
        CALLERS[name](Host(config="", state="", engines=[Engine("crio", 7)]))
    assert not (tmp_path / "marker").exists()


def test_an_ordinary_user_has_programs_of_his_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "DIRECTORIES", ("/first",))
    monkeypatch.setenv("PATH", f"{folder}:relative::/first")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert programs.path() == f"/first:{folder}"


def test_why_there_is_none(folder: Path) -> None:
    folder.chmod(0o775)
    assert programs.absent("podman").startswith(f"{folder}/podman is not executed: others could have put it there")
    assert programs.absent("nerdctl").startswith("nerdctl is not installed")
