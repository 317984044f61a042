"""What a container reaches of the host's services: the sockets that it is lent, whatever others do, and no more.

Whoever owns a socket's directory can put anything under its name, at any moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import engines, hostile_places
from e2e.bundles import Bundle
from e2e.cdihooks import run
from e2e.hostile_places import Place
from e2e.silentfs import silent
from e2e.test_races import racer
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from fakehost import Host, tree

WAYS = ("shim", "hook", "cdi")
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


@pytest.mark.parametrize("way", WAYS)
def test_a_service_that_listens(services: Services, way: str) -> None:
    services.refresh()
    assert services.reached(way) == {"data": False, f"/{PERSISTENCED}": "socket"}


@pytest.mark.parametrize("way", WAYS)
def test_a_service_that_starts_stops_and_starts_again(services: Services, way: str) -> None:
    """The list of the host's GPUs has nothing to do with it, nor has an earlier container."""
    shutil.rmtree(services.socket.parent)
    services.refresh()
    assert services.reached(way) == {"data": False}
    for _ in range(2):
        with listening(services.socket, SERVICE):
            os.chown(services.socket.parent, SERVICE, SERVICE)
            assert services.reached(way) == {"data": False, f"/{PERSISTENCED}": "socket"}
        assert services.reached(way) == {"data": False}  # its socket is there, and nobody listens
        shutil.rmtree(services.socket.parent)
        assert services.reached(way) == {"data": False}


def a_link(services: Services, path: Path) -> None:
    path.symlink_to("../docker.sock")


def a_hard_link(services: Services, path: Path) -> None:
    os.link(services.docker, path)  # for users only where fs.protected_hardlinks is 0


def a_link_for_the_directory(services: Services, path: Path) -> None:
    path.parent.rmdir()
    (services.run / "sockets").mkdir()
    os.link(services.docker, services.run / "sockets/socket")
    path.parent.symlink_to("sockets")


def everybodys_directory(services: Services, path: Path) -> None:
    os.link(services.docker, path)
    os.chown(path.parent, 0, 0)
    path.parent.chmod(0o1777)


def a_directory(services: Services, path: Path) -> None:
    path.mkdir()
    os.link(services.docker, path / "docker.sock")


TRICKS = [a_link, a_hard_link, a_link_for_the_directory, everybodys_directory, a_directory]


@pytest.mark.parametrize("when", ["before the list", "after it"])
@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("way", WAYS)
def test_another_services_socket_under_its_name(
    services: Services, way: str, trick: Callable[[Services, Path], None], when: str
) -> None:
    """T-LENT: what is mounted is a socket of who owns its directory, or nothing."""
    for step in ("list", "trick") if when == "after it" else ("trick", "list"):
        if step == "list":
            services.refresh()
        else:
            services.socket.unlink()
            trick(services, services.socket)
    listed = services.snapshot.stat().st_mtime_ns
    assert services.reached(way) == {"data": False}
    assert services.snapshot.stat().st_mtime_ns == listed  # nobody has a create list the GPUs again


@pytest.mark.parametrize("where", ["runc 1.3, v2", "crun of sid, v2"])
@pytest.mark.parametrize("way", WAYS)
def test_other_low_level_runtimes(
    services: Services, busybox_tree: Path, tmp_path: Path, way: str, where: str
) -> None:
    """T-LENT: a service of a user's is reached, and nothing that it puts in its socket's place."""
    (tmp_path / "place").mkdir()
    with hostile_places.place(where, tmp_path / "place", services.host) as place:
        there, number = services.at(place), services.socket.stat().st_ino
        there.bundle.plain["root"]["path"] = str(shutil.copytree(busybox_tree, tmp_path / "plain", symlinks=True))
        sockets = ["sh", "-c", "find /run -type s -exec stat -c '%i %n' '{}' ';'"]
        assert there.said(way, sockets) == f"{number} /{PERSISTENCED}\n"
        services.socket.unlink()
        a_link(services, services.socket)
        assert there.said(way, sockets) == ""


@pytest.mark.parametrize("way", WAYS)
def test_a_race_for_the_name(services: Services, tmp_path: Path, way: str) -> None:
    """T-LENT: nor has it to wait, nor is it refused, whatever the service's user does meanwhile."""
    services.refresh()
    listed = services.snapshot.stat().st_mtime_ns
    other = services.socket.with_name("other")
    other.symlink_to("../docker.sock")
    (tmp_path / "go").touch()
    with racer(tmp_path, services.socket, other) as count:
        for _ in range(5):
            assert services.reached(way).get(f"/{PERSISTENCED}", "socket") == "socket"
    assert int.from_bytes(count[:], "little") > 1000
    assert services.snapshot.stat().st_mtime_ns == listed


@pytest.mark.parametrize("way", WAYS)
def test_a_file_system_of_the_services_user_that_does_not_answer(services: Services, way: str) -> None:
    """T-LENT: FUSE with allow_other has whoever looks wait for its server."""
    services.refresh()
    with silent(services.socket.parent):
        assert services.reached(way) == {"data": False}
    assert "persistenced" in services.log.read_text()


@pytest.mark.parametrize("nodes", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_gpudirect_storage_brings_no_socket_of_udevs(services: Services, way: str, nodes: bool) -> None:
    """T-LENT: an image's variable reached root's udevd."""
    if nodes:
        tree.make_node(services.host.node("nvidia-fs0"), 510, 0, 0o666, 0, 0)
    (services.run / "udev/data").mkdir(parents=True, exist_ok=True)
    with listening(services.run / "udev/control", kind=socket.SOCK_SEQPACKET):
        services.refresh()
        said = services.reached(way, "NVIDIA_GDS=enabled")
    assert said == {"data": nodes, f"/{PERSISTENCED}": "socket"}
