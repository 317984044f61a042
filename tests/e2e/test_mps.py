"""MPS: who gets the control daemon's directory, and that nobody gets another one by its name.

The daemon is a socket of the test's own: CUDA's protocol is not needed to see that a container reaches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import cdihooks, standalone, trees
from e2e.bundles import Bundle
from e2e.hostile_places import Place
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host

PIPES = "/run/nvidia-mps"
ENABLED = "[mps]\nenabled = true\n"
HELLO = "hello from the daemon"
# What a client does: it connects, or writes to a FIFO. What it has no need to do, and may not.
TALK = f"""
import errno, os, socket
client = socket.socket(socket.AF_UNIX)
client.connect("{PIPES}/control")
print(client.makefile().read())
fifo = os.open("{PIPES}/said", os.O_WRONLY)
os.write(fifo, b"said in the container")
print(*(name for name in ("control", "server") if os.access("/usr/bin/nvidia-cuda-mps-" + name, os.X_OK)))
print(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
tries = [lambda: os.open("{PIPES}/new", os.O_CREAT), lambda: os.mkdir("{PIPES}/new")]
tries += [lambda: os.unlink("{PIPES}/said"), lambda: os.chmod("{PIPES}/control", 0o6755)]
tries += [lambda: os.rename("{PIPES}/said", "{PIPES}/control")]
for each in tries:
    try:
        print("done", each())
    except OSError as error:
        print(errno.errorcode[error.errno], end=" ")
"""
SAID = [HELLO, "control server", PIPES, "EROFS EROFS EROFS EROFS EROFS"]


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
        os.mkfifo(directory / "said")
        yield directory
        server.shutdown(socket.SHUT_RDWR)


def _greet(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test is over
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(HELLO.encode())


@contextlib.contextmanager
def heard(directory: Path) -> Iterator[None]:
    """Hold the FIFO open, as the daemon does, and assert that it is written to in the block."""
    fd = os.open(directory / "said", os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
        assert os.read(fd, 100) == b"said in the container"
    finally:
        os.close(fd)


def bundle(host: Host, root: Path, tmp_path: Path, mps: str = ENABLED, place: Place | None = None) -> Bundle:
    env = settings(tmp_path, host.root)
    with open(env["GPUSHIM_CONFIG"], "a", encoding="utf-8") as config:
        config.write(mps)
    return Bundle(tmp_path / "bundle", root, env, runtime=(place.top if place else TOP) / "bin" / "gpushim-runtime")


def ignored(tmp_path: Path) -> list[str]:
    """Return what the log says was left out of the last container."""
    line = json.loads((tmp_path / "gpushim.log").read_text().splitlines()[-1])
    return list(line.get("ignored", []))


@pytest.mark.parametrize("env", [[], [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}"], ["NVIDIA_DRIVER_CAPABILITIES=compute"]])
def test_a_container_reaches_the_daemon_and_can_change_nothing(
    host: Host, daemon: Path, debian_root: Path, tmp_path: Path, env: list[str]
) -> None:
    one = bundle(host, debian_root, tmp_path)
    one.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["python3", "-c", TALK])
    with heard(daemon):
        assert [line.strip() for line in one.run().stdout.splitlines()] == SAID
    assert sorted(path.name for path in daemon.iterdir()) == ["control", "nvidia-cuda-mps-control.pid", "said"]
    assert ignored(tmp_path) == []


def test_the_hook_alone_brings_it_too(host: Host, daemon: Path, debian_root: Path, tmp_path: Path) -> None:
    one = bundle(host, debian_root, tmp_path)
    env = ["NVIDIA_VISIBLE_DEVICES=0", f"CUDA_MPS_PIPE_DIRECTORY={PIPES}"]
    standalone.alone(one, *env, args=["python3", "-c", TALK])
    with heard(daemon):
        assert [line.strip() for line in cdihooks.run(one).stdout.splitlines()] == SAID


def with_daemon(tmp_path: Path, mps: bool = True) -> Host:
    """Build a host of a test's own, with what a daemon leaves or without."""
    return fakehost.build(str(tmp_path / "host"), 1, mps=mps, compile_cache=str(TOP / ".cache" / "fakehost"))


def copied(busybox_tree: Path, tmp_path: Path) -> Path:
    return shutil.copytree(busybox_tree, tmp_path / "root", symlinks=True)


def test_no_program_gets_into_the_directory(place: Place, busybox_tree: Path, tmp_path: Path) -> None:
    """A setuid program that a container's root leaves there would be one of the host."""
    host = with_daemon(tmp_path)
    one = bundle(host, copied(busybox_tree, tmp_path), tmp_path, place=place)
    script = f"cp /bin/sh {PIPES}/sh && chmod 4755 {PIPES}/sh; ls {PIPES}/control"
    one.ask("NVIDIA_VISIBLE_DEVICES=0", args=["sh", "-c", script])
    one.run()
    assert not Path(host.root + PIPES, "sh").exists()


def mounts(one: Bundle) -> list[dict[str, Any]]:
    """List the mounts of config.json that the shim added."""
    before = [mount["destination"] for mount in one.plain["mounts"]]
    return [mount for mount in one.spec["mounts"] if mount["destination"] not in before]


@pytest.mark.parametrize(
    "env",
    [
        [PIPES],
        [PIPES + "/"],
        ["/tmp/nvidia-mps"],
        ["/root"],
        ["/"],
        ["/etc"],
        ["/tmp"],
        ["run/nvidia-mps"],
        [f"{PIPES}/../../root"],
        [f"{PIPES}/."],
        [f"{PIPES}:/root"],
        [PIPES, "/root"],
        [""],
        [],
    ],
    ids=lambda env: env[-1] if env else "unset",
)
def test_an_image_gets_no_directory_by_naming_it(
    place: Place, busybox_tree: Path, tmp_path: Path, env: list[str]
) -> None:
    """Whoever administers the host says who takes part in MPS; a variable names nothing."""
    one = bundle(with_daemon(tmp_path), copied(busybox_tree, tmp_path), tmp_path, "", place)
    variables = [f"CUDA_MPS_PIPE_DIRECTORY={value}" for value in env]
    one.ask("NVIDIA_VISIBLE_DEVICES=0", *variables, args=["sh", "-c", "ls -A /root /run/nvidia-mps; true"])
    assert one.run().stdout == ""
    writable = [mount for mount in mounts(one) if "ro" not in mount["options"]]
    assert writable == []
    for mount in mounts(one):
        assert Path(mount["source"]).name not in ("", "root", "etc", "tmp", "nvidia-mps"), mount
    named = bool(env) and env[-1].rstrip("/") in (PIPES, "/tmp/nvidia-mps")
    rule = (
        "CUDA_MPS_PIPE_DIRECTORY does not let the container take part in the host's MPS while [mps] enabled is false"
    )
    assert ignored(tmp_path) == [rule] * named


def test_the_image_has_a_link_in_the_place_of_the_directory(
    host: Host, daemon: Path, busybox_tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "canary").mkdir()
    busybox_root = copied(busybox_tree, tmp_path)
    (busybox_root / "run").mkdir(exist_ok=True)
    (busybox_root / "run/nvidia-mps").symlink_to("../../canary")
    one = bundle(host, busybox_root, tmp_path)
    one.ask("NVIDIA_VISIBLE_DEVICES=0", args=["sh", "-c", f"echo > {PIPES}/x; true"])
    one.run(check=False)
    assert list((tmp_path / "canary").iterdir()) == []


# What the directory is, and what is said then; the sentence goes on with what fixes it.
TROUBLES = {
    "no daemon": "no control daemon has its pipes in /run/nvidia-mps; start it with CUDA_MPS_PIPE_DIRECTORY=",
    "no control": "no control daemon has its pipes in /run/nvidia-mps",
    "a link": "/run/nvidia-mps is no directory, or a link to one; start the daemon with",
    "a file": "/run/nvidia-mps is no directory, or a link to one",
    "another user's": "/run/nvidia-mps belongs to user 1000, not root",
    "everybody's": "users other than root can write to /run/nvidia-mps",
    "below a directory of everybody's": "users other than root can write to /run",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_without_a_daemon_that_can_be_trusted_there_is_no_directory(
    place: Place, busybox_tree: Path, tmp_path: Path, trouble: str
) -> None:
    host = with_daemon(tmp_path, mps=False)
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
    if "everybody" in trouble:
        (directory.parent if "below" in trouble else directory).chmod(0o1777)
    one = bundle(host, copied(busybox_tree, tmp_path), tmp_path, place=place)
    one.ask("NVIDIA_VISIBLE_DEVICES=0", args=["sh", "-c", f"ls {PIPES}; true"])
    assert one.run().stdout == ""
    (sentence,) = ignored(tmp_path)
    assert sentence.startswith("no container takes part in MPS: " + TROUBLES[trouble])


def test_a_daemon_that_starts_later_is_seen(busybox_tree: Path, tmp_path: Path) -> None:
    host = with_daemon(tmp_path, mps=False)
    one = bundle(host, copied(busybox_tree, tmp_path), tmp_path)
    one.ask("NVIDIA_VISIBLE_DEVICES=0", args=["sh", "-c", f"ls {PIPES}; true"])
    assert one.run().stdout == ""
    os.mkdir(host.root + PIPES)
    os.mkfifo(f"{host.root}{PIPES}/control")
    one.ask("NVIDIA_VISIBLE_DEVICES=0", args=["ls", PIPES])
    assert one.run().stdout == "control\n"
