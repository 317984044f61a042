"""A host with services whose sockets containers are lent."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import engines
from e2e.bundles import Bundle
from e2e.cdihooks import run
from e2e.hostile_places import Place
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from fakehost import Host

PERSISTENCED = "run/nvidia-persistenced/socket"
SERVICE = 1000  # the user of nvidia-persistenced
# Connects to each socket below /run; says what answers there, and whether udev's database is there.
REACH = """
import json, os, socket, stat
said = {"data": os.path.isdir("/run/udev/data")}
for folder, _, names in os.walk("/run"):
    for path in [os.path.join(folder, name) for name in names]:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET) if stat.S_ISSOCK(os.lstat(path).st_mode) else ():
            with socket.socket(socket.AF_UNIX, kind) as client:
                try:
                    client.connect(path)
                    said[path] = client.recv(100).decode()
                except OSError:
                    pass
print(json.dumps(said))
"""


@contextlib.contextmanager
def listening(path: Path, user: int = 0, kind: int = socket.SOCK_STREAM) -> Iterator[None]:
    """Let a service of a user's listen: it says its path. A second one at that path takes the first one's place."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")  # an address has room for 107 bytes only
        os.close(folder)
        os.chown(path, user, user)
        path.chmod(0o666)
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as client:
                        client.send(path.name.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


class Services:
    """A host with services, and a container on it.

    Args:
        host: with one GPU.
        bundle: of the container, with the host's settings.
    """

    def __init__(self, host: Host, bundle: Bundle) -> None:
        self.host, self.bundle, self.top, self.run = host, bundle, TOP, Path(host.root, "run")
        self.socket, self.docker = Path(host.root, PERSISTENCED), self.run / "docker.sock"
        self.program, self.folder = RUNC, Path(bundle.env["GPUSHIM_CONFIG"]).parent
        self.snapshot, self.log = self.folder / "state/inventory.json", self.folder / "gpushim.log"

    def of(self, place: Place) -> Services:
        """Have another checkout's programs run."""
        self.top = place.top
        return self

    def at(self, place: Place) -> Services:
        """Return the same host in another place."""
        self.bundle.env, self.bundle.prefix = place.env, place.prefix
        found = Services(self.host, self.bundle).of(place)
        found.program = place.program
        found.log.touch()
        return found

    def refresh(self) -> None:
        """Let gpushim list the host's GPUs, and write their CDI spec."""
        env = {"PATH": engines.SYSTEM_PATH, **self.bundle.env}
        engines.run([str(self.top / "bin/gpushim"), "refresh", "--force"], env=env)

    def reached(self, way: str, *env: str) -> dict[str, Any]:
        """Return what a container with GPU 0 reaches; `way` is who applies the plan."""
        found: dict[str, Any] = json.loads(self.said(way, ["python3", "-c", REACH], *env))
        return found

    def said(self, way: str, args: list[str], *env: str) -> str:
        """Return what a container with GPU 0 says."""
        members: dict[str, Any] = {}
        if way == "hook":
            name, variables = (
                "nvidia-container-runtime-hook",
                [f"{key}={value}" for key, value in self.bundle.env.items()],
            )
            hook = {"path": str(self.top / "bin" / name), "args": [name, "prestart"]}
            members["hooks"] = {"prestart": [{**hook, "env": ["PATH=/usr/bin:/bin", *variables]}]}
        elif way == "cdi":
            spec = json.loads((self.folder / "state/cdi/nvidia.com-gpu.json").read_text())
            named = [device for device in spec["devices"] if device["name"] in ("0", "gds")]
            edits = [each["containerEdits"] for each in (spec, *named[: 1 + bool(env)])]
            members["hooks"] = {"prestart": [hook for each in edits for hook in each.get("hooks", ())]}
        gpu = [] if way == "cdi" else ["NVIDIA_VISIBLE_DEVICES=0"]
        self.bundle.ask(*gpu, *env, args=args, **members)
        self.bundle.runtime = self.top / "bin/gpushim-runtime"
        done = self.bundle.run(check=False) if way == "shim" else run(self.bundle, self.program, check=False)
        assert done.returncode == 0, done.stderr + self.log.read_text()
        return done.stdout


@pytest.fixture
def services(debian_root: Path, tmp_path: Path) -> Iterator[Services]:
    """A host whose engine listens at /run/docker.sock, beside nvidia-persistenced's directory, its user's."""
    host = fakehost.build(str(tmp_path / "host"), 1, compile_cache=str(TOP / ".cache" / "fakehost"))
    os.chown(Path(host.root, PERSISTENCED).parent, SERVICE, SERVICE)
    (tmp_path / "gpushim.log").touch()
    found = Services(host, Bundle(tmp_path / "bundle", debian_root, settings(tmp_path, host.root)))
    with listening(found.docker), listening(found.socket, SERVICE):
        yield found
