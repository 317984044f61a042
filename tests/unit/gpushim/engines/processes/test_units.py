"""Restarting: who is restarted how, and what follows, with stand-ins for systemctl and dockerd."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gpushim.engines.processes import programs, units
from gpushim.engines.processes.running import Engine
from gpushim.ground import system

Call = Callable[..., Result]


class Dockerd(socketserver.ThreadingUnixStreamServer):
    """Answers GET /info, of 20.10 unless told otherwise."""

    info: dict[str, Any]


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Dockerd)
        body = json.dumps(self.server.info).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return ""


@pytest.fixture
def dockerd(tmp_path: Path) -> Iterator[Dockerd]:
    with Dockerd(f"{tmp_path}/docker.sock", Answer) as server:
        server.info = {"ServerVersion": "20.10", "DefaultRuntime": "runc", "Runtimes": {"runc": {"path": "runc"}}}
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps({"hosts": ["fd://", f"unix://{tmp_path}/docker.sock"]}))
    return path


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes its arguments down."""
    path = tmp_path / "systemctl"
    path.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\n')
    path.chmod(0o755)
    monkeypatch.setattr(system, "SYSTEMD", str(tmp_path))
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    return path


NVIDIA = {"nvidia": {"path": "/x/gpushim-runtime"}}
BY_HAND = "restart dockerd (process 17) the way it was started"
SCRIPT, OPENRC, SSD = "etc/init.d/docker", "run/openrc/started/docker", "run/docker-ssd.pid"
SYSTEMD, SERVICE = "run/systemd/system/x", "usr/sbin/service"


@pytest.mark.parametrize(
    ("there", "engine", "named"),
    [
        ([SYSTEMD], None, "systemctl restart docker"),
        ([SYSTEMD, SCRIPT], Engine("dockerd", 17, unit="snap.docker.dockerd.service"), None),
        ([SYSTEMD], Engine("dockerd", 17, unit="docker.service", uid=7), "systemctl --user restart docker"),
        ([SYSTEMD, SCRIPT, SERVICE, SSD], Engine("dockerd", 17), BY_HAND),
        ([SCRIPT, SERVICE, SSD], Engine("dockerd", 17), "service docker restart"),
        ([SCRIPT, OPENRC], Engine("dockerd", 17), "/etc/init.d/docker restart"),
        ([SCRIPT, OPENRC], Engine("dockerd", 17, uid=7), BY_HAND),
        ([SCRIPT, SERVICE], Engine("dockerd", 17), BY_HAND),  # the script would start a second one
        ([SCRIPT, SERVICE], None, "service docker restart"),
        ([SERVICE, SSD], Engine("dockerd", 17), BY_HAND),
        ([], None, "restart docker the way this host starts it"),
        (["run/systemd/seats"], None, "restart docker the way this host starts it"),  # as elogind has it
    ],
)
def test_what_restarts_a_service(there: list[str], engine: Engine | None, named: str | None, tmp_path: Path) -> None:
    for name in there:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("17\n")
        path.chmod(0o755)
    found = units.fix("restart", "docker.service", engine, str(tmp_path))
    assert found == (named or "systemctl restart snap.docker.dockerd")


@pytest.mark.parametrize(
    ("result", "first"), [("start-limit-hit", "systemctl reset-failed docker && "), ("success", "")]
)
def test_a_unit_that_was_started_too_often_is_reset_first(result: str, first: str, tmp_path: Path) -> None:
    program = tmp_path / "usr/bin/systemctl"
    for folder in (program.parent, tmp_path / SYSTEMD):
        folder.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\ntest "$*" = "show --property=Result docker.service" && echo Result={result}\n')
    program.chmod(0o755)
    assert units.fix("start", "docker.service", top=str(tmp_path)) == f"{first}systemctl start docker"


def test_restart_and_verify(
    config: Path, call: Call, program: str, dockerd: Dockerd, systemctl: Path, engines: list[Engine], tmp_path: Path
) -> None:
    engines.append(Engine("dockerd", 1, unit="docker.service", config=str(config), uid=os.geteuid()))
    dockerd.info["Runtimes"]["nvidia"] = {"path": program}
    result = call("docker", config, "--restart")
    lines = [line for line in result.stdout.splitlines() if not line.startswith("note: ")]  # an old click's stderr
    assert lines == [f"changed {config}", "verified: Docker has the runtime nvidia"]
    user = "--user " if os.geteuid() else ""
    assert (tmp_path / "called").read_text() == f"{user}restart docker.service\n"


@pytest.mark.parametrize(
    ("options", "info", "missing"),
    [
        ([], {}, "dockerd 20.10 does not have the runtime nvidia"),
        (["--set-as-default"], {"Runtimes": NVIDIA}, "the default runtime is runc"),
        (["--cdi"], {}, "does not do CDI, which needs version 25"),
        (
            ["--cdi"],
            {"CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": [{"ID": "amd.com/gpu=0"}]},
            "dockerd finds no nvidia.com CDI device in /etc/cdi",
        ),
        (["--remove"], {"Runtimes": NVIDIA}, "still has the runtime nvidia"),
    ],
)
def test_what_verify_finds_missing(
    options: list[str], info: dict[str, Any], missing: str, config: Path, call: Call, dockerd: Dockerd
) -> None:
    dockerd.info |= info
    result = call("docker", config, "--verify", *options)
    assert str(result.exception).startswith("Docker is not verified: ")
    assert missing in str(result.exception)


def test_a_removed_runtime_is_verified_too(config: Path, call: Call, dockerd: Dockerd) -> None:
    result = call("docker", config, "--verify", "--remove")
    assert result.stdout == "verified: Docker no longer has the runtime nvidia\n"


def test_a_dockerd_that_does_not_come_up(
    config: Path, call: Call, monkeypatch: pytest.MonkeyPatch, engines: list[Engine]
) -> None:
    engines.append(Engine("dockerd", 1, config=str(config), uid=os.geteuid(), argv=("dockerd",)))
    monkeypatch.setattr("gpushim.engines.docker.dockerd.SECONDS", 0.3)
    assert "dockerd does not answer on" in str(call("docker", config, "--verify").exception)


@pytest.mark.parametrize(("configured", "has"), [(True, "has"), (False, "does not have")])
def test_verify_where_no_dockerd_runs(
    config: Path, call: Call, configured: bool, has: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and it says what was looked at all the same."""
    if configured:
        call("docker", config)
    monkeypatch.setattr("gpushim.engines.docker.dockerd.time.sleep", lambda _: pytest.fail("it waits for nobody"))
    named = str(call("docker", config, "--verify").exception)
    assert named == (
        f"Docker is not verified: no dockerd runs, so only {config} was looked at, which {has} the runtime nvidia; "
        "start dockerd, then try again"
    )


@pytest.mark.parametrize("option", ["--files-only", "--dry-run", "--restart", "--by-hand", "--force"])
def test_what_does_not_go_with_verify(config: Path, call: Call, option: str, dockerd: Dockerd) -> None:
    refused = call("docker", config, "--verify", option)
    assert refused.exit_code == 2
    assert f"leave out --verify or {option}" in refused.output


def test_verify_of_a_removal_takes_nothing_back(config: Path, call: Call, program: str, dockerd: Dockerd) -> None:
    call("docker", config)
    dockerd.info["Runtimes"]["nvidia"] = {"path": program}
    named = str(call("docker", config, "--verify", "--remove").exception)
    assert "still has the runtime nvidia; nothing was taken back, for --verify only asks" in named
    assert program in config.read_text()


def test_a_removal_says_that_the_engine_that_runs_has_it_still(
    config: Path, call: Call, systemctl: Path, engines: list[Engine]
) -> None:
    engines.append(Engine("dockerd", 1, unit="docker.service", config=str(config), uid=os.geteuid()))
    call("docker", config)
    named = call("docker", config, "--remove").output
    user = "--user " if os.geteuid() else ""
    assert f"Docker still has the old settings: restart it with `systemctl {user}restart docker.service`" in named
    assert "then --remove --verify asks it" in named


@pytest.mark.parametrize(
    "entry",
    [{"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "PROGRAM"}}, {"path": "COMPAT"}],
    ids=["by its type", "by a name of the compat package"],
)
def test_a_runtime_that_is_ours_by_another_way(
    entry: dict[str, Any], config: Path, call: Call, program: str, dockerd: Dockerd, tmp_path: Path
) -> None:
    """dockerd tells nothing of a runtime by type, and of a path just what the file says."""
    compat = tmp_path / "nvidia-container-runtime"
    compat.symlink_to(program)
    written = json.loads(json.dumps(entry).replace("PROGRAM", program).replace("COMPAT", str(compat)))
    config.write_text(json.dumps({**json.loads(config.read_text()), "runtimes": {"nvidia": written}}))
    dockerd.info["Runtimes"]["nvidia"] = {} if "runtimeType" in written else written
    assert call("docker", config, "--verify").stdout == "verified: Docker has the runtime nvidia\n"
    assert "still has the runtime nvidia" in str(call("docker", config, "--verify", "--remove").exception)


def test_a_restart_that_fails(config: Path, call: Call, systemctl: Path, engines: list[Engine]) -> None:
    engines.append(Engine("dockerd", 1, unit="docker.service", config=str(config), uid=os.geteuid()))
    systemctl.write_text("#!/bin/sh\necho Job for docker.service failed. >&2\nexit 1\n")
    error = str(call("docker", config, "--restart").exception)
    assert "restart docker.service` failed: Job for docker.service failed.;" in error


def test_an_engine_that_systemd_does_not_run(
    config: Path, call: Call, systemctl: Path, engines: list[Engine]
) -> None:
    engines.append(Engine("dockerd", 17, config=str(config), uid=os.geteuid(), argv=("dockerd",)))
    result = call("docker", config, "--restart")
    assert f"changed {config}" in result.stdout
    assert "restart dockerd (process 17) the way it was started, as systemd does not run it here" in str(
        result.exception
    )


def test_no_engine_reads_the_file(config: Path, call: Call, systemctl: Path, tmp_path: Path) -> None:
    """Another unit is not restarted for a file that it may not read."""
    assert "no running dockerd reads these settings" in str(call("docker", config, "--restart").exception)
    assert not (tmp_path / "called").exists()
