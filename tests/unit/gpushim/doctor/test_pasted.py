"""What an administrator pastes does not execute what a stranger named: every fix, below a hostile directory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushim.doctor import Finding
from gpushim.engines.processes.running import Engine
from unit.gpushim.doctor import engine_states
from unit.gpushim.doctor.engine_states import only_runc
from unit.gpushim.doctor.fault import State
from unit.gpushim.doctor.general_states import STATES as GENERAL
from unit.gpushim.doctor.patient import RUNTIME, Patient

HOSTILE = "a b;>pwned;"
# The sick say the same of themselves wherever they are; the file of the last is named by Podman.
ELSEWHERE = ("hung_gpu", "nvml_hangs", "nvml_is_slow", "nvml_is_too_slow", "podmans_file_is_broken")
STATES = [each for each in (*GENERAL, *engine_states.STATES) if each.name not in ELSEWHERE]
CRIO = """[crio.runtime.runtimes."nvidia;>pwned;"]
runtime_path = "/gone/nvidia-container-runtime"
[crio.runtime.runtimes.nvidia]
runtime_path = "{runtime}"
[crio.runtime]
hooks_dir = ["{top}/hooks.d"]
cdi_spec_dirs = ["/none"]
"""


@pytest.fixture
def hostile(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    """A healthy host below a directory whose name says more than a name to a shell."""
    folder = tmp_path / HOSTILE
    folder.mkdir()
    monkeypatch.setenv("GPUSHIM_STATE", str(folder / "state"))
    found = Patient(folder, refreshed=getattr(request, "param", False))
    found.patch = monkeypatch
    monkeypatch.setattr("gpushim.engines.docker.dockerd.ask", found.docker)
    with found.listening():
        yield found


def bare(fix: str) -> str:
    """Return what a shell takes for more than the text of a word."""
    return re.sub("'[^']*'", "", fix)


def pasted(found: list[Finding]) -> None:
    assert [each.fix for each in found if "pwned" in bare(each.fix)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hostile", "state"), [(each in GENERAL, each) for each in STATES], ids=map(str, STATES), indirect=["hostile"]
)
def test_fix(hostile: Patient, state: State) -> None:
    state.found(hostile)
    pasted(hostile.said(state.check))


@pytest.mark.parametrize("service", ["k3s", "rke2"])
def test_more_than_one_of_an_engine(hostile: Patient, service: str) -> None:
    """Then a fix names the settings that it is about."""
    hostile.write(f"var/lib/rancher/{service}/agent/etc/containerd/config.toml", "")
    hostile.host.engines += [replace(each, pid=each.pid + 100) for each in hostile.host.engines]
    only_runc(hostile)
    hostile.write("etc/docker/daemon.json", "{}")
    hostile.write(
        "containerd.toml", (hostile.top / "containerd.toml").read_text().replace(str(RUNTIME), "/gone/nvidia")
    )
    found = [each for check in ("docker-runtime", "containerd-runtime") for each in hostile.said(check)]
    assert sum("--config=" in each.fix and "pwned" in each.fix for each in found) >= 2
    pasted([*found, *hostile.said("kubernetes-template")])


def test_crio(hostile: Patient) -> None:
    top = hostile.root
    hostile.write("etc/crio/crio.conf", CRIO.format(top=top, runtime=RUNTIME))
    hostile.write("hooks.d/x;>pwned;.json", '{"hook": {"path": "/gone/nvidia-container-toolkit"}}')
    config = f"{top}/etc/crio/crio.conf"
    hostile.host.engines[:] = [Engine("crio", 43, config=config, argv=("crio", "--config-dir="), uid=os.geteuid())]
    with contextlib.suppress(FileNotFoundError):
        (hostile.top / "run/systemd/system").rmdir()
    found = [each for check in ("crio-runtime", "crio-hooks", "crio-cdi") for each in hostile.said(check, "crio")]
    assert sum("pwned" in each.fix for each in found) == 3
    pasted(found)


def test_podmans_file(hostile: Patient) -> None:
    hostile.script("usr/bin/podman", 'echo "decode configuration /home/x/;>pwned;/containers.conf: bad" >&2; exit 1')
    found = hostile.said("podman-program")
    assert "pwned" in found[0].fix
    pasted(found)


@pytest.mark.parametrize("fix", ["rm /a b;>pwned;", "move it from dockerd's file to '/a b;>pwned;'"])
def test_what_is_not_quoted_is_seen(fix: str) -> None:
    assert "pwned" in bare(fix)
