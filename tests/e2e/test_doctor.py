"""The doctor with real engines: what dockerd and containerd themselves say, and test containers under each.

Other engines on this machine are none of its business here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.bundles import RUNTIME
from e2e.engines import Containerd, Docker, dockerd
from e2e.leftovers import state, until
from e2e.podman import CONTAINERS_CONF, STORAGE_CONF
from fakehost import Host
from gpushim import doctor
from gpushim.doctor import Finding, checks, run
from gpushim.engines.processes import running

LOOK = running.look
HOOK = "nvidia-container-runtime-hook"


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch, gpushim_env: dict[str, str]) -> list[str]:
    """Directories whose engines are looked at; the doctor has the simulated host's settings."""
    folders: list[str] = []
    for name, value in gpushim_env.items():
        monkeypatch.setenv(name, value)

    def look() -> tuple[list[running.Engine], list[running.Impostor]]:
        found = [engine for engine in LOOK()[0] if engine.config.startswith(tuple(folders))] if folders else []
        return found, []

    monkeypatch.setattr(running, "look", look)
    return folders


@pytest.fixture
def hooked(tmp_path: Path, gpushim_env: dict[str, str]) -> Iterator[Docker]:
    """A dockerd with our hook on its PATH, and no runtime."""
    os.symlink(RUNTIME.with_name("gpushim-hook"), tmp_path / HOOK)
    with dockerd({}, env=gpushim_env, path_dirs=(tmp_path,)) as engine:
        yield engine


def verdicts(*named: str) -> dict[str, Finding]:
    return {found.check: found for found in checks.run(doctor.look(named))}


def test_dockerd_that_has_the_runtime(docker: Docker, mine: list[str]) -> None:
    mine.append(str(docker.state))
    found = verdicts("docker")
    assert found["docker-runtime"].evidence == "dockerd knows the runtime nvidia"
    for name in ("docker-daemon", "docker-program", "docker-hook-alone", "docker-restart"):
        assert found[name].verdict == "ok", found[name]
    assert found["docker-cdi"].evidence == "Docker does CDI from version 25 on"
    # This PATH has no hook, and `docker run --gpus` fails as the doctor says.
    assert found["docker-hook"].verdict == "warning"
    refused = docker.docker("run", "--gpus=all", "debian:local", "true", check=False).stderr
    assert "could not select device driver" in refused
    assert "could not select device driver" in found["docker-hook"].evidence


def test_dockerd_that_has_only_the_hook(hooked: Docker, mine: list[str], tmp_path: Path) -> None:
    mine.append(str(hooked.state))
    found = verdicts("docker")
    assert found["docker-hook"].evidence.startswith(f"{tmp_path}/{HOOK} is on the PATH of dockerd")
    assert found["docker-runtime"].verdict == "warning"
    assert found["docker-runtime"].fix.startswith("gpushim configure docker; then restart dockerd (process ")


def test_what_came_after_dockerd_started(hooked: Docker, mine: list[str], tmp_path: Path) -> None:
    mine.append(str(hooked.state))
    started = next(engine.started for engine in running.look()[0] if engine.name == "dockerd")
    assert until(lambda: time.time() > started + running.SLACK + 0.1, 10)  # so exact is that time
    config = hooked.state / "daemon.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "runtimes": {"nvidia": {"path": str(RUNTIME)}}}))
    found = verdicts("docker")
    assert "which the running dockerd does not know" in found["docker-runtime"].evidence
    assert found["docker-restart"].verdict == "warning"
    (tmp_path / HOOK).unlink()
    os.symlink(RUNTIME.with_name("gpushim-hook"), tmp_path / HOOK)
    assert verdicts("docker")["docker-restart"].fix.startswith("restart dockerd (process ")


def test_containerd_that_has_the_handler(containerd: Containerd, mine: list[str]) -> None:
    mine.append(str(containerd.state))
    found = verdicts("containerd")
    for name in ("containerd-daemon", "containerd-runtime", "containerd-cgroups", "containerd-restart"):
        assert found[name].verdict == "ok", found[name]
    assert found["containerd-cdi"].evidence == "this containerd does not do CDI"


def enxio(found: list[Finding], check: str, host: Host) -> None:
    """Assert that a test container had all nodes, which no driver stands behind here, and that libraries load."""
    (evidence,) = [finding.evidence for finding in found if check in f"{finding.check} {finding.evidence}"]
    names, _, result = evidence.partition(" cannot be opened in a container: ")
    nodes = {f"/dev/nvidia{gpu.minor}" for gpu in host.gpus} | {"/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert nodes <= {*names.split(", ")}, found
    assert result.startswith("No such device or address"), found


def test_a_container_under_no_engine(gpu_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.Host, "program", lambda *_: "")  # this machine's own Podman stays out of it
    enxio(run.containers(doctor.look()), "run-runc", gpu_host)


def test_a_container_under_docker(docker: Docker, gpu_host: Host, mine: list[str]) -> None:
    mine.append(str(docker.state))
    images = docker.docker("images", "--quiet").stdout
    enxio(run.containers(doctor.look(("docker",))), "run-docker", gpu_host)
    assert docker.docker("images", "--quiet").stdout == images


def test_a_container_under_containerd(containerd: Containerd, gpu_host: Host, mine: list[str]) -> None:
    mine.append(str(containerd.state))
    enxio(run.containers(doctor.look(("containerd",))), "run-containerd", gpu_host)
    assert "gpushim-doctor" not in containerd.ctr("containers", "list").stdout


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose name is short: where a runroot has more than 50 characters, Podman waits 20 s for an end."""
    with state() as directory:
        yield directory


def test_a_container_under_podman(
    tmp_path: Path, short: Path, gpu_host: Host, gpushim_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Podman hands its own variables on to no runtime.
    exports = "".join(f"export {name}={value}\n" for name, value in gpushim_env.items())
    program = tmp_path / RUNTIME.name
    program.write_text(f'#!/bin/sh\n{exports}exec {RUNTIME} "$@"\n')
    program.chmod(0o755)
    engine = f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\ntmp_dir = "{tmp_path}/tmp"\n'
    runtimes = f'[engine.runtimes]\nnvidia = ["{program}"]\n'
    (tmp_path / "containers.conf").write_text(CONTAINERS_CONF + engine + runtimes)
    (tmp_path / "storage.conf").write_text(STORAGE_CONF.format(state=short, images="[]"))
    monkeypatch.setenv("CONTAINERS_CONF", f"{tmp_path}/containers.conf")
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", f"{tmp_path}/storage.conf")
    enxio(run.containers(doctor.look(("podman",))), "run-podman", gpu_host)


def test_a_refusal_is_told(gpushim_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "config.toml"
    wrong.write_text("[driver]\nrot = 1\n")
    monkeypatch.setenv("GPUSHIM_CONFIG", str(wrong))
    monkeypatch.setattr(doctor.Host, "program", lambda *_: "")
    (found,) = run.containers(doctor.look())
    assert "did you mean driver.root?" in found.evidence
