"""`nvidia-ctk` hands each of its commands to the one of gpushim's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gpushim.engines.settings.setup import PROGRAM
from gpushim.inventory import present, procfs
from gpushim.nvidia import ctk
from unit.gpushim.cdi import hosts
from unit.gpushim.cli.commands import REPOSITORY, apart

SYSTEM = "gpushim.cli.system"
OURS = "# ours\n[runtime]\nlow-level = ['crun']\n"


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(OURS)
    monkeypatch.setattr("gpushim.ground.system.config_path", lambda: str(path))
    return path


def run(*words: str, code: int = 0) -> Result:
    result = apart().invoke(ctk.main, words)
    assert result.exit_code == code, (words, result.stdout, result.stderr, result.exception)
    return result


def configured(tmp_path: Path, *words: str) -> dict[str, Any]:
    run("runtime", "configure", f"--config={tmp_path}/daemon.json", *words)
    data: dict[str, Any] = json.loads((tmp_path / "daemon.json").read_text())
    return data


def test_configure_docker(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text('{"features": {"x": true}, "runtimes": {"nvidia": {"path": "/old"}}}')
    data = configured(tmp_path, "--cdi.enabled", "--nvidia-set-as-default")
    assert data["runtimes"]["nvidia"]["path"].endswith(f"/{PROGRAM}")
    assert data["default-runtime"] == "nvidia"
    assert data["features"] == {"x": True, "cdi": True}


@pytest.mark.parametrize("option", ["--nvidia-runtime-path", "--runtime-path"])
def test_configure_with_nvidias_path(tmp_path: Path, option: str) -> None:
    data = configured(tmp_path, f"{option}=/usr/bin/nvidia-container-runtime", "--nvidia-runtime-name=gpu")
    assert data["runtimes"]["gpu"]["path"].endswith(f"/{PROGRAM}")


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_configure_dry_run(tmp_path: Path, engine: str) -> None:
    path = tmp_path / ("daemon.json" if engine == "docker" else "x.toml")
    options = ("--drop-in-config=/x", "--config-source=file", "--dry-run")
    result = run("--debug", "runtime", "configure", f"--runtime={engine}", f"--config={path}", *options)
    assert f"/{PROGRAM}" in result.stdout
    assert result.stderr.startswith("warning: --drop-in-config is ignored: gpushim decides")
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["runtime", "configure", "--runtime=rkt"], "--runtime=rkt is not known"),
        (["runtime", "configure", "--config-mode=oci-hook"], "gpushim configure podman --hooks"),
        (["frob"], "has no command frob; it has hook, cdi, config, info, runtime, system"),
        (["config", "--set", "made-up=1"], "undefined field"),
        (["config", "--set", "disable-require=maybe"], "want true or false"),
        (["config", "--set", "swarm-resource"], "want KEY=VALUE"),
        (["config", "-o", "x"], "is not done here"),
        (["system", "create-dev-char-symlinks", "--dev-char-path=/x"], "is not done here"),
    ],
)
def test_refusals(ours: Path, words: list[str], text: str) -> None:
    result = run(*words, code=1)
    assert result.stderr.startswith("nvidia-ctk: ")
    assert text in result.stderr
    assert ours.read_text() == OURS


def test_config_shows_ours(ours: Path) -> None:
    assert run("config").stdout == OURS
    ours.unlink()
    assert run("config").stdout.startswith("# all is as by default")


def test_config_set(ours: Path) -> None:
    words = ("--set", "nvidia-container-cli.no-cgroups", "--set", "nvidia-container-runtime.runtimes=runc:crun")
    result = run("config", *words)
    assert result.stdout == '# ours\n[runtime]\nlow-level = ["runc", "crun"]\n\n[hook]\ndevice-rules = false\n'
    assert result.stderr.splitlines()[0] == "nvidia-container-cli.no-cgroups: [hook] device-rules = false"
    assert ours.read_text() == OURS
    run("config", "--in-place", *words)
    assert ours.read_text() == result.stdout


@pytest.mark.parametrize("more", [[], ["--in-place"]])
def test_config_set_that_is_left_out(ours: Path, more: list[str]) -> None:
    words = ["--set", "supported-driver-capabilities=utility", "--set", "disable-require", *more]
    result = run("config", *words, code=1)
    assert "supported-driver-capabilities: left out: " in result.stderr
    told = "--set has what config.toml cannot say: supported-driver-capabilities; read above what each means here"
    assert f"{told}, and leave it out once that will do" in result.stderr
    assert ("disable-require = true" in ours.read_text()) == bool(more)


def test_config_as_nvidias_packages_call_it(ours: Path) -> None:
    path = "/etc/nvidia-container-runtime/config.toml"
    result = run("--quiet", "config", f"--config-file={path}", "--in-place")
    assert result.stdout == ""
    assert "gpushim migrate" in result.stderr
    assert ours.read_text() == OURS


def test_config_default() -> None:
    assert "\naccept-env-when-unprivileged = true\n" in run("config", "default").stdout


def test_cdi() -> None:
    spec = json.loads(run("cdi", "generate", "--format=json", "--device-name-strategy=index").stdout)
    assert {"0", "1", "all"} <= {device["name"] for device in spec["devices"]}
    assert "--relative-to" in run("cdi", "transform", "root", "--help").stdout


def test_info(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hosts.mixed(runtime="/usr/bin/runc")
    monkeypatch.setattr(present, "snapshot", lambda *_: snapshot)
    assert "535.183.01" in run("info").stdout


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(procfs, "module_version", lambda _: "535")
    monkeypatch.setattr(f"{SYSTEM}.missing_nodes", lambda root, _: [] if "nodes" in calls else [f"{root}/nodes"])
    monkeypatch.setattr(f"{SYSTEM}.missing_links", lambda root, _: [] if calls else [(f"{root}/links", "", 0)])

    def work(name: str) -> Callable[[str, str], list[str]]:
        def made(_root: str, _proc: str) -> list[str]:
            calls.append(name)
            return []

        return made

    monkeypatch.setattr(f"{SYSTEM}.make", work("nodes"))
    monkeypatch.setattr(f"{SYSTEM}.link", work("links"))
    return calls


@pytest.mark.parametrize(
    ("words", "calls", "said"),
    [
        (
            ["create-device-nodes", "--control-devices", "--driver-root=/d"],
            ["nodes"],
            "made /d/nodes\nmade /d/links\n",
        ),
        (["create-device-nodes", "--dry-run", "--dev-root=/v"], [], "would make /v/nodes\nwould make /v/links\n"),
        (["create-dev-char-symlinks", "--create-all", "--dev-root=/v"], ["links"], "made /v/links\n"),
        (["create-dev-char-symlinks", "--create-device-nodes"], ["nodes"], "made //nodes\nmade //links\n"),
    ],
)
def test_system(made: list[str], words: list[str], calls: list[str], said: str) -> None:
    assert run("system", *words).stdout == said
    assert made == calls


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--version"], 0, "nvidia-ctk of gpushim version "),
        (["frob"], 1, "has no command frob"),
        (["hook"], 0, "no hook is named"),
        (["--debug", "hook", "made-up"], 0, "no hook 'made-up'"),
        (["cdi", "frob"], 2, "No such command 'frob'"),
    ],
)
def test_the_program(words: list[str], code: int, text: str) -> None:
    command = [str(REPOSITORY / "bin/nvidia-ctk"), *words]
    done = subprocess.run(command, capture_output=True, text=True, env={}, check=False, timeout=60)
    assert done.returncode == code
    assert text in done.stdout + done.stderr
