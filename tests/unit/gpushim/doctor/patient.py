"""A simulated GPU host with all four engines on it, on which everything is as it should be; tests then break it.

Programs of engines are small scripts, and what dockerd answers is a dict. All of it is below one directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

import fakehost
from gpushim.config import policy
from gpushim.doctor import Finding, Host, checks
from gpushim.engines.processes.running import Engine
from gpushim.ground.errors import GpushimError
from unit.gpushim.inventory.machine import Machine

REPOSITORY = Path(__file__).resolve().parents[4]
RUNTIME, HOOK = REPOSITORY / "bin/gpushim-runtime", REPOSITORY / "bin/gpushim-hook"
NVIDIA_HOOK = "nvidia-container-runtime-hook"
POLICY = """[runtime]
low-level = ["{top}/usr/sbin/runc"]
[log]
file = "{top}/var/log/gpushim.log"
[cdi]
spec-dirs = ["{folder}/etc-cdi", "{folder}/state/cdi"]
[refresh]
deadline-seconds = {seconds}
"""
CONTAINERD = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "{runtime}"
SystemdCgroup = true
"""
INFO = {
    "ServerVersion": "28.5.2",
    "CgroupDriver": "systemd",
    "DefaultRuntime": "runc",
    "Runtimes": {"nvidia": {"path": str(RUNTIME)}, "runc": {"path": "runc"}},
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
    "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}],
}

# What containerd makes of its file and the ones that this imports.
MERGE = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from gpushim.engines.settings import toml
print(toml.written(toml.merged([os.path.abspath("containerd.toml"), os.path.abspath("conf.d")])))
""".replace("'", '"')


class Patient(Machine):
    patch: pytest.MonkeyPatch
    kept: Optional[socket.socket] = None
    keeper: Any = None  # holds the lock of one that keeps the snapshot
    kept_open: Optional[contextlib.ExitStack] = None  # what is closed when the test ends

    def __init__(self, folder: Path, *, refreshed: bool = True) -> None:
        super().__init__(folder)
        self.top = folder / "host"
        self.info: dict[str, Any] = json.loads(json.dumps(INFO))
        self.gpus = self.host_of(seconds=20)
        self.host = Host(top=self.root, config=self.config, state=self.state)
        self.lay_out()
        if refreshed:
            self.listed()
        self.reread()
        self.host.engines = self.engines()

    def host_of(self, seconds: int) -> fakehost.Host:
        more = POLICY.format(top=self.root, folder=self.folder, seconds=seconds)
        (self.top / "var/log").mkdir(parents=True, exist_ok=True)
        self.script("usr/sbin/runc", "echo runc version 1.3.6")
        return self.build(2, more)

    def reread(self) -> None:
        """Read config.toml as `doctor.look` does."""
        self.host.problem = ""
        try:
            self.host.settings = policy.load(self.config)
        except GpushimError as error:
            self.host.problem, self.host.settings = str(error), policy.usable(self.config)

    def lay_out(self) -> None:
        self.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
        self.write("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
        self.write("etc/docker/daemon.json", json.dumps({"runtimes": {"nvidia": {"path": str(RUNTIME)}}}))
        self.write("etc/containers/containers.conf", '[engine.runtimes]\nnvidia = ["/usr/bin/gpushim-runtime"]\n')
        self.write("etc/os-release", 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
        self.write("containerd.toml", CONTAINERD.format(runtime=RUNTIME))
        self.script("usr/bin/podman", "echo podman version 5.4.2")
        self.script(
            "usr/bin/containerd",
            f'[ "$1" = --version ] && echo containerd x v2.1.9 && exit; cd {self.top}; '
            f"[ -e conf.d/99-gpushim.toml ] || exec cat containerd.toml; exec {sys.executable} -IBc '{MERGE}'",
        )
        self.script("usr/bin/dockerd", "echo Docker version 28.5.2, build x")
        self.script("usr/bin/kubectl", """echo '{"items": [{"handler": "nvidia"}]}'""")
        self.write("etc/kubernetes/admin.conf", "")
        self.write("etc/systemd/system/gpushim-refresh.service", "")
        (self.top / "run/systemd/system").mkdir(parents=True)
        (self.top / "var/lib/kubelet/device-plugins").mkdir(parents=True)
        os.symlink("/usr/bin/python3", self.top / "usr/bin/python3")
        os.symlink(HOOK, self.top / "usr/bin" / NVIDIA_HOOK)
        for name in ("usr/bin", "usr/sbin"):
            os.symlink(RUNTIME, self.top / name / RUNTIME.name)

    def engines(self) -> list[Engine]:
        now = time.time() + 60  # they start after all that is there
        path = {"PATH": f"{self.root}/usr/sbin:{self.root}/usr/bin"}
        config = f"{self.root}/etc/docker/daemon.json"
        docker = Engine(
            "dockerd",
            40,
            exe=f"{self.root}/usr/bin/dockerd",
            config=config,
            started=now,
            unit="docker.service",
            environ=path,
        )
        exe, config = f"{self.root}/usr/bin/containerd", f"{self.root}/containerd.toml"
        unit = "containerd.service"
        return [docker, Engine("containerd", 41, exe=exe, config=config, started=now, unit=unit, environ=path)]

    def docker(self, _socket: str, _what: str, _seconds: float = 0) -> dict[str, Any]:
        return self.info

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Let nvidia-persistenced and a device plugin listen."""
        with contextlib.ExitStack() as stack:
            self.kept_open = self.kept_open or stack
            plugins = ("nvidia-gpu.sock", "kubelet.sock")
            for place in (
                "run/nvidia-persistenced/socket",
                *(f"var/lib/kubelet/device-plugins/{name}" for name in plugins),
            ):
                server = stack.enter_context(socket.socket(socket.AF_UNIX))
                folder, name = os.path.split(f"{self.root}/{place}")
                (self.top / place).unlink(missing_ok=True)
                fd = os.open(folder, os.O_PATH)
                server.bind(f"/proc/self/fd/{fd}/{name}")
                os.close(fd)
                server.listen()
            yield
            if self.kept:
                self.kept.close()

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def script(self, name: str, text: str) -> Path:
        (self.top / name).unlink(missing_ok=True)
        return self.write(name, f"#!/bin/sh\n{text}\n", 0o755)

    def examined(self, *named: str) -> list[Finding]:
        self.host.named = named
        self.host.answers.clear()
        return checks.run(self.host)

    def said(self, check: str, *named: str) -> list[Finding]:
        """Run one check."""
        self.host.named = named
        self.host.answers.clear()
        return checks.judge(check, checks.table(named)[check], self.host)

    def complaints(self, *named: str) -> dict[str, Finding]:
        """Return what is not well, by the name of the check; the first finding of each."""
        bad = [found for found in self.examined(*named) if found.verdict in ("warning", "broken")]
        return {found.check: found for found in reversed(bad)}
