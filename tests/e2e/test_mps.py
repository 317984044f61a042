"""MPS: who gets the control daemon's directory, and that nobody gets another one by its name.

The daemon is a socket of the test's own: CUDA's protocol is not needed to see that a container reaches it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import test_standalone, trees
from e2e.bundles import Bundle
from e2e.witness import settings
from fakehost import Host

PIPES = "/tmp/nvidia-mps"
HELLO = "hello from the daemon"
TALK = f"""
import os, socket
client = socket.socket(socket.AF_UNIX)
client.connect("{PIPES}/control")
print(client.makefile().read())
open("{PIPES}/from-the-container", "w").close()
print(*(name for name in ("control", "server") if os.access("/usr/bin/nvidia-cuda-mps-" + name, os.X_OK)))
print(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    root = tmp_path_factory.mktemp("mps") / "root"
    return fakehost.build(str(root), 1, mps=True, compile_cache=str(trees.TOP / ".cache" / "fakehost"))


@pytest.fixture(scope="module")
def daemon(host: Host) -> Iterator[Path]:
    """Its directory, where somebody says hello to everyone who calls."""
    directory = Path(host.root + PIPES)
    (directory / "control").unlink()
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{fd}/control")  # an address has room for 107 bytes only
        os.close(fd)
        server.listen()
        threading.Thread(target=_greet, args=(server,), daemon=True).start()
        yield directory
        server.shutdown(socket.SHUT_RDWR)


def _greet(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test is over
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(HELLO.encode())


def bundle(host: Host, root: Path, tmp_path: Path, mps: str = "") -> Bundle:
    env = settings(tmp_path, host.root)
    with open(env["GPUSHIM_CONFIG"], "a", encoding="utf-8") as config:
        config.write(mps)
    return Bundle(tmp_path / "bundle", root, env)


@pytest.fixture
def busybox_root(busybox_tree: Path, tmp_path: Path) -> Path:
    return shutil.copytree(busybox_tree, tmp_path / "root", symlinks=True)


@pytest.mark.parametrize(
    ("mps", "env"),
    [
        ("", [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}"]),
        ("", [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}/"]),
        ("[mps]\nenabled = true\n", []),
        ("", [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}", "NVIDIA_DRIVER_CAPABILITIES=compute"]),
    ],
    ids=["variable", "variable with a slash", "policy", "compute alone"],
)
def test_a_container_reaches_the_daemon(
    host: Host, daemon: Path, debian_root: Path, tmp_path: Path, mps: str, env: list[str]
) -> None:
    one = bundle(host, debian_root, tmp_path, mps)
    one.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["python3", "-c", TALK])
    said = one.run().stdout.splitlines()
    assert said[:2] == [HELLO, "control server"]
    assert said[2].rstrip("/") == PIPES
    (daemon / "from-the-container").unlink()


def test_the_hook_alone_brings_it_too(host: Host, daemon: Path, debian_root: Path, tmp_path: Path) -> None:
    one = bundle(host, debian_root, tmp_path)
    env = ["NVIDIA_VISIBLE_DEVICES=0", f"CUDA_MPS_PIPE_DIRECTORY={PIPES}"]
    test_standalone.alone(one, *env, args=["python3", "-c", TALK])
    assert test_standalone.run(one).stdout.splitlines() == [HELLO, "control server", PIPES]
    (daemon / "from-the-container").unlink()


def mounts(one: Bundle) -> list[dict[str, Any]]:
    """List the mounts of config.json that the shim added."""
    before = [mount["destination"] for mount in one.plain["mounts"]]
    return [mount for mount in one.spec["mounts"] if mount["destination"] not in before]


@pytest.mark.parametrize(
    "env",
    [
        ["CUDA_MPS_PIPE_DIRECTORY=/root"],
        ["CUDA_MPS_PIPE_DIRECTORY=/"],
        ["CUDA_MPS_PIPE_DIRECTORY=/etc"],
        ["CUDA_MPS_PIPE_DIRECTORY=/tmp"],
        ["CUDA_MPS_PIPE_DIRECTORY=tmp/nvidia-mps"],
        [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}/../../root"],
        [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}/."],
        [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}:/root"],
        [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}", "CUDA_MPS_PIPE_DIRECTORY=/root"],
        ["CUDA_MPS_PIPE_DIRECTORY="],
        [],
    ],
    ids=lambda env: env[-1].partition("=")[2] if env else "unset",
)
def test_an_image_gets_no_directory_by_naming_it(
    host: Host, daemon: Path, busybox_root: Path, tmp_path: Path, env: list[str]
) -> None:
    one = bundle(host, busybox_root, tmp_path)
    one.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["sh", "-c", "ls -A /root /tmp/nvidia-mps; true"])
    assert one.run().stdout == ""
    writable = [mount for mount in mounts(one) if "ro" not in mount["options"]]
    assert [mount["destination"] for mount in writable] == ["/run/nvidia-persistenced/socket"]
    for mount in mounts(one):
        assert Path(mount["source"]).name not in ("", "root", "etc", "tmp", "nvidia-mps"), mount


def test_the_image_has_a_link_in_the_place_of_the_directory(
    host: Host, daemon: Path, busybox_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "canary").mkdir()
    (busybox_root / "tmp/nvidia-mps").symlink_to("../../canary")
    one = bundle(host, busybox_root, tmp_path)
    env = ["NVIDIA_VISIBLE_DEVICES=0", f"CUDA_MPS_PIPE_DIRECTORY={PIPES}"]
    one.ask(*env, args=["sh", "-c", f"echo > {PIPES}/x; true"])
    one.run(check=False)
    assert list((tmp_path / "canary").iterdir()) == []
    (daemon / "x").unlink(missing_ok=True)


@pytest.mark.parametrize("trouble", ["no daemon", "no control", "a link", "a file", "another user's"])
def test_without_a_daemon_of_the_hosts_there_is_no_directory(
    busybox_root: Path, tmp_path: Path, trouble: str
) -> None:
    host = fakehost.build(str(tmp_path / "host"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    directory = Path(host.root + PIPES)
    if trouble == "a file":
        directory.write_text("")
    elif trouble != "no daemon":
        directory.mkdir()
        os.mkfifo(directory / ("other" if trouble == "no control" else "control"))
    if trouble == "a link":
        directory.rename(directory.with_name("elsewhere"))
        directory.symlink_to("elsewhere")
    if trouble == "another user's":
        os.chown(directory, 1000, 1000)
    one = bundle(host, busybox_root, tmp_path)
    env = ["NVIDIA_VISIBLE_DEVICES=0", f"CUDA_MPS_PIPE_DIRECTORY={PIPES}"]
    one.ask(*env, args=["ls", "/tmp"])
    assert one.run().stdout == ""
    assert "no MPS control daemon was found on this host" in Path(tmp_path / "gpushim.log").read_text()


def test_a_daemon_that_starts_later_is_seen(busybox_root: Path, tmp_path: Path) -> None:
    host = fakehost.build(str(tmp_path / "host"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    one = bundle(host, busybox_root, tmp_path)
    env = ["NVIDIA_VISIBLE_DEVICES=0", f"CUDA_MPS_PIPE_DIRECTORY={PIPES}"]
    one.ask(*env, args=["ls", "/tmp"])
    assert one.run().stdout == ""
    os.mkdir(host.root + PIPES)
    os.mkfifo(f"{host.root}{PIPES}/control")
    one.ask(*env, args=["ls", PIPES])
    assert one.run().stdout == "control\n"
