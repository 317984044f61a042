"""What a container reaches of the host's services: the sockets that it is lent, whatever others do, and no more.

Whoever owns a socket's directory can put anything under its name, at any moment.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import hostile_places
from e2e.races import racer
from e2e.services import PERSISTENCED, SERVICE, Services, listening
from e2e.services import services as services
from e2e.silentfs import silent
from fakehost import tree

WAYS = ("shim", "hook", "cdi")


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
