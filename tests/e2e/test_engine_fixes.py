"""What `gpushim doctor` advises about real engines, done as it says: their own answers then tell that all is well.

The table of all states and fixes is a unit test's; here is what only the engines themselves can show. No systemd runs
them, so the doctor says that they are to be restarted the way they were started, which is what is done.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from e2e import chroots, engines, leftovers
from e2e.bundles import RUNTIME
from e2e.engines import Containerd, Docker
from fakehost import Host
from gpushim import doctor
from gpushim.cli import main
from gpushim.doctor import Finding, checks
from gpushim.engines import docker
from gpushim.engines.docker import dockerd as daemon
from gpushim.engines.processes import running

LOOK = running.look
GONE = "/gone/gpushim-runtime"
PAUSE = "docker.io/library/pause:local"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpushim_env: dict[str, str]) -> Iterator[Path]:
    """A directory for an engine; of those of this machine, the ones that have it as theirs are looked at alone."""
    for name, value in gpushim_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(daemon, "LINKS", f"{tmp_path}/bin")  # where `configure` makes links
    with leftovers.state() as state:
        monkeypatch.setattr(
            running, "look", lambda *_: ([each for each in LOOK()[0] if each.config.startswith(str(state))], [])
        )
        yield state


def said(*named: str) -> dict[str, Finding]:
    """The gravest finding of each check."""
    found = sorted(checks.run(doctor.look(named)), key=lambda each: checks.ORDER.index(each.verdict))
    return {each.check: each for each in found}


def gpushim(command: str) -> Result:
    words = command.split()
    assert words[0] == "gpushim"
    return CliRunner().invoke(main, words[1:])


@contextlib.contextmanager
def dockerd(state: Path, prefix: tuple[str, ...] = (), **settings: object) -> Iterator[Docker]:
    """A dockerd with the settings that are there now, or with these."""
    config = state / "daemon.json"
    if settings:
        places = {"data-root": f"{state}/data", "exec-root": f"{state}/exec", "pidfile": f"{state}/docker.pid"}
        apart = {"bridge": "none", "iptables": False, "ip6tables": False, "cgroup-parent": f"/{state.name}"}
        config.write_text(json.dumps({"hosts": [f"unix://{state}/docker.sock"], **places, **apart, **settings}))
    engine = Docker(state, prefix)
    ready = [*prefix, engines.DOCKER, f"--host=unix://{engine.socket}", "version"]
    command = [*prefix, engines.DOCKERD, f"--config-file={config}"]
    with engines._daemon(command, engine.log, {"PATH": engines.SYSTEM_PATH}, ready):
        yield engine


def test_a_runtime_of_dockers_that_is_gone(state: Path) -> None:
    names = ("docker-runtime", "docker-program", "docker-restart")
    with dockerd(state, runtimes={"nvidia": {"path": GONE}}):
        found = said("docker")
        assert [found[name].verdict for name in names] == ["ok", "broken", "ok"]
        command, _, again = found["docker-program"].fix.partition("; then ")
        assert again.startswith("restart dockerd (process ")
        assert gpushim(command).exit_code == 0
        # Until then the dockerd that runs has the old one, and says so.
        found = said("docker")
        assert f"and the dockerd that runs has {GONE}" in found["docker-restart"].evidence
        assert found["docker-restart"].fix == again
    with dockerd(state):
        found = said("docker")
        assert [found[name].verdict for name in names] == ["ok", "ok", "ok"]
        assert gpushim("gpushim configure docker --verify").output.endswith("has the runtime nvidia\n")
        assert (
            "Docker still has the old settings: restart dockerd"
            in gpushim("gpushim configure docker --remove").output
        )
        assert "does not have any more" in said("docker")["docker-restart"].evidence
    refused = gpushim(f"gpushim configure docker --config={state}/daemon.json --verify").output
    assert f"no dockerd runs, so only {state}/daemon.json was looked at, which does not have" in refused


def test_a_file_that_the_next_start_would_refuse(state: Path) -> None:
    """dockerd runs, and its file is spoilt: nothing says to restart it, and nothing is written."""
    with dockerd(state, runtimes={"nvidia": {"path": str(RUNTIME)}}):
        config = state / "daemon.json"
        good = config.read_text()
        for bad in ({"features": {"cdi": "true"}}, {"default-runtime": "nvida"}):
            text = json.dumps({**json.loads(good), **bad})
            config.write_text(text)
            found = [each for each in said("docker").values() if each.check.startswith("docker-") and each.fix]
            assert [(each.check, each.fix) for each in found] == [("docker-runtime", f"correct {config}")]
            assert "would not start" in gpushim("gpushim configure docker --verify").output
            gpushim("gpushim configure docker --runtime-name=other")
            assert config.read_text() == text
        # With less in it than dockerd has, a restart comes second.
        config.write_text(json.dumps({**json.loads(good), "runtimes": {}}))
        command, _, again = said("docker")["docker-restart"].fix.partition("; then ")
        assert "which dockerd loses" in gpushim("gpushim configure docker --verify").output
        assert "--runtime=nvidia" in gpushim("gpushim configure docker --cdi").output
        assert (gpushim(command).exit_code, again.startswith("restart dockerd")) == (0, True)
        assert json.loads(config.read_text()) == json.loads(good)


@pytest.mark.parametrize("suite", chroots.SUITES)
def test_newer_dockerds_say_what_they_would_not_start_with(suite: str, tmp_path: Path) -> None:
    with chroots.entered(suite) as place:
        dockerd = tmp_path / "dockerd"
        dockerd.write_text(f'#!/bin/sh\nexec {shlex.join([*place.prefix, engines.DOCKERD])} "$@"\n')
        dockerd.chmod(0o755)
        for text in ('{"log-drver": "x"}', '{"debug": "yes"}', '{"data-root": 5}'):
            assert "/x: dockerd says: " in docker.wrong(text.encode(), "/x", str(dockerd))
        for text in ("", '{"features": {"cdi": true}}', '{"runtimes": {"nvidia": {"path": "/x"}}}'):
            assert docker.wrong(text.encode(), "/x", str(dockerd)) == ""


def test_a_runtime_by_type_is_known_to_verify(state: Path, gpu_host: Host) -> None:
    """This Docker tells nothing of such a runtime but its name."""
    ours = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": str(RUNTIME)}}
    runtimes = {"nvidia": ours, "other": {**ours, "options": {}}}
    with (
        chroots.entered("trixie", Path(gpu_host.root), view="v1") as place,
        dockerd(state, place.prefix, runtimes=runtimes),
    ):
        verify = f"gpushim configure docker --config={state}/daemon.json --verify"
        assert gpushim(verify).output.endswith("has the runtime nvidia\n")
        assert "does not have the runtime other" in gpushim(f"{verify} --runtime-name=other").output


@contextlib.contextmanager
def containerd(state: Path) -> Iterator[Containerd]:
    engine = Containerd(state)
    ready = [engines.CTR, f"--address={engine.socket}", "version"]
    command = [engines.CONTAINERD, f"--config={state}/config.toml"]
    with engines._daemon(command, engine.log, {"PATH": engines.SYSTEM_PATH}, ready):
        yield engine


def test_a_handler_of_containerds_that_is_gone_and_has_another_cgroup_driver(state: Path) -> None:
    names = ("containerd-daemon", "containerd-runtime", "containerd-cgroups", "containerd-restart")
    handler = engines.HANDLER_CONFIG.format(name="nvidia", path=GONE, state=state)
    text = engines.CONTAINERD_CONFIG.format(state=state, pause=PAUSE, more="", default="runc")
    runc = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
    config = state / "config.toml"
    config.write_text(f"{text}{runc}{handler}SystemdCgroup = false\n")
    with containerd(state):
        found = said("containerd")
        assert [found[name].verdict for name in names] == ["ok", "broken", "broken", "ok"]
        command, _, again = found["containerd-runtime"].fix.partition("; then ")
        assert found["containerd-cgroups"].fix == found["containerd-runtime"].fix
        assert again.startswith("restart containerd (process ")
        assert gpushim(command).exit_code == 0
        found = said("containerd")
        # `config dump` reads the file; that it is younger than the process counts from a few seconds on only.
        assert [found[name].verdict for name in names[:3]] == ["ok", "ok", "ok"]
    with containerd(state):
        assert [said("containerd")[name].verdict for name in names] == ["ok", "ok", "ok", "ok"]
        config.unlink()
        found = said("containerd")
        assert "which no longer exists" in found["containerd-daemon"].evidence
        assert gpushim(found["containerd-daemon"].fix.partition("; then ")[0]).exit_code == 0
        assert said("containerd")["containerd-daemon"].verdict == "ok"


def test_podman_reads_its_settings_even_to_say_its_version(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "containers.conf"
    config.write_text("[engine")
    monkeypatch.setenv("CONTAINERS_CONF", str(config))
    found = said("podman")["podman-program"]
    assert (found.verdict, found.fix) == ("broken", f"correct {config}")
    config.write_text("[engine]\n")
    assert said("podman")["podman-program"].verdict == "ok"
