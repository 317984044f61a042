"""`gpushim configure containerd` where k3s, rke2 or MicroK8s is installed and its containerd does not run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from gpushim.engines.containerd import process, services
from gpushim.engines.processes import programs, units
from gpushim.engines.processes.running import Engine
from gpushim.ground import system

Call = Callable[..., Result]
GENERATED = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "{}"\n'


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which nothing is installed yet; root's, whoever runs this."""
    paths = {name: str(tmp_path) + path for name, path in services.CONFIGS.items()}
    own = {name: str(tmp_path) + path for name, path in services._PROGRAMS.items()}
    monkeypatch.setattr(services, "CONFIGS", paths)
    monkeypatch.setattr(services, "_PROGRAMS", own)
    monkeypatch.setattr(programs, "DIRECTORIES", (f"{tmp_path}/bin",))
    monkeypatch.setattr(process, "SYSTEM_PATH", f"{tmp_path}/bin")
    monkeypatch.setattr(process, "SYSTEM_CONFIG", f"{tmp_path}/etc/containerd/config.toml")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def install(name: str) -> Path:
    """Lay down what a service has made at its first start."""
    config = Path(services.CONFIGS[name])
    config.parent.mkdir(parents=True)
    config.write_text(GENERATED.format("io.containerd.runc.v2"))
    if name == "microk8s":
        config.with_name("containerd-template.toml").write_text(config.read_text())
    return config


def program(path: Path, version: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho containerd x v{version}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "file"),
    [("k3s", "config.toml.tmpl"), ("rke2", "config.toml.tmpl"), ("microk8s", "containerd-template.toml")],
)
def test_the_one_that_is_installed_is_found(name: str, file: str, host: Path, call: Call) -> None:
    config = install(name)
    done = call("containerd", None)
    assert (done.exit_code, f"changed {config.with_name(file)}" in done.output) == (0, True), done.output
    assert f"no containerd runs, and {name} is installed: its settings, {config}, are meant" in done.output
    assert f"{name} does not run; start it" in done.output
    assert "gpushim-runtime" in config.with_name(file).read_text()
    assert not (host / "etc/containerd").exists()


def test_two_services_need_a_word(host: Path, call: Call) -> None:
    for name in ("k3s", "rke2"):
        install(name)
    assert "choose one with --config" in str(call("containerd", None).exception)
    assert call("containerd", Path(services.CONFIGS["rke2"])).exit_code == 0


@pytest.mark.parametrize("by", ["program", "settings", "process"])
def test_a_containerd_of_its_own_beside_one_needs_a_word(
    by: str, host: Path, call: Call, engines: list[Engine]
) -> None:
    """Docker's package brings one, too."""
    config, own = install("k3s"), host / "etc/containerd/config.toml"
    if by == "program":
        program(host / "bin/containerd", "1.7.1")
    elif by == "settings":
        own.parent.mkdir(parents=True)
        own.touch()
    else:
        engines.append(Engine("containerd", 7, config=str(own)))
    assert str(call("containerd", None).exception) == (
        f"containerd with {own} and k3s with {config} are installed; choose one with --config"
    )
    assert not config.with_name("config.toml.tmpl").exists()


def test_one_that_runs_is_meant(host: Path, call: Call, engines: list[Engine]) -> None:
    config = install("k3s")
    program(host / "bin/containerd", "1.7.1")
    engines.append(Engine("containerd", 7, config=str(config)))
    assert f"changed {config.with_name('config.toml.tmpl')}" in call("containerd", None).output


def test_its_own_program_tells_the_version(host: Path, call: Call) -> None:
    """The system's older one would not read such a file."""
    config = install("k3s")
    config.write_text(
        config.read_text().replace("version = 2", "version = 3").replace("grpc.v1.cri", "cri.v1.runtime")
    )
    program(host / "bin/containerd", "1.6.20")
    program(Path(services._PROGRAMS["k3s"]), "2.1.4")
    assert call("containerd", config).exit_code == 0
    assert "gpushim-runtime" in config.with_name("config-v3.toml.tmpl").read_text()


def test_what_does_not_run_is_not_restarted(host: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another containerd's unit has nothing to do with it."""
    install("k3s")
    monkeypatch.setattr(system, "SYSTEMD", str(host))
    monkeypatch.setattr(units, "restart", lambda arguments: pytest.fail(f"{arguments}"))
    assert "k3s does not run; start it" in str(call("containerd", None, "--restart").exception)


@pytest.mark.parametrize(
    ("wanted", "unit"), [("k3s-agent.service", "k3s-agent.service"), ("k3s.service", "k3s.service")]
)
def test_the_unit_of_an_agent(wanted: str, unit: str, tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system/multi-user.target.wants"
    folder.mkdir(parents=True)
    (folder / wanted).touch()
    assert services.unit("k3s", str(tmp_path)) == unit
