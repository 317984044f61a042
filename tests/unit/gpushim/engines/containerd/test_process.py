"""containerd as a program: its version, what it says of its settings and its CRI, and what `--verify` says."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines import containerd
from gpushim.engines.containerd import process
from gpushim.engines.containerd.process import Daemon
from gpushim.engines.processes import programs, running
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings.setup import Options, Plan
from gpushim.ground.errors import GpushimError
from unit.gpushim.engines.containerd.conftest import Call, write

pytestmark = pytest.mark.usefixtures("version")

ASK_VERSION = process._version
RUNC = {"runtime_type": "io.containerd.runc.v2"}
DUMP: dict[str, Any] = {"plugins": {"io.containerd.grpc.v1.cri": {"containerd": {"runtimes": {"runc": RUNC}}}}}
HAS = {"runtimes": {"nvidia": {**RUNC, "options": {"BinaryName": "/usr/bin/gpushim-runtime"}}}}
DUMP_WITH: dict[str, Any] = {"plugins": {"io.containerd.cri.v1.runtime": {"containerd": HAS, "enable_cdi": True}}}


@pytest.mark.parametrize(
    ("options", "dump", "answer", "expected"),
    [
        (Options(), DUMP_WITH, (None, ""), ""),
        (Options(cdi=True), DUMP_WITH, ("/usr/bin/gpushim-runtime", ""), ""),
        (Options(), DUMP, (None, ""), "does not read the runtime nvidia"),
        (
            Options(),
            {**DUMP_WITH, "disabled_plugins": ["io.containerd.grpc.v1.cri"]},
            (None, ""),
            "the CRI is disabled",
        ),
        (Options(default=True), DUMP_WITH, (None, ""), "the default runtime is None"),
        (Options(), DUMP_WITH, ("", ""), "the CRI does not have the runtime nvidia"),
        (Options(), DUMP_WITH, (None, "its CRI plugin is not running"), "its CRI plugin is not running"),
        (Options(remove=True), DUMP, (None, ""), ""),
        (Options(remove=True), DUMP_WITH, (None, ""), "still reads the runtime nvidia"),
        (Options(remove=True), DUMP, ("/usr/bin/gpushim-runtime", ""), "the CRI still has the runtime nvidia"),
    ],
)
def test_verify(
    options: Options,
    dump: dict[str, Any],
    answer: tuple[str | None, str],
    expected: str,
    engines: list[Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines.append(Engine("containerd", 7, started=1.0))
    monkeypatch.setattr(process, "dump", lambda daemon: dump)
    monkeypatch.setattr(process, "ask_cri", lambda daemon, dump, name: answer)
    assert expected in "".join(containerd.verify(options, Plan("/none")))
    assert bool(containerd.verify(options, Plan("/none"))) is bool(expected)


@pytest.mark.parametrize(
    ("later", "answer", "says"),
    [
        (60, (None, ""), "runs since before"),
        (0.2, (None, ""), "runs since before"),
        (0.01, (None, ""), "which of the two came first cannot be told apart; restart it"),
        (0.01, ("/usr/bin/gpushim-runtime", ""), ""),  # of the CRI that runs
        (-0.03, (None, ""), ""),
    ],
)
def test_verify_sees_that_containerd_runs_since_before(
    config: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, later: float, answer: Any, says: str
) -> None:
    write(config, "version = 2")
    os.utime(config, (0, 0))  # as `cp -p` leaves it
    engines.append(Engine("containerd", 7, started=config.stat().st_ctime - later))
    monkeypatch.setattr(process, "dump", lambda daemon: DUMP_WITH)
    monkeypatch.setattr(process, "ask_cri", lambda *_: answer)
    said = "".join(containerd.verify(Options(), Plan(str(config))))
    assert says in said if says else said == ""


def test_a_containerd_that_is_started_next_has_surely_read_the_change(config: Path, call: Call) -> None:
    write(config, "version = 2")
    assert call("containerd", config).exit_code == 0
    started = time.time() - 0.01  # as the kernel tells it at the most
    assert not Engine("containerd", 7, started=started).before(str(config), -running.TICKS)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", (1, 6)),
        ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376", (2, 1)),
        ("containerd github.com/k3s-io/containerd v2.1.5-k3s1", (2, 1)),
        ("containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", (1, 7)),
        ("k3s version v1.34.1+k3s1 (24fc436e)", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_the_version_of_the_running_program(
    printed: str, expected: tuple[int, int], tmp_path: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_version", ASK_VERSION)
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    engines.append(Engine("containerd", 7, exe=script(tmp_path / "containerd", f'echo "{printed}"')))
    assert process.find("").version == expected


def test_a_program_elsewhere_is_not_executed(
    tmp_path: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_version", ASK_VERSION)
    engines.append(Engine("containerd", 7, exe=script(tmp_path / "containerd", f"touch {tmp_path}/marker")))
    assert process.find("").version == (0, 0)
    with pytest.raises(GpushimError, match="link the program of the running one to /usr"):
        process.dump(process.find(""))
    assert not (tmp_path / "marker").exists()


def test_one_in_another_root_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have other names here; what the message advises works where it is."""
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    program = script(tmp_path / "containerd", f"touch {tmp_path}/marker")
    daemon = process.Daemon("/x.toml", Engine("containerd", 7, exe=program, root="/proc/7/root"))
    with pytest.raises(GpushimError, match=f"nsenter --target 7 --mount --root {program} config default` says"):
        process.dump(daemon)
    assert not (tmp_path / "marker").exists()


def test_settings_that_containerd_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    program = script(tmp_path / "containerd", "echo 'containerd: failed to load TOML' >&2; exit 1")
    daemon = process.Daemon("/etc/containerd/config.toml", Engine("containerd", 7, exe=program))
    with pytest.raises(GpushimError, match="failed to load TOML; it would not start either"):
        process.dump(daemon)


def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A containerd with a socket, and its clients in a directory of their own."""
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("x.sock")
    return Daemon("/x", Engine("containerd", 7, argv=("containerd", "-a", f"{tmp_path}/x.sock")))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ('{"config": {"containerd": {"runtimes": {"nvidia": {"options": {"BinaryName": "/a"}}}}}}', ("/a", "")),
        ('{"config": {"containerd": {"runtimes": {"runc": {}}}}}', ("", "")),
        ('{"config": {}}', (None, "")),
        ("no JSON", (None, "")),
    ],
)
def test_what_crictl_says(
    info: str, expected: tuple[str | None, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "crictl", f"echo '{info}'")
    daemon = listening(tmp_path, monkeypatch)
    assert process.ask_cri(daemon, {}, "nvidia") == expected


@pytest.mark.parametrize(("state", "wrong"), [("ok", False), ("error", True)])
def test_what_ctr_says(state: str, wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = f"io.containerd.grpc.v1           cri            linux/amd64    {state}"
    script(tmp_path / "ctr", f'[ "$1" = --address={tmp_path}/x.sock ] && echo "{row}"')
    daemon = listening(tmp_path, monkeypatch)
    program, trouble = process.ask_cri(daemon, {}, "nvidia")
    assert program is None
    assert bool(trouble) is wrong
